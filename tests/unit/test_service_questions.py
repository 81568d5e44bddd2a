"""Answers from State and history together: why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from consensus.log import Position
from cron import limits
from cron.api.jobs import JobsRequest, JobView
from cron.api.launches import (
    AuditReport,
    AuditRequest,
    HistoryQuery,
    LaunchView,
    WhyReport,
    WhyRequest,
)
from cron.errors import UnknownJob
from cron.history.store import RowStore
from cron.job import Overlap, Schedule
from cron.launch_state import LaunchState
from cron.leader.applier import StateApplier
from cron.pace import TURN_ITEMS
from cron.scheduler.forgetting import Forgetting
from cron.scheduler.views import Wait, WaitFor
from cron.service import jobs, launches, proofs
from cron.service.replica import Replica
from cron.state import commands as c
from cron.state.commands import Forget
from cron.state.pool import CloseGate, Gate, GateAction
from cron.state.state import State
from launcher.protocol.status import Reason
from tests.unit.pool_people_rig import FakeQueues
from tests.unit.state_rig import T0, StateRig, job, skips

JOB = "default/backup"


class HandClock:
    """A clock that stands."""

    def __init__(self) -> None:
        self.now_ms = T0 * 1000

    def wall_ms(self) -> int:
        return self.now_ms

    def mono_ms(self) -> int:
        return self.now_ms


class Machine:
    """The applier as what `StateRig` drives."""

    def __init__(self, applier: StateApplier) -> None:
        self._applier = applier

    @property
    def state(self) -> State:
        return self._applier.state

    def apply(self, term: int, index: int, entry: bytes) -> Any:
        return self._applier.apply(Position(term, index), entry)


class Asked(StateRig):
    """A State with its history, and questions to both."""

    def __init__(self, row_store: RowStore, overlap: Overlap) -> None:
        super().__init__(is_claimed=False)
        applier = StateApplier(row_store)
        self.machine: Any = Machine(applier)
        self.clock = HandClock()
        self.leader: Any = SimpleNamespace(epoch=None, queues=None, awaits_row=lambda _number: "")
        self.served = Replica(self.leader, applier, row_store, self.clock)
        self.append(c.Claim("2026b", "0.1.0", c.FORMAT))
        self.put(job(overlap=overlap))
        self.join()

    def run(self, second: int, **fields: Any) -> None:
        """Let a launch begin, start and succeed."""
        self.begin(second)
        self.launched(second)
        self.finished(second, **fields)

    async def history(self, query: HistoryQuery) -> list[LaunchView]:
        return await launches.listed(self.served, query)

    async def audit(self, name: str, since_ms: int) -> AuditReport:
        return await proofs.audit_jobs(self.served, AuditRequest(job=name, since_ms=since_ms))

    async def explained(self, second: int, *, is_nearest: bool = False) -> WhyReport:
        request = WhyRequest(job=JOB, at_s=T0 + second, is_nearest=is_nearest)
        return await proofs.why(self.served, request)

    async def why(self, second: int, *, is_nearest: bool = False) -> str:
        return (await self.explained(second, is_nearest=is_nearest)).verdict


@pytest.fixture
def row_store(tmp_path: Path) -> Iterator[RowStore]:
    made = RowStore()
    yield made
    made.stop()


async def test_a_replaced_launch_names_the_one_that_replaced_it(
    row_store: RowStore,
) -> None:
    rig = Asked(row_store, Overlap.REPLACE)
    rig.account(60)
    rig.begin(60)
    rig.launched(60)
    rig.account(120)
    rig.to(120).cancel(60, reason=Reason.REPLACED)
    rig.finished(60, state=LaunchState.CANCELLED, reason=Reason.REPLACED)
    newer = f"; the newer launch is {JOB}@2026-11-20T16:02:00Z"
    assert (await rig.why(60)).endswith(newer)  # it waits still
    rig.run(120)
    assert (await rig.why(60)).endswith(newer)
    assert "newer" not in await rig.why(120)


async def test_a_manual_launch_of_the_second_is_told_with_its_outcome(
    row_store: RowStore,
) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.to(60).account(60)
    rig.run(60)
    rig.trigger("first")
    rig.begin(60, trigger=1)
    assert (await rig.why(60)).endswith(
        f"{JOB}@2026-11-20T16:01:00Z+t1 by anna, begun and not over"
    )
    told = await rig.explained(60)
    assert [view.launch[-5:] for view in told.launches] == ["1:00Z", "0Z+t1"]
    assert told.verdict.startswith("it ran on e1, ")


async def test_a_queued_launch_tells_which_one_it_waits_for(row_store: RowStore) -> None:
    rig = Asked(row_store, Overlap.QUEUE)
    rig.account(60, 120)
    rig.begin(60)
    told = await rig.why(120)
    assert "waits to be begun: @2026-11-20T16:01:00Z is not over (overlap=queue)" in told


async def test_a_pause_is_told_when_it_is_long_over(row_store: RowStore) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.append(c.Pause((JOB,), "new disks", 0, "ann"))
    paused = c.Instants(T0 + 60, -1, False, Reason.PAUSED, 3, T0 + 180)
    rig.account(to=200, skipped=(paused,))
    rig.append(c.Resume((JOB,), "ann"))
    told = await rig.why(120)
    assert told.endswith("the job was paused by ann until somebody resumes it: new disks")


async def test_a_backfill_is_told_by_the_one_who_asked_for_it(row_store: RowStore) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.account(to=200, skipped=(c.Instants(T0 + 60, -1, False, Reason.MISSED, 3, T0 + 180),))
    rig.reopen(120, LaunchState.SKIPPED)
    assert (await rig.why(120)).endswith("; it was a backfill, anna asked for it")
    rig.run(120)
    assert (await rig.why(120)).endswith("and succeeded; it was a backfill, anna asked for it")
    assert "backfill" not in await rig.why(60)


async def test_the_nearest_instant_is_the_newest_not_after_the_time(
    row_store: RowStore,
) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.account(60, 120)
    rig.run(60)
    told = await rig.explained(119, is_nearest=True)
    assert (told.at_s, told.verdict[:13]) == (T0 + 60, "it ran on e1,")
    assert (await rig.explained(120, is_nearest=True)).at_s == T0 + 120
    assert "no instant of the schedule" in await rig.why(119)
    assert (await rig.explained(59, is_nearest=True)).at_s == T0 + 59  # none yet


async def test_the_nearest_instant_may_be_one_of_an_older_schedule(
    row_store: RowStore,
) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.account(60, to=90)
    rig.to(90).put(job(deadline_s=30), effective_s=T0 + 90)
    assert (await rig.explained(100, is_nearest=True)).at_s == T0 + 60


async def test_the_counts_of_an_audit_add_up(
    row_store: RowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.account(
        60, 120, to=600, skipped=(c.Instants(T0 + 180, -1, False, Reason.MISSED, 8, T0 + 600),)
    )
    rig.to(61).run(60)
    rig.to(301).reopen(300, LaunchState.SKIPPED)
    rig.run(300)
    rig.to(600).trigger("first")
    rig.clock.now_ms = (T0 + 601) * 1000
    whole = await rig.audit(JOB, 0)
    assert whole.violations == []
    assert (whole.instants, whole.ran, whole.skipped, whole.skipped_in_runs) == (10, 2, 0, 7)
    assert (whole.runs, whole.open, whole.extra_attempts, whole.manual) == (1, 1, 1, 1)
    assert whole.launches == 3
    monkeypatch.setattr(proofs, "WINDOW_MAX", 2)
    assert await rig.audit("", 0) == whole


async def test_an_audit_ends_in_time_and_says_what_it_did_not_prove(
    row_store: RowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.account(60, 120, to=600)
    rig.clock.now_ms = (T0 + 601) * 1000
    monkeypatch.setattr(proofs, "WINDOW_MAX", 2)  # several looks
    of_job, looks = row_store.of_job, []

    async def slowly(*given: object) -> list[object]:
        looks.append(given)
        rig.clock.now_ms += limits.AUDIT_MS_MAX // 2
        return await of_job(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(row_store, "of_job", slowly)
    report = await rig.audit("", 0)
    assert len(looks) == 2
    (unproven,) = report.violations
    assert unproven.kind == "unproven"
    assert unproven.message.startswith("1 of 1 jobs could not be audited within 15 s")


# ---- what waits in the pool


async def test_history_asks_the_queues_only_of_what_it_shows(row_store: RowStore) -> None:
    """A hundred thousand may wait, and each answer of a queue costs something."""
    rig = Asked(row_store, Overlap.ALLOW)
    seconds = list(range(60, 660, 60))
    rig.to(660).account(*seconds)
    queues = FakeQueues()
    queues.waits = {second: Wait(WaitFor.JOB_LIMIT, limit=second) for second in seconds}
    asked: list[int] = []
    queues.why = lambda key: asked.append(key[1] - T0) or queues.waits[key[1] - T0]  # type: ignore
    rig.leader.queues = queues
    views = await rig.history(HistoryQuery(limit=3))
    assert [view.scheduled_s - T0 for view in views] == [600, 540, 480]
    assert [view.waiting.split()[7] for view in views] == ["600", "540", "480"]
    assert asked == [600, 540, 480]


async def test_why_tells_of_a_closed_gate(row_store: RowStore) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.to(60).account(60)
    gate = Gate(0, GateAction.PAUSE, "disk full", "ada", 0, collection="", tenant="default")
    rig.append(CloseGate(gate))
    rig.clock.now_ms = rig.at_ms
    assert (await rig.why(60)).endswith("gate 1, closed by ada until it is opened: disk full")


# ---- what State has forgotten


async def forgetful(row_store: RowStore) -> Asked:
    """A cell whose job had another schedule in its first minute, of which history has no row."""
    rig = Asked(row_store, Overlap.ALLOW)
    rig.to(60).account(60)
    rig.skip(60)
    hourly = Schedule("0 * * * *", "0 * * * *")
    rig.put(job(schedule=hourly))
    rig.append(Forget((1,), T0 + 60))
    rig.clock.now_ms = rig.at_ms
    return rig


async def test_an_audit_says_up_to_when_schedules_are_forgotten(
    row_store: RowStore,
) -> None:
    rig = await forgetful(row_store)
    report = await rig.audit(JOB, 0)
    assert report.violations == []
    assert report.forgotten_until_ms == (T0 + 60) * 1000
    assert (await rig.audit(JOB, (T0 + 61) * 1000)).forgotten_until_ms == 0


@pytest.mark.parametrize("is_removed", [False, True])
async def test_an_audit_proves_a_new_cell_whole_though_its_next_leader_forgot_a_schedule(
    row_store: RowStore, is_removed: bool
) -> None:
    # The schedule was changed, or the job removed, before it had an instant. No history went.
    rig = Asked(row_store, Overlap.ALLOW)
    rig.put(job("other"))
    rig.to(30).account(to=30)
    hourly = Schedule("0 * * * *", "0 * * * *")
    if is_removed:
        rig.put(removed=(JOB,))
    else:
        rig.put(job(schedule=hourly))
    rig.to(60).account(60, number=2)
    rig.skip(60, number=2)
    rig.to(90)
    for command in Forgetting(rig.state).next(0):  # as each new leader does at once
        rig.append(command)
    rig.clock.now_ms = rig.at_ms
    assert rig.state.forgotten_s == (T0 + 30 if is_removed else 0)
    assert is_removed or len(rig.record().spans) == 2, "the schedule is still to be proven"
    report = await rig.audit("", 0)
    assert (report.violations, report.forgotten_until_ms) == ([], 0)
    rig.append(c.Seal(1))
    rig.append(c.Retire((), tuple(rig.state.history.segments)))
    for command in Forgetting(rig.state).next(0):
        rig.append(command)
    assert (await rig.audit("", 0)).forgotten_until_ms == (T0 + 30) * 1000


async def test_a_question_about_a_forgotten_schedule_is_answered_so(
    row_store: RowStore,
) -> None:
    rig = await forgetful(row_store)
    assert "is forgotten" in await rig.why(30)


async def test_history_of_a_removed_job_is_shown_though_its_record_is_forgotten(
    row_store: RowStore,
) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.to(60).account(60)
    rig.skip(60)
    rig.put(removed=(JOB,))
    rig.to(120).append(Forget((), 0, (1,)))
    assert JOB not in rig.state.jobs
    (view,) = await rig.history(HistoryQuery(job=JOB, limit=9))
    assert view.state == "skipped"
    report = await rig.audit("", 0)
    assert (report.jobs, report.violations) == (0, [])
    assert report.forgotten_until_ms == (T0 + 60) * 1000
    with pytest.raises(UnknownJob):
        await rig.history(HistoryQuery(job="default/never", limit=9))


async def test_a_range_that_a_merged_revision_skipped_is_expanded(
    row_store: RowStore,
) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.to(60).account(60)
    rig.skip(60)
    rig.put(job(deadline_s=99))  # the same instants
    rig.to(300).account(to=300, skipped=(skips(120, 300, 4),))
    views = await rig.history(HistoryQuery(job=JOB, limit=9))
    assert [view.scheduled_s - T0 for view in views] == [300, 240, 180, 120, 60]


class Nightly(Asked):
    """Three jobs, of which two are of a collection and two of a tenant; each ran twice."""

    def __init__(self, row_store: RowStore) -> None:
        super().__init__(row_store, Overlap.ALLOW)
        named = {"acme/a": "nightly", "acme/b": "", "default/c": "nightly"}
        jobs = [
            msgspec.structs.replace(job(collection=collection), name=name)
            for name, collection in named.items()
        ]
        self.put(*jobs, base=self.state.catalog)
        for number in (2, 3, 4):
            for second in (60, 120):
                self.account(second, number=number)
                self.begin(second, number=number)
                self.launched(second, number=number)
                self.finished(second, number=number)
        self.account(180, number=2)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"job": "acme/*"}, ["acme/a", "acme/a", "acme/a", "acme/b", "acme/b"]),
        ({"tenant": "acme"}, ["acme/a", "acme/a", "acme/a", "acme/b", "acme/b"]),
        ({"collection": "nightly"}, ["acme/a", "acme/a", "acme/a", "default/c", "default/c"]),
        ({"collection": "nightly", "tenant": "acme"}, ["acme/a"] * 3),
        ({"collection": "nightly", "job": "acme/b"}, []),
        ({"pool": "mail"}, []),
        ({"job": "default/c"}, ["default/c"] * 2),
    ],
)
async def test_history_takes_patterns_and_filters(
    row_store: RowStore, wanted: dict[str, str], found: list[str]
) -> None:
    rig = Nightly(row_store)
    views = await rig.history(HistoryQuery(**wanted))
    assert sorted(f"{view.tenant}/{view.job}" for view in views) == found
    times = [view.scheduled_s for view in views]
    assert times == sorted(times, reverse=True)
    newest = await rig.history(HistoryQuery(**wanted, limit=2))
    assert newest == views[:2]


async def test_a_pattern_that_matches_no_job_is_unknown(row_store: RowStore) -> None:
    with pytest.raises(UnknownJob, match="matches no job"):
        await Nightly(row_store).history(HistoryQuery(job="acme/x*"))


async def test_many_jobs_are_listed_in_turns_with_what_ticks(
    row_store: RowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, shown, stretches = Asked(row_store, Overlap.ALLOW), [0], [0]
    rig.put(*(job(f"j{number}") for number in range(3 * TURN_ITEMS)))
    of_job = jobs.of_job

    def counted(*given: Any, **how: Any) -> JobView:
        shown[0] += 1
        return of_job(*given, **how)

    async def tick() -> None:
        while True:
            before = shown[0]
            await asyncio.sleep(0)
            stretches.append(shown[0] - before)

    monkeypatch.setattr(jobs, "of_job", counted)
    ticking = asyncio.create_task(tick())
    views = await jobs.listed(rig.served, JobsRequest())
    await asyncio.sleep(0)  # the last stretch counts too
    ticking.cancel()
    assert len(views) == 3 * TURN_ITEMS + 1
    assert max(stretches) <= TURN_ITEMS


async def test_jobs_takes_filters_and_names_the_gate_that_decides(
    row_store: RowStore,
) -> None:
    rig = Nightly(row_store)
    gate = Gate(0, GateAction.PAUSE, "disk full", "ada", 0, collection="nightly")
    rig.append(CloseGate(gate))
    views = await jobs.listed(rig.served, JobsRequest(collection="nightly"))
    assert [view.name for view in views] == ["acme/a", "default/c"]
    assert [view.gate.reason if view.gate else "" for view in views] == ["disk full"] * 2
    views = await jobs.listed(rig.served, JobsRequest(tenant="acme"))
    assert [(view.name, view.gate is None) for view in views] == [
        ("acme/a", False),
        ("acme/b", True),
    ]

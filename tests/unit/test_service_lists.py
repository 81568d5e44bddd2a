"""`history`: one limit for all that is listed, pages, and attempts that were amended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from cron.api.launches import HistoryQuery, LaunchView, TriggerRequest, cursor_at
from cron.cli import launches
from cron.errors import Conflict, UnknownJob
from cron.history.store import RowStore
from cron.job import Overlap, Retry
from cron.launch_state import LaunchState
from cron.leader.leader import Leader
from cron.service import launches as service
from cron.service.replica import Replica
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.pool import Redrive
from launcher.protocol.status import Reason
from tests.unit.queues_rig import SECONDS
from tests.unit.state_rig import T0, job
from tests.unit.test_service_questions import JOB, Asked
from tests.unit.test_service_questions import row_store as row_store

S = LaunchState


def amended_in(row_store: RowStore) -> Asked:
    """Two launches that succeeded, and between them one that was lost and did so, too."""
    rig = Asked(row_store, Overlap.ALLOW)
    rig.to(180).account(60, 120, 180)
    rig.run(60)
    rig.begin(120)
    rig.launched(120)
    rig.lost(120)
    rig.run(180)
    rig.finished(120, exit_code=0)
    return rig


async def listed(rig: Asked, **fields: Any) -> list[tuple[int, str, str]]:
    views = await rig.history(HistoryQuery(**fields))
    return [(view.scheduled_s - T0, view.state, view.kind) for view in views]


async def test_an_amended_launch_is_listed_once_with_its_end(row_store: RowStore) -> None:
    rig = amended_in(row_store)
    assert await listed(rig) == [
        (180, "succeeded", "launch"),
        (120, "succeeded", "launch"),
        (60, "succeeded", "launch"),
    ]
    amended = (await rig.history(HistoryQuery()))[1]
    lost = rig.rows[1]
    assert amended.is_amended
    assert amended.amends == f"{lost.ended_index}.{lost.number}"
    assert (amended.executor, amended.begun_index) == ("e1", lost.begun_index)
    assert amended.term == 1


async def test_launches_of_the_cell_itself_lead_no_list_and_are_there_by_name(
    row_store: RowStore,
) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    own = "raftcron/heartbeat-ops"
    mine = msgspec.structs.replace(job(), name=own)
    assert rig.put(mine).verdict is Verdict.ACCEPTED
    number = rig.state.jobs[own].number
    rig.to(60).account(60)
    rig.run(60)
    for second in (120, 180, 240):
        rig.to(second).account(second, number=number)
        rig.begin(second, number=number)
        rig.finished(second, number=number)
    rig.to(300).account(300, number=number)
    rig.begin(300, number=number)
    assert [view.job for view in await rig.history(HistoryQuery(limit=2))] == ["backup"]
    begun = await rig.history(HistoryQuery(states=["begun"]))
    assert begun == []
    by_name = await rig.history(HistoryQuery(job=own))
    assert [view.scheduled_s - T0 for view in by_name] == [300, 240, 180, 120]
    for asked in (HistoryQuery(tenant="raftcron"), HistoryQuery(job="raftcron/*")):
        assert len(await rig.history(asked)) == 4


async def test_both_rows_of_an_amended_launch_are_there_to_be_asked_for(
    row_store: RowStore,
) -> None:
    rig = amended_in(row_store)
    assert (await listed(rig, is_all=True))[1:3] == [
        (120, "succeeded", "amendment"),
        (120, "lost", "launch"),
    ]


async def test_an_amended_launch_has_the_state_that_it_was_amended_to(
    row_store: RowStore,
) -> None:
    rig = amended_in(row_store)
    assert await listed(rig, states=["lost"]) == []
    assert len(await listed(rig, states=["succeeded"])) == 3
    assert await listed(rig, limit=2) == [
        (180, "succeeded", "launch"),
        (120, "succeeded", "launch"),
    ]
    report = await rig.audit(JOB, 0)
    assert report.violations == []


# ---- one limit


def paused_in(row_store: RowStore, jobs: int, seconds: int) -> Asked:
    """So many jobs of every second, all paused for as long, each with one row of that."""
    rig = Asked(row_store, Overlap.ALLOW)
    names = [f"j{number}" for number in range(jobs)]
    rig.put(*(job(name, schedule=SECONDS) for name in names))
    skipped = (c.Instants(T0 + 1, -1, False, Reason.PAUSED, seconds, T0 + seconds),)
    for name in names:
        record = rig.record(name)
        item = c.AccountLine(
            (record.number,), record.revision, record.horizon_s, T0 + seconds, (), skipped
        )
        rig.append(c.Account((item,)))
    return rig


async def test_long_pauses_of_many_jobs_are_listed_up_to_one_limit(
    row_store: RowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each range was expanded up to the limit: a hundred of them took 10 GiB."""
    rig = paused_in(row_store, jobs=50, seconds=5_000)
    shown = 0
    real = service.of_row

    def counted(row: Any) -> LaunchView:
        nonlocal shown
        shown += 1
        return real(row)

    monkeypatch.setattr(service, "of_row", counted)
    views = await rig.history(HistoryQuery(limit=1_000))
    assert len(views) == 1_000
    assert shown <= 1_000
    assert {view.scheduled_s for view in views} == {T0 + 5_000 - n for n in range(20)}


@pytest.mark.parametrize("size", [1, 3, 7, 64])
async def test_pages_hold_every_launch_once_in_one_order(row_store: RowStore, size: int) -> None:
    """Runs of skipped instants, launches of one second and one entry, open ones, amended ones."""
    rig = paused_in(row_store, jobs=3, seconds=20)
    rig.to(60).account(*range(2, 62, 4))
    rig.append(
        c.Skip(tuple(c.SkippedItem(key, Reason.DEADLINE) for key in list(rig.state.due)[:9]))
    )
    waiting = [key[1] - T0 for key in rig.state.due]
    rig.begin(waiting[0])
    rig.launched(waiting[0])
    rig.lost(waiting[0])
    rig.finished(waiting[0])
    whole = await rig.history(HistoryQuery(limit=500))
    assert len(whole) == 3 * 20 + 15
    pages: list[LaunchView] = []
    while True:
        after = cursor_at(pages[-1]) if pages else None
        page = await rig.history(HistoryQuery(limit=size, after=after))
        pages += page
        if len(page) < size:
            break
    assert pages == whole


async def test_a_pattern_is_of_the_jobs_within_the_callers_scope(row_store: RowStore) -> None:
    """Jobs beyond it cannot be guessed from an answer."""
    rig = Asked(row_store, Overlap.ALLOW)
    rig.put(*(job(f"j{number}") for number in range(6)))
    rig.account(60, number=rig.record("j1").number)
    views = await rig.history(HistoryQuery(job="default/j*", within=["default/j1"]))
    assert [view.job for view in views] == ["j1"]
    errors = []
    for pattern in ("default/j2*", "default/none*"):
        with pytest.raises(UnknownJob) as caught:
            await rig.history(HistoryQuery(job=pattern, within=["default/j1"]))
        errors.append(str(caught.value).replace(pattern, "*"))
    assert errors[0] == errors[1]


async def test_a_pattern_may_fit_any_number_of_jobs(row_store: RowStore) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.put(*(job(f"j{number:04}") for number in range(1_200)), job("other"))
    numbers = [rig.record(name).number for name in ("j0003", "j1150", "other")]
    for number in numbers:
        rig.account(60, number=number)
    items = tuple(c.SkippedItem((number, T0 + 60, 0), Reason.DEADLINE) for number in numbers)
    rig.append(c.Skip(items))
    views = await rig.history(HistoryQuery(job="default/j*", limit=5))
    assert {view.job for view in views} == {"j0003", "j1150"}
    views = await rig.history(HistoryQuery(tenant="default", limit=5))
    assert {view.job for view in views} == {"j0003", "j1150", "other"}


async def test_a_retry_that_waits_is_the_next_attempt(row_store: RowStore) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.put(job(retry=Retry(tries=5, backoff_ms=60_000), deadline_s=3_600))
    rig.to(60).account(60)
    for attempt in (1, 2):
        rig.to(100 * attempt).begin(60, attempt)
        rig.finished(60, attempt, state=S.FAILED, exit_code=1)
    views = await rig.history(HistoryQuery(job=JOB))
    assert [(view.attempt, view.state) for view in views] == [
        (3, "due"),
        (2, "failed"),
        (1, "failed"),
    ]
    pages = [
        (await rig.history(HistoryQuery(job=JOB, limit=1, after=after)))[0].attempt
        for after in (None, cursor_at(views[0]), cursor_at(views[1]))
    ]
    assert pages == [3, 2, 1]


async def test_pages_of_a_pattern_hold_every_launch_once(row_store: RowStore) -> None:
    """Launches of several jobs, of one second, that ended in one entry."""
    rig = Asked(row_store, Overlap.ALLOW)
    rig.put(*(job(f"j{number}") for number in range(6)))
    numbers = [rig.record(f"j{number}").number for number in range(6)]
    for number in numbers:
        rig.account(60, number=number)
    items = tuple(c.SkippedItem((number, T0 + 60, 0), Reason.DEADLINE) for number in numbers)
    rig.append(c.Skip(items))
    query = HistoryQuery(job="default/j*", limit=4)
    first = await rig.history(query)
    second = await rig.history(msgspec.structs.replace(query, after=cursor_at(first[-1])))
    assert sorted(view.job for view in first + second) == [f"j{number}" for number in range(6)]


class Server:
    """Answers like a leader."""

    def __init__(self, views: list[LaunchView]) -> None:
        self.views = views
        self.sizes: list[int] = []

    def ask(self, _rpc: Any, query: HistoryQuery) -> list[LaunchView]:
        self.sizes.append(query.limit)
        first = 0
        if query.after is not None:
            first = [cursor_at(view) for view in self.views].index(query.after) + 1
        return self.views[first : first + query.limit]


def test_the_command_line_asks_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches.limits, "HISTORY_PAGE_MAX", 4)
    name = "default/backup@2026-11-20T16:00:00Z"
    views = [
        LaunchView(launch=name, job="backup", tenant="default", scheduled_s=T0 - n)
        for n in range(11)
    ]
    server: Any = Server(views)
    assert launches._listed(server, HistoryQuery(limit=10)) == views[:10]
    assert server.sizes == [4, 4, 2]
    assert launches._listed(server, HistoryQuery(limit=50)) == views


# ---- dead letters


async def test_why_says_that_a_launch_became_a_dead_letter_and_that_it_was_redriven(
    row_store: RowStore,
) -> None:
    rig = Asked(row_store, Overlap.ALLOW)
    rig.put(job(retry=Retry(tries=2, fatal_codes=(7,))))
    rig.to(60).account(60)
    rig.begin(60)
    rig.finished(60, state=S.FAILED, exit_code=7)
    verdict = await rig.why(60)
    assert "it became a dead letter at 2026-11-20T16:01:00Z (failed)" in verdict
    assert f"`raftcron dead redrive '{JOB}@2026-11-20T16:01:00Z'`" in verdict
    rig.append(Redrive(((1, T0 + 60, 0),), "anna"))
    waiting = await rig.why(60)
    rig.begin(60, 2)
    rig.finished(60, 2)
    ended = await rig.why(60)
    for told in (waiting, ended):
        assert "backfill" not in told
        assert "it became a dead letter" not in told
        assert "it was a dead letter, anna redrove it" in told


class Triggering:
    """A leader that commits what is built, after `meanwhile`."""

    def __init__(self, rig: Asked, meanwhile: c.Command | None = None) -> None:
        self.rig = rig
        self.meanwhile = meanwhile
        admission = SimpleNamespace(admit=lambda *_: None)
        self.indexes = SimpleNamespace(queues=SimpleNamespace(admission=admission))
        self.epoch, self.queues = None, None

    def awaits_row(self, _number: int) -> str:
        return ""

    async def submit(self, build: Any) -> tuple[int, Any]:
        commands = build(self.rig.state, self.rig.at_ms)
        if self.meanwhile is not None:
            self.rig.append(self.meanwhile)
        return 0, self.rig.append(*commands).results


@pytest.mark.parametrize("at_the_same_time", [False, True])
async def test_a_request_id_of_another_job_is_refused(
    row_store: RowStore, at_the_same_time: bool
) -> None:
    """It was answered with a launch of a job that nobody had asked for, which does not exist."""
    rig = Asked(row_store, Overlap.ALLOW)
    rig.put(job("one"), job("two"))
    first = c.Trigger("default/one", "z1", "anna")
    if not at_the_same_time:
        rig.append(first)
    leader = Triggering(rig, first if at_the_same_time else None)
    rig.served = Replica(cast("Leader", leader), rig.served.applier, row_store, rig.clock)
    with pytest.raises(Conflict, match="request_id z1 was used for another job than default/two"):
        await service.trigger(rig.served, TriggerRequest(job="default/two", request_id="z1"))
    again = await service.trigger(rig.served, TriggerRequest(job="default/one", request_id="z1"))
    assert (again.job, again.attempt, again.state) == ("one", 0, "due")
    assert not rig.state.record_of("default/two").open

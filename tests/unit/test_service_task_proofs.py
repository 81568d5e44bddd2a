"""Why and audit of tasks: what became of one, and whether each has its launch and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from cron.api.launches import (
    TASKS_BEGIN,
    AuditReport,
    AuditRequest,
    HistoryQuery,
    WhyReport,
    WhyRequest,
)
from cron.api.queues import WaitQuery
from cron.api.tasks import CancelRequest
from cron.errors import NotNow, UnknownJob, UnknownTask
from cron.history.order import Query
from cron.launch_state import LaunchState
from cron.scheduler import job_filter
from cron.scheduler.job_filter import JobFilter
from cron.service import task_proofs
from cron.state import tasks as t
from cron.state.chains import ReleaseTasks
from cron.state.outcome import Verdict
from cron.state.rows import Row
from launcher.protocol.names import LaunchName
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0
from tests.unit.tasks_rig import task
from tests.unit.tasks_world import HANDLER, Rows, TasksWorld

NAME = f"default/{HANDLER}:a"


class History(Rows):
    """All rows that a world's entries wrote, without gaps."""

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.known.setdefault(row.job, []).append(row)

    async def of_launches(self, launches: Sequence[LaunchName]) -> dict[LaunchName, list[Row]]:
        return {one: self.known[one.job] for one in launches if one.job in self.known}

    async def newest(self, query: Query) -> list[Row]:
        names = [*self.known] if query.jobs is None else sorted(query.jobs)
        return [row for name in names for row in self.known.get(name, [])]

    def gaps(self) -> list[Any]:
        return []


class Proven(TasksWorld):
    """A world whose history follows its entries."""

    def __init__(self) -> None:
        super().__init__(History())

    def note(self) -> None:
        """Have history know the rows of the newest entry."""
        self.history.add(self.rig.outcome.rows)

    @property
    def history(self) -> History:
        rows: Any = self.rows
        return rows

    def run(self, key: str = "a", **ended: Any) -> None:
        """Have a task begin and end."""
        name = f"default/{HANDLER}:{key}"
        self.rig.items(t.ReadyTasks((self.state.tasks[name].number,)))
        record = self.state.record_of(name)
        assert record is not None
        second = record.horizon_s - T0
        assert self.rig.begin(second, 1, record.number) is Verdict.ACCEPTED
        if ended.pop("is_over", True):
            assert self.rig.finished(second, 1, record.number, **ended) is Verdict.ACCEPTED
            self.note()

    async def why(self, **fields: Any) -> WhyReport:
        given = {"job": NAME, "at_s": self.rig.at_ms // 1000, "is_nearest": True}
        report: WhyReport = await self.service.why(WhyRequest(**(given | fields)))
        return report

    async def audit(self, job: str = "", since_ms: int = 0, after: str = "") -> AuditReport:
        request = AuditRequest(job=job, since_ms=since_ms, tasks_after=after)
        report: AuditReport = await self.service.audit(request)
        return report


@pytest.fixture
def world() -> Proven:
    return Proven()


async def test_why_tells_which_tasks_a_task_follows(world: Proven) -> None:
    rig, tenant = world.rig, f"default/{HANDLER}"
    handled = {"queue": tenant, "options": t.TaskOptions(HANDLER)}
    rig.submit(task("b", **handled), task("x", 9_000, group="default/g", **handled))
    assert rig.close() is Verdict.ACCEPTED
    after = (f"{tenant}:b", "default/g", f"{tenant}:x")
    rig.submit(task("a", after=after, **handled))
    assert f"it follows {HANDLER}:b, which waits since" in (await world.why()).verdict
    assert "and 2 more" in (await world.why()).verdict
    world.run("b")
    group = "it follows group g, of which 1 task is not over, and 1 more"
    assert (await world.why()).verdict == group
    rig.items(t.CancelTasks((f"{tenant}:x",)))
    wrong = "it is about to be cancelled: g, which it follows, failed"
    assert (await world.why()).verdict == wrong
    rig.append(ReleaseTasks((3,)))
    world.note()
    assert "what it follows did not succeed" in (await world.why()).verdict


async def test_why_tells_what_a_task_waits_for_and_how_it_ended(world: Proven) -> None:
    await world.submit_one(delay_ms=500)
    assert (await world.why()).verdict == "it waits for its time, 2026-11-20T16:00:01.500Z"
    world.rig.at_ms += 500
    due = "it is due since 2026-11-20T16:00:01.500Z: "
    assert (await world.why()).verdict == f"{due}all slots of handler {HANDLER} are taken"
    world.serve()
    assert (await world.why()).verdict == f"{due}no worker serves handler {HANDLER}"
    world.run(is_over=False)
    running = await world.why()
    assert "attempt 1 was begun" in running.verdict
    assert [view.state for view in running.launches] == ["begun"]
    record = world.state.record_of(NAME)
    assert record is not None
    assert world.rig.finished(record.horizon_s - T0, 1, record.number) is Verdict.ACCEPTED
    world.note()
    over = await world.why()
    assert over.verdict.startswith("it ran on e1, 500 ms late")
    assert (over.at_s, len(over.launches), bool(over.story)) == (record.horizon_s, 1, True)
    named = await world.why(at_s=record.horizon_s, is_nearest=False)
    assert named.verdict == over.verdict


async def test_why_of_a_task_that_never_was(world: Proven) -> None:
    with pytest.raises(UnknownTask):
        await world.why()


async def test_an_audit_counts_what_became_of_tasks(world: Proven) -> None:
    await world.submit_all(*"abcd")
    await world.submit_one("e", delay_ms=3_600_000)
    world.run("a")
    world.run("b", state=LaunchState.FAILED, reason=Reason.FATAL)
    world.run("c", is_over=False)
    await world.service.cancel(CancelRequest(names=[f"default/{HANDLER}:d"]))
    world.note()
    report = await world.audit()
    assert report.violations == []
    assert (report.tasks, report.tasks_open, report.tasks_ran) == (5, 2, 2)
    assert (report.tasks_dropped, report.tasks_lost) == (1, 0)
    later = await world.audit(since_ms=world.rig.at_ms + 60_000)
    assert (later.tasks, later.tasks_open) == (1, 1)
    one = await world.audit(NAME)
    assert (one.jobs, one.tasks, one.tasks_ran) == (0, 1, 1)
    with pytest.raises(UnknownTask):
        await world.audit("default/never:was")


async def test_an_audit_in_parts_looks_at_each_task_once(
    world: Proven, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [str(number) for number in range(10)]
    await world.submit_all(*keys, delay_ms=0)
    for key in keys[:-1]:
        world.run(key)
    monkeypatch.setattr(task_proofs, "PORTION", 3)
    whole = await world.audit()
    assert (whole.tasks, whole.tasks_ran, whole.tasks_open) == (10, 9, 1)
    monkeypatch.setattr("cron.limits.AUDIT_MS_MAX", 0)
    (unproven,) = (await world.audit()).violations
    assert "10 tasks could not be audited in time" in unproven.message
    seen, after = list[AuditReport](), TASKS_BEGIN
    while after:
        seen.append(await world.audit(after=after))
        after = seen[-1].tasks_next
    assert [one.tasks for one in seen] == [3, 3, 3, 1]
    assert sum(one.tasks_ran for one in seen) == 9
    assert not any(one.violations for one in seen)
    world.history.known.clear()
    assert len((await world.audit(after=seen[1].tasks_next)).violations) in (2, 3)


@pytest.mark.parametrize("broken", ["no row", "other end", "twice", "waits"])
async def test_an_audit_finds_what_is_wrong(world: Proven, broken: str) -> None:
    await world.submit_all("a", "b", delay_ms=0)
    world.run("a")
    await world.submit_one("x")  # an entry after that of the end
    rows = world.history.known[NAME]
    if broken == "no row":
        world.history.known.clear()
    elif broken == "other end":
        rows[0] = msgspec.structs.replace(rows[0], state=LaunchState.FAILED)
    elif broken == "twice":
        first = rows[0]  # the second begins before it has ended
        rows.append(msgspec.structs.replace(first, attempt=2, ended_index=first.ended_index + 1))
    else:
        world.history.known[f"default/{HANDLER}:b"] = rows
    report = await world.audit()
    assert report.violations
    expected = {
        "no row": "it is over and has no row in history",
        "other end": "its record says succeeded, its rows say failed",
        "waits": "it has a launch, and is said to wait",
    }
    assert expected.get(broken, "") in report.violations[0].message


# ---- what else knows the launches of tasks


async def listed(world: Proven, **fields: Any) -> list[str]:
    """The launches of a history, newest first, by task."""
    views = await world.service.history(HistoryQuery(**fields))
    return [view.job for view in views]


async def test_history_has_the_launches_of_tasks_by_every_filter(world: Proven) -> None:
    await world.submit_one("a")
    await world.submit_one("b", collection="night")
    await world.submit_one("x", queue="slow", tenant="acme", delay_ms=3_600_000)
    world.run("a", is_over=False)
    world.run("b", is_over=False)
    both = [f"{HANDLER}:b", f"{HANDLER}:a"]
    assert sorted(await listed(world)) == sorted(both)
    assert sorted(await listed(world, pool=HANDLER)) == sorted(both)
    assert sorted(await listed(world, job=f"default/{HANDLER}:*")) == sorted(both)
    assert await listed(world, job=NAME) == [f"{HANDLER}:a"]
    assert await listed(world, collection="night") == [f"{HANDLER}:b"]
    assert await listed(world, tenant="acme") == []
    with pytest.raises(UnknownJob, match="task never:was does not exist, or is forgotten"):
        await listed(world, job="default/never:was")


async def test_the_queues_know_the_launches_of_tasks(world: Proven) -> None:
    await world.submit_all("a", "b")
    await world.submit_one("c", collection="night")
    world.rig.items(t.ReadyTasks((1, 3)))

    async def waits(**fields: Any) -> list[str]:
        report = await world.service.waits(WaitQuery(**fields))
        return [view.job for view in report.waits]

    assert await waits(job=NAME) == [f"{HANDLER}:a"]
    assert await waits(job="default/mail*") == [f"{HANDLER}:a", f"{HANDLER}:c"]
    assert await waits(collection="night") == [f"{HANDLER}:c"]
    with pytest.raises(NotNow, match="has no launch that waits"):
        await waits(job=f"default/{HANDLER}:b")
    with pytest.raises(UnknownJob):
        await waits(job="default/never:was")


async def test_a_filter_looks_at_the_newest_tasks(
    world: Proven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_filter, "TASKS_LOOKED_AT", 2)
    await world.submit_all(*"abc")
    found = job_filter.newest_tasks(world.state, JobFilter(pool=HANDLER), 10)
    assert found == [f"default/{HANDLER}:c", f"default/{HANDLER}:b"]
    assert job_filter.newest_tasks(world.state, JobFilter(pool=HANDLER), 1) == found[:1]
    within = JobFilter(within=(f"default/{HANDLER}",))
    assert job_filter.newest_tasks(world.state, within, 10) == found
    assert job_filter.newest_tasks(world.state, JobFilter(within=("acme/*",)), 10) == []

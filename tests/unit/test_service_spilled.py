"""The service Tasks and tasks on disk: whoever asks sees no difference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cron.api import calls
from cron.api.launches import WhyRequest
from cron.api.tasks import (
    CancelRequest,
    RescheduleRequest,
    SubmitRequest,
    TaskFilter,
    TaskListQuery,
    TaskNames,
    TasksPage,
    TasksReport,
    TaskSubmission,
)
from cron.errors import CronError, NotNow, RevisionConflict, Unavailable, UnknownTask
from cron.service.replica import Replica
from cron.service.service import CellService
from cron.state import spilled as index
from cron.state import spilling
from cron.state import tasks as t
from cron.state.outcome import Verdict
from cron.storage.folders import name_of
from tests.unit.api_rig import Calls
from tests.unit.far_tasks_rig import DAY_MS, FarTasksRig
from tests.unit.pool_people_rig import FakeClock, World
from tests.unit.tasks_world import HANDLER, Rows, TasksWorld

KEYS = tuple("abcdefgh")


def full(key: str) -> str:
    return f"default/{HANDLER}:{key}"


class FarWorld(TasksWorld):
    """A leader with its service, four of whose eight tasks are on disk: e to h."""

    rig: FarTasksRig

    def __init__(self, rig: FarTasksRig) -> None:
        World.__init__(self, rig)
        self.rows = Rows()
        self.listeners.clear()
        world: Any = self
        history: Any = self.rows
        clock: Any = FakeClock(rig)
        self.cell = CellService(Replica(world, world, history, clock, task_files=rig.files))
        self.service = Calls(self.cell)
        self.serve(HANDLER)

    async def fill(self) -> None:
        for n, key in enumerate(KEYS):
            verdict = await self.submit_one(key, payload=msgspec.Raw(b'{"n":%d}' % n), at_ms=at(n))
            assert verdict.is_new
        await self.rig.look()
        assert self.on_disk() == list("efgh")

    def on_disk(self) -> list[str]:
        return [key for key in KEYS if self.state.spilled.find(full(key)) is not None]

    async def listed(self, limit: int = 1_000, **fields: Any) -> list[str]:
        """The keys of all pages of a list."""
        found: list[str] = []
        page = ""
        while True:
            query = TaskListQuery(filter=TaskFilter(**fields), limit=limit, page=page)
            answer: TasksPage = await self.service.list(query)
            found += [one.key for one in answer.tasks]
            assert len(answer.tasks) <= limit
            if not (page := answer.next):
                return found


def at(n: int) -> int:
    return FarTasksRig.begins_ms + DAY_MS + 1_000 * n


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[FarWorld]:
    rig = FarTasksRig(tmp_path)
    made = FarWorld(rig)
    await made.fill()
    yield made
    rig.stop()


async def test_a_task_on_disk_is_shown_as_any_other(world: FarWorld) -> None:
    near, far = await world.got("a"), await world.got("h")
    assert (far.payload, far.at_ms, far.state) == ({"n": 7}, at(7), "waiting")
    assert far.submitted_at == near.submitted_at
    assert far.revision > 0
    assert world.on_disk() == list("efgh")
    with pytest.raises(UnknownTask):
        await world.got("none")


async def test_the_same_key_is_the_same_task_wherever_it_is(world: FarWorld) -> None:
    again = await world.submit_one("h", payload=msgspec.Raw(b'{"n":7}'), at_ms=at(7))
    assert (again.is_new, again.error, again.at_ms) == (False, None, at(7))
    other = await world.submit_one("h", payload=msgspec.Raw(b"8"), at_ms=at(7))
    assert other.error is not None
    assert other.error.code == "other_content"
    assert world.on_disk() == list("efgh")


async def test_the_same_key_is_answered_though_its_queue_is_full(world: FarWorld) -> None:
    world.state.queues[f"default/{HANDLER}"].waiting_max = 8
    assert (await world.submit_one("new")).error is not None
    again = await world.submit_one("h", payload=msgspec.Raw(b'{"n":7}'), at_ms=at(7))
    assert again.error is None


async def test_a_chain_of_one_call_follows_a_task_on_disk(world: FarWorld) -> None:
    after = {"one": full("h"), "two": full("one"), "three": full("two")}
    tasks = [TaskSubmission(key=key, handler=HANDLER, after=[one]) for key, one in after.items()]
    report = await world.service.submit(SubmitRequest(tasks=tasks, by="shop"))
    assert [one.error for one in report.tasks] == [None] * 3
    assert (await world.got("three")).after == [full("two")]


def share_a_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the task `new` have the hash of `h`."""
    taken = index.name_hash(full("h"))
    known = index.name_hash
    for module in (index, spilling):
        monkeypatch.setattr(
            module, "name_hash", lambda name: taken if name == full("new") else known(name)
        )


@pytest.mark.parametrize("after", ["h", ""])
async def test_a_call_that_is_cancelled_is_in_the_log_as_a_whole(
    world: FarWorld, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    share_a_hash(monkeypatch)
    applied, answers, submit = asyncio.Event(), asyncio.Event(), world.submit

    async def later(build: Any) -> Any:
        result = await submit(build)
        applied.set()
        await answers.wait()
        return result

    monkeypatch.setattr(world, "submit", later)
    names = [full(after)] if after else []
    tasks = [
        TaskSubmission(key="free", handler=HANDLER),
        TaskSubmission(key="two" if after else "new", handler=HANDLER, after=names),
    ]
    call = asyncio.create_task(world.service.submit(SubmitRequest(tasks=tasks, by="shop")))
    await applied.wait()
    call.cancel()
    await asyncio.wait([call])
    answers.set()
    while calls._changes:
        await asyncio.wait(set(calls._changes))
    taken = world.state.queues[f"default/{HANDLER}"].tasks
    assert [one.key in taken for one in tasks] == [True] * 2


async def test_another_task_with_the_same_hash_is_brought_back(
    world: FarWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_a_hash(monkeypatch)
    verdict = await world.submit_one("new")
    assert verdict.is_new
    assert world.on_disk() == list("efg")


async def test_tasks_on_disk_are_cancelled_by_name(world: FarWorld) -> None:
    report: TasksReport = await world.service.cancel(
        CancelRequest(names=[full("a"), full("f"), full("h"), full("none")], by="anna")
    )
    assert report.count == 3
    assert [one.error.code for one in report.errors] == ["unknown_task"]
    assert [(await world.got(key)).state for key in "afh"] == ["cancelled"] * 3
    assert world.on_disk() == list("eg")
    with pytest.raises(NotNow):
        await world.service.run_now(TaskNames(names=[full("h")]))


async def test_tasks_on_disk_are_cancelled_by_filter_after_a_dry_run(world: FarWorld) -> None:
    wanted = TaskFilter(from_ms=at(2), to_ms=at(6))
    dry = await world.cancelled(wanted, is_dry_run=True)
    assert dry == [list("dc"), list("ef")]
    assert world.on_disk() == list("efgh")
    assert sorted(key for keys in await world.cancelled(wanted) for key in keys) == list("cdef")
    assert world.on_disk() == list("gh")
    assert not any(await world.cancelled(wanted))


async def test_a_task_on_disk_is_put_off_if_its_revision_is_as_it_was_read(
    world: FarWorld,
) -> None:
    read = await world.got("h")
    with pytest.raises(RevisionConflict):
        await world.service.reschedule(
            RescheduleRequest(name=full("h"), revision=read.revision - 1, at_ms=at(9))
        )
    view = await world.service.reschedule(
        RescheduleRequest(name=full("h"), revision=read.revision, at_ms=at(9))
    )
    assert view.at_ms == at(9)


async def test_a_task_on_disk_runs_now(world: FarWorld) -> None:
    await world.service.run_now(TaskNames(names=[full("f")]))
    view = await world.got("f")
    assert (view.state, view.at_ms) == ("due", world.rig.at_ms)


@pytest.mark.parametrize("limit", [1, 3, 1_000])
async def test_a_list_has_each_task_once(world: FarWorld, limit: int) -> None:
    assert await world.listed(limit) == [*"dcba", *"efgh"]
    assert await world.listed(limit, from_ms=at(3), to_ms=at(6)) == ["d", "e", "f"]
    assert await world.listed(limit, state="cancelled") == []


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("fields", [{}, {"queue": f"default/{HANDLER}"}])
async def test_a_list_misses_no_task_that_moves_while_it_is_read(
    world: FarWorld, limit: int, fields: dict[str, Any]
) -> None:
    """Each page but the first of a new lap finds a task that went to memory or to disk."""
    rig, found, page, moved = world.rig, list[str](), "", 0

    async def move() -> None:
        here = [key for key in KEYS if key not in world.on_disk()]
        items = [
            t.LoadItem(*rig.state.spilled.find(full(key)) or (0, 0), task=await _read(world, key))
            for key in world.on_disk()
        ]
        assert rig.items(t.LoadTasks(tuple(items))) == [Verdict.ACCEPTED] * len(items)
        rig.items(t.SpillTasks(tuple(rig.state.tasks[full(key)].number for key in here)))

    for _ in range(20):
        query = TaskListQuery(filter=TaskFilter(**fields), limit=limit, page=page)
        answer: TasksPage = await world.service.list(query)
        found += [one.key for one in answer.tasks]
        if not (page := answer.next):
            break
        if moved < 2 and len(found) >= 4:
            moved += 1
            await move()
            rig.at_ms += 1
            await world.submit_one(f"new{moved}", at_ms=at(9))
    assert moved == 2
    assert set(found) == {*KEYS}


async def test_what_moves_while_it_is_changed_is_changed_all_the_same(world: FarWorld) -> None:
    rig = world.rig
    old = t.LoadItem(*rig.state.spilled.find(full("h")) or (0, 0), task=await _read(world, "h"))
    reads = rig.files.task

    async def moved(record: Any, row: int) -> t.TaskRecord:
        found = await reads(record, row)
        if rig.state.spilled.find(full("h")) == (old.slot, old.row):  # once
            rig.items(t.LoadTasks((old,)))
            numbers = (rig.state.tasks[full("h")].number, rig.state.tasks[full("a")].number)
            rig.items(t.SpillTasks(numbers))
        return found

    rig.files.task = moved  # type: ignore[method-assign]
    report: TasksReport = await world.service.cancel(CancelRequest(names=[full("h")]))
    assert report.count == 1
    assert rig.state.tasks[full("h")].is_over


async def _read(world: FarWorld, key: str) -> t.TaskRecord:
    place = world.state.spilled.find(full(key))
    assert place is not None
    return await world.rig.files.task(world.state.history.task_segment(place.slot), place.row)


async def test_a_task_that_cannot_be_read_is_unavailable_and_not_unknown(world: FarWorld) -> None:
    rig = world.rig
    assert rig.disk is not None
    await rig.disk.settle()
    (record,) = rig.state.history.segments.values()
    path = rig.disk.writer.segment_path(name_of(record))
    assert path is not None
    path.unlink()
    with pytest.raises(Unavailable, match="cannot be read"):
        await world.got("h")
    verdict = await world.submit_one("h", payload=msgspec.Raw(b'{"n":7}'), at_ms=at(7))
    assert verdict.error is not None
    assert verdict.error.code == "unavailable"
    assert verdict.retry_after_ms > 0


async def test_where_memory_is_full_a_change_says_so(
    world: FarWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spilling, "TASKS_WAITING_MAX", 0)
    monkeypatch.setattr(spilling, "TASKS_LOADED_MAX", 0)
    with pytest.raises(CronError, match="memory has no room") as refused:
        await world.service.cancel(CancelRequest(names=[full("h")]))
    assert refused.value.code == "limit_exceeded"
    assert world.on_disk() == list("efgh")


async def test_why_a_task_on_disk_has_not_run(world: FarWorld) -> None:
    report = await world.service.why(WhyRequest(job=full("h"), at_s=0, is_nearest=True))
    assert report.verdict.startswith("it waits for its time")

"""One task, lists page by page, streams of changes, and the ring that these come from."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from cron.api.tasks import (
    CancelRequest,
    TaskChange,
    TaskFilter,
    TaskListQuery,
    TaskQuery,
    TasksPage,
    WatchRequest,
)
from cron.errors import InvalidInput, PositionGone, UnknownQueue, UnknownTask
from cron.launch_state import LaunchState
from cron.scheduler.views import Wait
from cron.service import task_views
from cron.service.task_feed import TaskFeed
from cron.state import tasks as t
from cron.state.alerts import QUEUE
from cron.state.outcome import Outcome, Verdict
from cron.state.state import State
from launcher.protocol.names import format_time
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch
from tests.unit.state_rig import T0
from tests.unit.tasks_rig import task
from tests.unit.tasks_world import HANDLER, TasksWorld

NAME = f"default/{HANDLER}:a"
HOUR_MS = 3_600_000


@pytest.fixture
def world() -> TasksWorld:
    return TasksWorld()


# ---- one task


async def test_a_task_is_shown_with_what_it_was_given(world: TasksWorld) -> None:
    await world.submit_one(
        delay_ms=500, payload=msgspec.Raw(b'{"to": ["anna"]}'), labels={"order": "1"}, priority=0
    )
    view = await world.got()
    assert (view.task, view.tenant, view.queue, view.key) == (NAME, "default", HANDLER, "a")
    assert (view.handler, view.state, view.priority) == (HANDLER, "waiting", 0)
    assert (view.payload, view.labels, view.by) == ({"to": ["anna"]}, {"order": "1"}, "shop")
    assert (view.launch, view.attempts, view.ended_at) == ("", [], "")
    with pytest.raises(UnknownTask, match=r"task mail\.send:b does not exist"):
        await world.got("b")


async def test_a_task_passes_its_states(world: TasksWorld) -> None:
    await world.submit_one(delay_ms=500, payload=msgspec.Raw(b"[1]"))
    seen = [await world.got()]
    world.rig.at_ms += 500
    assert (await world.got()).reason == ""
    world.rig.at_ms += 1_001
    seen.append(await world.got())
    assert seen[-1].reason == f"all slots of handler {HANDLER} are taken"
    epoch, world.epoch = world.epoch, None
    stale = await task_views.get(world.cell.replica, TaskQuery(name=NAME))
    assert (stale.state, stale.reason) == ("due", "the leader knows why")
    world.epoch = epoch
    world.rig.items(t.ReadyTasks((1,)))
    record = world.state.record_of(NAME)
    assert record is not None
    assert world.queues is not None
    world.queues.waits[record.horizon_s - T0] = Wait("no slot is free")
    seen.append(await world.got())
    second = record.horizon_s - T0
    assert world.rig.begin(second, 1, record.number) is Verdict.ACCEPTED
    seen.append(await world.got())
    ended = world.rig.finished(second, 1, record.number, detail="sent to anna")
    assert ended is Verdict.ACCEPTED
    world.rows.known[NAME] = list(world.rig.outcome.rows)
    seen.append(await world.got())
    assert [view.state for view in seen] == ["waiting", "due", "due", "running", "succeeded"]
    assert [view.payload for view in seen[:4]] == [[1]] * 4
    assert [len(view.attempts) for view in seen] == [0, 0, 1, 1, 1]
    assert {view.launch for view in seen[2:]} == {f"{NAME}@2026-11-20T16:00:01Z"}
    assert (seen[-1].result, seen[-1].ended_at != "") == ("sent to anna", True)


async def test_a_task_that_failed_says_why(world: TasksWorld) -> None:
    await world.submit_one()
    world.rig.items(t.ReadyTasks((1,)))
    record = world.state.record_of(NAME)
    assert record is not None
    second = record.horizon_s - T0
    assert world.rig.begin(second, 1, record.number) is Verdict.ACCEPTED
    fields = {"state": LaunchState.FAILED, "reason": Reason.FATAL, "detail": "nothing to pay"}
    assert world.rig.finished(second, 1, record.number, **fields) is Verdict.ACCEPTED
    world.rows.known[NAME] = list(world.rig.outcome.rows)
    view = await world.got()
    assert (view.state, view.reason, view.result) == ("failed", "fatal: nothing to pay", "")


# ---- lists


async def page(world: TasksWorld, **fields: Any) -> TasksPage:
    wanted = {name: fields.pop(name) for name in ("limit", "page") if name in fields}
    query = TaskListQuery(filter=TaskFilter(**fields), **wanted)
    found: TasksPage = await world.service.list(query)
    return found


async def keys(world: TasksWorld, **fields: Any) -> str:
    """The keys of all pages, with a bar between two pages."""
    found, after = [], ""
    while True:
        one = await page(world, page=after, **fields)
        found.append("".join(view.key for view in one.tasks))
        after = one.next
        if not after:
            return "|".join(found)


async def test_a_list_says_until_when_a_task_rests_before_its_next_try(world: TasksWorld) -> None:
    await world.submit_all("a", "b", tries=3, backoff_ms=600_000)
    world.rig.items(t.ReadyTasks((1,)))
    record = world.state.record_of(NAME)
    assert record is not None
    second = record.horizon_s - T0
    assert world.rig.begin(second, 1, record.number) is Verdict.ACCEPTED
    failed = {"state": LaunchState.FAILED, "exit_code": 1}
    assert world.rig.finished(second, 1, record.number, **failed) is Verdict.ACCEPTED
    [row] = record.open.values()
    found: TasksPage = await world.service.list(TaskListQuery())
    until = format_time(-(-row.not_before_ms // 1000))
    assert {view.key: view.reason for view in found.tasks} == {
        "a": f"it rests until {until}: 1 of 3 tries have failed",
        "b": "",
    }


async def test_a_list_begins_with_what_came_in_last(world: TasksWorld) -> None:
    await world.submit_all(*"abcde")
    assert await keys(world) == "edcba"
    assert await keys(world, limit=2) == "ed|cb|a"
    assert await keys(world, limit=5, queue=f"default/{HANDLER}") == "edcba"
    with pytest.raises(UnknownQueue, match="queue none does not exist"):
        await keys(world, queue="default/none")
    with pytest.raises(UnknownQueue):
        await keys(world, queue=f"default/{HANDLER}", within=["acme/*"])
    with pytest.raises(UnknownQueue):
        await world.service.cancel(CancelRequest(filter=TaskFilter(queue="default/none")))


async def test_a_list_has_what_fits(world: TasksWorld) -> None:
    now_ms = world.rig.at_ms
    await world.submit_all("a1", "a2", delay_ms=HOUR_MS)
    await world.submit_all("b1", collection="night")
    await world.submit_all("c1", queue="slow", tenant="acme", delay_ms=2 * HOUR_MS)
    await world.service.cancel(CancelRequest(names=[f"default/{HANDLER}:a2"]))
    assert await keys(world, prefix="a") == "a2a1"
    assert await keys(world, state="waiting") == "c1a1"
    assert await keys(world, state="cancelled") == "a2"
    assert await keys(world, state="due") == "b1"
    assert await keys(world, collection="night") == "b1"
    assert await keys(world, tenant="acme") == "c1"
    assert await keys(world, queue="acme/slow") == "c1"
    assert await keys(world, from_ms=now_ms + HOUR_MS) == "c1a2a1"
    assert await keys(world, from_ms=now_ms + HOUR_MS, to_ms=now_ms + 2 * HOUR_MS) == "a2a1"
    assert await keys(world, within=["acme/*"]) == "c1"


async def test_a_page_looks_through_so_many_tasks_and_says_that_there_may_be_more(
    world: TasksWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_views, "LOOKS_MAX", 3)
    await world.submit_all(*"abcdefg")
    await world.submit_one("x", queue="slow")
    assert await keys(world, prefix="a") == "||a"
    assert await keys(world, queue=f"default/{HANDLER}") == "gfe|dcb|a"
    assert await keys(world, queue="default/slow") == "x"


async def test_a_list_of_a_group_looks_at_its_own_tasks_alone(
    world: TasksWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_views, "LOOKS_MAX", 3)
    await world.submit_all(*"ab", group="g")
    await world.submit_all(*"xyz")
    await world.submit_one("c", group="g", queue="slow")
    await world.submit_all(*"uvw")
    assert await keys(world, group="default/g") == "cba|", "all of them at once"
    assert await keys(world, group="default/g", queue="default/slow") == "c|"
    first = await page(world, limit=2, group="default/g")
    assert [view.key for view in first.tasks] == ["c", "b"]
    await world.submit_one("d", group="g")
    second = await page(world, limit=2, group="default/g", page=first.next)
    assert [view.key for view in second.tasks] == ["a"], "and nothing that came in meanwhile"


async def test_a_task_that_was_cancelled_while_it_waited_shows_no_launch(world: TasksWorld) -> None:
    await world.submit_one("a", delay_ms=60_000)
    await world.service.cancel(CancelRequest(names=[NAME]))
    view = await world.got("a")
    assert (view.state, view.reason) == ("cancelled", "cancelled")
    assert (view.launch, view.attempts) == ("", [])


async def test_pages_hold_still_while_tasks_come_and_go(world: TasksWorld) -> None:
    await world.submit_all(*"abcd")
    first = await page(world, limit=2)
    await world.submit_all("e")
    await world.service.cancel(CancelRequest(names=[NAME]))
    world.rig.at_ms += 25 * HOUR_MS
    first = await page(world, limit=2)
    assert [view.key for view in first.tasks] == ["e", "d"]
    world.rig.items(t.ForgetTasks((1,)))
    second = await page(world, limit=2, page=first.next)
    assert [view.key for view in second.tasks] == ["c", "b"]
    assert second.next == ""


async def test_a_page_of_yesterday_is_refused(world: TasksWorld) -> None:
    await world.submit_all(*"abcd")
    first = await page(world, limit=2)
    world.rig.at_ms += HOUR_MS
    assert (await page(world, limit=2, page=first.next)).tasks
    world.rig.at_ms += 24 * HOUR_MS
    with pytest.raises(PositionGone, match="of a list that is over") as gone:
        await page(world, limit=2, page=first.next)
    assert gone.value.hint == "begin again without a page"


async def test_a_page_of_another_list_or_cell_is_refused(world: TasksWorld) -> None:
    await world.submit_all(*"abcd")
    first = await page(world, limit=2)
    with pytest.raises(InvalidInput, match="another filter"):
        await page(world, limit=2, page=first.next, prefix="a")
    for text in ("x", "AAAA", first.next[:-4], "ä", first.next + "===="):
        with pytest.raises(InvalidInput, match="page is not one"):
            await page(world, limit=2, page=text)
    world.state.epoch = Epoch(2, 1, "r1")  # the cell was restored: numbers are given again
    with pytest.raises(PositionGone):
        await page(world, limit=2, page=first.next)


# ---- changes as they happen


async def changes(world: TasksWorld, **fields: Any) -> list[TaskChange]:
    """What a stream says that ends after what there is."""
    wanted = {name: fields.pop(name) for name in ("position", "limit") if name in fields}
    given = {"limit": 1_000, "wait_ms": 1} | wanted
    request = WatchRequest(filter=TaskFilter(**fields), **given)
    stream = await world.service.watch(request)
    return [one async for one in stream]


def told(rows: list[TaskChange]) -> list[tuple[str, str]]:
    return [(one.task.key, one.task.state) for one in rows if one.task is not None]


async def watched(world: TasksWorld, **fields: Any) -> list[TaskChange]:
    """As `changes`, where nothing more comes."""
    reading = asyncio.ensure_future(changes(world, **fields))
    await asyncio.sleep(0.01)
    world.rig.at_ms += 10
    return await reading


async def test_a_stream_tells_changes_after_a_position(world: TasksWorld) -> None:
    await world.submit_all("a")
    (begin,) = await watched(world)
    assert begin.task is None
    await world.submit_all("b", "c", delay_ms=HOUR_MS)
    await world.service.cancel(CancelRequest(names=[f"default/{HANDLER}:b"]))
    rows = await watched(world, position=begin.position)
    # Two changes of `b` are told as one, in the place of the newer.
    assert told(rows) == [("c", "waiting"), ("b", "cancelled")]
    assert told(await watched(world, position=rows[0].position)) == [("b", "cancelled")]
    assert told(await watched(world, position=rows[-1].position)) == []
    assert told(await watched(world, position=begin.position, limit=1)) == [("c", "waiting")]


async def test_changes_of_others_move_the_position(world: TasksWorld) -> None:
    (begin,) = await watched(world)
    await world.submit_all("a", "b")
    rows = await watched(world, position=begin.position, queue="default/slow")
    assert told(rows) == []
    assert rows[-1].position == f"{world.state.index}.2"


async def test_a_stream_waits_for_the_next_change(world: TasksWorld) -> None:
    request = WatchRequest(wait_ms=60_000, limit=1)
    stream = await world.service.watch(request)
    reading = asyncio.ensure_future(_all(stream))
    await asyncio.sleep(0.01)
    assert not reading.done()
    await world.submit_all("a")
    rows = await asyncio.wait_for(reading, 10)
    assert told(rows) == [("a", "due")]


async def _all(stream: Any) -> list[TaskChange]:
    return [one async for one in stream]


async def test_a_position_that_is_gone_says_to_list_again(world: TasksWorld) -> None:
    with pytest.raises(PositionGone, match="is not of this cell"):
        await changes(world, position="999999")
    begin = world.cell.replica.feed.begins
    await world.submit_all("a")
    assert told(await watched(world, position=str(begin))) == [("a", "due")]
    with pytest.raises(PositionGone, match="are not kept any more") as gone:
        await changes(world, position=str(begin - 1))
    assert "list the tasks" in gone.value.hint


# ---- the ring


def moved(*numbers: int) -> Outcome:
    return Outcome(Verdict.ACCEPTED, Epoch(1, 1, "r1"), (), (), (), (), moved_tasks=numbers)


def test_the_ring_keeps_so_many_changes() -> None:
    state = State()
    feed = TaskFeed(lambda: state, kept=4)
    for index in range(1, 5):
        feed.follow(index, moved(index, 100))
    assert feed.begins == 2
    assert (feed.has(1), feed.has(2)) == (False, True)
    assert (feed.has(2, 1), feed.has(3, 1)) == (False, True)
    assert feed.after(2) == [(3, 1, 3), (4, 1, 4), (4, 2, 100)]
    assert feed.after(3, 1) == [(4, 1, 4), (4, 2, 100)]
    assert feed.after(4, 1) == [(4, 2, 100)]
    assert feed.after(4, 2) == []
    feed.follow(5, moved())
    assert feed.after(4, 2) == []


def test_the_ring_begins_again_after_a_snapshot() -> None:
    states = [State()]
    feed = TaskFeed(lambda: states[-1])
    feed.follow(1, moved(1))
    states.append(State())
    states[-1].index = 50
    assert (feed.has(49), feed.has(50), feed.after(0, 0)) == (False, True, [])


async def test_messages_of_the_cell_itself_lead_no_list_and_are_there_by_name(
    world: TasksWorld,
) -> None:
    await world.submit_all("a", "b")
    world.rig.submit(task("1-firing-ops", queue=QUEUE))
    assert await keys(world) == "ba"
    assert await keys(world, prefix="1") == ""
    assert await keys(world, queue=QUEUE) == await keys(world, tenant="raftcron") == "1-firing-ops"

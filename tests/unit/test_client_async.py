"""launcher.client.aio: what a client with await adds to the other one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from cron.api.tasks import SubmitVerdict, TaskError
from cron.errors import NotLeader
from launcher.client.aio import AsyncClient
from launcher.client.errors import (
    NotAllSubmitted,
    NotOver,
    OutcomeUnknown,
    Unavailable,
    UnknownHandler,
    UnknownTask,
)
from tests.fakes.client_clock import ClientClock
from tests.fakes.task_cell import LostAnswer, TaskCell, task_cell


@pytest.fixture
def cell() -> Iterator[TaskCell]:
    with task_cell() as cell:
        yield cell


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ClientClock:
    return ClientClock(monkeypatch.setattr)


async def test_a_task_is_submitted_changed_and_waited_for(cell):
    async with AsyncClient(cell.servers) as client:
        task = await client.submit("h", {"a": 1}, key="k", delay="1h")
        assert task.name == "default/h:k"
        assert (await client.reschedule(task, priority=3)).priority == 3
        assert (await client.run_now(task)).state == "due"
        assert (await task.cancel()).state == "cancelled"
        cell.end(task.name)
        assert (await task.wait(30)).succeeded
        with pytest.raises(UnknownTask):
            await client.get("h:other")


async def test_concurrent_submits_share_calls(cell):
    async with AsyncClient(cell.servers) as client:
        tasks = await asyncio.gather(*(client.submit("h", n) for n in range(200)))
    assert len({one.name for one in tasks}) == len(cell.tasks) == 200
    assert len(cell.submits()) < 100


async def test_many_tasks_and_batches_are_sent_together(cell):
    async with AsyncClient(cell.servers) as client:
        assert len(await client.submit_many(("h", n) for n in range(1_500))) == 1_500
        async with client.batch() as batch:
            tasks = [batch.submit("h", n) for n in range(3)]
        assert all(one.is_new for one in tasks)
    assert [len(one) for one in cell.submits()] == [1_000, 500, 3]


async def test_refusals_are_raised(cell):
    problem = TaskError("unknown_handler", "nobody serves it")
    cell.judge = lambda one: SubmitVerdict(task=one.name, error=problem)
    async with AsyncClient(cell.servers) as client:
        with pytest.raises(UnknownHandler):
            await client.submit("h")
        with pytest.raises(NotAllSubmitted):
            await client.submit_many([("h", 1)])


async def test_waiting_gives_up(cell, monkeypatch):
    monkeypatch.setattr("launcher.client.core.LOOK_S_MIN", 60)
    async with AsyncClient(cell.servers) as client:
        task = await client.submit("h")
        with pytest.raises(NotOver):
            await task.wait("30ms")


async def test_without_an_answer_in_time_the_outcome_is_unknown(cell, clock):
    def lose(method: str, request: object) -> None:
        clock.skip()
        raise LostAnswer

    cell.after = lose
    async with AsyncClient(cell.servers) as client:
        with pytest.raises(OutcomeUnknown):
            await client.submit("h")


async def test_a_client_may_have_another_timeout_for_some_calls(cell, clock):
    refusals = iter(range(2))

    def refuse(method: str, request: object) -> None:
        for _ in refusals:
            clock.skip(25)
            raise NotLeader(None)

    async with AsyncClient(cell.servers, timeout=60) as client:
        task = await client.with_timeout(20).submit("h")
        cell.before = refuse
        with pytest.raises(Unavailable):
            await client.with_timeout(20).get(task)
        assert (await client.get(task)).state == "waiting"
        assert next(refusals, None) is None


async def test_a_cancelled_submit_does_not_hold_up_the_loop(cell):
    """The call goes on in its thread; nobody waits for it."""
    import threading

    let_go = threading.Event()
    cell.before = lambda method, request: let_go.wait(30) and None
    async with AsyncClient(cell.servers) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.submit("h")
        let_go.set()

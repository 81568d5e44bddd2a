"""A launch of a handler, from order to end: what the ledger has, what the leader is told, what the
worker gets."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from launcher.clock import wall_ms
from launcher.executor import loop as executor_loop
from launcher.executor.handlers import worker as worker_process
from launcher.executor.refusals import KILLED, LATE, RETURNED, STOPPING, WITHDRAWN
from launcher.executor.rows import ACCEPTED, ENDED, REFUSED
from launcher.protocol.limits import RETRY_AFTER_MS_MAX
from launcher.protocol.orders import StartBatch
from launcher.protocol.reports import GroupOffer
from launcher.protocol.status import Limiting, Reason
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import WorkSpec
from launcher.worker import wire
from launcher.worker.wire import Result
from tests.unit.rows_rig import Start, orders
from tests.unit.workers_rig import HANDLER, Floor, floor, named, names_of, running, until

A, B, C, D, E, F = (named(number) for number in range(6))


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Floor]:
    async with floor(tmp_path, term_grace_ms=60_000) as one:
        yield one


# ---- the way of a launch


OF_TASK: Any = {
    "labels": (("team", "billing"),),
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "results": (("acme/fetch:1", "s3://in/1"),),
}


async def test_a_launch_goes_through_a_worker_and_back(shop: Floor) -> None:
    puppet = await shop.puppet()
    shop.give(
        "acme/mail@2026-11-20T15:00:00Z+t2#3", payload=b'{"to": 1}', guarded=True, priority=2,
        timeout_ms=7_000, heartbeat_ms=900, **OF_TASK,
    )  # fmt: skip
    [task] = await puppet.tasks(1)
    assert task.name == "acme/mail@2026-11-20T15:00:00Z+t2#3"
    assert task.work == wire.TaskWork(
        number=0, job="acme/mail", handler=HANDLER, payload=b'{"to": 1}', timeout_ms=7_000,
        heartbeat_ms=900, guarded=True, priority=2, **OF_TASK,
    )  # fmt: skip
    assert task.tasks == StartBatch(
        first=1, index=9, epoch="0.1.r1", works=[0], scheduled_s=[1_795_186_800], attempts=[3],
        triggers=[2], parts=[1],
    )  # fmt: skip
    assert shop.on_disk(task.name) == ACCEPTED
    assert shop.book.status(task.name) == 0  # pending: nobody is told
    puppet.start(task.name)
    row = await shop.told(task.name, ACCEPTED)
    assert row.started_ms > 0
    assert shop.executor_loop.running == 1
    puppet.finish(task.name)
    row = await shop.told(task.name, ENDED)
    assert (row.exit_code, row.reason, row.detail) == (0, Reason.NONE, "")
    assert shop.on_disk(task.name) == ENDED
    assert shop.executor_loop.running == 0


@pytest.mark.parametrize(
    ("result", "after_ms", "reason", "told_ms"),
    [
        (Result.OK, 5, Reason.NONE, 0),
        (Result.RETRY, 5_000, Reason.RETRY, 5_000),
        (Result.SNOOZE, 1 << 53, Reason.SNOOZE, RETRY_AFTER_MS_MAX),
        (Result.FATAL, 5, Reason.FATAL, 0),
        (Result.RAISED, 5, Reason.RAISED, 0),
        (Result.CANCELLED, 5, Reason.KILLED, 0),
    ],
)
async def test_what_a_handler_says_is_what_the_leader_hears(
    shop: Floor, result: Result, after_ms: int, reason: Reason, told_ms: int
) -> None:
    puppet = await shop.puppet()
    shop.give(A)
    await puppet.tasks(1)
    puppet.finish(A, result=result, after_ms=after_ms, detail="said\0so")
    row = await shop.told(A, ENDED)
    exit_code = 0 if result is Result.OK else 1
    assert (row.reason, row.exit_code, row.detail) == (reason, exit_code, "saidso")
    assert row.retry_after_ms == told_ms
    assert 0 < row.started_ms <= row.finished_ms


async def test_times_that_cannot_be_are_not_believed(shop: Floor) -> None:
    puppet = await shop.puppet()
    shop.give(A)
    await puppet.tasks(1)
    puppet.finish(A, started_ms=1 << 53, finished_ms=1 << 53)
    row = await shop.told(A, ENDED)
    assert row.finished_ms - row.started_ms < 10_000
    assert row.finished_ms < 1 << 43


async def test_of_a_handler_that_nobody_serves_the_start_is_refused_for_ever(shop: Floor) -> None:
    shop.give(A)
    row = await shop.told(A, REFUSED)
    assert row.detail == f"no worker here serves {HANDLER}"
    await shop.puppet()
    shop.give(A)
    await asyncio.sleep(0)
    shop.give(B)
    await until(lambda: shop.executor_loop.running == 1)
    assert shop.on_disk(A) == REFUSED


async def test_slots_of_a_group_are_its_own(tmp_path: Path) -> None:
    async with floor(tmp_path, slots=1, worker_buffer=1) as shop:
        await shop.puppet(threads=1, buffer=1)
        shop.order(names=(named(50, "sleep"),), command="sleep 60")
        shop.give(A, B, C, D)
        row = await shop.told(D, REFUSED)
        assert row.detail == f"no free slot in group app of workers, which serves {HANDLER}"
        await until(lambda: shop.executor_loop.running == 4)  # three, and the command


async def test_a_slot_is_free_once_the_end_is_recorded(tmp_path: Path) -> None:
    async with floor(tmp_path, worker_buffer=0) as shop:
        puppet = await shop.puppet(threads=1, buffer=0)
        for name in (A, B, C):
            shop.give(name)
            await puppet.tasks(1)
            puppet.finish(name)
            await shop.told(name, ENDED)


# ---- the buffer


async def test_a_worker_gets_no_more_than_it_has_room_for(shop: Floor) -> None:
    puppet = await shop.puppet(threads=1, buffer=1)
    shop.give(A, B, C, D)
    assert names_of(await puppet.tasks(2)) == [A, B]
    puppet.start(A)
    puppet.finish(A)
    assert names_of(await puppet.tasks(1)) == [C]
    await until(lambda: shop.executor_loop.workers.groups.room()[0]["app"] == 1 + 1 + 1_000 - 3)


async def test_two_workers_of_a_group_share_what_waits(shop: Floor) -> None:
    one = await shop.puppet(threads=4)
    two = await shop.puppet(threads=4)
    shop.give(A, B, C, D)
    assert len(await one.tasks(2)) == len(await two.tasks(2)) == 2


async def test_a_work_is_sent_once_and_again_after_the_worker_forgot_all(
    shop: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    puppet = await shop.puppet()
    spec = msgspec.msgpack.encode(WorkSpec((), handler=HANDLER, payload=b"1"))
    runs: list[wire.Run] = []
    for number, works_max in enumerate((9, 9, 0)):
        monkeypatch.setattr(worker_process, "WORKS_MAX", works_max)
        message = orders(Start(named(number), spec, wall_ms() + 60_000))
        if number:
            message.ClearField("works")  # the stream has numbered it
        shop.executor_loop.order(shop.ear, message)
        runs.append(await puppet.expect(wire.Run))
    assert [tasks.works for run in runs for tasks in run.tasks] == [[0], [0], [0]]
    assert [len(run.works) for run in runs] == [1, 0, 1]
    assert [run.forgets for run in runs] == [False, False, True]


async def test_a_busy_executor_writes_reports_of_workers_with_the_next_orders(
    shop: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    puppet = await shop.puppet()
    monkeypatch.setattr(executor_loop, "BUSY_TURNS", 0)
    monkeypatch.setattr(executor_loop, "BUSY_MS", 1 << 60)
    monkeypatch.setattr(executor_loop, "GATHER_MS", 3_600_000)
    shop.give(A)
    await puppet.tasks(1)
    puppet.start(A)
    await until(lambda: shop.executor_loop.is_gathering)
    puppet.finish(A)
    shop.give(B)
    await shop.told(A, ENDED)
    assert (A, ACCEPTED) not in shop.book.told
    assert shop.on_disk(B) == ACCEPTED


async def test_what_a_worker_says_while_a_turn_takes_long_is_read_before_its_deadlines(
    shop: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    puppet = await running(shop, A, B)
    [worker] = shop.executor_loop.workers.groups.workers()
    monkeypatch.setattr(executor_loop, "BUSY_TURNS", 0)
    monkeypatch.setattr(executor_loop, "BUSY_MS", 1 << 60)
    monkeypatch.setattr(executor_loop, "GATHER_MS", 3_600_000)
    puppet.finish(A)
    await until(lambda: shop.executor_loop.is_gathering)
    puppet.finish(B)
    await until(lambda: not worker.given)


async def test_short_launches_are_given_ahead_and_long_ones_wait_here(shop: Floor) -> None:
    puppet = await shop.puppet(threads=1, buffer=50)
    names = [named(number) for number in range(100)]
    shop.give(*names)
    given = names_of(await puppet.tasks(3))  # a thread, and two: nothing is known of them yet
    while len(given) <= 12:
        for name in given:
            puppet.finish(name)  # it took no time
        given = names_of(await puppet.run())
    assert len(given) <= 51
    for name in given[:-1]:
        puppet.finish(name, started_ms=wall_ms() - 3_600_000)
    await until(lambda: shop.book.status(given[-2]) == ENDED)
    waiting = len(names) + 1 - sum(shop.book.status(name) == ENDED for name in names)
    shop.give(named(101))
    await until(lambda: shop.executor_loop.running == waiting)
    puppet.finish(given[-1])
    assert len(await puppet.tasks(1)) == 1  # no more than it has threads


async def test_what_is_not_started_in_time_never_will_be(shop: Floor) -> None:
    puppet = await shop.puppet(threads=1, buffer=0)
    shop.give(A)
    await puppet.tasks(1)
    puppet.start(A)
    shop.give(B, late_ms=-800)
    row = await shop.told(B, REFUSED)
    assert (row.detail, row.started_ms) == (LATE, 0)
    puppet.finish(A)
    shop.give(C)
    assert names_of(await puppet.tasks(1)) == [C]


async def test_what_a_worker_has_not_begun_in_time_is_asked_back(shop: Floor) -> None:
    puppet = await shop.puppet()
    shop.give(A, late_ms=-800)
    await puppet.tasks(1)
    assert await puppet.cancelled() == [(A, int(Reason.DEADLINE))]
    puppet.return_(A)
    row = await shop.told(A, REFUSED)
    assert row.detail == LATE


async def test_what_a_leaving_worker_returns_goes_to_another_in_front(shop: Floor) -> None:
    leaving = await shop.puppet(threads=1, buffer=2)
    shop.give(A, B, C, D)
    await leaving.tasks(3)
    leaving.start(A)
    other = await shop.puppet(threads=1, buffer=0)
    assert names_of(await other.tasks(1)) == [D]
    shop.give(E)
    leaving.leave(B, C)
    other.finish(D)
    assert names_of(await other.tasks(1)) == [B]
    other.finish(B)
    assert names_of(await other.tasks(1)) == [C]
    leaving.finish(A)
    assert (await shop.told(A, ENDED)).reason == Reason.NONE


async def test_a_launch_that_workers_never_begin_is_refused(shop: Floor) -> None:
    puppet = await shop.puppet(threads=1, buffer=0)
    shop.give(A)
    for _ in range(3):
        assert names_of(await puppet.tasks(1)) == [A]
        puppet.return_(A)
    assert (await shop.told(A, REFUSED)).detail == RETURNED


# ---- kills and fences


async def test_a_kill_of_what_waits_refuses_it(shop: Floor) -> None:
    await shop.puppet(threads=1, buffer=0)
    shop.give(A, B)
    await until(lambda: shop.executor_loop.running == 2)
    shop.order(kills=[(B, Reason.KILLED)])
    row = await shop.told(B, REFUSED)
    assert row.detail == KILLED


async def test_a_kill_of_what_runs_cancels_it(shop: Floor) -> None:
    puppet = await shop.puppet()
    shop.give(A)
    await puppet.tasks(1)
    puppet.start(A)
    await shop.told(A, ACCEPTED)
    shop.order(kills=[(A, Reason.REPLACED)])
    assert await puppet.cancelled() == [(A, int(Reason.REPLACED))]
    puppet.finish(A, result=Result.RETRY, after_ms=5)  # what it says of itself does not count
    row = await shop.told(A, ENDED)
    assert (row.reason, row.retry_after_ms) == (Reason.REPLACED, 0)


async def test_what_succeeds_although_it_was_cancelled_has_succeeded(shop: Floor) -> None:
    puppet = await shop.puppet()
    shop.give(A)
    await puppet.tasks(1)
    puppet.start(A)
    await shop.told(A, ACCEPTED)
    shop.order(kills=[(A, Reason.KILLED)])
    await puppet.expect(wire.Cancel)
    puppet.finish(A)
    assert (await shop.told(A, ENDED)).reason == Reason.NONE


async def test_a_fence_ends_the_waiting(shop: Floor) -> None:
    await shop.puppet(threads=1, buffer=0)
    shop.give(A, B)
    await until(lambda: shop.executor_loop.running == 2)
    shop.order(fences=[B])
    row = await shop.told(B, REFUSED)
    assert row.detail == WITHDRAWN


# ---- offers


async def test_the_leader_is_told_what_workers_serve_when_it_changes(shop: Floor) -> None:
    assert shop.ear.offers == []
    one = await shop.puppet(threads=3, buffer=5, handlers=["b", "a"])
    await until(lambda: len(shop.ear.offers) == 1)
    assert shop.ear.offers[-1] == (GroupOffer("app", 6, ("a", "b"), 3, Limiting.NONE),)
    two = await shop.puppet(group="web", threads=1, buffer=0, handlers=["c"])
    await until(lambda: len(shop.ear.offers) == 2)
    assert shop.ear.offers[-1][1] == GroupOffer("web", 2, ("c",), 1, Limiting.WATCHED)
    two.leave()
    await until(lambda: len(shop.ear.offers) == 3)
    one.hang_up()
    await until(lambda: shop.ear.offers[-1] == ())
    two.hang_up()


async def test_a_new_leader_is_told_what_there_is(shop: Floor) -> None:
    await shop.puppet()
    await until(lambda: len(shop.ear.offers) == 1)
    shop.executor_loop.detach(shop.ear)
    shop.executor_loop.attach(shop.ear)
    await until(lambda: len(shop.ear.offers) == 2)
    assert shop.ear.offers[0] == shop.ear.offers[1]


async def test_a_worker_is_fed_only_once_the_ledger_has_it(shop: Floor) -> None:
    puppet = await shop.puppet()  # it reads its welcome
    found = await asyncio.wrap_future(shop.thread.submit(shop.ledger.workers))
    assert [pid for pid, _ in found] == [puppet.pid]
    puppet.hang_up()

    def is_forgotten() -> bool:
        return not shop.thread.submit(shop.ledger.workers).result()

    await until(is_forgotten)


# ---- outputs


async def test_what_a_handler_prints_is_kept_as_a_commands_output_is(shop: Floor) -> None:
    puppet = await shop.puppet()
    shop.give(A)
    await puppet.tasks(1)
    puppet.start(A)
    puppet.write(A, b"hello\n")
    request = pool_pb2.OutputRequest(request=1, name=A)
    await until(lambda: shop.executor_loop.output(request).data == b"hello\n")
    assert not shop.executor_loop.output(request).ended
    puppet.write(A, b"bye\n")
    puppet.finish(A)
    await shop.told(A, ENDED)
    chunk = shop.executor_loop.output(request)
    assert (chunk.data, chunk.ended) == (b"hello\nbye\n", True)
    assert shop.executor_loop._outputs.kept(A) == 10


# ---- the end of the executor


async def test_a_draining_executor_cancels_what_runs_and_refuses_what_waits(shop: Floor) -> None:
    puppet = await shop.puppet(threads=1, buffer=0)
    shop.give(A, B)
    await puppet.tasks(1)
    puppet.start(A)
    await shop.told(A, ACCEPTED)
    draining = asyncio.create_task(shop.executor_loop.drain(5_000, 8))
    await puppet.expect(wire.Drain)
    assert await puppet.cancelled() == [(A, int(Reason.EXECUTOR_LOST))]
    assert (await shop.told(B, REFUSED)).detail == STOPPING
    puppet.finish(A, result=Result.CANCELLED)
    await draining
    assert shop.book.rows[A].reason == Reason.EXECUTOR_LOST
    assert shop.executor_loop.running == 0


async def test_what_does_not_end_when_the_executor_does_is_killed(shop: Floor) -> None:
    puppet = await shop.puppet()
    shop.give(A)
    await puppet.tasks(1)
    puppet.start(A)
    await shop.told(A, ACCEPTED)
    await shop.executor_loop.drain(100, 8)
    assert await puppet.exit_code() == -9
    assert shop.book.rows[A].reason == Reason.EXECUTOR_LOST


async def test_what_was_accepted_while_the_executor_is_told_to_stop_is_not_begun(
    shop: Floor,
) -> None:
    puppet = await shop.puppet()
    shop.executor_loop.workers.drain(5_000)  # a turn had seen it as not stopping yet
    shop.give(A)
    assert (await shop.told(A, REFUSED)).detail == STOPPING
    await puppet.expect(wire.Drain)
    assert shop.executor_loop.running == 0


async def test_launches_that_come_one_by_one_are_spread_over_the_workers(shop: Floor) -> None:
    puppets = [await shop.puppet(threads=2, buffer=8) for _ in range(2)]
    names = [named(number) for number in range(4)]
    for name in names:
        shop.give(name)
        await until(functools.partial(shop.executor_loop.workers.launches.__contains__, name))
    for puppet in puppets:
        assert len(await puppet.tasks(2)) == 2

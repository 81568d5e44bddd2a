"""What leaves for an executor: batches, sizes, order, and one that does not read."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from launcher.launch import Reason
from launcher.pool import limits
from launcher.pool.events import Left
from launcher.pool.lease import LeaseTimes
from launcher.pool.orders import Outbox, StartOrder
from launcher.rpc.v1 import pool_pb2
from tests.unit.pool_rig import (
    EPOCH,
    LEDGER,
    MANY,
    OTHER_LEDGER,
    WALL_MS,
    attempt,
    order,
    rigged,
    until,
)


def drained(outbox: Outbox) -> list[pool_pb2.Orders]:
    messages = []
    while outbox:
        messages.append(outbox.take(EPOCH))
    return messages


async def test_all_that_is_queued_in_one_turn_leaves_as_one_message_with_the_epoch() -> None:
    async with rigged() as rig, rig.joined() as executor:
        pool = rig.pool
        assert pool.floor("executor-7", LEDGER, 40)
        assert pool.floor("executor-7", LEDGER, 30)
        assert pool.ack("executor-7", LEDGER, [attempt(3)])
        assert pool.kill("executor-7", LEDGER, [(attempt(2), Reason.TIMEOUT)])
        assert pool.fence("executor-7", LEDGER, [attempt(1)], index=7)
        assert pool.start("executor-7", LEDGER, [order(4, b"w4"), order(5, b"w5")])
        orders = await executor.orders()
        assert (orders.epoch.lineage, orders.epoch.term, orders.epoch.replica) == (0, 7, "r1")
        assert [start.name for start in orders.starts] == [str(attempt(4)), str(attempt(5))]
        assert list(orders.fences) == ["default/backup@2026-11-20T16:01:00Z#1"]
        assert orders.fence_index == 7
        assert [(kill.name, kill.reason) for kill in orders.kills] == [(str(attempt(2)), 6)]
        assert list(orders.acks) == [str(attempt(3))]
        assert orders.floor == 40


async def test_a_start_carries_all_that_the_executor_checks() -> None:
    async with rigged() as rig, rig.joined() as executor:
        rig.pool.start("executor-7", LEDGER, [StartOrder(attempt(0), 77, WALL_MS + 5, b"\x00w")])
        [start] = (await executor.orders()).starts
        assert start.name == "default/backup@2026-11-20T16:00:00Z#1"
        assert (start.begun_index, start.not_after_ms, start.work) == (77, WALL_MS + 5, b"\x00w")
        assert start.scheduled_time == "2026-11-20T16:00:00Z"


async def test_a_thousand_starts_of_one_turn_are_one_message() -> None:
    async with rigged() as rig, rig.joined() as executor:
        for i in range(1_000):
            assert rig.pool.start("executor-7", LEDGER, [order(i)])
        orders = await executor.orders()
        assert [start.begun_index for start in orders.starts] == [100 + i for i in range(1_000)]


async def test_what_is_queued_in_a_later_turn_is_a_later_message() -> None:
    async with rigged() as rig, rig.joined() as executor:
        rig.pool.start("executor-7", LEDGER, [order(1)])
        assert len((await executor.orders()).starts) == 1
        rig.pool.start("executor-7", LEDGER, [order(2), order(3)])
        assert len((await executor.orders()).starts) == 2


async def test_orders_for_an_executor_that_is_not_there_say_so() -> None:
    async with rigged() as rig, rig.joined():
        for executor, ledger in (("executor-8", LEDGER), ("executor-7", OTHER_LEDGER)):
            assert not rig.pool.start(executor, ledger, [order(1)])
            assert not rig.pool.fence(executor, ledger, [attempt(1)], index=7)
            assert not rig.pool.kill(executor, ledger, [(attempt(1), Reason.KILLED)])
            assert not rig.pool.ack(executor, ledger, [attempt(1)])
            assert not rig.pool.floor(executor, ledger, 1)


def test_no_message_is_larger_than_the_bound_and_nothing_is_left_out() -> None:
    outbox = Outbox()
    outbox.start([order(i, bytes(1_000)) for i in range(8_000)])
    outbox.fence([attempt(i) for i in range(30_000)], 7)
    outbox.kill([(attempt(i), Reason.KILLED) for i in range(30_000)])
    outbox.ack([attempt(i) for i in range(30_000)])
    outbox.raise_floor(9)
    messages = drained(outbox)
    assert all(message.ByteSize() <= limits.ORDERS_BYTES_MAX for message in messages)
    assert sum(len(message.starts) for message in messages) == 8_000
    assert sum(len(message.fences) for message in messages) == 30_000
    assert sum(len(message.kills) for message in messages) == 30_000
    assert [name for message in messages for name in message.acks] == [
        str(attempt(i)) for i in range(30_000)
    ]
    # The floor never overtakes what still speaks of launches below it.
    assert [message.floor for message in messages] == [0] * (len(messages) - 1) + [9]
    assert 8 <= len(messages) <= 20


def test_one_start_of_the_largest_work_travels_alone_and_a_larger_one_not_at_all() -> None:
    outbox = Outbox()
    outbox.start(
        [
            order(1),
            order(2, bytes(limits.WORK_BYTES_MAX)),
            order(3, bytes(limits.WORK_BYTES_MAX + 1)),
            order(4),
        ]
    )
    messages = drained(outbox)
    assert [[start.begun_index for start in message.starts] for message in messages] == [
        [101],
        [102],
        [104],
    ]
    assert all(message.ByteSize() < 4 << 20 for message in messages)  # gRPC's own bound


def test_an_empty_outbox_has_nothing_to_send() -> None:
    outbox = Outbox()
    assert not outbox
    outbox.raise_floor(3)
    assert outbox
    assert outbox.take(EPOCH).floor == 3
    assert not outbox


def test_the_outbox_knows_when_more_waits_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTBOX_BYTES_MAX", 1_000)
    outbox = Outbox()
    outbox.start([order(1, bytes(500))])
    assert not outbox.is_full
    outbox.ack([attempt(i) for i in range(6)])
    assert outbox.is_full
    drained(outbox)
    assert not outbox.is_full


@pytest.mark.parametrize("kind", ["start", "fence", "kill", "ack"])
def test_every_kind_of_order_counts_and_counts_back(kind: str) -> None:
    outbox = Outbox()
    items = {
        "start": [order(1)],
        "fence": [attempt(1)],
        "kill": [(attempt(1), Reason.KILLED)],
        "ack": [attempt(1)],
    }[kind]
    getattr(outbox, kind)(items, *([7] if kind == "fence" else []))
    assert outbox._bytes > 0
    drained(outbox)
    assert outbox._bytes == 0


# ---- an executor that does not read

SHORT = LeaseTimes(heartbeat_ms=20, self_kill_ms=150, give_up_ms=30_000)


async def test_an_executor_that_does_not_read_for_a_lease_is_dropped() -> None:
    async with rigged(SHORT) as rig, rig.joined():
        for i in range(MANY):
            assert rig.pool.start("executor-7", LEDGER, [order(i, bytes(1 << 20))])
        left = await rig.gone()
        assert left.reason == "does not read: a message waited 150 ms"
        assert not rig.pool.is_connected("executor-7", LEDGER)
        assert not rig.pool.start("executor-7", LEDGER, [order(1)])
        assert rig.pool.lease_until("executor-7", LEDGER) is not None  # the lease goes on


async def test_the_stream_of_an_executor_that_does_not_read_is_cut() -> None:
    async with rigged(SHORT) as rig, rig.joined() as executor:
        rig.pool.start("executor-7", LEDGER, [order(i, bytes(1 << 20)) for i in range(MANY)])
        await rig.gone()
        # It reads at last: of many starts only what was in the pipe is there, then the end.
        arrived = sum(len(message.orders.starts) for message in await executor.rest())
        assert arrived < MANY
        assert await executor.call.code() is not grpc.StatusCode.OK


async def test_an_outbox_over_its_bound_drops_the_executor_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "OUTBOX_BYTES_MAX", 10_000)
    async with rigged() as rig, rig.joined():
        assert not rig.pool.start("executor-7", LEDGER, [order(1, bytes(10_000))])
        assert [left.reason for left in rig.of(Left)] == ["does not read: too much waits for it"]


async def test_one_that_does_not_read_holds_up_nobody_else() -> None:
    async with (
        rigged() as rig,
        rig.joined(),
        rig.joined(executor="executor-8") as other,
    ):
        rig.pool.start("executor-7", LEDGER, [order(i, bytes(1 << 20)) for i in range(MANY)])
        await asyncio.sleep(0)
        rig.pool.start("executor-8", LEDGER, [order(1)])
        assert len((await other.orders()).starts) == 1


async def test_a_burst_to_an_executor_that_reads_arrives_whole() -> None:
    async with rigged() as rig, rig.joined() as executor:
        sent = [order(i, bytes(100_000)) for i in range(100)]
        assert rig.pool.start("executor-7", LEDGER, sent)
        arrived: list[int] = []
        while len(arrived) < 100:
            arrived += [start.begun_index for start in (await executor.orders()).starts]
        assert arrived == [item.begun_index for item in sent]
        await until(lambda: not rig.pool._sessions["executor-7"].outbox)

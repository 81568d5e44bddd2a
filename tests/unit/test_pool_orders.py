"""What leaves for an executor: batches, sizes, order, and one that does not read."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import msgspec
import pytest

from launcher.pool import limits
from launcher.pool.events import Left
from launcher.pool.lease import LeaseTimes
from launcher.pool.outbox import Outbox
from launcher.protocol.columns import sums
from launcher.protocol.status import Reason
from launcher.protocol.v1 import pool_pb2
from tests.unit.pool_rig import (
    EPOCH,
    LEDGER,
    MANY,
    OTHER_LEDGER,
    WALL_MS,
    batch,
    fence,
    kill,
    order,
    place,
    rigged,
    started,
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
        assert pool.order("executor-7", LEDGER, watermark=40)
        assert pool.order("executor-7", LEDGER, watermark=30)
        assert pool.order("executor-7", LEDGER, acks=[place(3), (103, [7, 2])])
        assert pool.order("executor-7", LEDGER, kills=[kill(2, Reason.TIMEOUT)])
        assert pool.order("executor-7", LEDGER, fences=[fence(1)])
        assert pool.order("executor-7", LEDGER, starts=[order(4, b"w4"), order(5, b"w5")])
        orders = await executor.orders()
        assert (orders.epoch.generation, orders.epoch.term, orders.epoch.replica) == (0, 7, "r1")
        assert started(orders) == [4, 5]
        (tombstone,) = orders.fences
        name = "default/backup@2026-11-20T16:01:00Z#1"
        assert (tombstone.index, tombstone.row, tombstone.name) == (101, 0, name)
        assert [(kill.index, kill.row, kill.reason) for kill in orders.kills] == [(102, 0, 6)]
        assert [(ack.index, list(ack.rows)) for ack in orders.acks] == [(103, [0, 2, 5])]
        assert orders.floor == 40


async def test_a_thousand_starts_of_one_turn_are_one_message() -> None:
    async with rigged() as rig, rig.joined() as executor:
        for i in range(1_000):
            assert rig.pool.order("executor-7", LEDGER, starts=[order(i)])
        orders = await executor.orders()
        assert started(orders) == list(range(1_000))


async def test_what_is_queued_in_a_later_turn_is_a_later_message() -> None:
    async with rigged() as rig, rig.joined() as executor:
        rig.pool.order("executor-7", LEDGER, starts=[order(1)])
        assert started(await executor.orders()) == [1]
        rig.pool.order("executor-7", LEDGER, starts=[order(2), order(3)])
        assert started(await executor.orders()) == [2, 3]


async def test_orders_for_an_executor_that_is_not_there_say_so() -> None:
    async with rigged() as rig, rig.joined():
        for executor, ledger in (("executor-8", LEDGER), ("executor-7", OTHER_LEDGER)):
            assert not rig.pool.order(executor, ledger, starts=[order(1)])
            assert not rig.pool.order(executor, ledger, fences=[fence(1)])
            assert not rig.pool.order(executor, ledger, kills=[kill(1)])
            assert not rig.pool.order(executor, ledger, acks=[place(1)])
            assert not rig.pool.order(executor, ledger, watermark=1)


def test_no_message_is_larger_than_the_bound_and_nothing_is_left_out() -> None:
    outbox = Outbox()
    outbox.put(starts=[order(i, bytes(1_000)) for i in range(8_000)])
    outbox.put(fences=[fence(i) for i in range(30_000)])
    outbox.put(kills=[kill(i) for i in range(90_000)])
    outbox.put(acks=[(100 + i % 7, range(i, i + 100)) for i in range(0, 1_000_000, 100)])
    outbox.put(watermark=9)
    messages = drained(outbox)
    assert all(message.ByteSize() <= limits.ORDERS_BYTES_MAX for message in messages)
    assert [number for message in messages for number in started(message)] == list(range(8_000))
    assert sum(len(message.fences) for message in messages) == 30_000
    assert sum(len(message.kills) for message in messages) == 90_000
    rows = [row for one in messages for ack in one.acks for row in sums(ack.rows)]
    assert sorted(rows) == list(range(1_000_000))
    # The floor never overtakes what still speaks of launches below it.
    assert [message.floor for message in messages] == [0] * (len(messages) - 1) + [9]
    assert 8 <= len(messages) <= 30


def test_one_start_of_the_largest_work_fits_and_a_larger_one_does_not() -> None:
    outbox = Outbox()
    outbox.put(
        starts=[
            order(1),
            order(2, bytes(limits.WORK_BYTES_MAX)),
            order(3, bytes(limits.WORK_BYTES_MAX + 1)),
            order(4),
        ]
    )
    messages = drained(outbox)
    assert [started(message) for message in messages] == [[1], [2], [4]]
    assert all(message.ByteSize() < 4 << 20 for message in messages)  # gRPC's own bound


def test_a_row_is_a_few_bytes() -> None:
    """The usual launch has no message of its own, and nothing of it is said that all have."""
    outbox = Outbox()
    one = batch(10**12, *[f"job-{i}" for i in range(200)])
    outbox.put(starts=[one])
    first = outbox.take(EPOCH)
    assert [len(column) for column in (first.works, first.batches[0].works)] == [200, 200]
    outbox.put(starts=[msgspec.structs.replace(one, index=10**12 + 1)])
    second = outbox.take(EPOCH)
    assert not second.works
    (sent,) = second.batches
    columns = (sent.scheduled_s, sent.not_after_ms, sent.attempts, sent.triggers, sent.parts)
    assert [list(column) for column in columns] == [[1_795_190_400], [WALL_MS + 60_000], [], [], []]
    assert second.ByteSize() < 200 * 3 + 50


def test_what_rows_differ_in_is_in_columns() -> None:
    outbox = Outbox()
    at_s = [1_795_190_400, 1_795_190_460, 1_795_190_430]
    fields = {"attempts": [1, 2, 1], "triggers": [0, 0, 3], "parts": [1, 4, 1]}
    one = msgspec.structs.replace(batch(7, "a", "b", "a", **fields), rows=[2, 3, 9])
    outbox.put(starts=[msgspec.structs.replace(one, scheduled_s=at_s)])
    (sent,) = outbox.take(EPOCH).batches
    assert (sums(sent.rows), sums(sent.scheduled_s)) == ([2, 3, 9], at_s)
    assert {name: list(getattr(sent, name)) for name in fields} == fields


def test_a_batch_leaves_in_slices_and_other_orders_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ORDERS_ROWS_MAX", 3)
    outbox = Outbox()
    at_s = [1_795_190_400 + i for i in range(5)]
    outbox.put(starts=[batch(7, *"abcde", scheduled_s=at_s), batch(8, "f")])
    outbox.put(watermark=6)
    outbox.put(acks=[(5, [1])])
    messages = drained(outbox)
    found = [[(one.index, sums(one.rows)) for one in message.batches] for message in messages]
    assert found == [[(7, [0, 1, 2])], [(7, [3, 4]), (8, [0])]]
    assert sums(messages[1].batches[0].scheduled_s) == at_s[3:]
    assert [message.floor for message in messages] == [0, 6]


def test_what_is_taken_back_is_what_no_message_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ORDERS_ROWS_MAX", 2)
    outbox = Outbox()
    outbox.put(
        starts=[batch(7, *"abc", is_first=True), batch(8, "d"), batch(9, "e", is_first=True)]
    )
    outbox.take(EPOCH)
    assert [(index, list(rows)) for index, rows in outbox.take_starts()] == [(7, [2]), (9, [0])]
    assert not outbox
    assert outbox._bytes == 0
    outbox.put(starts=[batch(10, "x")])
    (sent,) = outbox.take(EPOCH).batches
    assert (sent.index, list(sent.rows)) == (10, [0])


def test_an_empty_outbox_has_nothing_to_send() -> None:
    outbox = Outbox()
    assert not outbox
    outbox.put(watermark=3)
    assert outbox
    assert outbox.take(EPOCH).floor == 3
    outbox.put(acks=[(5, [])])
    assert not outbox


def test_the_outbox_knows_when_more_waits_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTBOX_BYTES_MAX", 1_000)
    outbox = Outbox()
    outbox.put(starts=[order(1, bytes(500))])
    assert not outbox.is_full
    outbox.put(acks=[place(i) for i in range(10)])
    assert outbox.is_full
    drained(outbox)
    assert not outbox.is_full


@pytest.mark.parametrize("kind", ["start", "fence", "kill", "ack"])
def test_every_kind_of_order_counts_and_counts_back(kind: str) -> None:
    outbox = Outbox()
    items: Any = {
        "start": [order(1)],
        "fence": [fence(1)],
        "kill": [kill(1)],
        "ack": [place(1)],
    }[kind]
    outbox.put(**{f"{kind}s": items})
    assert outbox._bytes > 0
    drained(outbox)
    assert outbox._bytes == 0


# ---- an executor that does not read

SHORT = LeaseTimes(heartbeat_ms=20, self_kill_ms=150, give_up_ms=30_000)


async def test_an_executor_that_does_not_read_for_a_lease_is_dropped() -> None:
    async with rigged(SHORT) as rig, rig.joined():
        for i in range(MANY):
            assert rig.pool.order("executor-7", LEDGER, starts=[order(i, bytes(1 << 20))])
        left = await rig.gone()
        assert left.reason == "does not read: a message waited 150 ms"
        assert not rig.pool.is_connected("executor-7", LEDGER)
        assert not rig.pool.order("executor-7", LEDGER, starts=[order(1)])
        assert rig.pool.leases.until(("executor-7", LEDGER)) is not None  # the lease goes on


async def test_the_stream_of_an_executor_that_does_not_read_is_cut() -> None:
    async with rigged(SHORT) as rig, rig.joined() as executor:
        rig.pool.order("executor-7", LEDGER, starts=[order(i, bytes(1 << 20)) for i in range(MANY)])
        await rig.gone()
        # It reads at last: of many starts only what was in the pipe is there, then the end.
        arrived = sum(len(message.orders.batches) for message in await executor.rest())
        assert arrived < MANY
        assert await executor.call.code() is not grpc.StatusCode.OK


async def test_an_outbox_over_its_bound_drops_the_executor_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "OUTBOX_BYTES_MAX", 10_000)
    async with rigged() as rig, rig.joined():
        assert not rig.pool.order("executor-7", LEDGER, starts=[order(1, bytes(10_000))])
        assert [left.reason for left in rig.of(Left)] == ["does not read: too much waits for it"]


async def test_one_that_does_not_read_holds_up_nobody_else() -> None:
    async with (
        rigged() as rig,
        rig.joined(),
        rig.joined(executor="executor-8") as other,
    ):
        rig.pool.order("executor-7", LEDGER, starts=[order(i, bytes(1 << 20)) for i in range(MANY)])
        await asyncio.sleep(0)
        rig.pool.order("executor-8", LEDGER, starts=[order(1)])
        assert started(await other.orders()) == [1]


async def test_a_burst_to_an_executor_that_reads_arrives_whole() -> None:
    async with rigged() as rig, rig.joined() as executor:
        sent = [order(i, bytes(100_000)) for i in range(100)]
        assert rig.pool.order("executor-7", LEDGER, starts=sent)
        arrived: list[int] = []
        while len(arrived) < 100:
            arrived += started(await executor.orders())
        assert arrived == list(range(100))
        await until(lambda: not rig.pool._sessions["executor-7"].outbox)


async def test_acknowledgements_wait_for_the_next_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ACKS_WITHIN_MS", 10**9)
    async with rigged() as rig, rig.joined() as fake:
        assert rig.pool.order("executor-7", LEDGER, acks=[place(3)])
        assert rig.pool.order("executor-7", LEDGER, acks=[place(4)])
        assert rig.pool.order("executor-7", LEDGER, starts=[order(5)])
        orders = await fake.orders()
        assert started(orders) == [5]
        assert len(orders.acks) == 2


async def test_acknowledgements_leave_by_themselves_if_no_order_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ACKS_WITHIN_MS", 1)
    async with rigged() as rig, rig.joined() as fake:
        for number in (3, 4):
            assert rig.pool.order("executor-7", LEDGER, acks=[place(number)])
            assert len((await fake.orders()).acks) == 1

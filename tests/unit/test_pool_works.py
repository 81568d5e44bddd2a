"""Works under numbers: each is sent once over a stream, and a number means one thing at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.pool import limits
from launcher.pool.outbox import Outbox
from launcher.protocol.columns import full, sums
from launcher.protocol.v1 import pool_pb2
from tests.unit.pool_rig import EPOCH, LEDGER, batch, order, rigged


class Cache:
    """What an executor knows of works, and which jobs it was told to start."""

    def __init__(self) -> None:
        self.works: dict[int, tuple[str, bytes]] = {}
        self.started: list[tuple[int, int, str]] = []

    def read(self, orders: pool_pb2.Orders) -> None:
        """Works first, then batches, as the protocol says."""
        for work in orders.works:
            assert work.number < limits.WORK_NUMBERS
            self.works[work.number] = (work.job, work.spec)
        for one in orders.batches:
            rows = sums(one.rows)
            for row, number in zip(rows, full(one.works, len(rows)), strict=True):
                job, spec = self.works[number]
                assert job == f"default/{spec.decode()}"
                self.started.append((one.index, row, spec.decode()))

    @property
    def known(self) -> int:
        return sum(1 for job, _ in self.works.values() if job)


def keep(monkeypatch: pytest.MonkeyPatch, count: int, size: int = 1 << 20) -> None:
    """Let a stream know so many works only, and so many bytes of them."""
    monkeypatch.setattr(limits, "works_kept", lambda _: (count, size))


def test_a_work_is_sent_once_and_a_new_revision_of_it_anew() -> None:
    outbox, cache = Outbox(), Cache()
    one = batch(1, "a", "b")
    for message in range(3):
        outbox.put(starts=[one])
        orders = outbox.take(EPOCH)
        cache.read(orders)
        assert len(orders.works) == (2 if message == 0 else 0)
    outbox.put(starts=[batch(2, "a")])  # as another work, which happens to be alike
    assert len(outbox.take(EPOCH).works) == 1


async def test_another_stream_is_sent_all_of_it_again() -> None:
    """A stream may break between a work and its batch: the next one knows nothing."""
    one = order(1)
    async with rigged() as rig:
        for _ in range(2):
            async with rig.joined() as fake:
                rig.pool.order("executor-7", LEDGER, starts=[one])
                orders = await fake.orders()
                assert [work.number for work in orders.works] == list(orders.batches[0].works)
            await rig.gone(1)
            rig.events.clear()


def test_a_number_means_something_else_only_in_a_later_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that came before keep what they came with, so a number may be given while they run."""
    keep(monkeypatch, 2)
    outbox, cache = Outbox(), Cache()
    a, b = batch(1, "a"), batch(2, "b")
    outbox.put(starts=[a, b])
    cache.read(outbox.take(EPOCH))
    outbox.put(
        starts=[a, batch(3, "c"), batch(4, "d"), b]
    )  # four in one message, where two are kept
    cache.read(outbox.take(EPOCH))
    assert [job for _, _, job in cache.started] == ["a", "b", "a", "c", "d", "b"]
    outbox.put(starts=[batch(5, "e")])
    cache.read(outbox.take(EPOCH))
    assert cache.started[-1] == (5, 0, "e")
    assert cache.known <= 3


def test_a_message_whose_every_work_is_new_and_whose_room_is_small_leaves_in_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ORDERS_BYTES_MAX", 300)
    outbox, cache = Outbox(), Cache()
    jobs = [f"job-{i}" for i in range(40)]
    outbox.put(starts=[batch(1, *jobs)])
    count = 0
    while outbox:
        orders = outbox.take(EPOCH)
        assert orders.ByteSize() <= 350
        cache.read(orders)
        count += 1
    assert cache.started == [(1, row, job) for row, job in enumerate(jobs)]
    assert count > 3


def test_large_works_drive_out_older_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(monkeypatch, 100, size=5_000)
    outbox, cache = Outbox(), Cache()
    for i in range(50):
        outbox.put(starts=[batch(i + 1, "x" * (500 + i))])
        cache.read(outbox.take(EPOCH))
        assert sum(len(spec) for _, spec in cache.works.values()) <= 5_000
    assert len(cache.started) == 50


def test_the_memory_of_many_streams_is_bounded_together() -> None:
    for streams in (1, 10, 1_000, 10_000):
        count, size = limits.works_kept(streams)
        assert streams * count <= max(limits.WORKS_KEPT, streams * limits.WORKS_KEPT_MIN)
        assert streams * size <= limits.WORKS_BYTES_KEPT
        assert count + limits.ORDERS_ROWS_MAX <= limits.WORK_NUMBERS


@given(st.data())
def test_whatever_is_ordered_the_executor_starts_that_and_nothing_else(data: Any) -> None:
    jobs = {name: batch(1, name).works[0] for name in "abcdefgh"}
    with pytest.MonkeyPatch.context() as monkeypatch:
        keep(monkeypatch, data.draw(st.integers(1, 5)))
        monkeypatch.setattr(limits, "ORDERS_ROWS_MAX", data.draw(st.integers(1, 6)))
        outbox, cache, wanted = Outbox(), Cache(), []
        for index in range(1, data.draw(st.integers(1, 12))):
            names = data.draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=9))
            one = batch(index, *names)
            works = [jobs[name] for name in names]
            outbox.put(starts=[msgspec.structs.replace(one, works=works)])
            wanted += [(index, row, name) for row, name in enumerate(names)]
            for _ in range(data.draw(st.integers(0, 2))):
                if outbox:
                    cache.read(outbox.take(EPOCH))
        while outbox:
            cache.read(outbox.take(EPOCH))
    assert cache.started == wanted

"""What an executor that comes back is asked about what it does not report."""

from __future__ import annotations

from typing import Any

import pytest

from cron.leader.dispatch import Dispatcher
from cron.leader.settle import STALE_MS, Settler
from cron.state import commands as c
from launcher.launch import Reason
from launcher.pool.events import BatchFacts, Fact, Fate, Joined, alone, lost_rows
from launcher.pool.orders import FenceOrder, KillOrder, StartBatch
from tests.unit.state_rig import StateRig
from tests.unit.test_scheduler_reports import many
from tests.unit.test_state_parts import begun, launched


class FakePool:
    """Keeps what is ordered."""

    def __init__(self) -> None:
        self.started: list[StartBatch] = []
        self.fenced: list[FenceOrder] = []
        self.killed: list[KillOrder] = []

    def order(self, _executor: str, _ledger: str, **orders: list[Any]) -> None:
        self.started += orders.get("starts", ())
        self.fenced += orders.get("fences", ())
        self.killed += orders.get("kills", ())

    @property
    def rows(self) -> list[tuple[int, list[int]]]:
        return [(batch.index, list(batch.rows)) for batch in self.started]


def joined(rig: StateRig, number: int, known: tuple[BatchFacts, ...]) -> Joined:
    record = rig.state.executors[number]
    return Joined(record.executor, record.ledger, "i", 4, "", 1, "", {}, "", 0, known)


def settled(
    rig: StateRig, number: int, *facts: Fact, batches: tuple[BatchFacts, ...] = ()
) -> tuple[tuple[BatchFacts, ...], FakePool]:
    """What executor `number` reports on joining: what is to be recorded, and what it is sent."""
    pool: Any = FakePool()
    settler = Settler(pool, Dispatcher(pool))
    settler.joined(joined(rig, number, (*map(alone, facts), *batches)), rig.state)
    record = rig.state.executors[number]
    found = settler.ready(rig.state, record, rig.at_ms)
    assert settler.ready(rig.state, record, rig.at_ms) == (), "it is settled once"
    return found, pool


def accepted(index: int, *rows: int) -> BatchFacts:
    """Rows that run."""
    none = [0] * len(rows)
    return BatchFacts(index, Fate.ACCEPTED, Reason.NONE, 0, list(rows), none, none, none)


# ---- a batch of which an executor has some rows


def test_rows_that_never_arrived_are_started_again_as_the_same_rows() -> None:
    """The leader died after the first of two messages of a batch: the other half was never sent,
    or is still under way."""
    rig = many()
    index = rig.state.index
    found, pool = settled(rig, 1, batches=(accepted(index, 0, 2),))
    assert pool.rows == [(index, [1, 3])]
    (batch,) = pool.started
    assert [work.job for work in batch.works] == ["default/job-1", "default/job-3"]
    assert not batch.is_first, "who knows what the former leader has sent"
    assert found == (accepted(index, 0, 2),), "what it says is news like any other"


def test_rows_of_several_batches_are_started_again_by_batch() -> None:
    rig = many(2)
    first = rig.state.index
    rig.refused(60, number=2)
    rig.begin(60, attempt=2, number=2)
    _, pool = settled(rig, 1)
    assert pool.rows == [(first, [0]), (rig.state.index, [0])]
    assert list(pool.started[1].attempts) == [2]


def test_a_row_whose_window_is_over_or_that_nobody_wants_is_fenced() -> None:
    rig = many(2)
    index = rig.state.index
    rig.cancel(60, number=1)
    _, pool = settled(rig, 1)
    assert (pool.rows, [(one.index, one.row) for one in pool.fenced]) == (
        [(index, [1])],
        [(index, 0)],
    )
    rig.to(3_000)
    _, pool = settled(rig, 1)
    assert (pool.rows, [one.row for one in pool.fenced]) == ([], [0, 1])
    assert str(pool.fenced[0].name) == "default/job-0@2026-11-20T16:01:00Z#1"


def test_what_began_after_the_report_is_not_asked_for() -> None:
    rig = many(2)
    rig.refused(60, number=2)
    pool: Any = FakePool()
    settler = Settler(pool, Dispatcher(pool))
    settler.joined(joined(rig, 1, ()), rig.state)
    rig.begin(60, attempt=2, number=2)
    settler.ready(rig.state, rig.state.executors[1], rig.at_ms)
    assert [index for index, _ in pool.rows] == [rig.state.index - 2]


def test_what_the_log_takes_back_is_neither_started_nor_fenced() -> None:
    """Its first order never left, and it may have begun elsewhere by the time that this arrives."""
    rig = many(2)
    pool: Any = FakePool()
    dispatcher = Dispatcher(pool)
    dispatcher.unsent[("e1", "l1"), rig.state.index] = {0}
    settler = Settler(pool, dispatcher)
    settler.joined(joined(rig, 1, ()), rig.state)
    settler.ready(rig.state, rig.state.executors[1], rig.at_ms)
    assert pool.rows == [(rig.state.index, [1])]
    rig.to(3_000)
    settler.stale(rig.state, rig.at_ms)
    assert [one.row for one in pool.fenced] == [1]


def test_stale_starts_are_asked_about_again_batch_by_batch() -> None:
    rig = many()
    index = rig.state.index
    rig.launched(60, number=2)
    rig.cancel(60, number=2)
    pool: Any = FakePool()
    settler = Settler(pool, Dispatcher(pool))
    settler.stale(rig.state, rig.at_ms + STALE_MS - 1)
    assert (pool.rows, pool.fenced, pool.killed) == ([], [], [])
    settler.stale(rig.state, rig.at_ms + STALE_MS)
    assert pool.rows == [(index, [0, 2, 3])]
    assert pool.killed == [KillOrder(index, 1, Reason.KILLED)]


# ---- what was launched


@pytest.mark.parametrize("is_odd_then", [False, True])
def test_a_launched_row_that_its_executor_does_not_know_is_lost(is_odd_then: bool) -> None:
    """Also where the row is cancelled between the report and its settling."""
    rig = many(2)
    index = rig.state.index
    rig.append(c.Launched((), (c.Starts(index, 1, (0,), (rig.at_ms,)),)))
    pool: Any = FakePool()
    settler = Settler(pool, Dispatcher(pool))
    if is_odd_then:
        rig.cancel(60)
    settler.joined(joined(rig, 1, ()), rig.state)
    if not is_odd_then:
        rig.cancel(60)
    found = settler.ready(rig.state, rig.state.executors[1], rig.at_ms)
    assert found == (lost_rows(index, [0]),)


def test_an_odd_row_that_is_launched_after_the_report_is_not_lost() -> None:
    rig = many(2)
    rig.cancel(60)
    pool: Any = FakePool()
    settler = Settler(pool, Dispatcher(pool))
    settler.joined(joined(rig, 1, ()), rig.state)
    rig.launched(60)
    assert settler.ready(rig.state, rig.state.executors[1], rig.at_ms) == ()


# ---- parts


def test_a_part_that_started_after_its_executor_told_what_it_has_is_not_lost() -> None:
    """Another part had been launched before: that said nothing of this one."""
    rig = begun()
    launched(rig, 2)
    pool: Any = FakePool()
    settler = Settler(pool, Dispatcher(pool))
    settler.joined(joined(rig, 1, ()), rig.state)
    launched(rig, 1)
    assert settler.ready(rig.state, rig.state.executors[1], rig.at_ms) == ()


def test_a_part_that_was_launched_and_that_its_executor_does_not_know_is_lost() -> None:
    rig = begun()
    index = rig.state.index
    launched(rig, 1)
    found, _ = settled(rig, 1)
    assert found == (lost_rows(index, [0]),)


def test_each_part_is_started_again_at_its_own_executor() -> None:
    rig = begun()
    for number in (1, 2, 3):
        _, pool = settled(rig, number)
        assert [list(batch.parts) for batch in pool.started] == [[number]]

"""Rows of batches: what an entry begins on an executor, numbered in the order of its Begin. By them
that executor speaks of its attempts."""

from __future__ import annotations

from cron.limits import LOST_KEPT
from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.state import LostRow
from launcher.launch import LaunchState, Reason
from tests.unit.state_rig import T0, StateRig, job


def rig_of(*jobs: str, **fields: int) -> StateRig:
    """Jobs 1, 2, ... that are due, and executors 1 to 3."""
    rig = StateRig()
    rig.put(*(job(name, **fields) for name in jobs))
    for number in (1, 2, 3):
        rig.join(f"e{number}", f"l{number}")
    rig.to(60)
    for number in range(1, len(jobs) + 1):
        rig.account(60, number=number)
    return rig


def item(number: int, executor: int, *others: int, attempt: int = 1) -> c.BeginItem:
    return c.BeginItem((number, T0 + 60, 0), attempt, 1, executor, (T0 + 90) * 1000, others)


def rows(rig: StateRig) -> dict[int, list[tuple[int, int]]]:
    """By executor, the jobs of what is open there and their rows."""
    return {
        record.number: [(row.number, place[1]) for place, row in record.open.items()]
        for record in rig.state.executors.values()
    }


def test_rows_are_numbered_for_each_executor_in_the_order_of_the_begin() -> None:
    rig = rig_of("a", "b", "c")
    rig.append(c.Begin((item(2, 1), item(1, 2), item(3, 1))))
    assert rows(rig) == {1: [(2, 0), (3, 1)], 2: [(1, 0)], 3: []}


def test_a_row_that_is_refused_has_its_number() -> None:
    rig = rig_of("a", "b", "c")
    result = rig.answer(c.Begin((item(1, 1), item(2, 1, attempt=7), item(3, 1))))
    assert result.items == (Verdict.ACCEPTED, Verdict.WRONG_ATTEMPT, Verdict.ACCEPTED)
    assert rows(rig)[1] == [(1, 0), (3, 2)]


def test_all_that_one_entry_begins_on_an_executor_is_one_batch() -> None:
    rig = rig_of("a", "b")
    rig.append(c.Begin((item(1, 1),)), c.Begin((item(2, 1),)))
    assert rows(rig)[1] == [(1, 0), (2, 1)]


def test_a_part_is_a_row_of_the_batch_of_its_own_executor() -> None:
    rig = rig_of("a", "b", parts=2)
    rig.append(c.Begin((item(1, 1, 2), item(2, 2, 3))))
    assert rows(rig) == {1: [(1, 0)], 2: [(1, 0), (2, 1)], 3: [(2, 0)]}
    again = decode_state([encode_state(rig.state)])
    assert {n: list(one.open) for n, one in again.executors.items()} == {
        n: list(one.open) for n, one in rig.state.executors.items()
    }


def test_a_row_is_gone_with_its_end_and_its_neighbour_stays() -> None:
    rig = rig_of("a", "b")
    rig.append(c.Begin((item(1, 1), item(2, 1))))
    rig.finished(60, number=1)
    assert rows(rig)[1] == [(2, 1)]


# ---- late news (rule R9)


def test_a_lost_attempt_is_found_by_where_it_was_begun() -> None:
    rig = rig_of("a", "b")
    rig.append(c.Begin((item(1, 1), item(2, 1))))
    index = rig.state.index
    rig.lost(60, number=2)
    rig.append(c.ExecutorLeft(1))  # its number is not given again: the ledger says who it was
    attempt = ((2, T0 + 60, 0), 1)
    assert rig.state.lost_at == {(index, "l1", 1): attempt}
    again = decode_state([encode_state(rig.state)])
    assert again.lost_at == rig.state.lost_at
    assert rig.finished(60, number=2) is Verdict.AMENDED
    assert not rig.state.lost_at
    assert not rig.state.lost


def test_each_part_of_a_lost_attempt_is_found() -> None:
    rig = rig_of("a", parts=2)
    rig.begin(60, others=(3,))
    index, attempt = rig.state.index, ((1, T0 + 60, 0), 1)
    ends = [c.LostItem(attempt[0], 1, part=part) for part in (1, 2)]
    rig.append(c.Lost(tuple(ends)))
    places = {(index, "l1", 0): attempt, (index, "l3", 0): attempt}
    assert rig.state.lost_at == places
    news = (attempt[0], 1, LaunchState.SUCCEEDED, Reason.NONE, 0, 1, 2)
    assert rig.item(c.Finished((c.FinishedItem(*news, part=2),))) is Verdict.AMENDED
    assert rig.state.lost_at == places  # the other one may have its news, too


def test_where_it_was_begun_is_forgotten_with_the_attempt() -> None:
    rig = rig_of("a")
    for number in range(LOST_KEPT):
        lost = LostRow(1, -1, ledger="l9", begun_index=number, rows=(0,))
        rig.state.remember_lost((9, number, 0), 1, lost)
    rig.begin(60)
    rig.lost(60)
    assert len(rig.state.lost_at) == len(rig.state.lost) == LOST_KEPT
    assert (0, "l9", 0) not in rig.state.lost_at

"""Rows: by what number an attempt, or a part of one, is known at its executor."""

from __future__ import annotations

from typing import Any

import pytest

from cron.launch_state import LaunchState
from cron.leader.dispatch import Dispatcher
from cron.limits import LOST_KEPT
from cron.notes import Note, NoteCode
from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.rows import NO_ROW, Chunk
from launcher.pool.pool import Pool
from launcher.protocol.columns import differences
from launcher.protocol.reports import BatchReport
from launcher.protocol.status import Reason, Status
from tests.batches import AttemptItem, BeginItem, begin_of, lost_item
from tests.unit.history_rig import row
from tests.unit.restored_rig import RestoredRig
from tests.unit.state_rig import T0, StateRig, job, with_job


def begin_item(rig: StateRig, second: int, executor: int, *others: int) -> BeginItem:
    key = (1, T0 + second, 0)
    row = rig.state.due.get(key)
    return BeginItem(key, 1, 1, executor, row.deadline_ms if row else rig.at_ms, others)


def due(*seconds: int, **fields: Any) -> StateRig:
    """A rig with a second executor and launches that are due."""
    rig = with_job(**fields)
    rig.join("e2", "l2")
    rig.to(seconds[-1]).account(*seconds)
    return rig


def found(rig: StateRig, executor: int, index: int, row: int) -> int | None:
    """The second of what is found as that row."""
    launch = rig.state.executors[executor].find(index, row)
    return None if launch is None else launch.scheduled_s - T0


def test_rows_count_what_an_entry_begins_on_each_executor() -> None:
    rig = due(60, 120, 180)
    rig.append(
        begin_of((begin_item(rig, 60, 1), begin_item(rig, 120, 2))),
        begin_of((begin_item(rig, 180, 1),)),
    )
    index = rig.state.index
    assert [found(rig, *at) for at in ((1, index, 0), (2, index, 0), (1, index, 1))] == [
        60, 120, 180,
    ]  # fmt: skip
    assert found(rig, 2, index, 1) is None
    assert found(rig, 1, index - 1, 0) is None


def test_what_may_not_begin_has_a_row_as_well() -> None:
    rig = due(60, 120)
    items = (begin_item(rig, 61, 1), begin_item(rig, 120, 1))
    assert rig.items(begin_of(items)) == [Verdict.NOT_DUE, Verdict.ACCEPTED]
    assert found(rig, 1, rig.state.index, 0) is None
    assert found(rig, 1, rig.state.index, 1) == 120


def test_parts_are_rows_of_their_executors() -> None:
    rig = due(60, 120, each="role=web")
    rig.append(begin_of((begin_item(rig, 60, 1), begin_item(rig, 120, 1, 2))))
    index = rig.state.index
    assert (found(rig, 1, index, 1), found(rig, 2, index, 0)) == (120, 120)
    assert [start.row for start in rig.row(120).starts()] == [1, 0]


def test_what_is_over_is_not_found() -> None:
    rig = due(60, 120)
    rig.append(begin_of((begin_item(rig, 60, 1), begin_item(rig, 120, 1))))
    index = rig.state.index
    rig.finished(60)
    assert (found(rig, 1, index, 0), found(rig, 1, index, 1)) == (None, 120)
    rig.refused(120)
    assert found(rig, 1, index, 1) is None
    assert rig.row(120).row == NO_ROW
    assert rig.state.executors[1].batches == {}


def test_what_was_refused_begins_again_as_a_usual_row() -> None:
    """Under overload executors refuse thousands, and each would cost an object."""
    rig = due(60, 120, 180)
    rig.cancel(180)
    for second in (60, 120):
        assert rig.begin(second) is rig.refused(second) is Verdict.ACCEPTED
    gap = BeginItem((1, T0 + 180, 0), 1, 1, 1, rig.at_ms)
    again = [BeginItem((1, T0 + at_s, 0), 2, 1, 1, rig.at_ms + 5_000) for at_s in (60, 120)]
    verdicts = [Verdict.NOT_DUE, Verdict.ACCEPTED, Verdict.ACCEPTED, Verdict.ALREADY]
    answer = rig.answer(begin_of((gap, *again, again[0])))
    assert list(answer.items) == verdicts
    index, batch = rig.state.index, rig.state.executors[1].batches[rig.state.index]
    assert (batch.usual, batch.detailed, rig.record().open) == (2, {}, {})
    assert [found(rig, 1, index, number) for number in range(4)] == [None, 60, 120, None]
    assert not any(row.is_refused or row.attempt != 2 for row in rig.state.active.values())
    assert encode_state(decode_state([encode_state(rig.state)])) == encode_state(rig.state)
    orders = Dispatcher(Pool.__new__(Pool)).orders(rig.state, batch)
    assert [(order.rows, order.attempts) for order in orders] == [([1, 2], [2, 2])]
    done = BatchReport(index, Status.ENDED, Reason.NONE, 0, [1], [T0])
    rig.append(c.Report(rows=((1, done),)))
    assert [row.attempt for row in rig.outcome.rows] == [2]
    rig.append(c.Report(executors=(c.LostExecutor(1, index),)))
    assert list(rig.state.lost) == [((1, T0 + 120, 0), 2)]
    assert rig.finished(120, attempt=2) is Verdict.AMENDED


def test_an_image_has_the_rows() -> None:
    rig = due(60, 120)
    rig.append(begin_of((begin_item(rig, 60, 1), begin_item(rig, 120, 1))))
    again = decode_state([encode_state(rig.state)])
    launch = again.executors[1].find(rig.state.index, 1)
    assert launch is not None
    assert launch.scheduled_s == T0 + 120


@pytest.mark.parametrize("is_detailed", [False, True])
def test_what_is_remembered_as_the_row_of_another_launch_does_not_take_its_place(
    is_detailed: bool,
) -> None:
    rig = RestoredRig(job(), job("other"))
    rig.to(60).account(60)
    rig.begin(60)
    begun = rig.state.index
    if is_detailed:
        rig.cancel(60)
    rig.restore(120)
    for second in (60, 120):
        rig.remember(second, Status.ACCEPTED, name="other", begun=begun)
    assert rig.memories[1]["default/other@2026-11-20T16:01:00Z#1"].row == 0
    rig.resolve()
    rows = [found(rig, 1, begun, row) for row in (0, 1, NO_ROW - 1)]
    numbers = [rig.state.executors[1].batches[begun].launch(row) for row in (0, NO_ROW - 1)]
    assert rows == [60, 120, 60]
    assert [launch and launch.number for launch in numbers] == [1, 2]
    again = decode_state([encode_state(rig.state)])
    assert [again.executors[1].find(begun, row) is None for row in (0, 1, -2)] == [False] * 3


# ---- late report (rule R9)


def test_a_lost_attempt_is_found_by_where_it_was_begun() -> None:
    rig = due(60, 120)
    rig.append(begin_of((begin_item(rig, 60, 1), begin_item(rig, 120, 1))))
    index, attempt = rig.state.index, ((1, T0 + 120, 0), 1)
    rig.lost(120)
    rig.finished(60)
    rig.append(c.ExecutorLeft(1))  # its number is not given again
    assert rig.state.lost_at == {(index, "e1", "l1", 1): attempt}
    assert decode_state([encode_state(rig.state)]).lost_at == rig.state.lost_at
    assert rig.finished(120) is Verdict.AMENDED
    assert not rig.state.lost_at
    assert not rig.state.lost


def test_each_part_of_a_lost_attempt_is_found() -> None:
    rig = due(60, each="role=web")
    rig.begin(60, others=(2,))
    index, attempt = rig.state.index, ((1, T0 + 60, 0), 1)
    rig.append(c.Report(tuple(lost_item(attempt[0], 1, part=part) for part in (1, 2))))
    places = {(index, "e1", "l1", 0): attempt, (index, "e2", "l2", 0): attempt}
    assert rig.state.lost_at == places
    news = (attempt[0], 1, LaunchState.SUCCEEDED, Reason.NONE, 0, 1, 2)
    assert rig.item(c.Report((AttemptItem.of(*news, part=2),))) is Verdict.AMENDED
    assert rig.state.lost_at == places  # the other one may have its news, too


def test_where_it_was_begun_is_forgotten_with_the_attempt() -> None:
    rig = due(60)
    for number in range(LOST_KEPT):
        lost = row(number, number, begun_index=number, executor="e9", ledger="l9", row=0)
        rig.state.remember_lost((9, number, 0), 1, lost)
    rig.begin(60)
    rig.lost(60)
    assert len(rig.state.lost_at) == len(rig.state.lost) == LOST_KEPT
    assert (0, "e9", "l9", 0) not in rig.state.lost_at


def end_rows(rig: StateRig, index: int, rows: range) -> list[Verdict]:
    end, times = (Status.ENDED, Reason.NONE, 0), [rig.at_ms]
    ends = BatchReport(index, *end, differences(rows), times, times)
    return rig.items(c.Report((), ((1, ends),)))


def begun_at_once(jobs: int) -> StateRig:
    """A rig in which so many jobs have begun by one entry, with one instant."""
    rig = StateRig()
    rig.put(*(job(f"j{number}") for number in range(jobs)))
    rig.join()
    rig.to(60)
    numbers = tuple(differences(range(1, jobs + 1)))
    line = c.AccountLine(numbers, 1, T0, T0 + 60, (c.Instants(T0 + 60),))
    spec = c.BatchSpec(1, 1, rig.at_ms + 5_000, T0 + 60, numbers)
    outcome = rig.append(c.Account((line,)), c.Begin((spec,)))
    assert outcome.results[1].items == ()
    return rig


def test_what_ends_as_usual_is_one_chunk_and_has_no_verdicts() -> None:
    rig = begun_at_once(100)
    assert len(rig.state.active) == 100
    assert not rig.state.active.detailed
    assert end_rows(rig, rig.state.index, range(0, 100, 3)) == []
    assert [type(one) for one in rig.outcome.ended] == [Chunk]
    assert len(rig.state.active) == 66


def test_rows_that_are_not_open_are_told_one_by_one() -> None:
    rig = begun_at_once(3)
    index = rig.state.index
    end_rows(rig, index, range(1))
    told = end_rows(rig, index, range(4))
    assert told == [Verdict.NOT_OPEN, Verdict.ACCEPTED, Verdict.ACCEPTED, Verdict.NOT_OPEN]
    assert end_rows(rig, index + 50, range(1)) == [Verdict.NOT_OPEN]


def test_the_last_rows_of_a_batch_do_not_keep_its_columns() -> None:
    rig = begun_at_once(130)
    index, batches = rig.state.index, rig.state.executors[1].batches
    end_rows(rig, index, range(127))
    assert len(batches[index].states) == 130
    end_rows(rig, index, range(127, 128))
    assert not batches[index].states
    assert found(rig, 1, index, 129) == 60
    assert encode_state(decode_state([encode_state(rig.state)])) == encode_state(rig.state)
    assert end_rows(rig, index, range(128, 130)) == []
    assert not batches


def test_an_executor_that_is_lost_loses_what_was_begun_up_to_then() -> None:
    rig = begun_at_once(3)
    index = rig.state.index
    rig.trigger("q", "j0")
    rig.begin(60, trigger=1)
    rig.append(c.Report(executors=(c.LostExecutor(1, index, rig.at_ms),)))
    assert [row.scheduled_s - T0 for row in rig.rows] == [60, 60, 60]
    assert list(rig.state.active) == [(1, T0 + 60, 1)]


def test_late_report_of_a_row_that_is_lost_amend_it() -> None:  # R9
    rig = begun_at_once(2)
    index = rig.state.index
    rig.append(c.Report(executors=(c.LostExecutor(1, index, rig.at_ms, Note(NoteCode.REMOVED)),)))
    assert [row.note for row in rig.rows] == [Note(NoteCode.REMOVED)] * 2
    assert end_rows(rig, index, range(2)) == [Verdict.AMENDED] * 2
    assert end_rows(rig, index, range(2)) == [Verdict.NOT_OPEN] * 2

"""A launch of several parts in State: begun together, ended one by one, over when all are."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from cron.job import OnLost, Overlap, Retry
from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.state import LaunchRow
from launcher.launch import LaunchState, Reason
from tests.unit.state_rig import T0, StateRig, job, said

KEY = (1, T0 + 60, 0)


def rig_of(executors: int = 3, **fields: Any) -> StateRig:
    """A job of three parts that is due, and executors 1 to 3."""
    rig = StateRig()
    usual: dict[str, Any] = {"parts": 3}
    assert rig.put(job(**usual | fields)).verdict is Verdict.ACCEPTED
    for number in range(1, executors + 1):
        rig.join(f"e{number}", f"l{number}")
    rig.to(60)
    rig.account(60)
    return rig


def begun(**fields: Any) -> StateRig:
    rig = rig_of(**fields)
    assert rig.begin(60, others=(2, 3)) is Verdict.ACCEPTED
    return rig


def launched(rig: StateRig, part: int) -> Verdict:
    return rig.item(c.Launched((c.LaunchedItem(KEY, 1, rig.at_ms, part),)))


def ended(rig: StateRig, part: int, **fields: Any) -> Verdict:
    usual: dict[str, Any] = {"state": LaunchState.SUCCEEDED, "reason": Reason.NONE}
    usual |= {"exit_code": 0, "started_ms": rig.at_ms, "finished_ms": rig.at_ms + part}
    return rig.item(c.Finished((c.FinishedItem(KEY, 1, part=part, **usual | fields),)))


def failed(rig: StateRig, part: int, **fields: Any) -> Verdict:
    usual: dict[str, Any] = {"state": LaunchState.FAILED, "exit_code": 3}
    return ended(rig, part, **usual | fields)


def refused(rig: StateRig, part: int) -> Verdict:
    return rig.item(c.Refused((c.RefusedItem(KEY, 1, "full", part),)))


def lost(rig: StateRig, part: int, held_until_s: int = 0) -> Verdict:
    held_until_ms = (T0 + held_until_s) * 1000
    return rig.item(c.Lost((c.LostItem(KEY, 1, held_until_ms, "silent", part),)))


def active(rig: StateRig) -> LaunchRow:
    return rig.state.active[KEY]


def test_a_part_is_begun_on_each_executor() -> None:
    rig = begun()
    assert [part.executor for part in active(rig).parts] == [1, 2, 3]
    assert all(KEY in record.open for record in rig.state.executors.values())
    assert active(rig).starts() == [(number, number, LaunchState.BEGUN, 0) for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("executors", "verdict"),
    [
        ((1, 2), Verdict.WRONG_PARTS),
        ((1, 2, 2), Verdict.WRONG_PARTS),
        ((1,), Verdict.WRONG_PARTS),
        ((1, 2, 9), Verdict.UNKNOWN_EXECUTOR),
    ],
)
def test_it_begins_on_as_many_different_executors_as_it_has_parts(
    executors: tuple[int, ...], verdict: Verdict
) -> None:
    rig = rig_of()
    with rig.unchanged():
        assert rig.begin(60, executor=executors[0], others=executors[1:]) is verdict


def test_a_job_of_one_part_begins_on_one() -> None:
    rig = rig_of(parts=1)
    with rig.unchanged():
        assert rig.begin(60, others=(2,)) is Verdict.WRONG_PARTS
    assert rig.begin(60) is Verdict.ACCEPTED
    assert active(rig).parts == []


@pytest.mark.parametrize("others", [(), (2,), (2, 3)])
def test_one_on_each_of_a_kind_begins_on_as_many_as_there_are(others: tuple[int, ...]) -> None:
    rig = rig_of(parts=1, each="role=web")
    assert rig.begin(60, others=others) is Verdict.ACCEPTED
    assert len(active(rig).parts) == 1 + len(others)


def test_it_is_over_when_all_parts_are_and_has_one_row() -> None:
    rig = begun()
    assert [launched(rig, part) for part in (1, 2, 3)] == [Verdict.ACCEPTED] * 3
    assert launched(rig, 2) is Verdict.ALREADY
    assert ended(rig, 2, output_bytes=5) is Verdict.ACCEPTED
    assert KEY not in rig.state.executors[2].open
    assert ended(rig, 2) is Verdict.NOT_OPEN
    assert ended(rig, 1, output_bytes=7) is Verdict.ACCEPTED
    assert not rig.rows
    assert ended(rig, 3) is Verdict.ACCEPTED
    (row,) = rig.rows
    assert (row.state, row.exit_code, row.output_bytes) == (LaunchState.SUCCEEDED, 0, 7)
    assert row.finished_ms == rig.at_ms + 3
    assert [(part.executor, part.output_bytes) for part in row.parts] == [
        ("e1", 7), ("e2", 5), ("e3", 0),
    ]  # fmt: skip
    assert not rig.state.active
    assert not any(record.open for record in rig.state.executors.values())


def test_the_first_start_is_the_log_point_of_the_launch() -> None:
    rig = begun()
    rig.to(61)
    launched(rig, 3)
    index = rig.state.index
    rig.to(62)
    launched(rig, 1)
    row = active(rig)
    assert (row.state, row.launched_index) == (LaunchState.LAUNCHED, index)
    assert [part.state for part in row.parts] == [
        LaunchState.LAUNCHED, LaunchState.BEGUN, LaunchState.LAUNCHED,
    ]  # fmt: skip


def test_an_end_before_its_start_was_written_is_both() -> None:
    rig = begun()
    assert ended(rig, 2) is Verdict.ACCEPTED
    assert active(rig).launched_index == rig.state.index


def test_it_fails_with_its_first_part_that_failed() -> None:
    rig = begun()
    failed(rig, 3, exit_code=9)
    ended(rig, 1)
    failed(rig, 2, detail="no such table")
    (row,) = rig.rows
    assert (row.state, row.exit_code) == (LaunchState.FAILED, 3)
    assert said(row) == "part 2 of 3 on e2: no such table"


FATAL = Retry(3, backoff_ms=1_000, fatal_codes=(78,))
ENDS: dict[int, dict[str, Any]] = {1: {"exit_code": 75}, 2: {"exit_code": 78}, 3: {"exit_code": 9}}


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_a_fatal_part_decides_whatever_the_order_in_which_they_fail(order: tuple[int, ...]) -> None:
    rig = begun(retry=FATAL)
    for part in order:
        failed(rig, part, **ENDS[part])
    (row,) = rig.rows
    assert (row.state, row.exit_code, said(row)) == (LaunchState.FAILED, 78, "part 2 of 3 on e2")
    assert KEY not in rig.state.due
    letter = rig.state.dead[KEY]
    assert (letter.exit_code, letter.tries) == (78, 1)


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_parts_that_may_be_tried_again_rest_as_long_as_the_longest_asks(
    order: tuple[int, ...],
) -> None:
    rig = begun(retry=FATAL)
    asked = {1: 0, 2: 5_000, 3: 2_000}
    for part in order:
        failed(rig, part, reason=Reason.RETRY, retry_after_ms=asked[part])
    assert rig.state.due[KEY].not_before_ms == rig.at_ms + 5_000
    assert not rig.state.dead


def test_a_launch_with_a_fatal_part_is_not_begun_again_because_another_part_is_lost() -> None:
    rig = begun(retry=FATAL, on_lost=OnLost.RETRY)
    launched(rig, 1)
    lost(rig, 1)
    failed(rig, 2, exit_code=78)
    ended(rig, 3)
    assert rig.rows[-1].state is LaunchState.LOST
    assert not rig.state.due


def test_a_lost_launch_whose_other_part_failed_for_now_is_begun_again() -> None:
    rig = begun(retry=FATAL, on_lost=OnLost.RETRY)
    launched(rig, 1)
    lost(rig, 1)
    failed(rig, 2, exit_code=75)
    ended(rig, 3)
    assert rig.state.due[KEY].tries == 0
    assert not rig.state.dead


def test_parts_that_never_ran_while_others_did_make_it_fail() -> None:
    rig = begun()
    refused(rig, 2)
    ended(rig, 1)
    ended(rig, 3)
    (row,) = rig.rows
    assert (row.state, row.reason) == (LaunchState.FAILED, Reason.FENCED)
    assert said(row) == "part 2 of 3 on e2: full"


def test_it_is_due_again_if_no_part_ever_ran() -> None:  # R7
    rig = begun()
    assert [refused(rig, part) for part in (3, 1, 2)] == [Verdict.ACCEPTED] * 3
    row = rig.state.due[KEY]
    assert (row.state, row.attempt, row.parts, row.detail) == (LaunchState.DUE, 1, [], "full")
    assert rig.begin(60, attempt=2, executor=3, others=(1, 2)) is Verdict.ACCEPTED


def test_a_part_that_runs_cannot_be_refused() -> None:
    rig = begun()
    launched(rig, 2)
    with rig.unchanged():
        assert refused(rig, 2) is Verdict.WRONG_STATE


def test_it_is_lost_if_any_part_is_and_holds_its_slot_as_long_as_that_may_run() -> None:  # R6
    rig = begun(overlap=Overlap.FORBID)
    for part in (1, 2, 3):
        launched(rig, part)
    lost(rig, 2, held_until_s=90)
    lost(rig, 1, held_until_s=80)
    failed(rig, 3)
    (row,) = rig.rows
    assert (row.state, row.reason) == (LaunchState.LOST, Reason.EXECUTOR_LOST)
    assert said(row) == "part 1 of 3 on e1: silent"
    assert rig.record().held_until_ms == (T0 + 90) * 1000


def test_a_lost_launch_is_begun_again_where_its_job_says_so() -> None:
    rig = begun(on_lost=OnLost.RETRY)
    for part in (1, 2):
        ended(rig, part)
    lost(rig, 3, held_until_s=70)
    assert (rig.state.due[KEY].attempt, rig.state.due[KEY].parts) == (1, [])
    assert rig.state.due[KEY].not_before_ms == (T0 + 70) * 1000


def test_a_failed_launch_is_tried_again_as_a_whole() -> None:
    rig = begun(retry=Retry(2, backoff_ms=1_000))
    ended(rig, 1)
    failed(rig, 2)
    ended(rig, 3)
    rig.to(70)
    assert rig.begin(60, attempt=2, others=(2, 3)) is Verdict.ACCEPTED
    assert [part.state for part in active(rig).parts] == [LaunchState.BEGUN] * 3


def test_a_cancelled_launch_none_of_whose_parts_ran_is_cancelled() -> None:  # R8
    rig = begun()
    rig.cancel(60)
    for part in (1, 2, 3):
        refused(rig, part)
    (row,) = rig.rows
    assert (row.state, row.reason) == (LaunchState.CANCELLED, Reason.KILLED)


def test_late_news_of_a_part_says_which() -> None:  # R9
    rig = begun()
    for part in (1, 2, 3):
        launched(rig, part)
        lost(rig, part)
    assert ended(rig, 2, detail="done") is Verdict.AMENDED
    assert said(rig.rows[-1]) == "part 2 succeeded: done"


@pytest.mark.parametrize("part", [0, 4, -1])
def test_a_part_that_it_does_not_have_changes_nothing(part: int) -> None:
    rig = begun()
    with rig.unchanged():
        assert launched(rig, part) is Verdict.NOT_OPEN
        assert ended(rig, part) is Verdict.NOT_OPEN
        assert refused(rig, part) is Verdict.NOT_OPEN
        assert lost(rig, part) is Verdict.NOT_OPEN


def test_a_whole_has_no_second_part() -> None:
    rig = rig_of(parts=1)
    rig.begin(60)
    with rig.unchanged():
        assert launched(rig, 2) is Verdict.NOT_OPEN
        assert ended(rig, 2) is Verdict.NOT_OPEN
        assert refused(rig, 2) is Verdict.NOT_OPEN
        assert lost(rig, 2) is Verdict.NOT_OPEN


def test_an_image_keeps_parts_and_what_is_open_where() -> None:
    rig = begun()
    launched(rig, 1)
    ended(rig, 2)
    state = decode_state([encode_state(rig.state)])
    assert state.active[KEY].parts == active(rig).parts
    opened = {number: list(record.open) for number, record in state.executors.items()}
    assert opened == {1: [KEY], 2: [], 3: [KEY]}


def test_a_part_keeps_the_name_of_an_executor_that_left_before_the_launch_was_over() -> None:
    rig = begun()
    launched(rig, 1)
    lost(rig, 1)
    assert rig.answer(c.ExecutorLeft(1)).verdict is Verdict.ACCEPTED
    for part in (2, 3):
        ended(rig, part)
    (row,) = rig.rows
    assert [(part.executor, part.ledger) for part in row.parts] == [
        ("e1", "l1"), ("e2", "l2"), ("e3", "l3"),
    ]  # fmt: skip
    assert said(row) == "part 1 of 3 on e1: silent"

"""The life of an attempt, from Begin to its end, and late news (rules R1, R2, R6, R7, R9)."""

from __future__ import annotations

import pytest

from cron.job import Overlap
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.rows import RowKind
from launcher.launch import LaunchState, Reason
from tests.unit.state_rig import T0, StateRig, job, skips, with_job

S = LaunchState


def with_due(*due: int, **fields: object) -> StateRig:
    """A rig whose job is due at these seconds, with the clock at the last of them."""
    rig = with_job(**fields)
    rig.to(due[-1]).account(*due)
    return rig


def with_begun(**fields: object) -> StateRig:
    rig = with_due(60, **fields)
    assert rig.begin(60) is Verdict.ACCEPTED
    return rig


# ---- Begin


def test_begin_is_log_point_1_of_a_due_launch() -> None:  # R1, R3, R4
    rig = with_begun()
    row = rig.row(60)
    assert (row.state, row.attempt, row.executor) == (S.BEGUN, 1, 1)
    assert (row.begun_index, row.begun_at_ms) == (rig.state.index, rig.at_ms)
    assert row.epoch == rig.epoch
    assert row.job == job()
    assert list(rig.state.executors[1].open) == [(1, T0 + 60, 0)]
    assert not rig.state.due


def test_a_launch_that_is_not_accounted_cannot_begin() -> None:  # R1
    rig = with_job()
    with rig.unchanged():
        assert rig.begin(60) is Verdict.NOT_DUE


def test_a_skipped_launch_cannot_begin() -> None:  # R1
    rig = with_job()
    rig.account(to=60, skipped=(skips(60, 60, 1),))
    with rig.unchanged():
        assert rig.begin(60) is Verdict.NOT_DUE


def test_begin_happens_once_per_attempt() -> None:  # R1
    rig = with_begun()
    with rig.unchanged():
        assert rig.begin(60) is Verdict.ALREADY
        assert rig.begin(60, attempt=2) is Verdict.NOT_DUE


def test_an_ended_launch_cannot_begin_again() -> None:  # R1
    rig = with_begun()
    rig.finished(60)
    with rig.unchanged():
        assert rig.begin(60) is Verdict.NOT_DUE
        assert rig.begin(60, attempt=2) is Verdict.NOT_DUE


@pytest.mark.parametrize("attempt", [-1, 0, 2])
def test_begin_names_the_next_attempt(attempt: int) -> None:
    rig = with_due(60)
    with rig.unchanged():
        assert rig.begin(60, attempt=attempt) is Verdict.WRONG_ATTEMPT


def test_begin_with_a_stale_revision_is_refused() -> None:  # R2
    rig = with_due(60)
    rig.put(job(deadline_s=30))
    with rig.unchanged():
        assert rig.begin(60, catalog=1) is Verdict.STALE_REVISION
    assert rig.begin(60) is Verdict.ACCEPTED


def test_begin_on_an_executor_that_is_unknown_or_gone_is_refused() -> None:  # R4
    rig = with_due(60)
    with rig.unchanged():
        assert rig.begin(60, executor=2) is Verdict.UNKNOWN_EXECUTOR
    rig.answer(c.ExecutorLeft(1))
    with rig.unchanged():
        assert rig.begin(60, executor=1) is Verdict.UNKNOWN_EXECUTOR


def test_the_window_of_a_begin_ends_before_the_deadline() -> None:  # R7
    rig = with_due(60, deadline_s=300)
    deadline_ms = (T0 + 360) * 1000
    with rig.unchanged():
        assert rig.begin(60, not_after_ms=rig.at_ms - 1) is Verdict.BAD_TIMES
    assert rig.begin(60, not_after_ms=deadline_ms + 1) is Verdict.ACCEPTED
    assert rig.row(60).not_after_ms == deadline_ms
    rig.to(361).refused(60)
    with rig.unchanged():
        assert rig.begin(60, 2, not_after_ms=deadline_ms + 5_000) is Verdict.BAD_TIMES


# ---- overlap, refused by apply itself


@pytest.mark.parametrize("overlap", [Overlap.FORBID, Overlap.QUEUE, Overlap.REPLACE])
def test_a_second_launch_at_once_is_refused_unless_overlap_is_allowed(overlap: Overlap) -> None:
    rig = with_due(60, 120, overlap=overlap)
    assert rig.begin(60) is Verdict.ACCEPTED
    with rig.unchanged():
        assert rig.begin(120) is Verdict.OVERLAP
    rig.finished(60)
    assert rig.begin(120) is Verdict.ACCEPTED


def test_two_launches_at_once_are_fine_where_overlap_is_allowed() -> None:
    rig = with_due(60, 120, overlap=Overlap.ALLOW)
    assert rig.begin(60) is Verdict.ACCEPTED
    assert rig.begin(120) is Verdict.ACCEPTED


def test_two_begins_in_one_entry_do_not_overlap_either() -> None:
    rig = with_due(60, 120, overlap=Overlap.FORBID)
    begins = tuple(
        c.BeginItem((1, T0 + second, 0), 1, 1, 1, (T0 + 300) * 1000) for second in (60, 120)
    )
    assert rig.items(c.Begin.of(begins)) == [Verdict.ACCEPTED, Verdict.OVERLAP]


def test_a_manual_launch_holds_the_slot_as_well() -> None:  # promise 5
    rig = with_due(60, overlap=Overlap.FORBID)
    rig.trigger("q1")
    assert rig.begin(60, trigger=1) is Verdict.ACCEPTED
    assert rig.begin(60) is Verdict.OVERLAP


def test_a_lost_launch_holds_the_slot_until_it_must_be_dead() -> None:  # R6
    rig = with_due(60, 120, overlap=Overlap.FORBID)
    rig.begin(60)
    rig.lost(60, held_until=140)
    with rig.unchanged():
        assert rig.to(139).begin(120) is Verdict.OVERLAP
    assert rig.to(140).begin(120) is Verdict.ACCEPTED


def test_the_latest_of_several_deadlines_holds_the_slot() -> None:  # R6
    rig = with_due(60, 120, overlap=Overlap.FORBID)
    rig.begin(60)
    rig.lost(60, held_until=200)
    rig.to(200).begin(120)
    rig.lost(120, held_until=150)
    assert rig.record().held_until_ms == (T0 + 200) * 1000


def test_a_lost_launch_holds_nothing_where_overlap_is_allowed() -> None:  # R6
    rig = with_due(60, 120, overlap=Overlap.ALLOW)
    rig.begin(60)
    rig.lost(60, held_until=140)
    assert rig.begin(120) is Verdict.ACCEPTED


# ---- Launched and Finished


def test_launched_is_log_point_2_once() -> None:
    rig = with_begun()
    assert rig.launched(60) is Verdict.ACCEPTED
    row = rig.row(60)
    assert (row.state, row.launched_index, row.started_ms) == (
        S.LAUNCHED,
        rig.state.index,
        rig.at_ms,
    )
    with rig.unchanged():
        assert rig.launched(60) is Verdict.ALREADY
        assert rig.launched(60, attempt=2) is Verdict.WRONG_ATTEMPT
        assert rig.launched(120) is Verdict.NOT_OPEN


def test_a_due_launch_cannot_be_launched_or_finished() -> None:
    rig = with_due(60)
    with rig.unchanged():
        assert rig.launched(60) is Verdict.NOT_OPEN
        assert rig.finished(60) is Verdict.NOT_OPEN


def test_a_finished_launch_becomes_a_row_with_both_log_points() -> None:
    rig = with_begun()
    begun = rig.state.index
    rig.launched(60)
    launched = rig.state.index
    assert rig.finished(60, exit_code=3, state=S.FAILED) is Verdict.ACCEPTED
    (row,) = rig.rows
    assert (row.kind, row.state, row.exit_code, row.attempt) == (RowKind.ENDED, S.FAILED, 3, 1)
    assert (row.begun_index, row.launched_index, row.ended_index) == (
        begun,
        launched,
        rig.state.index,
    )
    assert (row.executor, row.ledger) == ("e1", "l1")
    assert list(rig.state.open_rows()) == []
    assert not rig.state.executors[1].open
    assert not rig.record().open


def test_a_result_before_log_point_2_is_both_in_one_entry() -> None:  # design 3
    rig = with_begun()
    rig.finished(60)
    (row,) = rig.rows
    assert row.launched_index == row.ended_index == rig.state.index


def test_a_launch_ends_once() -> None:  # promise 1
    rig = with_begun()
    rig.finished(60)
    with rig.unchanged():
        assert rig.finished(60) is Verdict.NOT_OPEN
        assert rig.lost(60) is Verdict.NOT_OPEN
        assert rig.refused(60) is Verdict.NOT_OPEN
        assert rig.skip(60) is Verdict.NOT_DUE
        assert rig.cancel(60) is Verdict.NOT_OPEN


@pytest.mark.parametrize("state", [S.DUE, S.BEGUN, S.LAUNCHED, S.SKIPPED, S.LOST])
def test_a_result_is_the_end_of_something_that_ran(state: LaunchState) -> None:
    rig = with_begun()
    with rig.unchanged():
        assert rig.finished(60, state=state) is Verdict.WRONG_STATE


def test_what_has_begun_keeps_the_revision_it_began_with() -> None:  # R2
    rig = with_begun()
    rig.put(job(deadline_s=30))
    assert rig.row(60).job == job()
    assert rig.finished(60) is Verdict.ACCEPTED
    assert rig.rows[0].revision == 1


# ---- Refused, Skip


def test_a_refused_attempt_is_due_again_and_then_skipped() -> None:  # R7
    rig = with_begun()
    assert rig.refused(60) is Verdict.ACCEPTED
    row = rig.row(60)
    assert (row.state, row.attempt, row.detail) == (S.DUE, 1, "fenced")
    assert not rig.state.executors[1].open
    assert rig.skip(60, Reason.FENCED) is Verdict.ACCEPTED
    (ended,) = rig.rows
    assert (ended.state, ended.reason, ended.detail) == (S.SKIPPED, Reason.FENCED, "fenced")


def test_a_refused_attempt_is_followed_by_the_next_one_elsewhere() -> None:  # R7
    rig = with_begun()
    rig.join("e2", "l2")
    rig.refused(60)
    assert rig.begin(60, attempt=1) is Verdict.WRONG_ATTEMPT
    assert rig.begin(60, attempt=2, executor=2) is Verdict.ACCEPTED
    assert list(rig.state.executors[2].open) == [(1, T0 + 60, 0)]
    assert rig.row(60).detail == ""  # what was said of attempt 1 is not said of attempt 2
    with rig.unchanged():
        assert rig.finished(60, attempt=1) is Verdict.WRONG_ATTEMPT
        assert rig.refused(60, attempt=1) is Verdict.WRONG_ATTEMPT


def test_a_launched_attempt_cannot_be_refused() -> None:  # R7
    rig = with_begun()
    rig.launched(60)
    with rig.unchanged():
        assert rig.refused(60) is Verdict.WRONG_STATE


def test_a_refused_attempt_of_a_removed_job_is_cancelled() -> None:
    rig = with_begun()
    rig.put(removed=("default/backup",))
    assert rig.refused(60) is Verdict.ACCEPTED
    assert rig.rows[0].state is S.CANCELLED
    assert not list(rig.state.open_rows())


def test_only_what_is_due_can_be_skipped() -> None:
    rig = with_begun()
    with rig.unchanged():
        assert rig.skip(60) is Verdict.NOT_DUE


# ---- Lost, and late news


def test_a_lost_attempt_is_over() -> None:
    rig = with_begun()
    rig.launched(60)
    assert rig.lost(60) is Verdict.ACCEPTED
    (row,) = rig.rows
    assert (row.state, row.reason, row.attempt) == (S.LOST, Reason.EXECUTOR_LOST, 1)
    assert not list(rig.state.open_rows())


def test_a_due_launch_cannot_be_lost() -> None:
    rig = with_due(60)
    with rig.unchanged():
        assert rig.lost(60) is Verdict.NOT_OPEN


def test_late_news_is_amended_once_and_reopens_nothing() -> None:  # R9
    rig = with_begun()
    rig.lost(60)
    assert rig.finished(60, exit_code=7, state=S.FAILED) is Verdict.AMENDED
    amendment = rig.rows[-1]
    assert (amendment.kind, amendment.state, amendment.exit_code) == (
        RowKind.AMENDMENT,
        S.FAILED,
        7,
    )
    assert not list(rig.state.open_rows())
    with rig.unchanged():
        assert rig.finished(60) is Verdict.NOT_OPEN


def test_late_news_of_an_earlier_attempt_is_amended_beside_a_later_one() -> None:  # R9
    rig = with_begun()
    rig.lost(60)
    rig.reopen(60, S.LOST, 1)
    rig.begin(60, attempt=2)
    assert rig.finished(60, attempt=1) is Verdict.AMENDED
    assert rig.row(60).attempt == 2
    assert rig.finished(60, attempt=2) is Verdict.ACCEPTED


@pytest.mark.parametrize("state", [S.DUE, S.BEGUN, S.LAUNCHED, S.SKIPPED, S.LOST])
def test_late_news_is_the_end_of_something_that_ran(state: LaunchState) -> None:  # R9
    rig = with_begun()
    rig.lost(60)
    with rig.unchanged():
        assert rig.finished(60, state=state) is Verdict.WRONG_STATE
    assert rig.finished(60) is Verdict.AMENDED


def test_a_launch_that_is_open_when_its_job_is_removed_still_ends() -> None:  # R2
    rig = with_begun()
    rig.put(removed=("default/backup",))
    assert rig.launched(60) is Verdict.ACCEPTED
    assert rig.finished(60) is Verdict.ACCEPTED
    assert rig.rows[-1].state is S.SUCCEEDED

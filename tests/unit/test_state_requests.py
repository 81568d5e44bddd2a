"""What people ask for: Cancel, Trigger, Reopen (rules R1, R8)."""

from __future__ import annotations

import pytest

from cron.job import Overlap
from cron.limits import REQUEST_IDS_KEPT
from cron.state import commands as c
from cron.state.outcome import Verdict
from launcher.launch import LaunchState, Reason
from tests.unit.state_rig import T0, StateRig, job, skips, with_job

S = LaunchState


def with_due(**fields: object) -> StateRig:
    rig = with_job(**fields)
    rig.to(60).account(60)
    return rig


# ---- Cancel


def test_a_due_launch_is_cancelled_at_once() -> None:
    rig = with_due()
    assert rig.cancel(60) is Verdict.ACCEPTED
    (row,) = rig.rows
    assert (row.state, row.reason, row.by, row.begun_index) == (
        S.CANCELLED,
        Reason.KILLED,
        "anna",
        0,
    )
    assert not list(rig.state.open_rows())


@pytest.mark.parametrize("is_launched", [False, True])
def test_what_may_be_running_is_only_marked(is_launched: bool) -> None:  # R8
    rig = with_due()
    rig.begin(60)
    if is_launched:
        rig.launched(60)
    state = rig.row(60).state
    assert rig.cancel(60) is Verdict.ACCEPTED
    assert (rig.row(60).state, rig.row(60).cancel) == (state, Reason.KILLED)
    assert not rig.rows
    with rig.unchanged():
        assert rig.cancel(60, reason=Reason.REPLACED) is Verdict.ALREADY


def test_a_cancelled_launch_ends_as_what_became_of_it() -> None:  # R8
    rig = with_due()
    rig.begin(60)
    rig.cancel(60)
    rig.finished(60, state=S.CANCELLED, reason=Reason.KILLED, exit_code=143)
    assert (rig.rows[0].state, rig.rows[0].by) == (S.CANCELLED, "anna")


def test_a_cancelled_attempt_that_never_ran_is_not_tried_again() -> None:  # R7, R8
    rig = with_due()
    rig.begin(60)
    rig.cancel(60)
    assert rig.refused(60) is Verdict.ACCEPTED
    assert (rig.rows[0].state, rig.rows[0].reason) == (S.CANCELLED, Reason.KILLED)
    assert not list(rig.state.open_rows())


def test_a_cancelled_launch_holds_its_slot_until_it_is_dead() -> None:  # R8
    rig = with_due(overlap=Overlap.REPLACE)
    rig.begin(60)
    rig.to(120).account(120)
    rig.cancel(60, reason=Reason.REPLACED)
    with rig.unchanged():
        assert rig.begin(120) is Verdict.OVERLAP
    rig.finished(60, state=S.CANCELLED, reason=Reason.REPLACED)
    assert rig.begin(120) is Verdict.ACCEPTED


def test_a_cancel_without_a_reason_is_refused() -> None:
    rig = with_due()
    with rig.unchanged():
        assert rig.cancel(60, reason=Reason.NONE) is Verdict.WRONG_STATE
    rig.begin(60)
    with rig.unchanged():
        assert rig.cancel(60, reason=Reason.NONE) is Verdict.WRONG_STATE


def test_what_is_not_open_cannot_be_cancelled() -> None:
    rig = with_job()
    with rig.unchanged():
        assert rig.cancel(60) is Verdict.NOT_OPEN
        assert rig.cancel(60, number=9) is Verdict.NOT_OPEN


# ---- Trigger


def test_a_trigger_is_due_in_the_second_of_its_entry() -> None:  # R8
    rig = with_job(deadline_s=120)
    result = rig.to(33).trigger("q1")
    assert (result.verdict, result.scheduled_s, result.number) == (Verdict.ACCEPTED, T0 + 33, 1)
    row = rig.row(33, trigger=1)
    assert (row.state, row.by, row.deadline_ms) == (S.DUE, "anna", (T0 + 153) * 1000)
    assert rig.record().horizon_s == T0  # a trigger accounts for nothing


def test_triggers_of_one_second_are_counted_by_job() -> None:  # R8
    rig = with_job()
    rig.put(job("other"))
    assert [rig.trigger(f"q{n}").number for n in range(3)] == [1, 2, 3]
    assert rig.trigger("q3", "other").number == 1
    assert rig.to(1).trigger("q4").number == 1


def test_a_repeated_request_is_answered_and_not_repeated() -> None:  # R8
    rig = with_job()
    first = rig.trigger("q1")
    with rig.unchanged():
        again = rig.to(10).trigger("q1")
    assert again.verdict is Verdict.ALREADY
    assert (again.scheduled_s, again.number) == (first.scheduled_s, first.number)


def test_a_request_is_remembered_after_its_launch_is_over() -> None:  # R8
    rig = with_job()
    rig.trigger("q1")
    rig.begin(0, trigger=1)
    rig.finished(0, key=(1, T0, 1))
    assert rig.trigger("q1").verdict is Verdict.ALREADY
    assert not list(rig.state.open_rows())


def test_the_oldest_request_is_forgotten_when_there_are_too_many() -> None:
    rig = with_job()
    rig.append(
        *(c.Trigger("default/backup", f"q{n}", "") for n in range(REQUEST_IDS_KEPT + 1)),
    )
    assert len(rig.state.requests) == REQUEST_IDS_KEPT
    assert rig.trigger("q1").verdict is Verdict.ALREADY
    assert rig.trigger("q0").verdict is Verdict.ACCEPTED


def test_a_trigger_of_an_unknown_or_removed_job_is_refused() -> None:
    rig = with_job()
    rig.put(removed=("default/backup",))
    with rig.unchanged():
        assert rig.trigger("q1").verdict is Verdict.UNKNOWN_JOB
        assert rig.trigger("q1", "nobody").verdict is Verdict.UNKNOWN_JOB


def test_a_clock_that_went_back_gives_no_name_twice() -> None:  # R8, R10
    rig = with_job()
    rig.to(10).trigger("q1")
    result = rig.to(5).trigger("q2")
    assert (result.scheduled_s, result.number) == (T0 + 10, 2)


# ---- Reopen


def ended(state: LaunchState) -> StateRig:
    """A rig whose launch at 60 ended in `state`."""
    rig = with_due()
    if state is S.SKIPPED:
        rig.skip(60)
    elif state is S.CANCELLED:
        rig.cancel(60)
    else:
        rig.begin(60)
        if state is S.LOST:
            rig.lost(60)
        else:
            rig.finished(60, state=state)
    assert rig.rows[-1].state is state
    return rig


@pytest.mark.parametrize("state", [S.SKIPPED, S.LOST, S.FAILED, S.CANCELLED])
def test_reopen_makes_an_ended_launch_due_as_its_next_attempt(state: LaunchState) -> None:  # R1
    rig = ended(state)
    attempt = rig.rows[0].attempt
    assert rig.to(5000).reopen(60, state, attempt) is Verdict.ACCEPTED
    row = rig.row(60)
    assert (row.state, row.attempt, row.is_late, row.by) == (S.DUE, attempt, True, "anna")
    assert row.deadline_ms == (T0 + 5300) * 1000  # the old one is over
    assert rig.begin(60, attempt=attempt + 1) is Verdict.ACCEPTED


@pytest.mark.parametrize("state", [S.SUCCEEDED, S.DUE, S.BEGUN, S.LAUNCHED, 99, -1])
def test_reopen_is_legal_only_from_ends_that_are_no_success(state: int) -> None:  # R1
    rig = ended(S.SUCCEEDED)
    with rig.unchanged():
        assert rig.reopen(60, state, 1) is Verdict.WRONG_STATE


def test_an_instant_before_the_job_was_made_can_be_launched() -> None:  # R1
    rig = with_job()
    assert rig.reopen(-600, 0) is Verdict.ACCEPTED
    assert rig.begin(-600) is Verdict.ACCEPTED
    assert rig.record().horizon_s == T0


def test_what_is_open_is_not_reopened() -> None:  # R1
    rig = with_due()
    with rig.unchanged():
        assert rig.reopen(60, S.SKIPPED) is Verdict.ALREADY
    rig.begin(60)
    with rig.unchanged():
        assert rig.reopen(60, S.SKIPPED) is Verdict.ALREADY


def test_what_was_read_before_a_launch_of_the_job_ended_is_stale() -> None:  # R1
    rig = ended(S.FAILED)
    read_at = rig.state.index
    assert rig.reopen(60, S.FAILED, 1, read_at=read_at) is Verdict.ACCEPTED
    rig.begin(60, attempt=2)
    rig.finished(60, attempt=2)
    with rig.unchanged():  # the reader saw it failed; it has succeeded since
        assert rig.reopen(60, S.FAILED, 1, read_at=read_at) is Verdict.STALE_REVISION


def test_the_future_is_not_reopened() -> None:  # R1
    rig = with_due()
    with rig.unchanged():
        assert rig.reopen(61, 0) is Verdict.WRONG_HORIZON


def test_reopen_needs_a_job() -> None:
    rig = ended(S.FAILED)
    rig.put(removed=("default/backup",))
    with rig.unchanged():
        assert rig.reopen(60, S.FAILED, 1) is Verdict.UNKNOWN_JOB
        assert rig.reopen(60, S.FAILED, 1, number=9) is Verdict.UNKNOWN_JOB


@pytest.mark.parametrize(("was_state", "was_attempt"), [(0, 1), (S.FAILED, -1), (S.FAILED, 2**62)])
def test_reopen_names_an_attempt_that_can_have_been(was_state: int, was_attempt: int) -> None:
    rig = ended(S.FAILED)
    with rig.unchanged():
        assert rig.reopen(60, was_state, was_attempt) is Verdict.WRONG_ATTEMPT


def test_a_skipped_run_is_reopened_instant_by_instant() -> None:  # R1
    rig = with_job()
    rig.account(to=300, skipped=(skips(60, 300, 5),))
    assert rig.reopen(120, S.SKIPPED) is Verdict.ACCEPTED
    assert rig.reopen(180, S.SKIPPED) is Verdict.ACCEPTED
    assert rig.reopen(120, S.SKIPPED) is Verdict.ALREADY


def test_a_manual_launch_is_reopened_under_its_own_name() -> None:  # R1
    rig = with_job()
    rig.trigger("q1")
    rig.begin(0, trigger=1)
    rig.finished(0, key=(1, T0, 1), state=S.FAILED)
    assert rig.reopen(0, S.FAILED, 1, trigger=1) is Verdict.ACCEPTED


def test_a_manual_launch_that_never_was_is_not_reopened() -> None:  # R8
    """Its name would be given away a second time by the next trigger."""
    rig = with_job()
    for trigger in (-1, 1, 7):
        with rig.unchanged():
            assert rig.reopen(0, S.FAILED, 1, trigger=trigger) is Verdict.WRONG_STATE
    rig.trigger("q1")
    rig.begin(0, trigger=1)
    rig.finished(0, key=(1, T0, 1))
    with rig.unchanged():
        assert rig.reopen(0, S.FAILED, 1, trigger=2) is Verdict.WRONG_STATE
        assert rig.reopen(-60, 0, trigger=1) is Verdict.WRONG_STATE


def test_an_instant_before_1970_has_no_launch() -> None:
    rig = with_job()
    with rig.unchanged():
        assert rig.reopen(-T0 - 1, 0) is Verdict.BAD_TIMES

"""What follows a failed attempt: the next one, or no further one."""

from __future__ import annotations

import pytest

from cron.job import OnLost, Retry
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.rows import RESTORED_BY
from launcher.launch import LaunchState, Reason
from tests.unit.state_rig import T0, job, said, with_job
from tests.unit.tries_rig import (
    HANDLER,
    KEY,
    PATIENT,
    fail,
    letter,
    resting,
    running,
    start,
)

# ---- tries


def test_a_failed_attempt_is_due_again_under_its_name_as_the_next_one() -> None:
    rig = running()
    fail(rig)
    row = resting(rig)
    assert (row.key, row.attempt, row.tries) == (KEY, 1, 1)
    assert not rig.state.dead
    rig.at_ms = row.not_before_ms
    assert rig.begin(60, attempt=2) is Verdict.ACCEPTED


def test_every_attempt_has_its_own_row_in_history() -> None:
    rig = running()
    for attempt in (1, 2):
        fail(rig, attempt)
        start(rig.to(60 + 30 * attempt), attempt + 1)
    rig.finished(60, 3)
    assert [(row.attempt, row.state.label) for row in rig.rows] == [
        (1, "failed"),
        (2, "failed"),
        (3, "succeeded"),
    ]
    assert [row.begun_index < row.ended_index for row in rig.rows] == [True] * 3
    assert not rig.state.dead


def test_it_is_tried_as_often_as_the_job_says_and_no_more() -> None:
    rig = running()
    for attempt in (1, 2, 3):
        assert rig.state.row(KEY) is not None
        fail(rig, attempt)
        if attempt < 3:
            start(rig.to(60 + 30 * attempt), attempt + 1)
    assert (letter(rig).attempt, letter(rig).tries) == (3, 3)
    assert (letter(rig).reason, letter(rig).exit_code) == (Reason.NONE, 1)


def test_a_job_that_names_no_retries_has_one_try_and_no_dead_letter() -> None:
    rig = running(retry=Retry())
    fail(rig)
    assert rig.state.row(KEY) is None
    assert not rig.state.dead


def test_a_success_is_not_tried_again() -> None:
    rig = running()
    rig.finished(60)
    assert rig.state.row(KEY) is None
    assert not rig.state.dead


@pytest.mark.parametrize("reason", [Reason.TIMEOUT, Reason.RAISED, Reason.WORKER_DIED])
def test_a_failure_of_any_kind_is_tried_again(reason: Reason) -> None:
    rig = running()
    fail(rig, reason=reason)
    assert resting(rig).tries == 1


def test_what_its_executor_would_not_start_is_no_try() -> None:
    rig = running()
    fail(rig)
    rig.to(90).begin(60, 2)
    rig.refused(60, 2)
    assert (resting(rig).attempt, resting(rig).tries) == (2, 1)
    start(rig, 3)
    fail(rig, 3)
    assert resting(rig).tries == 2


def test_the_next_attempt_begins_with_what_the_job_is_then() -> None:
    rig = running()
    rig.to(80).account(to=80)
    rig.put(job(retry=Retry(tries=2)))
    fail(rig)
    start(rig.to(120), 2)
    assert rig.row(60).revision == rig.record().revision
    fail(rig, 2)
    assert letter(rig).tries == 2


def test_a_manual_launch_is_tried_again_under_its_own_name() -> None:
    rig = with_job(retry=PATIENT)
    rig.to(61).trigger("q1")
    key = (1, T0 + 61, 1)
    rig.begin(61, trigger=1)
    rig.finished(61, key=key, state=LaunchState.FAILED, exit_code=1)
    row = rig.state.due[key]
    assert (row.attempt, row.by, row.due_at_ms) == (1, "anna", (T0 + 61) * 1000)


def test_late_news_that_a_lost_attempt_failed_bring_no_other_attempt() -> None:
    rig = running()
    rig.lost(60)
    assert rig.finished(60, state=LaunchState.FAILED, exit_code=1) is Verdict.AMENDED
    assert rig.state.row(KEY) is None
    assert not rig.state.dead


def test_an_end_that_is_told_twice_counts_once() -> None:
    rig = running()
    fail(rig)
    with rig.unchanged():
        assert rig.finished(60, state=LaunchState.FAILED, exit_code=1) is Verdict.NOT_OPEN


# ---- which failures are worth it


CODES = Retry(tries=3, retry_codes=(1, 75), fatal_codes=(75, 78))


@pytest.mark.parametrize(
    ("retry", "code", "is_tried"),
    [
        (CODES, 1, True),
        (CODES, 2, False),  # none of those that mean retry
        (CODES, 78, False),
        (CODES, 75, False),  # both: what is fatal never is tried again
        (Retry(tries=3, fatal_codes=(78,)), 1, True),
        (Retry(tries=3, fatal_codes=(78,)), 78, False),
    ],
)
def test_exit_codes_mean_retry_or_fatal(retry: Retry, code: int, is_tried: bool) -> None:
    rig = running(retry=retry)
    fail(rig, exit_code=code)
    assert (rig.state.row(KEY) is not None) is is_tried
    assert (KEY in rig.state.dead) is not is_tried


@pytest.mark.parametrize("reason", [Reason.TIMEOUT, Reason.MEMORY, Reason.RETRY])
def test_exit_codes_say_nothing_where_something_else_ended_it(reason: Reason) -> None:
    rig = running(retry=CODES)
    fail(rig, exit_code=78, reason=reason)
    assert resting(rig).tries == 1


def test_what_says_that_it_is_of_no_use_is_not_tried_again() -> None:
    rig = running(work=HANDLER)
    fail(rig, reason=Reason.FATAL)
    assert (letter(rig).reason, letter(rig).tries) == (Reason.FATAL, 1)


# ---- deadlines


@pytest.mark.parametrize("before_ms", [0, 1])
def test_it_must_be_able_to_begin_before_its_deadline(before_ms: int) -> None:
    rig = running(work=HANDLER)
    left_ms = rig.row(60).deadline_ms - rig.at_ms
    fail(rig, reason=Reason.RETRY, retry_after_ms=left_ms - before_ms)
    assert (rig.state.row(KEY) is not None) is bool(before_ms)
    if not before_ms:
        assert (letter(rig).reason, letter(rig).state) == (Reason.DEADLINE, LaunchState.FAILED)


def test_a_launch_keeps_its_deadline_over_its_attempts() -> None:
    rig = running()
    deadline_ms = rig.row(60).deadline_ms
    fail(rig)
    assert resting(rig).deadline_ms == deadline_ms == (T0 + 60 + 300) * 1000


def test_who_is_out_of_tries_is_told_so_also_past_the_deadline() -> None:
    rig = running(work=HANDLER, retry=Retry())
    fail(rig.to(900), reason=Reason.RAISED)
    assert letter(rig).reason is Reason.RAISED


# ---- cancelled, removed, lost


def test_what_somebody_had_killed_is_not_tried_again() -> None:
    rig = running()
    rig.cancel(60)
    fail(rig, state=LaunchState.CANCELLED, reason=Reason.KILLED, exit_code=137)
    assert rig.state.row(KEY) is None
    assert not rig.state.dead


@pytest.mark.parametrize("state", [LaunchState.FAILED, LaunchState.CANCELLED])
@pytest.mark.parametrize("reason", [Reason.NONE, Reason.SNOOZE, Reason.RETRY])
def test_a_kill_that_was_committed_wins_over_what_the_attempt_says(
    state: LaunchState, reason: Reason
) -> None:
    rig = running(work=HANDLER)
    rig.cancel(60)
    fail(rig, state=state, reason=reason, retry_after_ms=5)
    assert rig.state.row(KEY) is None
    assert not rig.state.dead


@pytest.mark.parametrize("reason", [Reason.KILLED, Reason.REPLACED])
def test_what_ended_as_killed_or_replaced_is_over(reason: Reason) -> None:
    rig = running(work=HANDLER)
    fail(rig, state=LaunchState.CANCELLED, reason=reason)
    assert rig.state.row(KEY) is None
    assert not rig.state.dead


def test_what_rests_can_be_cancelled() -> None:
    rig = running()
    fail(rig)
    assert rig.cancel(60) is Verdict.ACCEPTED
    assert rig.state.row(KEY) is None
    assert not rig.state.dead
    assert [(row.attempt, row.state.label) for row in rig.rows] == [(1, "failed"), (2, "cancelled")]


def test_an_attempt_of_a_removed_job_is_its_last() -> None:
    rig = running()
    rig.to(70).account(to=70)
    rig.put(removed=("default/backup",))
    fail(rig)
    assert rig.state.row(KEY) is None
    assert not rig.state.dead


def test_what_rests_goes_with_its_job() -> None:
    rig = running()
    fail(rig.to(70))
    rig.account(to=70)
    rig.put(removed=("default/backup",))
    assert rig.cancel(60, reason=Reason.NONE) is Verdict.ACCEPTED
    assert rig.state.row(KEY) is None
    assert said(rig.rows[-1]) == "the job was removed"


def test_a_lost_attempt_is_no_try_and_takes_none_back() -> None:
    rig = running(on_lost=OnLost.RETRY, retry=Retry(tries=2, backoff_ms=1_000))
    fail(rig)
    start(rig.to(70), 2)
    rig.lost(60, 2)
    assert (resting(rig).attempt, resting(rig).tries) == (2, 1)
    start(rig, 3)
    fail(rig, 3)
    assert (letter(rig).attempt, letter(rig).tries) == (3, 2)


def test_tries_are_no_reason_to_repeat_what_was_lost() -> None:
    rig = running(on_lost=OnLost.SKIP)
    rig.lost(60)
    assert rig.state.row(KEY) is None
    assert not rig.state.dead


def test_lost_attempts_are_repeated_without_tries() -> None:
    rig = running(on_lost=OnLost.RETRY, retry=Retry())
    rig.lost(60)
    assert resting(rig).tries == 0


def test_what_a_restore_remembers_is_tried_again_on_nobodys_behalf() -> None:
    """What a person asked for passes by pauses and `overlap=forbid`; this must not."""
    rig = running()
    rig.row(60).by = RESTORED_BY  # as Recover leaves it
    fail(rig)
    assert resting(rig).by == ""


def test_what_a_person_asked_for_stays_hers_in_each_attempt() -> None:
    rig = with_job(retry=PATIENT)
    rig.to(60).account(skipped=(c.SkipItem(T0 + 60, T0 + 60, 1, Reason.MISSED),), to=60)
    rig.reopen(60, LaunchState.SKIPPED)
    start(rig)
    fail(rig)
    assert (resting(rig).by, resting(rig).is_late) == ("anna", True)

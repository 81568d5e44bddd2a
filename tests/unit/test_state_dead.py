"""Dead letters: launches that are not tried again unless somebody says so."""

from __future__ import annotations

from typing import Any

import pytest

from cron.job import OnLost, Retry
from cron.limits import ATTEMPTS_MAX
from cron.state import commands as c
from cron.state import retries
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from launcher.launch import LaunchState, Reason
from tests.unit.state_rig import T0, StateRig, job, with_job
from tests.unit.tries_rig import (
    HANDLER,
    KEY,
    drop,
    fail,
    key_of,
    kill,
    letter,
    redrive,
    resting,
    running,
    seconds_of,
    snooze,
    start,
)

ONCE = Retry(tries=1)


def graveyard(*seconds: int, **fields: Any) -> StateRig:
    """A job whose launches at these seconds are dead."""
    rig = with_job(work=HANDLER, **fields)
    kill(rig, *seconds)
    assert len(rig.state.dead) == len(seconds)
    return rig


# ---- who becomes one


@pytest.mark.parametrize(
    ("fields", "reason", "is_kept"),
    [
        ({"retry": Retry(tries=2, fatal_codes=(1,))}, Reason.NONE, True),
        ({"retry": ONCE}, Reason.NONE, False),
        ({"retry": ONCE}, Reason.TIMEOUT, False),
        ({"retry": ONCE}, Reason.RETRY, True),  # it asked for it
        ({"retry": ONCE, "work": HANDLER}, Reason.RAISED, True),
        ({"retry": ONCE, "work": HANDLER}, Reason.FATAL, True),
        ({"retry": Retry(tries=2), "work": HANDLER}, Reason.FATAL, True),
    ],
)
def test_what_is_not_tried_again_is_kept_where_somebody_cares(
    fields: dict[str, Any], reason: Reason, is_kept: bool
) -> None:
    rig = running(**fields)
    fail(rig, reason=reason)
    assert rig.state.row(KEY) is None
    assert (KEY in rig.state.dead) is is_kept


def test_a_letter_says_what_became_of_the_last_attempt() -> None:
    rig = running(work=HANDLER)
    fail(rig, reason=Reason.FATAL, exit_code=4, detail="no such invoice", output_bytes=512)
    found = letter(rig)
    assert (found.serial, found.attempt, found.tries) == (1, 1, 1)
    assert (found.state, found.reason, found.exit_code) == (LaunchState.FAILED, Reason.FATAL, 4)
    assert (found.at_ms, found.index) == (rig.at_ms, rig.state.index)
    assert (found.detail, found.output_bytes, found.executor) == ("no such invoice", 512, "e1")
    assert rig.rows[-1].ended_index == found.index


def test_a_success_a_skip_and_a_loss_are_no_letters() -> None:
    rig = with_job(work=HANDLER)
    rig.to(180).account(60, 120, 180)
    for second in (60, 120):
        rig.begin(second)
    rig.finished(60)
    rig.lost(120)
    rig.skip(180)
    assert seconds_of(rig) == []


# ---- what could not begin again in time


def test_a_failed_launch_whose_next_attempt_never_began_is_one() -> None:
    """No executor was free, or its handler is served by nobody: it is over all the same."""
    rig = running()
    fail(rig)
    rig.to(360)
    rig.skip(60, Reason.DEADLINE)
    found = letter(rig)
    assert (found.state, found.reason) == (LaunchState.SKIPPED, Reason.DEADLINE)
    assert (found.attempt, found.tries, found.exit_code) == (2, 1, -1)
    assert [row.state.label for row in rig.rows] == ["failed", "skipped"]


def test_a_launch_that_was_put_off_and_never_began_again_is_one() -> None:
    rig = running(work=HANDLER)
    snooze(rig)
    rig.to(360)
    rig.skip(60, Reason.DEADLINE)
    assert (letter(rig).attempt, letter(rig).tries) == (2, 0)


def test_a_redriven_launch_that_never_began_again_is_one_once_more() -> None:
    rig = graveyard(60)
    redrive(rig, key_of(60))
    rig.to(900).skip(60, Reason.DEADLINE)
    assert (letter(rig).serial, letter(rig).reason) == (2, Reason.DEADLINE)
    assert redrive(rig, key_of(60)) == [Verdict.ACCEPTED]


def test_one_whose_next_attempt_was_refused_is_one_too() -> None:
    rig = running()
    fail(rig)
    rig.to(90).begin(60, 2)
    rig.refused(60, 2)
    rig.to(360).skip(60, Reason.FENCED)
    found = letter(rig)
    assert (found.reason, found.attempt, found.tries) == (Reason.DEADLINE, 2, 1)


@pytest.mark.parametrize("reason", [Reason.GATED, Reason.OVERLAP, Reason.PAUSED, Reason.FULL])
def test_a_failed_launch_whose_retry_is_skipped_is_one_whatever_the_reason(reason: Reason) -> None:
    rig = running()
    fail(rig)
    rig.skip(60, reason)
    assert (letter(rig).reason, letter(rig).tries) == (reason, 1)
    assert redrive(rig, key_of(60)) == [Verdict.ACCEPTED]


def test_a_redriven_launch_that_is_skipped_is_one_once_more() -> None:
    rig = graveyard(60)
    redrive(rig, key_of(60))
    rig.skip(60, Reason.PAUSED)
    assert (letter(rig).serial, letter(rig).reason) == (2, Reason.PAUSED)


def test_what_was_put_off_and_is_skipped_by_a_pause_is_none() -> None:
    rig = running(work=HANDLER)
    snooze(rig)
    rig.skip(60, Reason.PAUSED)
    assert not rig.state.dead


def test_what_never_began_is_none() -> None:
    rig = with_job(work=HANDLER)
    rig.to(60).account(60)
    rig.skip(60, Reason.DEADLINE)
    assert not rig.state.dead


def test_a_command_of_one_try_that_was_lost_and_never_began_again_is_none() -> None:
    rig = running(on_lost=OnLost.RETRY, retry=ONCE)
    rig.lost(60)
    rig.skip(60, Reason.DEADLINE)
    assert not rig.state.dead


# ---- order and bound


def test_they_are_in_the_order_of_dying() -> None:
    rig = with_job(work=HANDLER)
    rig.to(180).account(60, 120, 180)
    for second in (120, 180, 60):
        rig.begin(second)
        rig.finished(second, state=LaunchState.FAILED, reason=Reason.FATAL)
    assert seconds_of(rig) == [120, 180, 60]
    assert [one.serial for one in rig.state.dead.values()] == [1, 2, 3]


def test_an_image_keeps_their_order_over_jobs() -> None:
    rig = StateRig()
    rig.put(job("a", work=HANDLER), job("b", work=HANDLER))
    rig.join()
    for second, number in ((60, 2), (61, 1), (62, 2), (63, 1)):
        kill(rig, second, number=number)
    again = decode_state([encode_state(rig.state)])
    assert seconds_of(rig) == [60, 61, 62, 63]
    assert list(again.dead.items()) == list(rig.state.dead.items())
    assert encode_state(again) == encode_state(rig.state)


def test_who_died_twice_is_behind_those_that_died_meanwhile() -> None:
    rig = graveyard(60, 120)
    redrive(rig, key_of(60))
    rig.begin(60, 2)
    rig.finished(60, 2, state=LaunchState.FAILED, reason=Reason.FATAL)
    assert seconds_of(rig) == [120, 60]
    assert [one.serial for one in rig.state.dead.values()] == [2, 3]
    assert list(decode_state([encode_state(rig.state)]).dead) == list(rig.state.dead)


def test_of_too_many_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "DEAD_KEPT", 3)
    rig = graveyard(60, 61, 62)
    kill(rig, 63, 64)
    assert seconds_of(rig) == [62, 63, 64]
    assert redrive(rig, key_of(60)) == [Verdict.NOT_DEAD]


def test_the_bound_is_one_for_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "DEAD_KEPT", 2)
    rig = StateRig()
    rig.put(job("a", work=HANDLER), job("b", work=HANDLER))
    rig.join()
    for second, number in ((60, 1), (61, 2), (62, 2)):
        kill(rig, second, number=number)
    assert seconds_of(rig) == [61, 62]
    assert rig.record("a").dead == {}


# ---- redrive


def test_a_redriven_launch_begins_its_tries_anew_as_its_next_attempt() -> None:
    rig = running(retry=Retry(tries=2, backoff_ms=1_000))
    fail(rig)
    start(rig.to(70), 2)
    fail(rig, 2)
    assert letter(rig).tries == 2
    assert redrive(rig.to(5_000), KEY) == [Verdict.ACCEPTED]
    row = resting(rig)
    assert (row.attempt, row.tries, row.not_before_ms) == (2, 0, 0)
    assert (row.is_late, row.by) == (True, "bea")
    assert not rig.state.dead
    start(rig, 3)
    fail(rig, 3)
    assert resting(rig).tries == 1


def test_its_deadline_counts_from_then() -> None:
    rig = graveyard(60, deadline_s=300)
    redrive(rig.to(9_000), key_of(60))
    assert resting(rig).deadline_ms == (T0 + 9_300) * 1000


def test_it_keeps_its_nominal_time_and_when_it_was_asked_for() -> None:
    rig = with_job(work=HANDLER)
    rig.to(60).account(due=(c.DueItem(T0 + 60, 77),), to=60)
    rig.begin(60)
    rig.finished(60, state=LaunchState.FAILED, reason=Reason.FATAL)
    redrive(rig, KEY)
    assert resting(rig).local_min == 77
    rig.trigger("q1")
    rig.begin(60, trigger=1)
    manual = (1, T0 + 60, 1)
    rig.finished(60, key=manual, state=LaunchState.FAILED, reason=Reason.FATAL)
    redrive(rig, manual)
    assert rig.state.due[manual].due_at_ms == (T0 + 60) * 1000


def test_a_mended_handler_ends_it_well() -> None:
    rig = graveyard(60)
    redrive(rig, key_of(60))
    start(rig, 2)
    rig.finished(60, 2)
    assert [(row.attempt, row.state.label) for row in rig.rows] == [(1, "failed"), (2, "succeeded")]
    assert rig.rows[-1].by == "bea"
    assert not rig.state.dead


def test_each_key_is_answered_by_itself_and_once() -> None:
    rig = graveyard(60, 120)
    keys = (key_of(60), key_of(180), key_of(60), (7, T0, 0), key_of(120))
    assert redrive(rig, *keys) == [
        Verdict.ACCEPTED,
        Verdict.NOT_DEAD,
        Verdict.NOT_DEAD,
        Verdict.NOT_DEAD,
        Verdict.ACCEPTED,
    ]
    assert sorted(rig.state.due) == [key_of(60), key_of(120)]


def test_a_removed_job_is_not_redriven_and_its_letters_stay() -> None:
    rig = graveyard(60)
    rig.put(removed=("default/backup",))
    with rig.unchanged():
        assert redrive(rig, key_of(60)) == [Verdict.UNKNOWN_JOB]
    assert seconds_of(rig) == [60]
    rig.put(job(work=HANDLER))
    assert redrive(rig, key_of(60)) == [Verdict.ACCEPTED]
    assert resting(rig).revision == rig.record().revision


def test_attempts_without_names_are_not_begun() -> None:
    rig = graveyard(60)
    rig.reopen(60, LaunchState.FAILED, ATTEMPTS_MAX - 1)
    rig.begin(60, ATTEMPTS_MAX)
    rig.finished(60, ATTEMPTS_MAX, state=LaunchState.FAILED, reason=Reason.RAISED)
    assert letter(rig).attempt == ATTEMPTS_MAX
    with rig.unchanged():
        assert redrive(rig, key_of(60)) == [Verdict.WRONG_ATTEMPT]


def test_the_last_attempt_that_has_a_name_is_not_tried_again() -> None:
    rig = running(work=HANDLER, retry=Retry(tries=9))
    rig.row(60).attempt = ATTEMPTS_MAX
    fail(rig, ATTEMPTS_MAX, reason=Reason.RAISED)
    assert letter(rig).reason is Reason.RAISED


# ---- drop, backfill


def test_dropped_letters_are_gone_and_their_history_stays() -> None:
    rig = graveyard(60, 120)
    rows = list(rig.rows)
    assert drop(rig, key_of(60), key_of(60), (9, 9, 9)) == [
        Verdict.ACCEPTED,
        Verdict.NOT_DEAD,
        Verdict.NOT_DEAD,
    ]
    assert seconds_of(rig) == [120]
    assert redrive(rig, key_of(60)) == [Verdict.NOT_DEAD]
    assert rig.rows == rows


def test_letters_of_a_removed_job_can_be_dropped() -> None:
    rig = graveyard(60)
    rig.put(removed=("default/backup",))
    assert drop(rig, key_of(60)) == [Verdict.ACCEPTED]
    assert seconds_of(rig) == []


def test_a_backfill_of_a_dead_launch_takes_its_letter_away() -> None:
    rig = graveyard(60)
    assert rig.reopen(60, LaunchState.FAILED, 1) is Verdict.ACCEPTED
    assert not rig.state.dead
    assert redrive(rig, key_of(60)) == [Verdict.NOT_DEAD]
    assert resting(rig).tries == 0


def test_another_launch_of_the_job_leaves_the_letter_alone() -> None:
    rig = graveyard(60)
    rig.to(120).account(120)
    rig.begin(120)
    rig.finished(120)
    assert seconds_of(rig) == [60]

"""How long a launch rests between two attempts, and what a snooze is."""

from __future__ import annotations

import pytest

from cron.job import Retry
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.retries import backoff_ms
from launcher.launch import LaunchState, Reason
from tests.unit.tries_rig import (
    HANDLER,
    KEY,
    PATIENT,
    fail,
    letter,
    rest_ms,
    resting,
    running,
    snooze,
    start,
)


@pytest.mark.parametrize(("failures", "plain_ms"), [(1, 1000), (2, 2000), (3, 4000), (9, 60_000)])
def test_it_rests_twice_as_long_each_time_up_to_a_bound(failures: int, plain_ms: int) -> None:
    retry = Retry(tries=99, backoff_ms=1000, backoff_max_ms=60_000)
    rests = [backoff_ms(retry, failures, f"default/a@{n}#1") for n in range(500)]
    assert plain_ms <= min(rests) < plain_ms * 101 // 100
    assert plain_ms * 109 // 100 < max(rests) <= plain_ms * 11 // 10


def test_no_rest_is_shorter_than_its_job_says() -> None:
    # The attempt of this name drew 9.7 s of 10 s.
    rig = running()
    fail(rig)
    assert PATIENT.backoff_ms <= rest_ms(rig) <= PATIENT.backoff_ms * 11 // 10


def test_a_rest_is_the_same_in_every_release() -> None:
    """Replicas of two releases apply the same entries, and old logs are read again."""
    retry = Retry(tries=9)
    name = "default/backup@2026-11-20T16:01:00Z#"
    found = [backoff_ms(retry, failures, f"{name}{failures}") for failures in (1, 2, 3)]
    assert found == [10347, 20139, 40468]


def test_attempts_of_one_launch_and_launches_of_one_instant_rest_apart() -> None:
    retry = Retry(backoff_ms=1_000_000)
    names = ["default/a@x#1", "default/a@x#2", "default/b@x#1", "default/a@y#1"]
    assert len({backoff_ms(retry, 1, name) for name in names}) == 4


def test_the_rest_of_an_attempt_is_that_of_its_name() -> None:
    rig = running()
    fail(rig)
    name = "default/backup@2026-11-20T16:01:00Z#1"
    assert rest_ms(rig) == backoff_ms(PATIENT, 1, name)


def test_a_second_failure_rests_longer_up_to_the_jobs_bound() -> None:
    rig = running()
    fail(rig)
    assert 10_000 <= rest_ms(rig) <= 11_000
    start(rig.to(90), 2)
    fail(rig, 2)
    assert 13_500 <= rest_ms(rig) <= 16_500


def test_it_does_not_begin_before_its_rest_is_over() -> None:
    rig = running()
    fail(rig)
    until_ms = resting(rig).not_before_ms
    rig.at_ms = until_ms - 1
    assert rig.begin(60, 2) is Verdict.OVERLAP
    rig.at_ms = until_ms
    assert rig.begin(60, 2) is Verdict.ACCEPTED


def test_who_asks_for_a_time_gets_it() -> None:
    rig = running(work=HANDLER)
    fail(rig, reason=Reason.RETRY, retry_after_ms=77)
    assert rest_ms(rig) == 77


@pytest.mark.parametrize("failures", [1, 2, 64, 10**9])
@pytest.mark.parametrize("bound", [-(2**63), -1, 0, 2**63])
@pytest.mark.parametrize("backoff", [-(2**63), -1, 0, 2**63])
def test_absurd_rests_are_never_before_the_failure(backoff: int, bound: int, failures: int) -> None:
    retry = Retry(tries=9, backoff_ms=backoff, backoff_max_ms=bound)
    assert backoff_ms(retry, failures, "default/a@x#1") >= 0


@pytest.mark.parametrize("backoff", [-(2**63), -1, 0])
def test_a_job_that_rests_absurdly_can_still_be_saved(backoff: int) -> None:
    rig = running(retry=Retry(tries=5, backoff_ms=backoff))
    for attempt in (1, 2, 3):
        fail(rig, attempt)
        start(rig, attempt + 1)
    assert decode_state([encode_state(rig.state)]).row(KEY) == rig.state.row(KEY)


# ---- snooze


def test_a_snooze_is_another_attempt_and_no_try() -> None:
    rig = running(work=HANDLER)
    snooze(rig, after_ms=5_000)
    assert (resting(rig).attempt, resting(rig).tries) == (1, 0)
    assert rest_ms(rig) == 5_000
    assert (rig.rows[-1].state, rig.rows[-1].reason) == (LaunchState.CANCELLED, Reason.SNOOZE)


def test_snoozes_do_not_use_up_tries() -> None:
    rig = running(work=HANDLER, retry=Retry(tries=2, backoff_ms=1_000))
    for attempt in range(1, 6):
        snooze(rig, attempt)
        start(rig.to(61 + 2 * attempt), attempt + 1)
    fail(rig, 6)
    assert resting(rig).tries == 1


def test_a_job_of_one_try_may_snooze() -> None:
    rig = running(work=HANDLER, retry=Retry())
    snooze(rig)
    start(rig.to(70), 2)
    fail(rig, 2, reason=Reason.RAISED)
    assert letter(rig).reason is Reason.RAISED


@pytest.mark.parametrize("asked", [0, 1, 999])
def test_a_snooze_lasts_a_second_at_least(asked: int) -> None:
    rig = running(work=HANDLER)
    snooze(rig, after_ms=asked)
    assert rest_ms(rig) == 1_000


def test_a_snooze_past_the_deadline_is_a_dead_letter_that_counts_no_try() -> None:
    rig = running(work=HANDLER)
    snooze(rig, after_ms=3_600_000)
    assert (letter(rig).reason, letter(rig).state) == (Reason.DEADLINE, LaunchState.CANCELLED)
    assert letter(rig).tries == 0

"""How long a launch rests between two attempts, and what a snooze is."""

from __future__ import annotations

import pytest

from cron.job import Retry
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.retries import backoff_ms
from launcher.protocol.status import Reason
from tests.unit.tries_rig import (
    HANDLER,
    KEY,
    PATIENT,
    fail,
    letter,
    rest_ms,
    running,
    snooze,
    start,
)


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


def test_a_job_of_one_try_may_snooze() -> None:
    rig = running(work=HANDLER, retry=Retry())
    snooze(rig)
    start(rig.to(70), 2)
    fail(rig, 2, reason=Reason.RAISED)
    assert letter(rig).reason is Reason.RAISED

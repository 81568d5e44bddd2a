"""An attempt at a worker: it is asked first, then killed, and the first reason counts."""

from __future__ import annotations

import pytest

from launcher.executor.attempt import Attempt, Step
from launcher.executor.rows import REFUSED
from launcher.limits import DETAIL_BYTES_MAX
from launcher.protocol.limits import RETRY_AFTER_MS_MAX
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from launcher.worker.wire import Ends, Result
from tests.unit.rows_rig import attempt_of

GRACE_MS = 50
NAME = "default/mail@2026-11-20T15:00:00Z#1"


def given(**fields: int) -> Attempt:
    """One that a worker was given."""
    one = attempt_of(NAME, WorkSpec((), handler="h", timeout_ms=1 << 50), not_after_ms=9_000)
    one.timeout_ms, one.heartbeat_ms = fields.get("timeout_ms", 0), fields.get("heartbeat_ms", 0)
    return one


def begun(**fields: int) -> Attempt:
    one = given(**fields)
    one.begin(1_000, 5_000)
    return one


def test_silence_counts_from_the_last_sign_of_life() -> None:
    one = begun(heartbeat_ms=100)
    one.beat(1_090)
    assert one.look(1_189, GRACE_MS) is Step.NOTHING
    assert one.look(1_190, GRACE_MS) is Step.ASK
    assert one.stopping is Reason.SILENT


def test_the_first_reason_counts_and_a_later_one_only_shortens_the_grace() -> None:
    one = begun(timeout_ms=100)
    assert one.order(Reason.KILLED, 1_090, 500)
    assert one.look(1_100, GRACE_MS) is Step.NOTHING
    assert not one.order(Reason.EXECUTOR_LOST, 1_100, 1_000)
    assert one.stopping is Reason.KILLED
    assert one.look(1_149, GRACE_MS) is Step.NOTHING
    assert one.look(1_150, GRACE_MS) is Step.KILL


@pytest.mark.parametrize("result", [one for one in Result if one not in (Result.OK, Result.LOST)])
def test_what_was_ordered_counts_more_than_what_a_failing_handler_says(result: Result) -> None:
    one = begun()
    one.order(Reason.REPLACED, 1_000, GRACE_MS)
    one.end(Ends(result, []), 1_000, 1_000, 8_000)
    assert (one.reason, one.exit_code) == (Reason.REPLACED, 1)


def test_nobody_knows_how_it_ended_whatever_was_ordered() -> None:
    one = begun()
    one.order(Reason.REPLACED, 1_000, GRACE_MS)
    one.end(Ends(Result.LOST, [], detail="the other side is silent"), 1_000, 1_000, 8_000)
    assert (one.is_lost, one.detail) == (True, "the other side is silent")


def test_success_counts_in_any_case() -> None:
    one = begun()
    one.order(Reason.KILLED, 1_000, GRACE_MS)
    one.end(Ends(Result.OK, []), 1_000, 1_000, 8_000)
    assert (one.reason, one.exit_code) == (Reason.NONE, 0)


def test_what_it_says_is_cut_and_its_wish_is_bounded() -> None:
    how = Ends(Result.RETRY, [], 1 << 53, "x\0" * DETAIL_BYTES_MAX)
    one = begun()
    one.end(how, 1, 0, 8_000)
    assert one.retry_after_ms == RETRY_AFTER_MS_MAX
    assert one.detail == "x" * 511 + "..."


def test_an_attempt_is_over_once() -> None:
    one = begun()
    one.refuse("late")
    one.refuse("later")
    assert (one.status, one.detail) == (REFUSED, "late")

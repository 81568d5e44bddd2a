"""What is watched of an attempt: it is asked first, then killed, and the first reason counts."""

from __future__ import annotations

import pytest

from launcher.executor.buffer import Waiting
from launcher.executor.watches import Step, Watch, ending, pace_us
from launcher.launch import Reason
from launcher.limits import DETAIL_CHARS_MAX, RETRY_AFTER_MS_MAX
from launcher.worker.wire import Outcome, Result, Task

GRACE_MS = 50
NAME = "default/mail@2026-11-20T15:00:00Z#1"


def watch(**fields: int) -> Watch:
    return Watch(Waiting(Task(NAME, "h", b"", 1, 0), not_after_ms=9_000), **fields)


def begun(**fields: int) -> Watch:
    one = watch(**fields)
    one.begin(1_000, 5_000)
    return one


def test_without_bounds_nothing_is_ever_done() -> None:
    assert begun().look(1 << 61, GRACE_MS) is Step.NOTHING


def test_time_counts_from_the_beginning_and_not_from_the_giving() -> None:
    one = watch(timeout_ms=100, heartbeat_ms=10)
    assert one.look(1 << 61, GRACE_MS) is Step.NOTHING
    one.begin(1_000, 5_000)
    assert one.started_ms == 5_000


def test_over_its_time_it_is_asked_once_and_killed_after_the_grace() -> None:
    one = begun(timeout_ms=100)
    assert one.look(1_099, GRACE_MS) is Step.NOTHING
    assert one.look(1_100, GRACE_MS) is Step.ASK
    assert one.look(1_149, GRACE_MS) is Step.NOTHING
    assert one.look(1_150, GRACE_MS) is Step.KILL
    assert one.reason is Reason.TIMEOUT


def test_silence_counts_from_the_last_sign_of_life() -> None:
    one = begun(heartbeat_ms=100)
    one.beat(1_090)
    assert one.look(1_189, GRACE_MS) is Step.NOTHING
    assert one.look(1_190, GRACE_MS) is Step.ASK
    assert one.reason is Reason.SILENT


def test_a_sign_of_life_of_what_need_not_give_any_changes_nothing() -> None:
    one = begun()
    one.beat(1_090)
    assert one.look(1 << 61, GRACE_MS) is Step.NOTHING


def test_the_first_reason_counts_and_a_later_one_only_shortens_the_grace() -> None:
    one = begun(timeout_ms=100)
    assert one.order(Reason.KILLED, 1_090, 500)
    assert one.look(1_100, GRACE_MS) is Step.NOTHING
    assert not one.order(Reason.EXECUTOR_LOST, 1_100, 1_000)
    assert one.reason is Reason.KILLED
    assert one.look(1_149, GRACE_MS) is Step.NOTHING
    assert one.look(1_150, GRACE_MS) is Step.KILL


def test_it_is_late_until_it_has_begun_or_was_told_to_end() -> None:
    one = watch()
    assert not one.is_late(9_000)
    assert one.is_late(9_001)
    one.order(Reason.DEADLINE, 1, 1)
    assert not one.is_late(9_001)
    assert not begun().is_late(9_001)
    known = watch()
    known.waiting.was_announced = True
    assert not known.is_late(9_001)


@pytest.mark.parametrize("result", [one for one in Result if one is not Result.OK])
def test_what_was_ordered_counts_more_than_what_a_failing_handler_says(result: Result) -> None:
    one = begun()
    one.order(Reason.REPLACED, 1_000, GRACE_MS)
    assert one.verdict(Outcome(NAME, result)) is Reason.REPLACED


def test_success_counts_in_any_case() -> None:
    one = begun()
    one.order(Reason.KILLED, 1_000, GRACE_MS)
    assert one.verdict(Outcome(NAME, Result.OK)) is Reason.NONE


@pytest.mark.parametrize(
    ("said", "times"),
    [
        ((6_000, 7_000), (5_000, 7_000)),  # we heard of the start ourselves
        ((6_000, 4_000), (5_000, 5_000)),
        ((6_000, 99_000), (5_000, 8_000)),
        ((1 << 53, 1 << 53), (5_000, 8_000)),
    ],
)
def test_times_lie_between_start_and_now(said: tuple[int, int], times: tuple[int, int]) -> None:
    outcome = Outcome(NAME, Result.OK, started_ms=said[0], finished_ms=said[1])
    end = ending(begun(), outcome, 8_000)
    assert (end.started_ms, end.finished_ms) == times


def test_a_start_that_nobody_heard_of_is_not_in_the_future() -> None:
    end = ending(watch(), Outcome(NAME, Result.OK, started_ms=99_000, finished_ms=3), 8_000)
    assert (end.started_ms, end.finished_ms) == (8_000, 8_000)


def test_what_it_says_is_cut_and_its_wish_is_bounded() -> None:
    outcome = Outcome(NAME, Result.RETRY, 1 << 53, "x\0" * DETAIL_CHARS_MAX, started_ms=1)
    end = ending(begun(), outcome, 8_000)
    assert end.after_ms == RETRY_AFTER_MS_MAX
    assert end.detail == "x" * (DETAIL_CHARS_MAX // 2)
    assert end.news(7, "disk full")[5:7] == [7, end.detail]


def test_a_problem_with_the_output_is_told_where_there_is_nothing_else_to_tell() -> None:
    end = ending(begun(), Outcome(NAME, Result.OK, started_ms=1), 8_000)
    assert end.news(7, "disk full") == [
        "done", NAME, 0, int(Reason.NONE), 5_000, 7, "disk full", 0, 5_000
    ]  # fmt: skip


def test_the_pace_follows_what_is_seen() -> None:
    slow = fast = 10_000
    for _ in range(50):
        slow, fast = pace_us(slow, 60_000), pace_us(fast, 0)
    assert slow > 59_000_000
    assert fast < 20

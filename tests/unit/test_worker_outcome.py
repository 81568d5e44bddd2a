"""What a handler says of its end, and what is made of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from launcher.worker.errors import BadPayload
from launcher.worker.outcome import (
    Ended,
    Fatal,
    Length,
    Retry,
    Snooze,
    cut,
    length_ms,
    of_cancel,
    of_error,
    of_value,
)
from launcher.worker.wire import DETAIL_BYTES_MAX, Result


@pytest.mark.parametrize(
    ("said", "ms"),
    [
        (90, 90_000),
        (1.5, 1_500),
        (0, 0),
        (0.0001, 1),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("1d", 86_400_000),
        (timedelta(minutes=2), 120_000),
    ],
)
def test_lengths_are_read_in_every_spelling(said: Length, ms: int) -> None:
    assert length_ms(said) == ms


@pytest.mark.parametrize(
    "said", [-1, "5", "5 m", "m", "", "1y", "٣s", float("nan"), float("inf"), 1e9, "400d"]
)
def test_what_is_no_length_is_refused(said: Length) -> None:
    with pytest.raises(ValueError, match=r"is not"):
        length_ms(said)


@pytest.mark.parametrize("said", [True, None, [], b"5m"])
def test_what_cannot_be_a_length_is_a_type_error(said: Length) -> None:
    with pytest.raises(TypeError, match="is not a length like"):
        length_ms(said)


@pytest.mark.parametrize("answer", [Retry("5m", "busy"), Retry(reason="busy", after=300)])
def test_a_retry_means_the_same_raised_and_returned(answer: Retry) -> None:
    expected = Ended(Result.RETRY, 300_000, "busy")
    assert of_value(answer) == expected
    assert of_error(answer) == expected


def test_a_retry_without_a_time_leaves_it_to_the_job() -> None:
    assert of_error(Retry()).after_ms == 0


def test_a_retry_at_once_is_not_taken_for_no_time() -> None:
    assert of_error(Retry(after=0)).after_ms == 1


def test_fatal_and_snooze_say_so() -> None:
    assert of_value(Fatal("no such customer")) == Ended(Result.FATAL, 0, "no such customer")
    assert of_error(Snooze(timedelta(hours=1))) == Ended(Result.SNOOZE, 3_600_000, "")


def test_a_class_without_parentheses_is_not_success() -> None:
    assert of_value(Retry).result is Result.RETRY
    assert of_value(Fatal).result is Result.FATAL
    assert of_value(Snooze).result is Result.RAISED  # it must say for how long


def test_a_returned_text_is_kept_and_all_else_is_not() -> None:
    assert of_value("532 rows") == Ended(Result.OK, 0, "532 rows")
    for value in (None, 5, {"a": 1}, b"x", False):
        assert of_value(value) == Ended(Result.OK)


def test_a_coroutine_that_nobody_awaited_is_not_success() -> None:
    async def forgotten() -> None: ...

    ended = of_value(forgotten())
    assert ended.result is Result.RAISED
    assert "async def" in ended.detail


def caught(error: BaseException) -> Ended:
    """What is made of an exception that user code raised two calls down."""

    def handler() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        handler()
    # pytest's own frame is where a thread's would be.
    return of_error(raised.value)


def test_an_exception_is_told_with_its_type_its_message_and_where() -> None:
    ended = caught(ValueError("so not"))
    assert ended.result is Result.RAISED
    assert ended.detail.startswith("ValueError: so not at File ")
    assert "test_worker_outcome.py" in ended.detail
    assert "raise error" in ended.detail


def test_the_whole_traceback_is_for_the_output_and_begins_with_user_code() -> None:
    ended = caught(ValueError("so not"))
    assert ended.trace.startswith("Traceback")
    assert ended.trace.count("File ") == 1
    assert "in handler" in ended.trace
    assert ended.trace.endswith("ValueError: so not\n")


def test_a_long_message_leaves_room_for_the_place() -> None:
    ended = caught(ValueError("x" * 10_000))
    assert len(ended.detail) <= DETAIL_BYTES_MAX
    assert "raise error" in ended.detail


class Nasty(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "error", [Nasty(), SystemExit(0), KeyboardInterrupt(), GeneratorExit(), RecursionError()]
)
def test_no_exception_is_success_or_ends_who_looks_at_it(error: BaseException) -> None:
    ended = caught(error)
    assert ended.result is Result.RAISED
    assert type(error).__name__ in ended.detail


def test_a_payload_that_does_not_fit_is_fatal_without_a_traceback() -> None:
    ended = of_error(BadPayload("payload does not fit Invoice: object missing `cents`"))
    assert ended == Ended(Result.FATAL, 0, "payload does not fit Invoice: object missing `cents`")


def test_what_was_cancelled_is_no_success_whatever_it_returned() -> None:
    assert of_cancel(Ended(Result.OK, 0, "half"), "timeout") == Ended(
        Result.CANCELLED, 0, "cancelled: timeout, then half"
    )
    assert of_cancel(Ended(Result.RETRY, 5, ""), "killed").after_ms == 0


def test_details_are_cut_and_can_be_sent() -> None:
    assert len(cut("x" * 10_000)) == DETAIL_BYTES_MAX
    assert len(cut("ä" * 10_000).encode()) <= DETAIL_BYTES_MAX
    assert cut("ä" * (DETAIL_BYTES_MAX // 2)) == "ä" * (DETAIL_BYTES_MAX // 2)
    assert cut("short") == "short"
    assert cut("a\udcffb") == "a?b"
    assert cut("ä") == "ä"

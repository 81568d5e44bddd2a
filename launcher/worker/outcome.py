"""How a handler says how it ended, and the outcome of that.

A handler raises or returns `Retry` (try again), `Fatal` (trying again is of no use) or `Snooze`
(not now, and that is no failure). Any other exception is `raised`. Any other value is success; a
text is kept as the launch's result, 1 KiB of UTF-8 at most; a handler stores larger ones itself.
"""

from __future__ import annotations

import inspect
import traceback
from types import TracebackType
from typing import Final, NamedTuple

from launcher import texts
from launcher.lengths import LENGTH_MS_MAX, Length, length_ms
from launcher.payloads import PayloadGone
from launcher.worker.errors import BadPayload
from launcher.worker.wire import DETAIL_BYTES_MAX, Result

TRACE_LINES_IN_DETAIL: Final = 3
"""The last lines of a traceback: the place and the source line that raised."""


class Answer(Exception):
    """A handler raises or returns one to say how it ended."""

    result = Result.RAISED

    def __init__(self, after_ms: int, reason: str) -> None:
        super().__init__(reason)
        self.after_ms = after_ms
        self.reason = reason


class Retry(Answer):
    """Try again if the job has tries left, after `after` or the job's backoff."""

    result = Result.RETRY

    def __init__(self, after: Length | None = None, reason: str = "") -> None:
        super().__init__(0 if after is None else max(1, length_ms(after)), reason)


class Fatal(Answer):
    """Trying again is of no use: the launch becomes a dead letter, even if tries are left."""

    result = Result.FATAL

    def __init__(self, reason: str = "") -> None:
        super().__init__(0, reason)


class Snooze(Answer):
    """Not now: try again after `after`. That is no failure and counts as no try."""

    result = Result.SNOOZE

    def __init__(self, after: Length, reason: str = "") -> None:
        super().__init__(max(1, length_ms(after)), reason)


class Lost(Answer):
    """It is not known whether the work was done: the job's `on-lost` decides. For targets, which
    hand work to others."""

    result = Result.LOST

    def __init__(self, reason: str = "") -> None:
        super().__init__(0, reason)


_ANSWERS: Final[tuple[type[Answer], ...]] = (Retry, Fatal, Snooze, Lost)


class Cancelled(Exception):
    """Raised by `Context.check`: the launch was killed, replaced, or took too long."""


class Ended(NamedTuple):
    """How one call ended. `trace` is a whole traceback, for the output; empty for none."""

    result: Result
    after_ms: int = 0
    detail: str = ""
    trace: str = ""


SUCCEEDED: Final = Ended(Result.OK)


def of_value(value: object) -> Ended:
    """Return the end of a call that returned `value`; never raises."""
    if value is None:
        return SUCCEEDED
    if isinstance(value, type) and issubclass(value, Answer):
        try:  # `return Retry`, without parentheses, must not be taken for success
            return _of_answer(value())  # type: ignore[call-arg]
        except TypeError as error:
            return of_error(error)
    if isinstance(value, Answer):
        return _of_answer(value)
    if inspect.iscoroutine(value):
        value.close()
        return Ended(Result.RAISED, 0, "returned a coroutine: make the handler `async def`")
    return Ended(Result.OK, 0, cut(value)) if isinstance(value, str) else SUCCEEDED


def of_error(error: BaseException) -> Ended:
    """Return the end of a call that raised `error`; never raises."""
    if isinstance(error, Answer):
        try:
            return _of_answer(error)
        except BaseException as worse:  # noqa: BLE001 - its class is the user's
            if not isinstance(worse, Answer):
                return of_error(worse)
    if isinstance(error, BadPayload | PayloadGone):
        return Ended(Result.FATAL, 0, cut(str(error)))
    lines = _trace(error)
    headline = "".join(_headline(error)).strip()
    place = " | ".join(line.strip() for line in lines[-TRACE_LINES_IN_DETAIL:] if line.strip())
    room = DETAIL_BYTES_MAX - len(place.encode("utf-8", "replace")) - len(" at ")
    return Ended(
        Result.RAISED, 0, cut(f"{cut(headline, max(room, 200))} at {place}"), _whole(error)
    )


def of_cancel(ended: Ended, reason: str) -> Ended:
    """Return the end of a call that was cancelled before it ended: CANCELLED, whatever it said.

    A function that sees the flag and returns has not succeeded, just as a command that gets TERM
    and exits with 0 has not.
    """
    more = f", then {ended.detail}" if ended.detail else ""
    return Ended(Result.CANCELLED, 0, cut(f"cancelled: {reason}{more}"), ended.trace)


def cut(text: str, bytes_max: int = DETAIL_BYTES_MAX) -> str:
    """Return a text of at most `bytes_max` bytes that can be sent, whatever a handler gave."""
    return texts.cut(str.__str__(text), bytes_max)  # a class of the user's own may say anything


def _of_answer(answer: Answer) -> Ended:
    """Return the end that an answer means. Its class may be the user's, and its fields anything, so
    only values that can be sent are used."""
    result = next((kind.result for kind in _ANSWERS if isinstance(answer, kind)), Result.RAISED)
    after_ms = getattr(answer, "after_ms", 0)
    is_length = type(after_ms) is int and 0 <= after_ms <= LENGTH_MS_MAX
    return Ended(result, after_ms if is_length else 0, cut(str(getattr(answer, "reason", ""))))


def _headline(error: BaseException) -> list[str]:
    try:
        return traceback.format_exception_only(error)
    except BaseException:  # noqa: BLE001 - its __str__ is the user's code
        return [type(error).__name__]


def _trace(error: BaseException) -> list[str]:
    """The frame that raised: file, line, function, and the source line."""
    try:
        frames = traceback.format_tb(_own(error))
    except BaseException:  # noqa: BLE001 - sources are read through the user's loaders
        return []
    lines = frames[-1].splitlines() if frames else []
    return [line for line in lines if line.strip(" ~^")]


def _own(error: BaseException) -> TracebackType | None:
    """The traceback from where the user's code begins."""
    return error.__traceback__.tb_next if error.__traceback__ is not None else None


def _whole(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, _own(error)))
    except BaseException:  # noqa: BLE001 - its __str__ is the user's code
        return "".join(_headline(error))

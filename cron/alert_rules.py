"""Conditions of alert rules as people write them: `failed:2`, `late:10m`, `backup-failing`. Pure.

A crontab (`#: alert=failed:2,late:10m to=ops`) and a file of rules use the same words.
"""

from __future__ import annotations

import difflib
import re
from typing import Final

import msgspec

from cron.calendar.duration import format_duration, parse_duration
from cron.errors import InvalidInput, ScheduleError

FAILURES_MAX: Final = 100
"""Of the newest launches of a job that a rule looks at."""
WAIT_S_MIN: Final = 1
WAIT_S_MAX: Final = 366 * 86_400
"""A yearly job may be due a day late; whoever waits longer watches nothing."""
CONDITIONS_MAX: Final = 20
"""Of one rule or job: more than there are kinds."""

FAILED: Final = "failed"
_TIMED_JOB: Final = frozenset({"late", "running", "no-success"})
_TIMED_QUEUE: Final = frozenset({"queue-older", "gate-open"})
_TIMED: Final = _TIMED_JOB | _TIMED_QUEUE
JOB_KINDS: Final = frozenset({FAILED, "missed", "dead"}) | _TIMED_JOB
"""Kinds that watch jobs."""
QUEUE_KINDS: Final = _TIMED_QUEUE
"""Kinds that watch queues and their gates."""
CELL_KINDS: Final = frozenset(
    {"backup-failing", "certificate-ending", "clock-off", "disk-filling", "replica-away"}
)
"""Kinds that watch the cell itself."""
KINDS: Final = (
    FAILED, "missed", "late", "running", "no-success", "dead", "queue-older", "gate-open",
    *sorted(CELL_KINDS),
)  # fmt: skip
"""All kinds, in the order of the documentation."""

_FAILURES: Final = re.compile(r"([0-9]{1,4})(?:/([0-9]{1,4}))?", re.ASCII)


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """When a rule raises an alert.

    `kind` is one of KINDS. `failed`: `count` failures in a row, or, with a `window`, among the
    newest `window` launches. Kinds with a duration have it in `seconds`. Other fields are 0.
    """

    kind: str
    count: int = 0
    window: int = 0
    seconds: int = 0

    def __str__(self) -> str:
        """Return the condition as `parse_condition` reads it."""
        if self.kind == FAILED:
            return f"{self.kind}:{self.count}" + (f"/{self.window}" if self.window else "")
        return f"{self.kind}:{format_duration(self.seconds)}" if self.seconds else self.kind


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Return the conditions of a text such as `failed:2,late:10m`, in its order.

    Raises:
        InvalidInput: one of them is none, there are too many, or one occurs twice.
    """
    words = text.split(",")
    if len(words) > CONDITIONS_MAX:
        raise InvalidInput(f"alert has more than {CONDITIONS_MAX} conditions")
    found = tuple(parse_condition(word.strip()) for word in words)
    for place, one in enumerate(found):
        if one in found[:place]:
            raise InvalidInput(f"alert {one} is written twice", "remove one of them")
    return found


def parse_condition(text: str) -> Condition:
    """Return the condition that a word such as `failed:2`, `late:10m` or `missed` means.

    Raises:
        InvalidInput: it means none; the hint shows how to write one.
    """
    kind, colon, value = text.partition(":")
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(KINDS)}"
        raise InvalidInput(f"alert {text[:40]!r} is not a condition", hint)
    if kind == FAILED:
        return _failures(value if colon else "1")
    if kind in _TIMED:
        if not value:
            raise InvalidInput(f"alert {kind} has no duration", f"write it like {kind}:10m")
        try:
            seconds = parse_duration(
                value, what=f"alert {kind}", least_s=WAIT_S_MIN, most_s=WAIT_S_MAX
            )
        except ScheduleError as error:
            raise InvalidInput(str(error), error.hint) from error
        return Condition(kind, seconds=seconds)
    if colon:
        raise InvalidInput(f"alert {kind} takes no value", f"write {kind}")
    return Condition(kind)


def _failures(value: str) -> Condition:
    """Return the condition of `2` or `3/10`."""
    match = _FAILURES.fullmatch(value)
    if match is None:
        hint = "write failed:2 for two in a row, or failed:3/10 for three of the newest ten"
        raise InvalidInput(f"alert failed:{value[:40]} is not a number of failures", hint)
    count, window = int(match[1]), int(match[2] or 0)
    if not 1 <= count <= FAILURES_MAX or window > FAILURES_MAX:
        raise InvalidInput(f"alert failed:{value} is not in 1 to {FAILURES_MAX}")
    if match[2] is not None and window < count:
        hint = f"write failed:{count} for {count} in a row"
        raise InvalidInput(f"alert failed:{value} can never be reached", hint)
    return Condition(FAILED, count=count, window=window)

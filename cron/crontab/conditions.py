"""Conditions of alerts as people write them: `failed:2`, `late:10m`, `disk-filling:90%`."""

from __future__ import annotations

import difflib
import re
from typing import Final

from cron.alert_rules import AlertKind, Condition
from cron.calendar.duration import format_duration, parse_duration
from cron.errors import InvalidInput
from cron.limits import ALERT_AFTER_S_MAX, ALERT_LAUNCHES_MAX, CONDITIONS_MAX, REMIND_S_MIN

_NUMBERS: Final = re.compile(r"([0-9]{1,3})(?:/([0-9]{1,3}))?", re.ASCII)
_PERCENT: Final = re.compile(r"([0-9]{1,3})%", re.ASCII)
_DAY_S: Final = 86_400
_DEFAULT_S: Final = {
    AlertKind.BACKUP_FAILING: 900,
    AlertKind.REPLICA_AWAY: 300,
    AlertKind.CLOCK_OFF: 2,
    AlertKind.CERTIFICATE_ENDING: 14 * _DAY_S,
}
"""How long each of these lasts before it fires, or how far it is off, if nothing is said."""
_TIMED: Final = (
    AlertKind.LATE,
    AlertKind.RUNNING,
    AlertKind.NO_SUCCESS,
    AlertKind.QUEUE_OLDER,
    AlertKind.GATE_OPEN,
)
OF_JOBS: Final = frozenset(
    {
        AlertKind.FAILED,
        AlertKind.MISSED,
        AlertKind.LATE,
        AlertKind.RUNNING,
        AlertKind.NO_SUCCESS,
        AlertKind.DEAD,
    }
)
"""Kinds that watch jobs."""
_PERCENT_DEFAULT: Final = 90
_KINDS: Final = {kind.label: kind for kind in AlertKind}


def parse_condition(text: str) -> Condition:
    """Return the condition that a text names.

    Raises:
        InvalidInput: there is no such condition. ScheduleError: a length of time is none.
    """
    word, colon, value = text.partition(":")
    kind = _KINDS.get(word)
    if kind is None:
        near = difflib.get_close_matches(word.lower().replace("_", "-"), list(_KINDS), 1, 0.5)
        guess = f"did you mean {near[0]}? " if near else ""
        known = " ".join(map(_example, AlertKind))
        raise InvalidInput(f"alert {text[:40]!r} is not known", f"{guess}known are {known}")
    if colon and not value:
        raise InvalidInput(f"alert {text[:40]!r} ends with a colon", f"write {_example(kind)}")
    if kind is AlertKind.FAILED:
        return _failed(text, value)
    if kind is AlertKind.DISK_FILLING:
        return _disk_filling(text, value)
    if kind in _TIMED or kind in _DEFAULT_S:
        if not value and kind in _TIMED:
            raise InvalidInput(f"alert {word} does not say how long", f"write {_example(kind)}")
        after_s = _DEFAULT_S.get(kind, 0)
        if value:
            after_s = parse_duration(
                value, what=f"alert {word}", least_s=1, most_s=ALERT_AFTER_S_MAX
            )
        return Condition(kind, after_s=after_s)
    if value:
        raise InvalidInput(f"alert {word} takes no number", f"write {word}")
    return Condition(kind)


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Return the conditions of a text such as `failed:2,late:10m`, in its order.

    Raises:
        InvalidInput: one of them is none, there are too many, or one occurs twice. ScheduleError: a
            length of time is none.
    """
    words = text.split(",")
    if len(words) > CONDITIONS_MAX:
        message = f"alert has more than {CONDITIONS_MAX} conditions"
        raise InvalidInput(message, "leave some of them out")
    found = tuple(parse_condition(word.strip()) for word in words)
    for place, one in enumerate(found):
        if one in found[:place]:
            raise InvalidInput(f"alert {condition_text(one)} is written twice", "remove one")
    return found


def parse_remind(text: str) -> int:
    """Return the interval between reminders in seconds, from a text such as `1h`.

    Raises:
        ScheduleError: it is no length of time, or too short or too long a one.
    """
    return parse_duration(text, what="remind", least_s=REMIND_S_MIN, most_s=ALERT_AFTER_S_MAX)


def condition_text(condition: Condition) -> str:
    """Return the text that `parse_condition` reads as this condition."""
    kind = condition.kind
    if kind is AlertKind.FAILED:
        of = f"/{condition.of}" if condition.of else ""
        return f"{kind.label}:{condition.count}{of}"
    if kind is AlertKind.DISK_FILLING:
        return f"{kind.label}:{condition.count}%"
    if condition.after_s:
        return f"{kind.label}:{format_duration(condition.after_s)}"
    return kind.label


def _failed(text: str, value: str) -> Condition:
    """Return `failed`, `failed:N` or `failed:N/M`."""
    match = _NUMBERS.fullmatch(value or "1")
    count, of = (int(match[1]), int(match[2] or 0)) if match is not None else (0, 0)
    is_fraction = match is not None and match[2] is not None
    if count < 1 or max(count, of) > ALERT_LAUNCHES_MAX or (is_fraction and of < count):
        message = f"alert {text[:40]!r} does not say how many launches failed"
        hint = (
            f"write failed:2 for two in a row or failed:3/10 for three of the newest ten, "
            f"with {ALERT_LAUNCHES_MAX} at most"
        )
        raise InvalidInput(message, hint)
    return Condition(AlertKind.FAILED, count, 0 if of == count else of)


def _disk_filling(text: str, value: str) -> Condition:
    match = _PERCENT.fullmatch(value) if value else None
    percent = int(match[1]) if match is not None else 0 if value else _PERCENT_DEFAULT
    if not 1 <= percent <= 99:
        message = f"alert {text[:40]!r} does not say how full"
        raise InvalidInput(message, "write disk-filling:90%, from 1% to 99%")
    return Condition(AlertKind.DISK_FILLING, percent)


def _example(kind: AlertKind) -> str:
    if kind is AlertKind.FAILED:
        return "failed:2"
    if kind is AlertKind.DISK_FILLING:
        return "disk-filling:90%"
    if kind in _TIMED or kind in _DEFAULT_S:
        return f"{kind.label}:10m"
    return kind.label

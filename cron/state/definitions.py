"""What a change did to the definition of a job: its fields before and after, bounded."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from cron.alert_rules import JobAlerts
from cron.crontab.bounds import calendar_text, day_text
from cron.crontab.conditions import condition_text
from cron.job import Bounds, Job, Schedule
from cron.limits import FIELD_CHARS_MAX, FIELDS_CHARS_MAX
from cron.notes import shortened
from launcher.protocol.names import format_time
from launcher.protocol.work import WorkSpec

Field = tuple[str, str, str]
"""Name, before, after."""

_WORDS: Final = {"text": "schedule", "argv": "command"}
_LEFT_OUT: Final = ("name", "line", "placement", "labels", "traceparent", "results")
ENV: Final = "env."
SET: Final = "set"
OTHER: Final = "set to another value"
_PAYLOADS: Final = ("payload", "stdin")
"""Fields that hold what a handler, or a command on its standard input, is given."""


def definition(job: Job | None) -> dict[str, str]:
    """Return the fields of a job by their names, as texts; none of None."""
    return dict(_fields(job)) if job is not None else {}


def _fields(struct: msgspec.Struct) -> Iterator[tuple[str, str]]:
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if name in _LEFT_OUT:
            continue
        if name == "alerts":
            yield from _alerts(value or JobAlerts())
        elif name == "bounds":
            yield from _bounds(value or Bounds())
        elif isinstance(value, msgspec.Struct):
            yield from _fields(value)
        elif name == "env":
            yield from ((f"{ENV}{variable}", text) for variable, text in value)
        elif name == "secrets":
            yield "secrets", ",".join(map(":".join, value))
        elif name == "argv":
            # A command of a crontab is the last argument of its shell.
            yield "command", value[-1] if value else ""
        else:
            yield _WORDS.get(name, name), _text(value)


def _alerts(alerts: JobAlerts) -> Iterator[tuple[str, str]]:
    yield "alert", ",".join(map(condition_text, alerts.conditions))
    yield "to", ",".join(alerts.to)
    yield "mailto", ",".join(alerts.mail_to)


def _bounds(bounds: Bounds) -> Iterator[tuple[str, str]]:
    yield "start", format_time(bounds.start_s) if bounds.start_s else ""
    yield "end", format_time(bounds.end_s) if bounds.end_s else ""
    yield "calendar", calendar_text(bounds)
    last = f", the last on {day_text(sum(bounds.days))}" if bounds.days else ""
    yield "days of the calendar", f"{len(bounds.days)}{last}" if bounds.calendar else ""


def _text(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value)


_DEFAULT: Final = definition(Job("", Schedule(""), WorkSpec(())))


def compared(before: Mapping[str, str], after: Mapping[str, str], room: int) -> tuple[Field, ...]:
    """Return the fields that differ, with at most `room` characters together. Of a job that was
    added or removed these are the fields that have no default value. What an environment variable
    was set to is not told: it may be secret."""
    found: list[Field] = []
    for name in {**before, **after}:
        was, now = before.get(name, ""), after.get(name, "")
        if was == now or (not (before and after) and (was or now) == _DEFAULT.get(name)):
            continue
        if name.startswith(ENV):
            was, now = SET if name in before else "", OTHER if name in before else SET
            now = now if name in after else ""
        field = (name, *(shortened(one, FIELD_CHARS_MAX) for one in (was, now)))
        room -= sum(map(len, field))
        if room < 0:
            break
        found.append((field[0], field[1], field[2]))
    return tuple(found)


def without_payloads(fields: Iterable[Field]) -> tuple[Field, ...]:
    """Return fields without what handlers and commands are given: only whether it is set."""

    def told(field: Field) -> Field:
        name, was, now = field
        if name not in _PAYLOADS:
            return field
        return (name, SET if was else "", (OTHER if was else SET) if now else "")

    return tuple(map(told, fields))


def room_left(fields: tuple[Field, ...]) -> int:
    """Return how many characters one change may still keep after these fields."""
    return FIELDS_CHARS_MAX - sum(len(text) for field in fields for text in field)

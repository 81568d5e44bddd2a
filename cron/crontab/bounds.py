"""The options that leave instants out: `start`, `end` and `calendar`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple

from cron.calendar.expression import Expression
from cron.calendar.zones import zone
from cron.errors import InvalidInput
from cron.job import Bounds
from cron.limits import CALENDAR_HINT, CALENDAR_RULE

_MOMENT: Final = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ](?P<time>[0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})?)?",
    re.ASCII,
)
_CALENDAR: Final = re.compile(rf"(?P<name>{CALENDAR_RULE}):(?P<use>[a-z]+)", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS: Final = (1970, 2198)
_DAY: Final = timedelta(days=1)
_MINUTE: Final = timedelta(minutes=1)


class Moment(NamedTuple):
    """A time as an option says it: of a wall clock unless it has a zone of its own. A `date` alone
    is that whole day."""

    at: datetime
    is_date: bool

    def first_s(self, zone_name: str) -> int:
        """Return its first second, since the epoch, in a zone."""
        return _second(self.at, zone_name)

    def last_s(self, zone_name: str) -> int:
        """Return its last second: that of the day of a date."""
        return _second(self.at + _DAY, zone_name) - 1 if self.is_date else self.first_s(zone_name)


class CalendarUse(NamedTuple):
    """A calendar of the cell, and whether its days are the only ones of a job or left out."""

    name: str
    is_only: bool


def parse_moment(key: str, text: str) -> Moment:
    """Return the time that `start` or `end` says.

    Raises:
        InvalidInput: it is none, or is not in 1970 to 2198.
    """
    match = _MOMENT.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        at = datetime.fromisoformat(text)
    except ValueError as error:
        hint = "write a date like 2026-12-31, or a time like 2026-12-31T18:00, with Z for UTC"
        raise InvalidInput(f"{key} {text[:40]!r} is not a time", hint) from error
    if not _YEARS[0] <= at.year <= _YEARS[1]:
        text = f"{key} {text} is not in the years {_YEARS[0]} to {_YEARS[1]}"
        raise InvalidInput(text, "leave it out for a job that has no bound")
    return Moment(at, match["time"] is None)


def parse_calendar(key: str, text: str) -> CalendarUse:
    """Return the calendar that a text such as `de-holidays:skip` names.

    Raises:
        InvalidInput: it names none, or says neither skip nor only.
    """
    match = _CALENDAR.fullmatch(text)
    if match is not None and match["use"] in ("skip", "only"):
        return CalendarUse(match["name"], match["use"] == "only")
    name = text.partition(":")[0] or "de-holidays"
    if re.fullmatch(CALENDAR_RULE, name, re.ASCII) is None:
        raise InvalidInput(f"{key} {name[:40]!r} is not a calendar's name", CALENDAR_HINT)
    hint = f"write {name}:skip to leave its days out, or {name}:only for no others"
    raise InvalidInput(f"{key} {text[:80]!r} does not say skip or only", hint)


def bounds_of(values: Mapping[str, Any], zone_name: str) -> Bounds | None:
    """Return what the options of a job leave out, None for nothing; days are not known yet."""
    start, end, calendar = values.get("start"), values.get("end"), values.get("calendar")
    if start is None and end is None and calendar is None:
        return None
    return Bounds(
        start.first_s(zone_name) if start is not None else 0,
        end.last_s(zone_name) if end is not None else 0,
        calendar.name if calendar is not None else "",
        calendar is not None and calendar.is_only,
    )


def bounds_error(
    values: Mapping[str, Any], expression: Expression, zone_name: str
) -> tuple[str, str, str]:
    """Return the option that does not fit, the message and the hint; three empty texts if all
    fit."""
    bounds = bounds_of(values, zone_name)
    if bounds is not None and bounds.start_s > bounds.end_s > 0:
        return "end", "end is before start: the job would never run", "set it to a later time"
    if bounds is not None and bounds.calendar and expression.every_s:
        message = "calendar is for schedules with days, and @every has none"
        return "calendar", message, "write five fields, such as */10 * * * *"
    return "", "", ""


def _second(at: datetime, zone_name: str) -> int:
    if at.tzinfo is not None:
        return (at - _EPOCH) // timedelta(seconds=1)
    local = at.replace(tzinfo=UTC) - _EPOCH
    minute = zone(zone_name).instant(local // _MINUTE)
    return minute * 60 + at.second


def calendar_text(bounds: Bounds) -> str:
    """Return the option `calendar` as it is written, "" for none."""
    use = "only" if bounds.is_only else "skip"
    return f"{bounds.calendar}:{use}" if bounds.calendar else ""


def day_text(day: int) -> str:
    """Return the date that is so many days after 1970-01-01."""
    return (date(1970, 1, 1) + day * _DAY).isoformat()

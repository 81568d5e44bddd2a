"""Calendars as files: a list of dates, or iCalendar (RFC 5545).

Only days are kept: each day that an event touches, on the wall clock of the event's own time zone.
The libraries icalendar and recurring-ical-events read iCalendar; they are imported where a file is
one, because that takes a third of a second. A file may be hostile: its bytes, lines, events and
days are bounded, and so is the work for its rules, of which some are due each second and some never
(`FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30`, which the library follows to the year 9999).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from cron.crontab.reading import Problems
from cron.errors import CrontabError
from cron.limits import (
    CALENDAR_DAYS_MAX,
    CALENDAR_EVENTS_MAX,
    CALENDAR_FILE_BYTES_MAX,
    CALENDAR_FILE_LINES_MAX,
)

if TYPE_CHECKING:
    from icalendar import Component

_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_USED: Final = frozenset(
    {"DTSTART", "DTEND", "DURATION", "RRULE", "RDATE", "EXDATE", "RECURRENCE-ID"}
)
_EPOCH: Final = date(1970, 1, 1)
_DAY: Final = timedelta(days=1)
_LAST_YEAR: Final = 2198
_RULES_MAX: Final = 10
_STEPS_MAX: Final = 20 * CALENDAR_DAYS_MAX
"""Days of all events of a file together, however many of them are the same: each is a step."""
_WORK_MAX: Final = 4_000_000
"""Calls of the libraries for all rules of a file. A rule that is due once a year takes some 120 for
each year since it began."""
_NOT_READ: Final = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)
"""What the libraries make of values that are none of iCalendar."""
_ENDS: Final = ("DTSTART", "DTEND")
_DAY_HINT: Final = "write it like DTSTART;VALUE=DATE:20261225"
_EACH_HINT: Final = "write each of its days as an event of its own"
_NO_EVENT_HINT: Final = "export a calendar with events; tasks (VTODO) are none"
_EXDATE_HINT: Final = "write each day that it leaves out like EXDATE;VALUE=DATE:20261225"
_HINT: Final = "write a date like 2026-12-25 on each line; a text behind it is a comment"


class _Wrong(Exception):
    """What is wrong with an event, and the way out."""


class _TooMuch(Exception):
    """The rules of a file take more work than there is room for."""


def read_days(content: bytes, *, file: str, until_year: int) -> list[int]:
    """Return the days of a calendar, as days since 1970-01-01, ascending, each once.

    Events that are repeated each year are followed to the end of `until_year`.

    Raises:
        CrontabError: with all errors.
    """
    problems = Problems(file)
    found: set[int] = set()
    if len(content) > CALENDAR_FILE_BYTES_MAX:
        hint = "leave out the days of years that are over"
        problems.error(0, 0, f"it has more than {CALENDAR_FILE_BYTES_MAX} bytes", hint)
    else:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            problems.error(line, 1, "it is not UTF-8", "save the file as UTF-8")
        else:
            is_empty = not text.strip() and file.lower().endswith(".ics")
            is_ics = is_empty or text.lstrip()[:15].upper() == "BEGIN:VCALENDAR"
            found = _ics(text, until_year, problems) if is_ics else _dates(text, problems)
    if len(found) > CALENDAR_DAYS_MAX:
        hint = "leave out the days of years that are over, or use two calendars"
        problems.error(0, 0, f"it has {len(found)} days, at most {CALENDAR_DAYS_MAX} fit", hint)
    errors = [one for one in problems.listed() if not one.is_warning]
    if errors:
        raise CrontabError(errors)
    return sorted(found)


def _dates(text: str, problems: Problems) -> set[int]:
    found: set[int] = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split(None, 1)
        if not words or words[0].startswith("#"):
            continue
        match = _DATE.fullmatch(words[0].rstrip(",;"))
        day = _day(match) if match is not None else None
        if day is None:
            column = line.index(words[0]) + 1
            problems.error(number, column, f"{words[0][:40]!r} is not a date", _HINT)
        else:
            found.add((day - _EPOCH).days)
    return found


def _day(match: re.Match[str] | None) -> date | None:
    """Return the date of three groups of digits, None if it is none, or is too far away."""
    try:
        day = date(int(match[1]), int(match[2]), int(match[3])) if match is not None else None
    except ValueError:
        return None
    return day if day is not None and 1970 <= day.year <= _LAST_YEAR else None


# ---- iCalendar


class _Entry:
    """An event, or other times of an event that is repeated, and the line where it begins."""

    def __init__(self, line: int, event: Component) -> None:
        self.line = line
        self.event = event
        self.what = f"event {str(event.get('SUMMARY', 'without a name'))[:40]!r}"

    def check(self) -> None:
        """Return if its times can be read.

        Raises:
            _Wrong: they cannot.
        """
        for name, why in self.event.errors:
            if name in _USED:
                raise _Wrong(f"{self.what}: its {name} cannot be read: {why[:80]}", _DAY_HINT)
        if "DTSTART" not in self.event:
            raise _Wrong(f"{self.what} has no DTSTART", _DAY_HINT)
        if "DTEND" in self.event and "DURATION" in self.event:
            raise _Wrong(f"{self.what} has DTEND and DURATION", "remove one of the two")
        start, end = (_moment(self.event.get(key, self.event["DTSTART"]).dt) for key in _ENDS)
        if (start.tzinfo is None) == (end.tzinfo is None) and end < start:
            raise _Wrong(f"{self.what} ends before it begins", "correct its DTEND")
        self._check_exceptions()
        for rule in (rules := self.rules):
            frequent = rule.get("FREQ") and all(step >= 1 for step in rule.get("INTERVAL", [1]))
            if not frequent:
                text = rule.to_ical().decode()[:60]
                raise _Wrong(f"{self.what} is repeated by no rule: {text}", "write FREQ=YEARLY")
        if len(rules) > _RULES_MAX:
            raise _Wrong(f"{self.what} has more than {_RULES_MAX} rules", "one of them is enough")

    def _check_exceptions(self) -> None:
        """Return if the libraries read all that takes days away.

        Raises:
            _Wrong: they would ignore it.
        """
        if "EXRULE" in self.event:
            raise _Wrong(f"{self.what} has EXRULE, which RFC 5545 took back", _EXDATE_HINT)
        for dates in _listed(self.event.get("EXDATE", [])):
            if dates.params.get("VALUE", "").upper() == "PERIOD":
                raise _Wrong(f"{self.what} has an EXDATE with periods", _EXDATE_HINT)
        if len(_listed(self.event.get("STATUS", ""))) > 1:
            raise _Wrong(f"{self.what} has STATUS twice", "remove one of the two")

    @property
    def rules(self) -> list[Any]:
        """Its rules (RRULE)."""
        return _listed(self.event.get("RRULE", []))


def _listed(value: Any) -> list[Any]:
    """Return the values of a property, which is a list only where an event has it twice."""
    return value if isinstance(value, list) else [value]


def _ics(text: str, until_year: int, problems: Problems) -> set[int]:
    import icalendar

    lines, begins = _lines(text)
    if len(lines) > CALENDAR_FILE_LINES_MAX or len(begins) > CALENDAR_EVENTS_MAX:
        message = (
            f"it has more than {CALENDAR_EVENTS_MAX} events or {CALENDAR_FILE_LINES_MAX} lines"
        )
        problems.error(0, 0, message, "leave out the events of years that are over")
        return set()
    try:
        calendars = icalendar.Calendar.from_ical("\r\n".join(lines), multiple=True)
        found = [(calendar, event) for calendar in calendars for event in calendar.walk("VEVENT")]
    except _NOT_READ as error:
        message = f"it is not iCalendar: {str(error)[:80]}"
        problems.error(0, 0, message, "export it once more, or write a date on each line")
        return set()
    if wrong := _wrong_whole(calendars):
        problems.error(0, 0, wrong, "export its events as a calendar of Gregorian dates")
        return set()
    if not begins:
        problems.error(0, 0, "it has no event (VEVENT), and so no day", _NO_EVENT_HINT)
        return set()
    if len(found) < len(begins):
        line = begins[len(found)]
        problems.error(line, 1, "the event does not end", "add a line END:VEVENT")
        return set()
    together: dict[tuple[int, str], list[_Entry]] = {}
    for (calendar, event), line in zip(found, begins, strict=False):
        key = id(calendar), str(event.get("UID", f"\0{line}"))
        together.setdefault(key, []).append(_Entry(line, event))
    zones = {id(calendar): calendar.get("X-WR-TIMEZONE") for calendar in calendars}
    groups = [
        (zones[number], entries)
        for (number, _), alike in together.items()
        for entries in _apart(alike)
    ]
    return _all_days(groups, until_year, problems)


def _wrong_whole(calendars: Sequence[Component]) -> str:
    """Return what of a calendar would change the days of all its events, "" for nothing."""
    for calendar in calendars:
        if (scale := str(calendar.get("CALSCALE", "GREGORIAN"))).upper() != "GREGORIAN":
            return f"its CALSCALE {scale[:40]} is not followed"
        if str(calendar.get("METHOD", "")).upper() == "CANCEL":
            return "its METHOD CANCEL takes its events back"
    return ""


def _are_several(entries: Sequence[_Entry]) -> bool:
    """Return whether it is unknown which of several events a time replaces."""
    firsts = [entry.event for entry in entries if "RECURRENCE-ID" not in entry.event]
    newest = max((event.get("SEQUENCE", 0) for event in firsts), default=0)
    return len([one for one in firsts if one.get("SEQUENCE", 0) == newest]) > 1


def _apart(alike: list[_Entry]) -> list[list[_Entry]]:
    """Return the events with one UID: that is one event with what replaces some of its times, but
    there are programs that give all events the same."""
    firsts = [entry for entry in alike if "RECURRENCE-ID" not in entry.event]
    if len(firsts) < len(alike) or len({entry.event.get("SEQUENCE", 0) for entry in firsts}) > 1:
        return [alike]
    return [[entry] for entry in firsts]


def _lines(text: str) -> tuple[list[str], list[int]]:
    """Return the lines without alarms, which have times of their own, and where events begin."""
    kept: list[str] = []
    begins: list[int] = []
    is_alarm = False
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        word = line.strip().upper()
        is_alarm = is_alarm or word == "BEGIN:VALARM"
        if not is_alarm:
            kept.append(line)
            if word == "BEGIN:VEVENT":
                begins.append(number)
        elif word == "END:VALARM":
            is_alarm = False
    return kept, begins


def _all_days(
    groups: Sequence[tuple[Any, list[_Entry]]], until_year: int, problems: Problems
) -> set[int]:
    """Return the days of all events; each group is one, with what replaces some of its times."""
    found: set[int] = set()
    steps, work = 0, _WORK_MAX
    for zone, entries in groups:
        entry = entries[0]
        try:
            for entry in entries:
                entry.check()
            entry = entries[0]
            if _are_several(entries):
                message = f"{entry.what} has the UID of another one, and times that replace one's"
                raise _Wrong(message, "give each event a UID of its own")
            with _bounded(work) as left:
                spans = _spans(zone, entries, until_year)
            work = left[0]
            for first, last in spans:
                if (last - first).days >= CALENDAR_DAYS_MAX:
                    message = f"{entry.what} has more than {CALENDAR_DAYS_MAX} days"
                    raise _Wrong(message, "make it shorter")
                steps += (last - first).days + 1
                if steps > _STEPS_MAX:
                    message = f"its events have more than {_STEPS_MAX} days, with those twice"
                    problems.error(entry.line, 1, message, "write each day once")
                    return found
                found.update(range((first - _EPOCH).days, (last - _EPOCH).days + 1))
        except _Wrong as wrong:
            problems.error(entry.line, 1, str(wrong.args[0]), str(wrong.args[1]))
        except _TooMuch:
            message = f"{entry.what} is repeated by a rule that takes too long to follow"
            problems.error(entry.line, 1, message, _EACH_HINT)
            return found
        except _NOT_READ as error:
            message = f"{entry.what} cannot be followed: {str(error)[:80]}"
            problems.error(entry.line, 1, message, _EACH_HINT)
    return {day for day in found if 0 <= day < (date(_LAST_YEAR + 1, 1, 1) - _EPOCH).days}


def _spans(zone: Any, entries: Sequence[_Entry], until_year: int) -> list[tuple[date, date]]:
    """Return the first and the last day of each time of an event that was not cancelled. One with a
    rule is followed to the end of `until_year`."""
    import icalendar
    import recurring_ical_events  # type: ignore[import-untyped]  # it has no py.typed

    calendar = icalendar.Calendar()
    if zone is not None:
        calendar["X-WR-TIMEZONE"] = zone
    for entry in entries:
        calendar.add_component(entry.event)
    last_year = until_year if any(entry.rules for entry in entries) else _LAST_YEAR
    query = recurring_ical_events.of(calendar)
    times = query.between(_EPOCH, date(min(last_year, _LAST_YEAR) + 1, 1, 1))
    return [
        _span(time["DTSTART"].dt, time["DTEND"].dt)
        for time in times
        if str(time.get("STATUS", "")).upper() != "CANCELLED"
    ]


def _span(start: date, end: date) -> tuple[date, date]:
    """Return the first and the last day; the end is the first day, or moment, after it."""
    first, behind = _moment(start), _moment(end)
    if first.tzinfo is not None and behind.tzinfo is not None:
        behind = behind.astimezone(first.tzinfo)
    last = (behind - datetime.resolution).date() if behind != first else first.date()
    return first.date(), max(last, first.date())


def _moment(day: date) -> datetime:
    """Return a time, or the beginning of a day."""
    return day if isinstance(day, datetime) else datetime.combine(day, datetime.min.time())


@contextmanager
def _bounded(work: int) -> Iterator[list[int]]:
    """Bound the calls of functions within: the list has how many are left of `work`.

    Raises:
        _TooMuch: there are more.
    """
    left = [work]

    def count(*_: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise _TooMuch

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield left
    finally:
        sys.setprofile(before)

"""Calendars as files: a list of dates, or iCalendar (RFC 5545) with events of whole days.

Only days are read; what events are called is not kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Final

from cron.crontab.reading import Problems
from cron.errors import CrontabError
from cron.limits import CALENDAR_DAYS_MAX, CALENDAR_FILE_BYTES_MAX

_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_ICS_DATE: Final = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})(?:T([0-9]{6})Z?)?")
_PROPERTY: Final = re.compile(r"([A-Za-z0-9-]+)((?:;[^:;=]+=(?:\"[^\"]*\"|[^:;\"]*))*):(.*)", re.S)
_YEARLY: Final = ("FREQ", "UNTIL", "COUNT", "BYMONTH", "BYMONTHDAY", "INTERVAL", "WKST")
_EPOCH: Final = date(1970, 1, 1)
_DAY: Final = timedelta(days=1)
_LAST_YEAR: Final = 2198
_RULES_MAX: Final = 10
_STEPS_MAX: Final = 20 * CALENDAR_DAYS_MAX
"""Days of all events of a file together, however many of them are the same: each is a step."""
_HINT: Final = "write a date like 2026-12-25 on each line; a text behind it is a comment"


class _Wrong(Exception):
    """What is wrong with an event, and the way out."""


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
            is_ics = text.lstrip()[:15].upper() == "BEGIN:VCALENDAR"
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


def _ics(text: str, until_year: int, problems: Problems) -> set[int]:
    found: set[int] = set()
    steps = 0
    for begin, event in _events(text, problems):
        try:
            for day in _event(event, until_year):
                steps += 1
                if day.year <= _LAST_YEAR:
                    found.add((day - _EPOCH).days)
                if steps > _STEPS_MAX:
                    message = f"its events have more than {_STEPS_MAX} days, with those twice"
                    problems.error(begin, 1, message, "write each day once")
                    return found
        except _Wrong as wrong:
            problems.error(begin, 1, str(wrong.args[0]), str(wrong.args[1]))
    return found


def _events(text: str, problems: Problems) -> Iterator[tuple[int, dict[str, list[str]]]]:
    """Yield the line where each event begins, and its values by property."""
    event: dict[str, list[str]] | None = None
    begin = depth = 0
    for number, line in _unfolded(text):
        match = _PROPERTY.fullmatch(line)
        name, value = (match[1].upper(), match[3].strip()) if match is not None else ("", "")
        if name == "BEGIN":
            depth += event is not None
            if value.upper() == "VEVENT" and event is None:
                event, begin, depth = {}, number, 0
        elif name == "END" and event is not None and depth:
            depth -= 1
        elif name == "END" and event is not None:
            yield begin, event
            event = None
        elif event is not None and not depth:
            event.setdefault(name, []).append(value)
    if event is not None:
        problems.error(begin, 1, "the event does not end", "add a line END:VEVENT")


def _unfolded(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers; one that goes on with a blank is one (RFC 5545, 3.1)."""
    number, whole = 0, list[str]()
    for at, line in enumerate(text.splitlines(), 1):
        if line[:1] in (" ", "\t") and whole:
            whole.append(line[1:])
            continue
        if whole:
            yield number, "".join(whole)
        number, whole = at, [line]
    if whole:
        yield number, "".join(whole)


def _event(event: dict[str, list[str]], until_year: int) -> Iterator[date]:
    """Yield the days of an event."""
    if event.get("STATUS", [""])[0].upper() == "CANCELLED":
        return
    what = f"event {event.get('SUMMARY', ['without a name'])[0][:40]!r}"
    start_text = event.get("DTSTART", [""])[0]
    start = _ics_day(start_text, what)
    last = start
    if "DTEND" in event:
        end_text = event["DTEND"][0]
        end = _ics_day(end_text, what)
        # The end is the first day after it, and of a time the first moment.
        is_open = "T" not in end_text or end_text[9:15] == "000000"
        last = max(start, end - _DAY if is_open else end)
    elif "DURATION" in event:
        match = re.fullmatch(r"P([0-9]{1,3})(D|W)", event["DURATION"][0])
        if match is None:
            raise _Wrong(f"{what} has a DURATION that is not of whole days", "write DTEND instead")
        last = start + (int(match[1]) * (7 if match[2] == "W" else 1) - 1) * _DAY
    if len(event.get("RRULE", [])) > _RULES_MAX:
        raise _Wrong(f"{what} has more than {_RULES_MAX} rules", "one of them is enough")
    if (last - start).days >= CALENDAR_DAYS_MAX:
        raise _Wrong(f"{what} has more than {CALENDAR_DAYS_MAX} days", "make it shorter")
    left_out = {_ics_day(one, what) for text in event.get("EXDATE", []) for one in text.split(",")}
    firsts = {start: None}
    for rule in event.get("RRULE", []):
        firsts |= dict.fromkeys(_yearly(rule, start, until_year, what))
    more = [_ics_day(one, what) for text in event.get("RDATE", []) for one in text.split(",")]
    for first in firsts | dict.fromkeys(more):
        if first not in left_out:
            for number in range((last - start).days + 1):
                yield first + number * _DAY


def _ics_day(text: str, what: str) -> date:
    match = _ICS_DATE.fullmatch(text)
    day = _day(match) if match is not None else None
    if day is None:
        hint = "write it like DTSTART;VALUE=DATE:20261225"
        raise _Wrong(f"{what} has {text[:40]!r}, which is not a date of 1970 to 2198", hint)
    return day


def _yearly(rule: str, start: date, until_year: int, what: str) -> Iterator[date]:
    """Yield the later days of an event that is repeated each year on its date."""
    parts = dict(part.partition("=")[::2] for part in rule.upper().split(";"))
    is_plain = (
        parts.get("FREQ") == "YEARLY"
        and set(parts) <= set(_YEARLY)
        and parts.get("INTERVAL", "1") == "1"
        and parts.get("BYMONTH", str(start.month)) == str(start.month)
        and parts.get("BYMONTHDAY", str(start.day)) == str(start.day)
    )
    count = parts.get("COUNT", "1000")
    if not is_plain or not (count.isascii() and count.isdigit() and len(count) < 9):
        hint = "write each of its days as an event of its own; only FREQ=YEARLY is followed"
        raise _Wrong(f"{what} is repeated by a rule that is not followed: {rule[:60]}", hint)
    until = _ics_day(parts["UNTIL"], what) if "UNTIL" in parts else date(until_year, 12, 31)
    taken = 1
    for year in range(start.year + 1, min(until.year, until_year, _LAST_YEAR) + 1):
        try:
            day = start.replace(year=year)
        except ValueError:
            continue  # 29 February
        taken += 1
        if taken > int(count) or day > until:
            return
        yield day

"""What any bytes in the place of a calendar's file may do: be refused, in a bounded time."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from cron.crontab.bounds import day_text
from cron.crontab.calendar_file import read_days
from cron.errors import CrontabError
from cron.limits import CALENDAR_DAYS_MAX
from tests.fuzz.subject import Finding, Subject, check_same

_UNTIL_YEAR: Final = 2036


def days(content: bytes) -> bool:
    """As a file, in either form: its days are ascending, and as a list they are the same."""
    with suppress(CrontabError):
        found = read_days(content, file="calendar", until_year=_UNTIL_YEAR)
        if found != sorted(set(found)) or len(found) > CALENDAR_DAYS_MAX:
            raise Finding(f"{len(found)} days, not in order or too many")
        listed = "".join(f"{day_text(day)}\n" for day in found).encode()
        again = read_days(listed, file="calendar", until_year=_UNTIL_YEAR) if found else []
        check_same(found, again, "a calendar")
        return bool(found)
    return False


def event(content: bytes) -> bool:
    """As the lines of an event of iCalendar."""
    return days(
        b"BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\n%s\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n" % content
    )


SUBJECT: Final = Subject(
    (days, event),
    {
        "days": [b"# holidays\n2026-12-25 Christmas\n2027-01-01\n"],
        "event": [
            b"SUMMARY:a\r\nDTSTART;VALUE=DATE:20261225\r\nDTEND;VALUE=DATE:20261227\r\n"
            b"RRULE:FREQ=YEARLY;UNTIL=20300101\r\nEXDATE;VALUE=DATE:20271225",
            b"DTSTART:20260101T000000Z\r\nDURATION:P1W\r\nRDATE:20260301,20260401",
        ],
    },
)

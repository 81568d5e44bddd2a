"""Calendars: what is shown of them, and how they are applied and removed."""

from __future__ import annotations

from typing import Annotated

from cron import limits
from cron.api import checks
from cron.api.checks import Person, Source, Within
from cron.api.rpc import Request, View
from cron.errors import LimitExceeded
from cron.limits import CALENDAR_HINT, CALENDAR_RULE

Calendar = Annotated[
    str, checks.matching(CALENDAR_RULE, "calendar {} is not a plain word", CALENDAR_HINT)
]


def calendar_or_all(text: str) -> str:
    """Return the name of a calendar, "" for all."""
    return _name(text) if text else ""


_name = checks.matching(CALENDAR_RULE, "calendar {} is not a plain word", CALENDAR_HINT)


class CalendarsQuery(Request, frozen=True, kw_only=True):
    """Which calendar to show with its days and jobs; all of them without these for "". Jobs that
    are not `within` do not show."""

    calendar: Annotated[str, calendar_or_all] = ""
    within: Within = []


class CalendarView(View, frozen=True, kw_only=True):
    """A calendar: how many days it has, the first and the last of them as dates, how many jobs use
    it, and who changed it last. `days` and `jobs` are of one calendar that was asked for."""

    calendar: str
    day_count: int = 0
    first: str = ""
    last: str = ""
    job_count: int = 0
    by: str = ""
    at_ms: int = 0
    days: list[str] = []
    jobs: list[str] = []


class CalendarsReport(View, frozen=True, kw_only=True):
    """Calendars, by name."""

    calendars: list[CalendarView] = []


class ApplyCalendarRequest(Request, frozen=True, kw_only=True):
    """A file of dates, or iCalendar, whose days become those of a calendar."""

    calendar: Calendar
    file: Source
    content: bytes
    is_dry_run: bool = False
    by: Person = ""

    def check(self) -> None:
        """Refuse a file that is too big."""
        if len(self.content) > limits.CALENDAR_FILE_BYTES_MAX:
            text = f"{self.file} has {len(self.content)} bytes"
            most = f"at most {limits.CALENDAR_FILE_BYTES_MAX} are allowed"
            raise LimitExceeded(f"{text}, {most}", "leave out the days of years that are over")


class ApplyCalendarReport(View, frozen=True, kw_only=True):
    """What an apply did to a calendar, or would do: dates that were added and removed, and the jobs
    whose instants changed with them. `action` is added, changed or unchanged."""

    calendar: str
    action: str
    day_count: int = 0
    added: list[str] = []
    removed: list[str] = []
    jobs: list[str] = []
    is_dry_run: bool = False


class RemoveCalendarRequest(Request, frozen=True, kw_only=True):
    """A calendar that no job uses any more."""

    calendar: Calendar
    by: Person = ""

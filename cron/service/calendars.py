"""Calendars: how they are read, given to the jobs that use them, listed and removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import accumulate
from typing import Final

from cron.access import names_within
from cron.api.calendars import (
    ApplyCalendarReport,
    ApplyCalendarRequest,
    CalendarsQuery,
    CalendarsReport,
    CalendarView,
    RemoveCalendarRequest,
)
from cron.crontab.bounds import day_text
from cron.crontab.calendar_file import read_days
from cron.errors import Conflict, LimitExceeded, NotFound, OutcomeUnknown
from cron.job import Job
from cron.limits import CALENDARS_MAX
from cron.service import bounds, catalog
from cron.service.replica import Replica
from cron.state.calendaring import users_of
from cron.state.calendars import Calendar, PutCalendar, RemoveCalendar
from cron.state.outcome import Verdict
from cron.state.state import State
from launcher.protocol.columns import differences
from launcher.protocol.names import short_job_name

YEARS_AHEAD: Final = 10
"""How far events that are repeated each year are followed."""
_NAMED: Final = 5


async def put(replica: Replica, request: ApplyCalendarRequest) -> ApplyCalendarReport:
    """Make the days of a file those of a calendar, and of the jobs that use it; or only say what
    would change. Jobs that an interrupted apply left with other days are mended.

    Raises:
        CrontabError: the file has errors; nothing was changed. LimitExceeded: there are too many
            calendars. OutcomeUnknown: the calendar was changed, but not all jobs.
    """
    state, name = replica.state, request.calendar
    until_year = datetime.fromtimestamp(replica.clock.wall_ms() / 1000, UTC).year + YEARS_AHEAD
    days = await asyncio.to_thread(
        read_days, request.content, file=request.file, until_year=until_year
    )
    known = state.calendars.get(name)
    before = {*accumulate(known.days)} if known is not None else set[int]()
    is_same = known is not None and before == {*days}
    using = [record.name for record in users_of(state, name)]
    report = ApplyCalendarReport(
        calendar=name,
        action="added" if known is None else "unchanged" if is_same else "changed",
        day_count=len(days),
        added=[day_text(day) for day in days if day not in before],
        removed=[day_text(day) for day in sorted(before - {*days})],
        jobs=[] if is_same else sorted(using),
        is_dry_run=request.is_dry_run,
    )
    if request.is_dry_run:
        return report
    command = PutCalendar(name, tuple(differences(days)), request.by)
    _, results = await replica.leader.append(command)
    if results[0].verdict is Verdict.TOO_MANY:
        text = f"the cell has {CALENDARS_MAX} calendars"
        raise LimitExceeded(text, "remove one that no job uses: see `raftcron calendar list`")
    try:
        await catalog.change_jobs(replica, request.by, lambda: _stale_jobs(state, name))
    except OutcomeUnknown as error:
        error.hint = "apply the calendar again: the jobs that are left follow"
        raise
    return report


def _stale_jobs(state: State, name: str) -> Iterator[Job]:
    """Yield the jobs that use a calendar and have other days, with those that it has now."""
    for record in users_of(state, name):
        if record.job is not None and (job := bounds.dated(record.job, state)) != record.job:
            yield job


async def listed(replica: Replica, query: CalendarsQuery) -> CalendarsReport:
    """Return the calendars by name, or one of them with its days and jobs.

    Raises:
        NotFound: there is no such calendar.
    """
    state, wanted = replica.state, query.calendar
    if wanted and wanted not in state.calendars:
        raise _unknown(wanted)
    names = [wanted] if wanted else sorted(state.calendars)
    is_within = names_within(query.within)
    views = [
        _view(state, state.calendars[name], is_within, is_whole=bool(wanted)) for name in names
    ]
    return CalendarsReport(calendars=views)


def _view(
    state: State,
    calendar: Calendar,
    is_within: Callable[[str], bool] | None = None,
    *,
    is_whole: bool = False,
) -> CalendarView:
    days = [day_text(day) for day in accumulate(calendar.days)]
    using = (record.name for record in users_of(state, calendar.name))
    jobs = sorted(name for name in using if is_within is None or is_within(name))
    return CalendarView.of(
        calendar,
        calendar=calendar.name,
        day_count=len(days),
        first=days[0] if days else "",
        last=days[-1] if days else "",
        job_count=len(jobs),
        days=days if is_whole else [],
        jobs=jobs if is_whole else [],
    )


async def remove(replica: Replica, request: RemoveCalendarRequest) -> CalendarView:
    """Remove a calendar that no job uses.

    Raises:
        NotFound: there is no such calendar. Conflict: jobs use it.
    """
    state, name = replica.state, request.calendar
    calendar = state.calendars.get(name)
    if calendar is None:
        raise _unknown(name)
    view = _view(state, calendar)
    _, results = await replica.leader.append(RemoveCalendar(name, request.by))
    if results[0].verdict is Verdict.CALENDAR_IN_USE:
        using = [short_job_name(record.name) for record in users_of(state, name)]
        more = f" and {len(using) - _NAMED} more" if len(using) > _NAMED else ""
        text = f"calendar {name} is used by {', '.join(using[:_NAMED])}{more}"
        raise Conflict(f"{text}; nothing was changed", "apply these jobs without it first")
    if results[0].verdict is Verdict.UNKNOWN_CALENDAR:
        raise _unknown(name)
    return view


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no calendar {name}", "`raftcron calendar list` shows them")

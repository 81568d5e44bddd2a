"""How commands about calendars change State."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from cron.calendar.days import DAYS_END
from cron.limits import CALENDAR_DAYS_MAX, CALENDAR_RULE, CALENDARS_MAX, NOTE_CHARS_MAX
from cron.state.calendars import Calendar, PutCalendar, RemoveCalendar
from cron.state.context import Context
from cron.state.outcome import Result, Verdict
from cron.state.state import JobRecord, State

_NAME: Final = re.compile(CALENDAR_RULE, re.ASCII)


def put_calendar(context: Context, command: PutCalendar) -> Result:
    """Add a calendar, or give it other days. The set of jobs counts as changed: a change of jobs
    that was made with the days of before is made anew."""
    state = context.state
    known = state.calendars.get(command.name)
    if known is not None and known.days == command.days:
        return Result(Verdict.ALREADY)
    if known is None and len(state.calendars) >= CALENDARS_MAX:
        return Result(Verdict.TOO_MANY)
    is_sound = (
        _NAME.fullmatch(command.name) is not None
        and len(command.days) <= CALENDAR_DAYS_MAX
        and all(day > 0 for day in command.days[1:])
        and min(command.days[:1], default=0) >= 0
        and sum(command.days) < DAYS_END
    )
    if not is_sound:
        return Result(Verdict.BAD_TIMES)
    calendar = Calendar(command.name, command.days, command.by[:NOTE_CHARS_MAX], context.at_ms)
    state.calendars[command.name] = calendar
    state.catalog += 1
    return Result(Verdict.ACCEPTED)


def remove_calendar(context: Context, command: RemoveCalendar) -> Result:
    """Forget a calendar that no job uses."""
    state = context.state
    if command.name not in state.calendars:
        return Result(Verdict.UNKNOWN_CALENDAR)
    if next(users_of(state, command.name), None) is not None:
        return Result(Verdict.CALENDAR_IN_USE)
    del state.calendars[command.name]
    state.catalog += 1
    return Result(Verdict.ACCEPTED)


def users_of(state: State, name: str) -> Iterator[JobRecord]:
    """Yield the jobs that use a calendar."""
    for record in state.jobs.values():
        bounds = record.job.schedule.bounds if record.job is not None else None
        if bounds is not None and bounds.calendar == name:
            yield record

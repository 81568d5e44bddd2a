"""What jobs need of the cell for their `start`, `end` and `calendar`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from cron.crontab.reading import Problems
from cron.errors import CrontabError
from cron.job import Job
from cron.state.state import State

if TYPE_CHECKING:
    from cron.service.catalog import Declared


def check_calendars(declared: Sequence[Declared], state: State) -> None:
    """Return if every calendar that jobs name is one of the cell's.

    Raises:
        CrontabError: some are not; all of them are in it, where the job is declared.
    """
    by_file: dict[str, Problems] = {}
    for one in declared:
        for job in one.jobs:
            bounds = job.schedule.bounds
            if bounds is None or not bounds.calendar or bounds.calendar in state.calendars:
                continue
            file = one.files.get(job.name, one.source)
            near = difflib.get_close_matches(bounds.calendar, state.calendars, 1)
            hint = f"apply it first: `raftcron calendar apply {bounds.calendar} FILE`"
            by_file.setdefault(file, Problems(file)).error(
                job.line,
                min(job.line, 1),
                f"job {job.name} uses calendar {bounds.calendar}, which does not exist",
                f"did you mean {near[0]}?" if near else hint,
            )
    problems = [problem for found in by_file.values() for problem in found.listed()]
    if problems:
        raise CrontabError(problems)


def with_days(declared: Declared, state: State) -> Declared:
    """Return what a source declares, with the days of the calendars that its jobs use."""
    if all(job.schedule.bounds is None for job in declared.jobs):
        return declared
    return msgspec.structs.replace(declared, jobs=[dated(job, state) for job in declared.jobs])


def dated(job: Job, state: State) -> Job:
    """Return a job with the days that its calendar has now."""
    bounds = job.schedule.bounds
    calendar = state.calendars.get(bounds.calendar) if bounds is not None else None
    if bounds is None or calendar is None:
        return job
    bounds = msgspec.structs.replace(bounds, days=calendar.days)
    schedule = msgspec.structs.replace(job.schedule, bounds=bounds)
    return msgspec.structs.replace(job, schedule=schedule)

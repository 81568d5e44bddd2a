"""Ranges of skipped instants as one row per instant, for people. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from cron.calendar.schedule import compile as compile_schedule
from cron.history.audited import AuditedJob
from cron.job import Schedule
from cron.state.rows import Row, RowKind
from launcher.names import SCHEDULED_S_MAX

ScheduleOf = Callable[[Row], Schedule | None]


def expand(
    row: Row,
    schedule: Schedule | None,
    limit: int,
    *,
    since_s: int = 0,
    until_s: int = SCHEDULED_S_MAX,
) -> list[Row]:
    """Return a row for each of the newest `limit` instants of a range, newest first.

    Only instants in [since_s, until_s] are wanted; `row.count` says how many there are in all. Each
    has the range's fields but for ScheduledTime, nominal local time, last_s and count. Any other
    row is returned as it is, as is a range whose schedule is not known or has no instant in it:
    nothing disappears.
    """
    if row.kind is not RowKind.RANGE or schedule is None:
        return [row]
    first_s, last_s = max(row.scheduled_s, since_s), min(row.last_s, until_s)
    ticks = compile_schedule(schedule).newest(first_s - 1, last_s, limit)
    if not ticks and row.scheduled_s >= since_s and row.last_s <= until_s:
        return [row]
    return [
        msgspec.structs.replace(
            row,
            kind=RowKind.ENDED,
            scheduled_s=tick.scheduled_s,
            last_s=tick.scheduled_s,
            local_min=tick.local_min,
            count=1,
        )
        for tick in reversed(ticks)
    ]


def expand_all(
    rows: Iterable[Row],
    schedule_of: ScheduleOf,
    limit: int,
    *,
    since_s: int = 0,
    until_s: int = SCHEDULED_S_MAX,
) -> list[Row]:
    """Return the newest `limit` rows after expanding each range, newest ScheduledTime first.

    Given the answer to `Query(limit=n)`, its newest n instants are all in it: each of its rows has
    an instant that is at least as new as any row that was left out.
    """
    found = [
        one
        for row in rows
        for one in expand(row, schedule_of(row), limit, since_s=since_s, until_s=until_s)
    ]
    found.sort(key=lambda row: (row.scheduled_s, row.attempt, row.ended_index), reverse=True)
    return found[:limit]


def schedule_of_revision(job: AuditedJob) -> ScheduleOf:
    """Return a lookup of the schedule that a row of `job` was accounted by."""
    schedules = {span.revision: span.schedule for span in job.revisions}
    return lambda row: schedules.get(row.revision)

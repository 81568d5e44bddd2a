"""Ranges of skipped instants as one row per instant, for people. Pure."""

from __future__ import annotations

import msgspec

from cron.calendar.schedule import compile_or_none
from cron.job import Schedule
from cron.state.rows import Row, RowKind
from launcher.names import SCHEDULED_S_MAX


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
    ticks = compile_or_none(schedule).newest(first_s - 1, last_s, limit)
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

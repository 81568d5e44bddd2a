"""Ranges of skipped instants as one row per instant, for people. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from cron.calendar.schedule import compile_or_none
from cron.job import Schedule
from cron.state.archive import stream_of
from cron.state.rows import Row, RowKind
from launcher.names import SCHEDULED_S_MAX

AT_ONCE: Final = 64
"""Instants of a range that are found in one go, while the newest of many ranges are looked for."""

Place = tuple[int, int, int, int, int, str, int]
"""What rows are listed by, the highest first: scheduled_s, attempt, ended_index, stream, number,
job, trigger. No two rows of a list share it."""


def place_of(row: Row) -> Place:
    """Return the place of a row in a list."""
    return (
        row.scheduled_s, row.attempt, row.ended_index, stream_of(row), row.number, row.job,
        row.trigger,
    )  # fmt: skip


def newest_first(
    rows: Iterable[Row],
    schedule_of: Callable[[Row], Schedule | None],
    since_s: int,
    until_s: int,
) -> Iterator[Row]:
    """Yield a row for each instant in [since_s, until_s] that `rows` speak of, the newest first.

    At most `AT_ONCE` instants of each range are held at a time, however long it is.
    """
    each = [_instants(row, schedule_of(row), since_s, until_s) for row in rows]
    return heapq.merge(*each, key=place_of, reverse=True)


def _instants(row: Row, schedule: Schedule | None, since_s: int, until_s: int) -> Iterator[Row]:
    while True:
        found = expand(row, schedule, AT_ONCE, since_s=since_s, until_s=until_s)
        yield from found
        is_range = row.kind is RowKind.RANGE and bool(found) and found[-1].kind is RowKind.ENDED
        if not is_range or len(found) < AT_ONCE:
            return
        until_s = found[-1].scheduled_s - 1


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

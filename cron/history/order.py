"""In which order rows are listed, which of them a question means, and ranges of skipped instants as
one row per instant, for people. Pure."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from cron.calendar.schedule import compile_or_none
from cron.job import Schedule
from cron.launch_state import OPEN, LaunchState
from cron.state.archive import FAILURES, stream_of
from cron.state.rows import Row, RowKind
from launcher.protocol.names import SCHEDULED_S_MAX

ALL_STATES: Final = sum(1 << state for state in LaunchState)
ENDED_STATES: Final = ALL_STATES & ~sum(1 << state for state in OPEN)
"""States of rows; nothing that is open is in a tail or a segment."""
_RANGE: Final = RowKind.RANGE  # members of an enumeration are slow to look up


class Query(msgspec.Struct, frozen=True):
    """Which rows to return, newest ScheduledTime first.

    `jobs` None is all jobs, `states` None all states. Rows are wanted whose ScheduledTime is in
    [since_ms, until_ms]; a range of skipped instants if one of its instants may be.
    """

    jobs: frozenset[str] | None = None
    states: frozenset[LaunchState] | None = None
    since_ms: int = 0
    until_ms: int = SCHEDULED_S_MAX * 1000
    limit: int = 50


class Match(msgspec.Struct, frozen=True):
    """What rows must be, whatever their job: one of the states, a bit each, and with an instant in
    [since_s, until_s]; with `is_scheduled`, of no manual launch."""

    since_s: int = 0
    until_s: int = SCHEDULED_S_MAX
    states: int = ALL_STATES
    is_scheduled: bool = False

    @classmethod
    def of(cls, query: Query) -> Match:
        """Return what the rows of a query must be."""
        states = LaunchState if query.states is None else query.states
        mask = sum(1 << state for state in states)
        return cls(-(-query.since_ms // 1000), query.until_ms // 1000, mask)

    def may_be(self, first_s: int, last_s: int, states: int = ALL_STATES) -> bool:
        """Whether rows of these states between two times may match; False for no time at all."""
        return bool(
            first_s <= self.until_s
            and last_s >= self.since_s
            and self.since_s <= self.until_s
            and states & self.states
        )

    def fits(self, row: Row) -> bool:
        """Whether a row matches."""
        if self.is_scheduled and row.trigger:
            return False
        first_s, last_s = row.scheduled_s, newest_s(row)
        return self.may_be(min(first_s, last_s), max(first_s, last_s), 1 << row.state)

    def places(self, firsts_s: array[int], lasts_s: array[int], states: Sequence[int]) -> list[int]:
        """Return the places of the rows that match, of rows in columns. Of a row that ended before
        its time, the last time is the earlier one."""
        since_s, until_s, mask = self.since_s, self.until_s, self.states
        if since_s > until_s:
            return []
        return [
            at
            for at, (first_s, last_s, state) in enumerate(
                zip(firsts_s, lasts_s, states, strict=True)
            )
            if (first_s <= until_s or last_s <= until_s)
            and (last_s >= since_s or first_s >= since_s)
            and mask >> state & 1
        ]


def newest_s(row: Row) -> int:
    """Return the time by which a row is listed: its ScheduledTime; of a range the last one; and of
    a task that ended before its time, such as one that was cancelled, when it ended."""
    if row.kind is _RANGE or 0 < row.last_s < row.scheduled_s:
        return row.last_s
    return row.scheduled_s


def listed(row: Row) -> tuple[int, int, int, bool, int]:
    """Return what rows are listed by, the highest first: within an entry, one stream stands after
    the other."""
    return newest_s(row), row.attempt, row.ended_index, row.state in FAILURES, row.number


def log_order(row: Row) -> tuple[int, int, int]:
    """Return what orders rows as the log does."""
    return row.ended_index, row.number, stream_of(row)


def best(places: Sequence[int], lasts_s: Sequence[int], limit: int) -> list[int]:
    """Return the places of the newest `limit` rows, and of all that are as new as the last."""
    if len(places) <= limit:
        return list(places)
    least_s = heapq.nlargest(limit, [lasts_s[at] for at in places])[-1]
    return [at for at in places if lasts_s[at] >= least_s]


def newest_of(rows: Iterable[Row], limit: int) -> list[Row]:
    """Return the newest `limit` rows, as they are listed."""
    return sorted(rows, key=listed, reverse=True)[:limit]


# --- ranges of skipped instants, for people


AT_ONCE: Final = 64
"""Instants of a range that are found in one go, while the newest of many ranges are looked for."""

Place = tuple[int, int, int, int, int, str, int]
"""What rows are listed by, the highest first: scheduled_s (or when it ended, if that was earlier),
attempt, ended_index, stream, number, job, trigger. No two rows of a list share it."""


def place_of(row: Row) -> Place:
    """Return the place of a row in a list."""
    at_s = row.scheduled_s if row.kind is _RANGE else newest_s(row)
    return (
        at_s, row.attempt, row.ended_index, stream_of(row), row.number, row.job,
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

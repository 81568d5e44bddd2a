"""In which order rows are listed, and which of them a question means. Pure."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from cron.state.archive import FAILURES, stream_of
from cron.state.rows import Row, RowKind
from launcher.launch import LaunchState
from launcher.names import SCHEDULED_S_MAX

ALL_STATES: Final = sum(1 << state for state in LaunchState)
_RANGE: Final = RowKind.RANGE  # members of an enumeration are slow to look up


class Query(msgspec.Struct, frozen=True):
    """Which rows to return, newest ScheduledTime first.

    `job` None is all jobs, `states` None all states. Rows are wanted whose ScheduledTime is in
    [since_ms, until_ms]; a range of skipped instants if one of its instants may be.
    """

    job: str | None = None
    states: frozenset[LaunchState] | None = None
    since_ms: int = 0
    until_ms: int = SCHEDULED_S_MAX * 1000
    limit: int = 50


class Match(msgspec.Struct, frozen=True):
    """What rows must be, whatever their job: one of the states, a bit each, and with an instant in
    [since_s, until_s]."""

    since_s: int = 0
    until_s: int = SCHEDULED_S_MAX
    states: int = ALL_STATES

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
        return self.may_be(row.scheduled_s, newest_s(row), 1 << row.state)

    def places(self, firsts_s: array[int], lasts_s: array[int], states: Sequence[int]) -> list[int]:
        """Return the places of the rows that match, of rows in columns."""
        since_s, until_s, mask = self.since_s, self.until_s, self.states
        if since_s > until_s:
            return []
        return [
            at
            for at, (first_s, last_s, state) in enumerate(
                zip(firsts_s, lasts_s, states, strict=True)
            )
            if first_s <= until_s and last_s >= since_s and mask >> state & 1
        ]


def newest_s(row: Row) -> int:
    """Return the ScheduledTime by which a row is listed: of a range, its last."""
    return row.last_s if row.kind is _RANGE else row.scheduled_s


def listed(row: Row) -> tuple[int, int, int, bool, int]:
    """Return what rows are listed by, the highest first: within an entry, one stream stands after
    the other."""
    newest = row.last_s if row.kind is _RANGE else row.scheduled_s
    return newest, row.attempt, row.ended_index, row.state in FAILURES, row.number


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

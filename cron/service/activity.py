"""How many launches ended in each minute of the last day, by state, as this replica has applied it.
Those of the cell itself are not counted: messages about alerts and heartbeats.

Each entry adds to the counts of its minute: one addition for a chunk of rows, so that a launch does
not pay for it. What ended before the replica began to count is read from history once, when
somebody first asks, as far as one question reaches.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from itertools import repeat
from typing import Final

from consensus.histogram import Histogram
from cron.errors import CronError
from cron.history.order import Query
from cron.history.store import RowStore
from cron.launch_state import LaunchState
from cron.service.crowd import Crowd
from cron.state.alerts import count_own, is_own
from cron.state.outcome import Outcome
from cron.state.rows import Chunk, Row, RowKind, values
from cron.state.state import State
from launcher.protocol.status import Reason

MINUTES_KEPT: Final = 1_440
READ_ROWS_MAX: Final = 20_000
"""Rows that are read of history to count what ended before: 0.2 s of the thread of history."""
MINUTE_MS: Final = 60_000
WAIT_S: Final = 0.1
LATENESS_MS: Final = (
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 3_600_000,
)  # fmt: skip
"""Upper bounds of the buckets of how late launches start."""
_DAY_MS: Final = MINUTES_KEPT * MINUTE_MS


class Activity:
    """The counts. `state` returns State; where a snapshot replaced it, counting begins again.

    A launch ends once: an attempt that another one follows by itself is none of these ends.
    `ended`, `retried` and `lateness` are not of minutes but of all that this process has applied:
    how many launches and skipped instants ended, how many attempts another one follows, and how
    late first attempts of instants started.
    """

    def __init__(self, state: Callable[[], State], row_store: RowStore) -> None:
        self._state_of = state
        self._row_store = row_store
        self.crowd = Crowd(state)
        self.wait_s = WAIT_S
        self._reading: asyncio.Task[None] | None = None
        self.ended: Counter[tuple[LaunchState, Reason]] = Counter()
        self.retried: Counter[tuple[LaunchState, Reason]] = Counter()
        self.lateness = Histogram(LATENESS_MS)
        self._begin(state(), state().index)

    def _begin(self, state: State, index: int) -> None:
        """Begin to count after an entry."""
        self._state = state
        self._begin_index = index
        self._minutes: dict[int, Counter[LaunchState]] = {}
        self._is_read = False
        self.since_ms = state.at_ms if index else 0

    def follow(self, index: int, outcome: Outcome) -> None:
        """Count what an entry has ended."""
        state = self._state_of()
        if state is not self._state:
            self._begin(state, index - 1)
        for item in outcome.ended:
            own = 0
            if isinstance(item, Chunk):
                own = count_own(item.jobs)
                count = (len(item) - own) * (item.count or 1)
            elif item.kind is not RowKind.AMENDMENT and not is_own(item.job):
                count = item.count
            else:
                continue
            if not count:
                continue
            if item.begun_index:
                self.lateness.note_all(_lateness_ms(item, has_own=own > 0))
            if isinstance(item, Row) and is_tried_again(state, item):
                self.retried[item.state, item.reason] += 1
                continue
            self._add(item.ended_at_ms, item.state, count)
            self.ended[item.state, item.reason] += count

    def _add(self, at_ms: int, state: LaunchState, count: int) -> None:
        minute = at_ms // MINUTE_MS
        counts = self._minutes.get(minute)
        if counts is None:
            counts = self._minutes[minute] = Counter()
            while len(self._minutes) > MINUTES_KEPT:
                del self._minutes[min(self._minutes)]
        counts[state] += count

    async def read(self, now_ms: int) -> None:
        """Count what ended before this replica began to count, once. An answer does not wait for
        longer than `wait_s`: until all is counted, `since_ms` says from when on it is."""
        state = self._state_of()
        if state is not self._state:
            self._begin(state, state.index)
        if self._reading is None or (self._reading.done() and not self._is_read):
            self._reading = asyncio.create_task(self._read(now_ms), name="activity")
        await asyncio.wait({self._reading}, timeout=self.wait_s)
        if self._reading.done():
            self._reading.result()

    async def _read(self, now_ms: int) -> None:
        of, begin_index = self._state, self._begin_index
        query = Query(since_ms=now_ms - _DAY_MS, limit=READ_ROWS_MAX)
        rows: list[Row] = []
        with contextlib.suppress(CronError):  # the counts begin with this replica then
            rows = await self._row_store.newest(query)
        if of is not self._state:
            return
        self._is_read = True
        older = [row for row in rows if row.ended_index <= begin_index]
        followed: dict[tuple[str, int, int], bool] = {}  # whether a redrive made what came after
        for row in older:  # the newest first
            if row.kind is RowKind.AMENDMENT or is_own(row.job):
                continue
            launch = (row.job, row.scheduled_s, row.trigger)
            is_retried = followed.get(launch) is row.is_redriven or is_tried_again(of, row)
            followed[launch] = row.is_redriven
            if not is_retried:
                self._add(row.ended_at_ms, row.state, row.count)
        if len(rows) < READ_ROWS_MAX:
            self.since_ms = 0
        elif older:
            self.since_ms = min(row.ended_at_ms for row in older)

    def minutes(self, from_ms: int) -> dict[int, Counter[LaunchState]]:
        """Return the counts of the minutes since a time, by the minute's number since 1970."""
        first = from_ms // MINUTE_MS
        return {
            minute: self._minutes[minute] for minute in sorted(self._minutes) if minute >= first
        }


def is_tried_again(state: State, row: Row) -> bool:
    """Return whether an attempt that has just ended is none of its launch, which is due again."""
    record = state.record_of(row.job)
    if record is None or row.kind is not RowKind.ENDED or not record.open:
        return False
    return (row.scheduled_s, row.trigger) in record.open


def _lateness_ms(item: Row | Chunk, *, has_own: bool) -> list[int]:
    """Return how late the first attempts of instants among these rows started; 0 for one whose
    executor's clock says that it started before its time. `has_own`: rows of the cell itself are
    among these of a chunk, and left out."""
    if isinstance(item, Row):
        is_whole = not item.trigger and not item.parts
        is_first = item.started_ms and item.attempt == 1 and is_whole
        return [max(0, item.started_ms - item.scheduled_s * 1000)] if is_first else []
    rows = len(item)
    is_plain = item.attempts == 1 and item.triggers == 0 and not has_own
    if is_plain and isinstance(item.scheduled_s, int):
        due_ms = item.scheduled_s * 1000  # of nearly all: a batch of one instant
        started = values(item.started_ms, rows)
        return [at_ms - due_ms if at_ms > due_ms else 0 for at_ms in started if at_ms]
    columns = (item.started_ms, item.scheduled_s, item.attempts, item.triggers)
    names = item.jobs.split("\n") if has_own else repeat("", rows)
    return [
        max(0, started_ms - scheduled_s * 1000)
        for name, started_ms, scheduled_s, attempt, trigger in zip(
            names, *(values(one, rows) for one in columns), strict=True
        )
        if started_ms and attempt == 1 and not trigger and not is_own(name)
    ]

"""The pace of turns: when something is due again, and how many rows a turn may have."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from math import log2
from statistics import median_low
from typing import Final

from consensus.histogram import Histogram
from cron.scheduler.plan import ROWS_MAX

TURN_MS: Final = 50
"""How long one turn may keep the loop: heartbeats, leases and Raft wait as long."""
ROWS_MIN: Final = 200
"""Fewer rows in an entry would not help: each entry has a cost of its own."""
PORTIONS: Final = 2
"""The divisor of a turn's rows for the jobs of an instant that get rows first: their launches start
while the others get rows. If launches wait for slots, all portions are as small: slots that come
free are empty until the turn is over."""
MEASURED_MIN: Final = 100
"""Turns with fewer rows say little about the cost of a row."""
BUSY_ROWS: Final = 100
"""With so many rows a leader is busy: it gains by fewer and larger entries."""
HALF_MS: Final = 1_000
"""A row counts half after so long. Many launches fall due at the first instant of each second."""
LEAD_MAX_MS: Final = 1_000
LEAD_TURNS: Final = 9
LEAD_KEPT_MS: Final = 10_000
"""How long an order takes to leave is the median of so many recent turns: one entry that a disk or
an election delayed says nothing about the next one."""


class Every:
    """Something to do every so many milliseconds of a monotonic clock."""

    def __init__(self, period_ms: int) -> None:
        self._period_ms = period_ms
        self._next_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """Return whether it is time again; the next time is a period from now."""
        if now_ms < self._next_ms:
            return False
        self._next_ms = now_ms + self._period_ms
        return True


class TurnPace:
    """How many rows a turn may have, from the time that recent turns took; and how long an order
    takes to leave."""

    def __init__(self) -> None:
        self.rows_max = ROWS_MAX
        self.durations = Histogram()  # of turns with an entry, until it was applied
        self._row_us = 0
        self._turns: deque[tuple[int, int]] = deque(maxlen=LEAD_TURNS)
        """(when it ended, how long until it was applied)"""
        self._recent_rows, self._counted_ms = 0.0, 0
        self.busy_until_ms = 0
        """Until when, by a monotonic clock, many rows were appended lately, in few entries or many.
        """

    def took(self, rows: int, busy_ms: int, whole_ms: int, now_ms: int) -> None:
        """Note a turn that ended at `now_ms` of a monotonic clock: its rows, how long it kept the
        loop, and how long until it was applied."""
        passed_ms, self._counted_ms = max(0, now_ms - self._counted_ms), now_ms
        self._recent_rows = self._recent_rows * 0.5 ** (passed_ms / HALF_MS) + rows
        if self._recent_rows >= BUSY_ROWS:
            self.busy_until_ms = now_ms + int(HALF_MS * log2(self._recent_rows / BUSY_ROWS))
        self._turns.append((now_ms, whole_ms))
        self.durations.counts[bisect_left(self.durations.bounds_ms, whole_ms)] += 1
        self.durations.sum_ms += whole_ms
        if rows < MEASURED_MIN:
            return
        self._row_us = (3 * self._row_us + 1000 * busy_ms // rows) // 4
        most = TURN_MS * 1000 // self._row_us if self._row_us else ROWS_MAX
        self.rows_max = min(max(most, ROWS_MIN), ROWS_MAX)

    @property
    def portion(self) -> int:
        """How many jobs get rows in a turn that must not take long."""
        return max(self.rows_max // PORTIONS, ROWS_MIN)

    def lead_ms(self, now_ms: int) -> int:
        """Return how long an order planned at `now_ms` takes to leave; 0 if no recent turn tells. A
        launch that has more time than this must not be skipped."""
        since_ms = now_ms - LEAD_KEPT_MS
        recent = [whole_ms for at_ms, whole_ms in self._turns if at_ms >= since_ms]
        return min(median_low([0, *recent]), LEAD_MAX_MS)

"""Paces: so many a second, saved up for at most one second; so many rows in a turn."""

from __future__ import annotations

from collections import deque
from statistics import median_low
from typing import Final

from cron.scheduler.plan import ROWS_MAX

TURN_MS: Final = 50
"""So long one turn may keep the loop: heartbeats, leases and Raft wait as long."""
ROWS_MIN: Final = 200
"""Fewer rows in an entry are no relief: each entry has a price of its own."""
TOLD_MIN: Final = 100
"""Turns with fewer rows say little of what a row costs."""
LEAD_MAX_MS: Final = 1_000
LEAD_TURNS: Final = 9
LEAD_KEPT_MS: Final = 10_000
"""So many turns of the last seconds say how long an order takes to leave. Their median does: one
entry that a disk or an election held up says nothing about the next one."""


class Budget:
    """Tokens that come at a rate, integers only."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._thousandths = per_second * 1000
        self._at_ms: int | None = None

    def available(self, now_ms: int) -> int:
        """Return how many may be spent at `now_ms` of a monotonic clock."""
        if self._at_ms is not None and now_ms > self._at_ms:
            gained = (now_ms - self._at_ms) * self._per_second
            self._thousandths = min(self._per_second * 1000, self._thousandths + gained)
        self._at_ms = now_ms
        return self._thousandths // 1000

    def spend(self, count: int) -> None:
        """Take `count` away."""
        self._thousandths -= count * 1000


class Every:
    """Something to be done every so many milliseconds of a monotonic clock."""

    def __init__(self, period_ms: int) -> None:
        self._period_ms = period_ms
        self._next_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time again; the next time is a period from now."""
        if now_ms < self._next_ms:
            return False
        self._next_ms = now_ms + self._period_ms
        return True


class TurnPace:
    """How many rows a turn may have, by what those before took, and how long an order takes until
    it leaves."""

    def __init__(self) -> None:
        self.rows_max = ROWS_MAX
        self._row_us = 0
        self._turns: deque[tuple[int, int]] = deque(maxlen=LEAD_TURNS)
        """(when it ended, how long until it was applied)"""

    def took(self, rows: int, busy_ms: int, whole_ms: int, now_ms: int) -> None:
        """Note a turn that ended at `now_ms` of a monotonic clock: its rows, how long it kept the
        loop, and how long until it was applied."""
        self._turns.append((now_ms, whole_ms))
        if rows < TOLD_MIN:
            return
        self._row_us = (3 * self._row_us + 1000 * busy_ms // rows) // 4
        most = TURN_MS * 1000 // self._row_us if self._row_us else ROWS_MAX
        self.rows_max = min(max(most, ROWS_MIN), ROWS_MAX)

    def lead_ms(self, now_ms: int) -> int:
        """Return how long it takes until an order leaves that is planned at `now_ms`; 0 where no
        recent turn tells. A launch that has more time than this must not be skipped."""
        since_ms = now_ms - LEAD_KEPT_MS
        recent = [whole_ms for at_ms, whole_ms in self._turns if at_ms >= since_ms]
        return min(median_low([0, *recent]), LEAD_MAX_MS)

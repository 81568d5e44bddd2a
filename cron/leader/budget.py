"""A pace: so many a second, saved up for at most one second."""

from __future__ import annotations


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

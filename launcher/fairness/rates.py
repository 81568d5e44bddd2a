"""A token bucket in integers: starts per second, with a second's worth in hand."""

from __future__ import annotations

from typing import Final

START: Final = 1_000_000
"""One start in the bucket's units: thousandths of a start per second, times milliseconds."""


class Bucket:
    """Holds up to a second's worth of starts, one at least; begins full.

    In any window of w ms at most `capacity + rate * w` units are taken and not given back.
    """

    __slots__ = ("capacity", "level", "rate_milli", "seen_ms")

    def __init__(self, rate_milli: int, now_ms: int) -> None:
        self.rate_milli = rate_milli
        self.capacity = max(START, rate_milli * 1000)
        self.level = self.capacity
        self.seen_ms = now_ms

    def change(self, rate_milli: int, now_ms: int) -> None:
        """Go on at another rate with what is in the bucket, as far as it still fits."""
        self.fill(now_ms)
        self.rate_milli = rate_milli
        self.capacity = max(START, rate_milli * 1000)
        self.level = min(self.level, self.capacity)

    def fill(self, now_ms: int) -> None:
        """Add what came in since the last call; a clock that went back adds nothing."""
        if now_ms > self.seen_ms:
            gained = self.level + self.rate_milli * (now_ms - self.seen_ms)
            self.level = min(gained, self.capacity)
        self.seen_ms = now_ms

    def has_token(self, now_ms: int) -> bool:
        """Return whether a start may be taken now."""
        if now_ms != self.seen_ms:
            self.fill(now_ms)
        return self.level >= START

    def take(self) -> None:
        """Take one start."""
        self.level -= START

    def give(self) -> None:
        """Return one start that was not used."""
        self.level = min(self.level + START, self.capacity)

    def ready_ms(self) -> int:
        """Return when a start may be taken, as of the last `fill` or `has_token`."""
        lacking = START - self.level
        return self.seen_ms if lacking <= 0 else self.seen_ms - (-lacking // self.rate_milli)

    def is_full(self, now_ms: int) -> bool:
        """Return whether a new bucket would be no different."""
        self.fill(now_ms)
        return self.level >= self.capacity

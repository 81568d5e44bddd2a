"""Counts of durations by how long they took, for metrics."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

DURATIONS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Upper bounds of the buckets for what should take milliseconds."""


class Histogram:
    """`counts` has one number more than `bounds_ms`: how many values were at most each bound and
    above the one before, and how many were above the last. `sum_ms` is the sum of all values.

    One thread writes it. Others may read it: what they see may be a moment old.
    """

    def __init__(self, bounds_ms: Sequence[int] = DURATIONS_MS) -> None:
        self.bounds_ms = tuple(bounds_ms)
        self.counts = [0] * (len(bounds_ms) + 1)
        self.sum_ms = 0.0

    def note(self, value_ms: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds_ms, value_ms)] += 1
        self.sum_ms += value_ms

    def note_all(self, values_ms: list[int]) -> None:
        """Count values; sorts them in place."""
        values_ms.sort()
        self.sum_ms += sum(values_ms)
        before = 0
        for number, bound_ms in enumerate(self.bounds_ms):
            through = bisect_right(values_ms, bound_ms, before)
            self.counts[number] += through - before
            before = through
        self.counts[-1] += len(values_ms) - before

"""Crontabs of a chosen number of jobs that together launch a chosen number of times a second."""

from __future__ import annotations

from collections import Counter

import msgspec


class Load(msgspec.Struct, frozen=True):
    """How many jobs there are of each period in seconds."""

    periods: dict[int, int]

    @property
    def jobs(self) -> int:
        """The number of jobs."""
        return sum(self.periods.values())

    @property
    def rate(self) -> float:
        """Launches a second, on the average."""
        return sum(count / period for period, count in self.periods.items())

    def due(self, from_s: int, to_s: int) -> int:
        """Return how many instants lie in [from_s, to_s); `@every` is anchored to the epoch."""
        return sum(
            count * ((to_s - 1) // period - (from_s - 1) // period)
            for period, count in self.periods.items()
        )

    def crontab(self) -> str:
        """Return the crontab; every command is another one, as with people."""
        lines, number = [], 0
        for period, count in self.periods.items():
            for _ in range(count):
                number += 1
                lines.append(f"#: name=j{number}\n@every {period}s true {number}")
        return "\n".join(lines) + "\n"


def make_load(rate: int, jobs: int | None = None) -> Load:
    """Return `jobs` jobs that make about `rate` launches a second; `rate` jobs unless told.

    A job launches once a second at most, so fewer jobs than `rate` make fewer launches. More jobs
    have longer periods, of many different lengths, or all would be due in the same second: all
    `@every` of one period are.
    """
    number = rate if jobs is None else jobs
    if number <= rate:
        return Load({1: number})
    mean = number / rate
    if mean < 8:  # too short for many lengths: some jobs every second, some rarely
        slow = round((number - rate) / (1 - 1 / 61))
        return Load({1: max(number - slow, 0), 61: slow})
    lengths = range(round(mean * 0.75), round(mean * 1.5))
    share = sum(1 / length for length in lengths) / len(lengths)
    scale = share * mean  # the mean of 1/length is not 1/mean: bring the rate back to what is asked
    counts = Counter(max(1, round(lengths[i % len(lengths)] * scale)) for i in range(number))
    return Load(dict(sorted(counts.items())))

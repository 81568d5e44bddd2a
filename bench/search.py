"""The highest rate that is borne, found in a bounded time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from bench.trees import ProbeFailed, Tree, run_probe

LATE_MS_MAX: Final = 1_000
"""95 % of all launches that are borne begin within a second of their time."""
STEP: Final = 1.6
"""Between rates while one side of the answer is not known yet."""
GRAIN: Final = 1.1
"""A rate above the answer by this factor was not borne."""
TRIAL_S: Final = 60.0
"""For the cell of a trial to start, and for its launches to be counted."""


class Tried(msgspec.Struct, frozen=True):
    """One trial; `refusal` says in which way the rate was too much, "" where it was borne."""

    rate: int
    is_long: bool
    refusal: str


Trial = Callable[[int, bool], str]
"""Says of a rate, tried for a short or a long time, in which way it was too much."""


def highest(
    trial: Trial, start: int, left_s: Callable[[], float], *, most: int = 100_000
) -> tuple[int | None, list[Tried]]:
    """Return the highest rate that a long trial bore, and all trials.

    Short trials bracket the rate from `start` on and close in on it; long ones confirm it, each
    next one a step lower. None: nothing was borne, or the time was over first. A trial begins only
    while `left_s()` is above 0, half of the time at the beginning is kept for long ones.
    """
    tried: list[Tried] = []

    def borne(rate: int, is_long: bool) -> bool:
        tried.append(Tried(rate, is_long, trial(rate, is_long)))
        return not tried[-1].refusal

    low, high, rate = 0, 0, min(start, most)
    until_s = left_s() / 2
    while left_s() > until_s and low < rate and rate != high:
        if borne(rate, False):
            low = rate
        else:
            high = rate
        if not high:
            rate = min(most, round(rate * STEP))
        elif not low:
            rate = max(1, round(rate / STEP))
        elif high / low <= GRAIN:
            break
        else:
            rate = round((low * high) ** 0.5)
    while low and left_s() > 0:
        if borne(low, True):
            return low, tried
        low = int(low / GRAIN)
    return None, tried


def refusal(row: dict[str, Any]) -> str:
    """Return in which way a rate was too much by the row of its trial, "" where it was borne."""
    late = row["lateness_p95_ms"]
    if late is None:
        return "nothing was started"
    if late >= LATE_MS_MAX:
        return f"p95 {late:,} ms"
    for what in ("not_done", "open", "missing"):
        if row[what]:
            return f"launches {what.replace('_', ' ')}"
    return "another leader" if row["leader_changed"] else ""


def search(
    tree: Tree, work: dict[str, Any], start: int, seconds: tuple[int, int], limit_s: float
) -> tuple[int | None, list[Tried]]:
    """Search a tree's highest rate of some work, with trials of `seconds`: short and long ones.

    Each trial is told on stderr as it ends.
    """
    ends = time.monotonic() + limit_s

    def trial(rate: int, is_long: bool) -> str:
        options = {"work": work, "rate": rate, "seconds": seconds[is_long]}
        try:
            told = refusal(run_probe(tree, "trial", options, seconds[is_long] + TRIAL_S))
        except ProbeFailed as failed:
            told = str(failed)
        outcome = f"{rate:,}/s for {seconds[is_long]} s: {told or 'borne'}"
        print(f"{tree.commit}: {outcome}", file=sys.stderr, flush=True)
        return told

    return highest(trial, start, lambda: ends - time.monotonic())

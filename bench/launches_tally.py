"""What became of the launches of a window, summed up second by second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from cron.api.launches import LaunchView


class Tally:
    """The launches of a window, of whom only what is asked for is kept.

    `worked` is the time in milliseconds in which work counts as done in the window, whenever it was
    due: CPU time is measured over the same time.
    """

    def __init__(self, worked: tuple[int, int] = (0, 0)) -> None:
        self._worked = worked
        self._late: list[int] = []
        self._states: Counter[str] = Counter()
        self._open = 0
        self._retried = 0
        self._rows = 0
        self.done = 0

    def note_work(self, rows: Sequence[LaunchView]) -> None:
        """Count what was done in the window, also of launches that were due before it."""
        since_ms, until_ms = self._worked
        self.done += sum(
            row.state == "succeeded" and since_ms <= row.finished_at_ms < until_ms for row in rows
        )

    def add(self, rows: Sequence[LaunchView]) -> None:
        """Take in the launches that were due in a second of the window."""
        for row in rows:
            self._rows += row.count
            self._states[row.state] += row.count
            self._open += row.is_open
            self._retried += row.attempt > 1
            if row.lateness_ms is not None:
                self._late.append(row.lateness_ms)

    def row(self, due: int, seconds: int) -> dict[str, Any]:
        """Return what became of them; `due` instants lie in the window."""
        late = sorted(self._late)
        done, skipped = self._states["succeeded"], self._states["skipped"]
        return {
            "launches_per_second": round(done / seconds, 1),
            "lateness_p50_ms": percentile(late, 50),
            "lateness_p95_ms": percentile(late, 95),
            "lateness_p99_ms": percentile(late, 99),
            "lateness_max_ms": percentile(late, 100),
            "due": due,
            "succeeded": done,
            "skipped": skipped,
            "failed": self._rows - done - skipped - self._open,
            "retried": self._retried,
            "open": self._open,
            "missing": due - self._rows,
        }


def summarize(rows: Sequence[LaunchView], due: int, seconds: int) -> dict[str, Any]:
    """Return what became of the launches of a window in which `due` instants lie."""
    tally = Tally()
    tally.add(rows)
    return tally.row(due, seconds)


def percentile(ordered: list[int], share: int) -> int | None:
    """Return the smallest value that `share` per cent of the values do not exceed."""
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)] if ordered else None

"""What the leader has State forget of jobs: schedules and removed jobs of which history has no row.

The leader looks at all records by and by, some thousand in a second, and begins again ten minutes
after it began. Each entry carries what one look found, so that no entry costs a replica more than
some milliseconds, also after an upgrade from a release that forgot nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Final

from cron.limits import REMOVED_KEPT
from cron.state.archive import History
from cron.state.commands import Forget
from cron.state.forgetting import is_compact
from cron.state.state import State

LOOK_MS: Final = 1_000
ROUND_MS: Final = 600_000
LOOKED_AT: Final = 5_000
"""Records in one look: some milliseconds."""
SPANS_AT_ONCE: Final = 10_000
"""Spans of the records in one entry: about 10 ms for each replica."""


class Forgetting:
    """One leader's way through the records of all jobs."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._numbers: Iterator[int] = iter(())
        self._before_s = self._needless_s = 0
        self._removed: list[tuple[int, int]] = []  # (when, number), in this round
        self._excess: list[int] = []
        self._look_ms = 0
        self._round_ms: int | None = None  # when it began

    def next(self, now_ms: int) -> list[Forget]:
        """Return what to append at `now_ms` of a monotonic clock; mostly nothing."""
        state = self._state
        if state.is_resolving or now_ms < self._look_ms:
            return []
        self._look_ms = now_ms + LOOK_MS
        if self._excess:
            removed = tuple(self._excess[:LOOKED_AT])
            del self._excess[:LOOKED_AT]
            return [Forget((), 0, removed)]
        if self._round_ms is None or now_ms >= self._round_ms + ROUND_MS:
            self._round_ms = now_ms
            self._numbers = iter(list(state.by_number))
            now_s = state.at_ms // 1000
            self._before_s = self._needless_s = history_from_s(state.history, now_s)
            if not state.history.retired:
                # All history is there. An audit can prove each schedule, also one without a row; a
                # removed job goes if all rows are of a later time.
                self._before_s = history_from_s(state.history, now_s + 1) - 1
                self._needless_s = 0
            self._removed = []
        gone, numbers = self._look()
        forgets = [Forget(tuple(numbers), self._needless_s)] if numbers else []
        return [*forgets, Forget(tuple(gone), self._before_s)] if gone else forgets

    def _look(self) -> tuple[list[int], list[int]]:
        """Return which of the next records are needed no more, and which of the others need less
        than they have."""
        gone: list[int] = []
        numbers: list[int] = []
        spans = looked = 0
        for number in islice(self._numbers, LOOKED_AT):
            looked += 1
            record = self._state.by_number.get(number)
            if record is None:
                continue
            ended_s = record.spans[-1].to_s
            if record.job is None:
                self._removed.append((ended_s, number))
            is_over = (
                record.job is None and ended_s <= self._before_s and not self._state.is_open(record)
            )
            if is_over or not is_compact(self._state, record, self._needless_s):
                spans += len(record.spans)
                (gone if is_over else numbers).append(number)
                if spans >= SPANS_AT_ONCE:
                    return gone, numbers
        if looked < LOOKED_AT and self._removed:
            excess = heapq.nsmallest(len(self._removed) - REMOVED_KEPT, self._removed)
            self._excess = [number for _, number in excess]
            self._removed = []
        return gone, numbers


def history_from_s(history: History, now_s: int) -> int:
    """Return the oldest ScheduledTime of a row that is kept; now if there is none."""
    firsts = [record.first_s for record in history.segments.values()]
    firsts += [tail.first_s for tail in history.tails if tail.rows]
    return min(firsts, default=now_s)

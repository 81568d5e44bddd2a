"""What became of tasks lately, for streams that follow: a bounded ring of changes in this replica.

A position is `INDEX.N`, the N-th change of the log entry INDEX, or `INDEX`, all changes of that
entry. The applier of each replica adds the numbers of the tasks that an entry has changed, in the
entry's order, so a position means the same on every replica.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from cron.state.outcome import Outcome
from cron.state.state import State

WHOLE: Final = 1 << 40
"""The place behind all changes of an entry."""
KEPT: Final = 100_000
"""Changes that the ring keeps: at most 16 MB, and ten seconds at ten thousand a second."""


class TaskFeed:
    """The ring. `state` returns State; a State that was replaced has no changes yet."""

    def __init__(self, state: Callable[[], State], kept: int = KEPT) -> None:
        self._state_of = state
        self._state = state()
        self._kept = kept
        self._ring: deque[tuple[int, tuple[int, ...]]] = deque()
        self._count = 0
        self.begins = self._state.index  # the newest entry of which nothing is kept
        self._watchers: set[asyncio.Event] = set()

    def follow(self, index: int, outcome: Outcome) -> None:
        """Add the changes of an entry."""
        self._look()
        if not outcome.moved_tasks:
            return
        numbers = tuple(outcome.moved_tasks)
        self._ring.append((index, numbers))
        self._count += len(numbers)
        while self._count > self._kept:
            self.begins, gone = self._ring.popleft()
            self._count -= len(gone)
        for watcher in self._watchers:
            watcher.set()

    def has(self, index: int, number: int = WHOLE) -> bool:
        """Return whether all changes after a position are kept."""
        self._look()
        return (index, number) >= (self.begins, WHOLE)

    def after(self, index: int, number: int = WHOLE) -> list[tuple[int, int, int]]:
        """Return the changes after a position: entry, place in it from 1, number of the task. Of
        several changes of one task only the newest is told."""
        found = []
        for entry, numbers in reversed(self._ring):
            if (entry, len(numbers)) <= (index, number):
                break
            found.append((entry, numbers))
        newest: dict[int, tuple[int, int]] = {}
        for entry, numbers in reversed(found):
            for place, task in enumerate(numbers, 1):
                if (entry, place) > (index, number):
                    newest.pop(task, None)
                    newest[task] = (entry, place)
        return [(entry, place, task) for task, (entry, place) in newest.items()]

    async def wait(self, timeout_s: float) -> None:
        """Return once there is another change, or the time is over."""
        event = asyncio.Event()
        self._watchers.add(event)
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._watchers.discard(event)

    def _look(self) -> None:
        """Begin again where State was replaced by a snapshot: entries in between were not seen."""
        state = self._state_of()
        if state is not self._state:
            self._state = state
            self._ring.clear()
            self._count, self.begins = 0, state.index

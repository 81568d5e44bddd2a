"""The executors that watch who leads: told of each change, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections import deque

from launcher.pool import limits


class Watcher:
    """One stream. `news` is set when there may be something to tell, or the stream is to end."""

    def __init__(self, executor: str) -> None:
        self.executor = executor
        self.news = asyncio.Event()
        self.is_over = False

    def end(self) -> None:
        """Let the stream end."""
        self.is_over = True
        self.news.set()


class Watchers:
    """All such streams of a replica. Everything happens on the event loop."""

    def __init__(self) -> None:
        self._by_executor: dict[str, deque[Watcher]] = {}
        self._untold: deque[Watcher] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def enter(self, executor: str, executors_max: int) -> Watcher | None:
        """Return the place of a new stream, or None where too many executors watch. The oldest
        stream of an executor that has too many ends."""
        own = self._by_executor.get(executor)
        if self._is_closed or (own is None and len(self._by_executor) >= executors_max):
            return None
        if own is None:
            own = self._by_executor[executor] = deque()
        watcher = Watcher(executor)
        own.append(watcher)
        if len(own) > limits.WATCHES_EACH:
            own.popleft().end()
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Forget a stream that is over; idempotent."""
        own = self._by_executor.get(watcher.executor)
        if own is not None and watcher in own:
            own.remove(watcher)
            if not own:
                del self._by_executor[watcher.executor]

    def __len__(self) -> int:
        """How many streams there are."""
        return sum(map(len, self._by_executor.values()))

    def change(self) -> None:
        """Tell all: this replica leads, leads no more, or follows another one."""
        self._untold = deque(one for own in self._by_executor.values() for one in own)
        if self._timer is None:
            self._tell_some()

    def _tell_some(self) -> None:
        self._timer = None
        for _ in range(min(limits.TOLD_PER_TURN, len(self._untold))):
            self._untold.popleft().news.set()
        if self._untold:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(limits.TOLD_EVERY_MS / 1000, self._tell_some)

    def close(self) -> None:
        """End all streams, and take none any more: the replica stops."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._untold.clear()
        for own in list(self._by_executor.values()):
            for watcher in own:
                watcher.end()

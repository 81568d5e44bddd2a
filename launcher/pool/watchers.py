"""The streams that watch who leads: all are notified of a change, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections import deque

from launcher.pool import limits


class Watcher:
    """One stream. `changed` is set when the leader may have changed, or the stream shall end."""

    def __init__(self, executor: str) -> None:
        self.executor = executor
        self.changed = asyncio.Event()
        self.is_over = False

    def end(self) -> None:
        """Let the stream end."""
        self.is_over = True
        self.changed.set()


class Watchers:
    """All such streams of a replica. Everything happens on the event loop."""

    def __init__(self) -> None:
        self._by_executor: dict[str, deque[Watcher]] = {}
        self._unnotified: deque[Watcher] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def enter(self, executor: str, executors_max: int) -> Watcher | None:
        """Return a new watcher, or None if too many executors watch. If this executor has too many
        streams, its oldest ends."""
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
        """Forget a stream that is over. Idempotent."""
        own = self._by_executor.get(watcher.executor)
        if own is not None and watcher in own:
            own.remove(watcher)
            if not own:
                del self._by_executor[watcher.executor]

    def end(self, executor: str) -> None:
        """End the streams of one executor."""
        for watcher in self._by_executor.get(executor, ()):
            watcher.end()

    def __len__(self) -> int:
        """Return the number of streams."""
        return sum(map(len, self._by_executor.values()))

    def change(self) -> None:
        """Notify all: this replica leads, leads no more, or follows another one."""
        self._unnotified = deque(one for own in self._by_executor.values() for one in own)
        if self._timer is None:
            self._notify_some()

    def _notify_some(self) -> None:
        self._timer = None
        for _ in range(min(limits.NOTIFIED_PER_TURN, len(self._unnotified))):
            self._unnotified.popleft().changed.set()
        if self._unnotified:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(limits.NOTIFIED_EVERY_MS / 1000, self._notify_some)

    def close(self) -> None:
        """End all streams and accept no more: the replica stops."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unnotified.clear()
        for own in list(self._by_executor.values()):
            for watcher in own:
                watcher.end()

"""What waits on this host for a thread of a worker: by priority, each handler in its turn.

Theory of operation. A launch that waits here has its row in the ledger and has never begun. The
best priority goes first; within one, the handlers take turns, so that many launches of one do not
stand before a few of another; within a handler the oldest goes first. What a worker had been given
and did not begin is put back in front. Every step costs the same however much waits.

Pure: whoever calls brings the time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence
from typing import Final

from launcher.executor.attempt import Attempt

PRIORITIES: Final = 10
_NEVER_MS: Final = 1 << 62

_Lane = OrderedDict[str, OrderedDict[str, Attempt]]
"""Handlers of one priority, whose turn it is first; of each what waits, oldest first."""


class Buffer:
    """What waits for one group of workers."""

    def __init__(self) -> None:
        self._lanes: list[_Lane] = [OrderedDict() for _ in range(PRIORITIES)]
        self._count = 0
        self._earliest_ms = _NEVER_MS
        self.payload_bytes = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Attempt]:
        for lane in self._lanes:
            for queue in lane.values():
                yield from queue.values()

    def put(self, attempt: Attempt, *, first: bool = False) -> None:
        """Let a launch wait behind those of its priority and handler, or before them."""
        spec = attempt.spec
        lane = self._lane(attempt)
        queue = lane.get(spec.handler)
        if queue is None:
            queue = lane[spec.handler] = OrderedDict()
        queue[attempt.name] = attempt
        if first:
            queue.move_to_end(attempt.name, last=False)
        self._count += 1
        self.payload_bytes += len(spec.payload)
        if attempt.not_after_ms < self._earliest_ms:
            self._earliest_ms = attempt.not_after_ms

    def put_back(self, some: Sequence[Attempt]) -> None:
        """Let launches wait again that had been taken, in front of all, in the order given."""
        for attempt in reversed(some):
            self.put(attempt, first=True)

    def take(self, count: int, handlers: Container[str]) -> list[Attempt]:
        """Remove and return up to `count` launches of `handlers`, in the order of service."""
        taken: list[Attempt] = []
        for lane in self._lanes:
            while lane and len(taken) < count:
                handler = next((one for one in lane if one in handlers), None)
                if handler is None:
                    break
                queue = lane[handler]
                _, attempt = queue.popitem(last=False)
                if queue:
                    lane.move_to_end(handler)
                else:
                    del lane[handler]
                self._count -= 1
                self.payload_bytes -= len(attempt.spec.payload)
                taken.append(attempt)
        return taken

    def remove(self, attempt: Attempt) -> bool:
        """Remove a launch; return whether it waited here."""
        lane, handler = self._lane(attempt), attempt.spec.handler
        queue = lane.get(handler)
        if queue is None or queue.get(attempt.name) is not attempt:
            return False
        del queue[attempt.name]
        if not queue:
            del lane[handler]
        self._count -= 1
        self.payload_bytes -= len(attempt.spec.payload)
        return True

    def late(self, now_ms: int) -> list[Attempt]:
        """Remove and return what should have begun before `now_ms` (wall clock)."""
        if now_ms <= self._earliest_ms:
            return []
        late, self._earliest_ms = [], _NEVER_MS
        for attempt in self:
            if now_ms <= attempt.not_after_ms:
                self._earliest_ms = min(self._earliest_ms, attempt.not_after_ms)
            elif not attempt.was_announced:
                late.append(attempt)
        for attempt in late:
            self.remove(attempt)
        return late

    def clear(self) -> list[Attempt]:
        """Remove and return everything, oldest of each handler first."""
        gone = list(self)
        for lane in self._lanes:
            lane.clear()
        self._count = self.payload_bytes = 0
        self._earliest_ms = _NEVER_MS
        return gone

    def _lane(self, attempt: Attempt) -> _Lane:
        return self._lanes[min(max(attempt.spec.priority, 0), PRIORITIES - 1)]

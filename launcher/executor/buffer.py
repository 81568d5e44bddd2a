"""What waits on this host for a thread of a worker: by priority, each handler in its turn.

Theory of operation. A launch that waits here has its row in the ledger and has never begun. The
best priority goes first; within one, the handlers take turns, so that many launches of one do not
stand before a few of another; within a handler the oldest goes first. What a worker had been given
and did not begin is put back in front. Every step costs the same however much waits.

Pure: whoever calls brings the time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence
from typing import Final

import msgspec

from launcher.worker.wire import Task

PRIORITIES: Final = 10
_NEVER_MS: Final = 1 << 62


class Waiting(msgspec.Struct):
    """A launch that has not begun. Refused when it still has not at `not_after_ms` (wall clock),
    unless it `was_announced`: then the leader knows it as started already. `returns` counts how
    often a worker gave it back though it was to begin."""

    task: Task
    not_after_ms: int
    was_announced: bool = False
    returns: int = 0

    @property
    def name(self) -> str:
        """The attempt's name."""
        return self.task.name


_Lane = OrderedDict[str, OrderedDict[str, Waiting]]
"""Handlers of one priority, whose turn it is first; of each what waits, oldest first."""


class Buffer:
    """What waits for one group of workers."""

    def __init__(self) -> None:
        self._lanes: list[_Lane] = [OrderedDict() for _ in range(PRIORITIES)]
        self._places: dict[str, OrderedDict[str, Waiting]] = {}
        self._earliest_ms = _NEVER_MS
        self.payload_bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def put(self, waiting: Waiting) -> None:
        """Let a launch wait behind those of its priority and handler."""
        task = waiting.task
        lane = self._lanes[min(max(task.priority, 0), PRIORITIES - 1)]
        queue = lane.get(task.handler)
        if queue is None:
            queue = lane[task.handler] = OrderedDict()
        queue[task.name] = waiting
        self._places[task.name] = queue
        self.payload_bytes += len(task.payload)
        self._earliest_ms = min(self._earliest_ms, waiting.not_after_ms)

    def put_back(self, some: Sequence[Waiting]) -> None:
        """Let launches wait again that had been taken, in front of all, in the order given."""
        for waiting in reversed(some):
            self.put(waiting)
            self._places[waiting.name].move_to_end(waiting.name, last=False)

    def take(self, count: int, handlers: Container[str]) -> list[Waiting]:
        """Remove and return up to `count` launches of `handlers`, in the order of service."""
        taken: list[Waiting] = []
        for lane in self._lanes:
            while lane and len(taken) < count:
                handler = next((one for one in lane if one in handlers), None)
                if handler is None:
                    break
                _, waiting = lane[handler].popitem(last=False)
                if lane[handler]:
                    lane.move_to_end(handler)
                else:
                    del lane[handler]
                self._forget(waiting)
                taken.append(waiting)
        return taken

    def remove(self, name: str) -> Waiting | None:
        """Remove and return the launch `name`; None if it does not wait here."""
        queue = self._places.get(name)
        if queue is None:
            return None
        waiting = queue.pop(name)
        if not queue:
            lane = self._lanes[min(max(waiting.task.priority, 0), PRIORITIES - 1)]
            del lane[waiting.task.handler]
        self._forget(waiting)
        return waiting

    def late(self, now_ms: int) -> list[Waiting]:
        """Remove and return what should have begun before `now_ms` (wall clock)."""
        if now_ms <= self._earliest_ms:
            return []
        late, self._earliest_ms = [], _NEVER_MS
        for name, queue in list(self._places.items()):
            waiting = queue[name]
            if now_ms <= waiting.not_after_ms:
                self._earliest_ms = min(self._earliest_ms, waiting.not_after_ms)
            elif not waiting.was_announced:
                late.append(waiting)
        for waiting in late:
            self.remove(waiting.name)
        return late

    def clear(self) -> list[Waiting]:
        """Remove and return everything, oldest of each handler first."""
        gone = [queue[name] for name, queue in self._places.items()]
        for waiting in gone:
            self.remove(waiting.name)
        return gone

    def _forget(self, waiting: Waiting) -> None:
        del self._places[waiting.name]
        self.payload_bytes -= len(waiting.task.payload)

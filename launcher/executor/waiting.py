"""Launches that are accepted and wait for a slot of this host.

Launches that share slots are a group: the commands of this host, or the launches for the processes
of one worker command. A launch that waits has its row in the journal, and no start record. When a
slot comes free it gets one, and starts once that record is durable. All launches that get slots in
one turn share a sync of the disk.

The best priority goes first. Within one priority the handlers take turns, so that many launches of
one handler do not delay a few of another; within a handler, and of commands, the oldest goes first.
A launch that a worker had and did not begin goes back to the front. Each step costs the same
however many wait.

Pure: the caller passes the time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Container, Iterator, Sequence
from typing import Final, Protocol

from launcher.executor.attempt import Attempt
from launcher.protocol.status import Limiting
from launcher.protocol.work import results_bytes

AHEAD_US: Final = 200_000
"""A group offers slots for as many launches beyond those that run as end within this time: enough
for some round trips to the leader, and no launch waits longer here."""
PRIORITIES: Final = 10
_NEVER_MS: Final = 1 << 62

_Level = OrderedDict[str, OrderedDict[str, Attempt]]
"""Handlers of one priority in the order of their turns; each has its launches, oldest first."""


class Buffer:
    """The launches that wait for the slots of one group."""

    def __init__(self) -> None:
        self._levels: list[_Level] = [OrderedDict() for _ in range(PRIORITIES)]
        self._count = 0
        self._earliest_ms = _NEVER_MS
        self.payload_bytes = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Attempt]:
        for level in self._levels:
            for queue in level.values():
                yield from queue.values()

    def put(self, attempt: Attempt, *, first: bool = False) -> None:
        """Add a launch behind those of its priority and handler, or before them."""
        spec = attempt.spec
        level = self._level(attempt)
        queue = level.get(spec.handler)
        if queue is None:
            queue = level[spec.handler] = OrderedDict()
        queue[attempt.name] = attempt
        if first:
            queue.move_to_end(attempt.name, last=False)
        self._count += 1
        self.payload_bytes += len(spec.payload) + (results_bytes(spec) if spec.results else 0)
        if attempt.not_after_ms < self._earliest_ms:
            self._earliest_ms = attempt.not_after_ms

    def put_back(self, some: Sequence[Attempt]) -> None:
        """Return launches that had been taken to the front, in the order given."""
        for attempt in reversed(some):
            self.put(attempt, first=True)

    def take(self, count: int, handlers: Container[str]) -> list[Attempt]:
        """Remove and return up to `count` launches of `handlers`, in the order of service."""
        taken: list[Attempt] = []
        for level in self._levels:
            while level and len(taken) < count:
                for handler in level:
                    if handler in handlers:
                        break
                else:
                    break
                queue = level[handler]
                _, attempt = queue.popitem(last=False)
                if queue:
                    level.move_to_end(handler)
                else:
                    del level[handler]
                self._count -= 1
                spec = attempt.spec
                self.payload_bytes -= len(spec.payload)
                self.payload_bytes -= results_bytes(spec) if spec.results else 0
                taken.append(attempt)
        return taken

    def remove(self, attempt: Attempt) -> bool:
        """Remove a launch; return whether it was here."""
        level, handler = self._level(attempt), attempt.spec.handler
        queue = level.get(handler)
        if queue is None or queue.get(attempt.name) is not attempt:
            return False
        del queue[attempt.name]
        if not queue:
            del level[handler]
        self._count -= 1
        spec = attempt.spec
        self.payload_bytes -= len(spec.payload) + (results_bytes(spec) if spec.results else 0)
        return True

    def late(self, now_ms: int) -> list[Attempt]:
        """Remove and return launches that should have begun before `now_ms` (wall clock)."""
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
        for level in self._levels:
            level.clear()
        self._count = self.payload_bytes = 0
        self._earliest_ms = _NEVER_MS
        return gone

    def _level(self, attempt: Attempt) -> _Level:
        return self._levels[min(max(attempt.spec.priority, 0), PRIORITIES - 1)]


class Taker(Protocol):
    """What runs launches of a group: a worker process, or the spawner of commands."""

    capacity: int
    """How many launches it may have."""

    @property
    def served(self) -> Collection[str]:
        """The handlers that it runs; a command has the handler ""."""

    def room(self) -> int:
        """Return how many launches more it should be given now."""

    def give(self, some: list[Attempt]) -> None:
        """Run launches, whose start records are durable."""


class Group(ABC):
    """Launches that share slots.

    `opened` counts launches that have a slot or wait for one: those that wait, those that a taker
    has, and those whose end is not in the journal yet. Launches wait in `buffer`; for those that
    are about to get a slot a start record is written (`starting`), and those that have one are
    `ready`. `ahead` is how many launches are offered a slot beyond those that run.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.buffer = Buffer()
        self.starting: dict[str, Attempt] = {}
        self.ready = Buffer()
        self.opened = 0
        self.ahead = 0

    @property
    def waiting(self) -> int:
        """Return how many launches no taker has."""
        return len(self.buffer) + len(self.starting) + len(self.ready)

    @abstractmethod
    def serving(self) -> Sequence[Taker]:
        """Return what takes launches now."""

    @abstractmethod
    def handlers(self) -> list[str]:
        """Return the handlers that it serves now, sorted; none for commands."""

    @abstractmethod
    def offered(self, waiting_max: int) -> int:
        """Return how many slots it offers the leader: for the launches that it runs at once and
        those that end soon; 0 to offer nothing."""

    def at_once(self) -> int:
        """Return how many of the offered slots are of launches that run; 0 if the leader knows."""
        return 0

    def memory_limiting(self) -> Limiting:
        """Return how its launches are kept within the memory that they declare, if the leader is
        not told by the Hello."""
        return Limiting.UNKNOWN

    @abstractmethod
    def pace(self, now_ms: int) -> None:
        """Offer more or fewer slots if launches have become shorter or longer."""

    @abstractmethod
    def reason_to_refuse_all(self, now_ms: int, *, is_leased: bool) -> str:
        """Return why all launches that wait here are to be refused, or ""."""

    def awaits_worker(self, now_ms: int) -> bool:
        """Return whether launches that had begun at a dead worker wait on for another one."""
        return False

    def set_ahead(self, ahead: int) -> None:
        """Offer slots for `ahead` launches beyond those that run, if this is at least twice as many
        as before, or half."""
        if ahead >= 2 * self.ahead or self.ahead >= 2 * ahead:
            self.ahead = ahead

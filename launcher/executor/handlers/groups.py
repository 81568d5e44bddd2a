"""The groups of workers of this host: what they serve, and how many launches they accept.

A group is the processes of one worker command. They share their slots and the launches that wait. A
handler is in at most one group of an executor, so that a launch has one place to wait.

A launch that waits here has its row in the journal and has never begun. The best priority goes
first. Within one priority the handlers take turns, so that many launches of one handler do not
delay a few of another; within a handler the oldest goes first. A launch that a worker had and did
not begin goes back to the front. Each step costs the same however many wait.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final

from launcher.executor.attempt import Attempt
from launcher.executor.handlers.worker import WorkerProcess
from launcher.executor.rules import LEASE_OVER
from launcher.limits import GROUP_SLOTS_MAX, WAITING_BYTES_MAX, WORKER_THREADS_MAX, WORKERS_MAX
from launcher.protocol.limits import GROUP_CHARS_MAX, HANDLER_CHARS_MAX, HANDLERS_MAX
from launcher.protocol.reports import GroupOffer
from launcher.worker.wire import Hello

AHEAD_US: Final = 200_000
"""A group offers slots for as many launches beyond those that run as end within this time: enough
for some round trips to the leader, and no launch waits longer here."""
WORKERLESS_MS: Final = 5_000
"""How long launches wait for a group whose workers are all gone: a parent restarts its children."""
_WORD: Final = re.compile(r"[!-~]+", re.ASCII)
PRIORITIES: Final = 10
_NEVER_MS: Final = 1 << 62

_Level = OrderedDict[str, OrderedDict[str, Attempt]]
"""Handlers of one priority in the order of their turns; each has its launches, oldest first."""


class Buffer:
    """The launches that wait for one group of workers."""

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
        self.payload_bytes += len(spec.payload)
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
                handler = next((one for one in level if one in handlers), None)
                if handler is None:
                    break
                queue = level[handler]
                _, attempt = queue.popitem(last=False)
                if queue:
                    level.move_to_end(handler)
                else:
                    del level[handler]
                self._count -= 1
                self.payload_bytes -= len(attempt.spec.payload)
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
        self.payload_bytes -= len(attempt.spec.payload)
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


class Group:
    """Workers that share slots.

    `opened` counts launches that have a slot: those that wait, those that a worker has, and those
    whose end is not in the journal yet. Launches wait in `buffer`; for those that are about to get
    a worker a start record is written (`starting`), and those that have one are `ready`. `ahead` is
    how many launches are offered a slot beyond those that run; it is negative until a launch ended.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.workers: dict[int, WorkerProcess] = {}
        self.buffer = Buffer()
        self.starting: dict[str, Attempt] = {}
        self.ready = Buffer()
        self.opened = 0
        self.ahead = -1
        self.left_ms = 0

    @property
    def waiting(self) -> int:
        """Return how many launches no worker has."""
        return len(self.buffer) + len(self.starting) + len(self.ready)

    def serving(self) -> list[WorkerProcess]:
        """Return the workers that take launches."""
        return [worker for worker in self.workers.values() if worker.is_serving]

    def handlers(self) -> list[str]:
        """Return what its workers serve now, sorted."""
        return sorted({name for worker in self.serving() for name in worker.served})

    def offered(self, waiting_max: int) -> int:
        """Return how many slots it offers: for the launches that it runs at once and those that end
        soon, but no more than its workers' capacity and `waiting_max`."""
        workers = self.serving()
        if not workers:
            return 0
        threads = sum(worker.threads for worker in workers)
        slots = sum(worker.capacity for worker in workers) + waiting_max
        ahead = self.ahead if self.ahead >= 0 else threads
        return min(slots, GROUP_SLOTS_MAX, threads + ahead)

    def paced(self) -> None:
        """Offer more or fewer slots if launches have become twice as short or as long."""
        workers = [worker for worker in self.serving() if worker.has_run]
        if workers:
            ahead = sum(one.threads * AHEAD_US // max(one.pace_us, 1) for one in workers)
            ahead = min(ahead, GROUP_SLOTS_MAX)
            if ahead >= 2 * self.ahead or self.ahead >= 2 * ahead:
                self.ahead = ahead

    def hopeless(self, now_ms: int, *, is_leased: bool) -> str:
        """Return why no launch that waits here will begin, or ""."""
        if self.serving():
            self.left_ms = 0
        elif not self.left_ms:
            self.left_ms = now_ms
        if not self.waiting:
            return ""
        if not is_leased:
            return LEASE_OVER
        if self.left_ms and now_ms - self.left_ms >= WORKERLESS_MS:
            return "no worker here serves it any more"
        return ""


class Groups:
    """All groups of this executor, by name. `waiting_max` launches may wait for each, beyond those
    that its workers hold."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._groups: dict[str, Group] = {}
        self.offers: tuple[GroupOffer, ...] = ()
        self.handlers: Mapping[str, str] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def of(self, name: str) -> Group:
        """Return the group `name`, a new one if there is none."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(name)
        return group

    def workers(self) -> list[WorkerProcess]:
        """Return all workers that said Hello and are not known to be dead."""
        return [worker for group in self._groups.values() for worker in group.workers.values()]

    def remove(self, worker: WorkerProcess) -> bool:
        """Forget a worker; return whether it was here."""
        group = self._groups.get(worker.group)
        return group is not None and group.workers.pop(worker.pid, None) is worker

    def room(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return how many more launches each group accepts, and how many of those would be given
        to its workers at once."""
        free: dict[str, int] = {}
        idle: dict[str, int] = {}
        waiting_bytes = 0
        for name, group in self._groups.items():
            workers = group.serving()
            waiting_bytes += group.buffer.payload_bytes + group.ready.payload_bytes
            slots = sum(worker.capacity for worker in workers) + self._waiting_max
            free[name] = max(0, min(slots, GROUP_SLOTS_MAX) - group.opened) if workers else 0
            idle[name] = sum(max(0, worker.room()) for worker in workers) - group.waiting
        if waiting_bytes >= WAITING_BYTES_MAX:
            free = dict.fromkeys(free, 0)
        return free, idle

    def refusal(self, hello: Hello, pid: int) -> str:
        """Return why a process with this Hello is refused, or ""."""
        if wrong := _wrong(hello):
            return wrong
        if len(workers := self.workers()) >= WORKERS_MAX:
            return f"{len(workers)} worker processes are here already, the most there can be"
        if any(worker.pid == pid for worker in workers):
            return f"process {pid} is here already"
        served = {name: worker for worker in workers for name in worker.served}
        for one in hello.handlers:
            other = served.get(one.name)
            if other is not None and other.group != hello.group:
                return (
                    f"handler {one.name} is served here by group {other.group} already (process "
                    f"{other.pid}): stop that worker, start this one with --group {other.group}, "
                    "or let it serve other handlers"
                )
        if len(served.keys() | {one.name for one in hello.handlers}) > HANDLERS_MAX:
            return f"with these there would be more than {HANDLERS_MAX} handlers here"
        return ""

    def paced(self) -> bool:
        """Update the offers after launches have ended; return whether they changed."""
        before = [group.ahead for group in self]
        for group in self:
            group.paced()
        return before != [group.ahead for group in self] and self.changed()

    def changed(self) -> bool:
        """Update the offers after workers came or left; return whether they changed."""
        self._groups = {
            name: group for name, group in self._groups.items() if group.workers or group.opened
        }
        before = self.offers
        self.offers = tuple(
            GroupOffer(group.name, slots, tuple(group.handlers()))
            for group in sorted(self._groups.values(), key=lambda one: one.name)
            if (slots := group.offered(self._waiting_max))
        )
        self.handlers = {name: offer.group for offer in self.offers for name in offer.handlers}
        return self.offers != before


def _wrong(hello: Hello) -> str:
    """Return what is invalid in a Hello itself, or ""."""
    if not _is_word(hello.group, GROUP_CHARS_MAX):
        return f"group {hello.group[:50]!a} is not a name of 1 to {GROUP_CHARS_MAX} visible letters"
    if not hello.handlers:
        return "it serves no handlers"
    for one in hello.handlers:
        if not _is_word(one.name, HANDLER_CHARS_MAX):
            what = f"a name of 1 to {HANDLER_CHARS_MAX} visible letters"
            return f"handler {one.name[:50]!a} is not {what}"
    counts = Counter(one.name for one in hello.handlers)
    if len(counts) < len(hello.handlers):
        return f"handler {counts.most_common(1)[0][0]} is there twice"
    if not 1 <= hello.threads <= WORKER_THREADS_MAX:
        return f"{hello.threads} threads are not between 1 and {WORKER_THREADS_MAX}"
    if not 0 <= hello.buffer <= GROUP_SLOTS_MAX:
        return f"a buffer of {hello.buffer} is not between 0 and {GROUP_SLOTS_MAX}"
    if hello.version < 1:
        return f"version {hello.version} of the protocol is not known here"
    return ""


def _is_word(text: str, chars_max: int) -> bool:
    return len(text) <= chars_max and _WORD.fullmatch(text) is not None

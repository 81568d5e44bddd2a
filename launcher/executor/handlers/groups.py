"""The groups of this host: what they serve, and how many launches they accept.

The processes of one worker command are a group; so are all commands. A handler is in at most one
group of an executor, so that a launch has one place to wait (`waiting.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from launcher.executor.handlers.worker import WorkerProcess
from launcher.executor.refusals import LEASE_OVER, WORKERLESS
from launcher.executor.rules import COMMANDS
from launcher.executor.waiting import AHEAD_US, Group
from launcher.limits import GROUP_SLOTS_MAX, WAITING_BYTES_MAX, WORKER_THREADS_MAX, WORKERS_MAX
from launcher.protocol.limits import GROUP_CHARS_MAX, HANDLER_CHARS_MAX, HANDLERS_MAX
from launcher.protocol.reports import GroupOffer
from launcher.protocol.status import Limiting
from launcher.worker.wire import VERSION, Hello

NOBODY: Final = " "
"""The group of launches whose handler nobody serves any more; no group of workers has this name."""
WORKERLESS_MS: Final = 5_000
"""How long launches wait for a group whose workers are all gone: a parent restarts its children."""
RESUMABLE_MS: Final = 60_000
"""How long launches that had begun wait for a worker that looks up what became of them: a service
that is started anew, or a host that is short of memory, takes some tens of seconds."""
_WORD: Final = re.compile(r"[!-~]+", re.ASCII)


class WorkerGroup(Group):
    """The processes of one worker command. `ahead` is negative until a launch ended."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.workers: dict[int, WorkerProcess] = {}
        self.ahead = -1
        self.left_ms = 0

    def serving(self) -> list[WorkerProcess]:
        """Return the workers that take launches."""
        return [worker for worker in self.workers.values() if worker.is_serving]

    def handlers(self) -> list[str]:
        """Return the handlers that its workers serve now, sorted."""
        return sorted({name for worker in self.serving() for name in worker.served})

    def at_once(self) -> int:
        """Return how many launches run at once: the threads of its workers."""
        return sum(worker.threads for worker in self.serving())

    def memory_limiting(self) -> Limiting:
        """Return how launches are kept within the memory that they declare: what threads of one
        process take cannot be told apart."""
        are_single = all(worker.threads == 1 for worker in self.serving())
        return Limiting.WATCHED if are_single else Limiting.NONE

    def offered(self, waiting_max: int) -> int:
        """Return how many slots it offers, no more than its workers' capacity and `waiting_max`."""
        workers = self.serving()
        if not workers:
            return 0
        threads = self.at_once()
        slots = sum(worker.capacity for worker in workers) + waiting_max
        ahead = self.ahead if self.ahead >= 0 else threads
        return min(slots, GROUP_SLOTS_MAX, threads + ahead)

    def pace(self, now_ms: int) -> None:
        """Offer more or fewer slots if launches have become twice as short or as long."""
        workers = [worker for worker in self.serving() if worker.has_run]
        if workers:
            ahead = sum(one.threads * AHEAD_US // max(one.pace_us, 1) for one in workers)
            self.set_ahead(min(ahead, GROUP_SLOTS_MAX))

    def reason_to_refuse_all(self, now_ms: int, *, is_leased: bool) -> str:
        """Return why all launches that wait here are to be refused, or "". Those that had begun at
        a dead worker may wait on (`awaits_worker`)."""
        if self.serving():
            self.left_ms = 0
        elif not self.left_ms:
            self.left_ms = now_ms
        if not self.waiting:
            return ""
        if not is_leased:
            return LEASE_OVER
        if self.left_ms and now_ms - self.left_ms >= WORKERLESS_MS:
            return WORKERLESS
        return ""

    def awaits_worker(self, now_ms: int) -> bool:
        """Return whether launches that had begun at a dead worker wait on for another one."""
        return now_ms - self.left_ms < RESUMABLE_MS


class Groups:
    """All groups of this executor, by name. `waiting_max` launches may wait for each, beyond those
    that its workers hold. `commands` is the group of commands."""

    def __init__(self, waiting_max: int, commands: Group) -> None:
        self._waiting_max = waiting_max
        self.commands = commands
        self._groups: dict[str, WorkerGroup] = {}
        self.offers: tuple[GroupOffer, ...] = ()
        self.handlers: Mapping[str, str] = {"": COMMANDS}

    def __iter__(self) -> Iterator[Group]:
        return iter([self.commands, *self._groups.values()])

    def of(self, name: str) -> Group:
        """Return the group `name`, a new one if there is none."""
        if name == COMMANDS:
            return self.commands
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = WorkerGroup(name)
        return group

    def workers(self) -> list[WorkerProcess]:
        """Return all workers that said Hello and are not known to be dead."""
        return [worker for group in self._groups.values() for worker in group.workers.values()]

    def add(self, worker: WorkerProcess) -> None:
        """Add a worker to its group."""
        group = self._groups.setdefault(worker.group, WorkerGroup(worker.group))
        group.workers[worker.pid] = worker

    def remove(self, worker: WorkerProcess) -> bool:
        """Forget a worker; return whether it was here."""
        group = self._groups.get(worker.group)
        return group is not None and group.workers.pop(worker.pid, None) is worker

    def room(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return how many more launches each group accepts, and how many of those would get a slot
        at once."""
        free: dict[str, int] = {}
        idle: dict[str, int] = {}
        waiting_bytes = 0
        for group in self:
            waiting_bytes += group.buffer.payload_bytes + group.ready.payload_bytes
            takers = group.serving()
            slots = sum(taker.capacity for taker in takers) + self._waiting_max
            free[group.name] = max(0, min(slots, GROUP_SLOTS_MAX) - group.opened) if takers else 0
            idle[group.name] = sum(max(0, taker.room()) for taker in takers) - group.waiting
        if waiting_bytes >= WAITING_BYTES_MAX:  # commands have no payloads
            free = {name: count if name == COMMANDS else 0 for name, count in free.items()}
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

    def paced(self, now_ms: int) -> bool:
        """Update the offers after launches have ended; return whether they changed."""
        before = [group.ahead for group in self]
        for group in self:
            if group.serving():
                group.pace(now_ms)
        return before != [group.ahead for group in self] and self.changed()

    def changed(self) -> bool:
        """Update the offers; return whether they changed. An offer without handlers is that of
        commands, which may wait beyond the slots that the leader knows."""
        self._groups = {
            name: group for name, group in self._groups.items() if group.workers or group.opened
        }
        before = self.offers
        self.offers = tuple(
            GroupOffer(
                group.name,
                slots,
                tuple(group.handlers()),
                min(group.at_once(), slots),
                group.memory_limiting(),
            )
            for group in sorted(self, key=lambda one: one.name)
            if (slots := group.offered(self._waiting_max))
        )
        served = {name: offer.group for offer in self.offers for name in offer.handlers}
        self.handlers = {"": COMMANDS, **served}
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
    if hello.version != VERSION:
        text = f"it speaks version {hello.version} of the protocol, this executor speaks {VERSION}"
        return f"{text}: let both be of one release"
    return ""


def _is_word(text: str, chars_max: int) -> bool:
    return len(text) <= chars_max and _WORD.fullmatch(text) is not None

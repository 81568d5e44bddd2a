"""The launches of an executor: each waits, is at a worker or the spawner, or has an end that is
being recorded.

All moves between these states are here, but for the events of the spawner
(`commands/running.py`). A worker reports that a launch begins, and later how it ended; a launch
that was not reported to have begun goes to another worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

from launcher.clock import boot_ms, wall_ms
from launcher.executor.attempt import Attempt
from launcher.executor.handlers.groups import NOBODY, Groups
from launcher.executor.handlers.worker import WorkerProcess
from launcher.executor.lease import Lease
from launcher.executor.outputs import Kept, OutputWriter
from launcher.executor.refusals import KILLED, LATE, LEASE_OVER, RETURNED, STOPPING, TWICE
from launcher.executor.rows import ACCEPTED, ENDED, INTERRUPTED
from launcher.executor.waiting import Group
from launcher.protocol.status import Reason
from launcher.worker.wire import Ends

RETURNS_MAX: Final = 3
"""A launch that workers gave back so often is refused on this host."""
RESUMES_MAX: Final = 20
"""A launch whose workers died so often while they looked it up is lost."""
_GROUP: Final = attrgetter("group")


class Launches:
    """The launches of one executor, by name.

    `report` gets attempts that have begun or are over. `record` gets those that need a start
    record; `may_start` is called once that is durable.
    """

    def __init__(
        self,
        groups: Groups,
        lease: Lease,
        writer: OutputWriter,
        report: Callable[[Sequence[Attempt]], None],
        record: Callable[[list[Attempt]], None],
    ) -> None:
        self.groups = groups
        self.is_stopping = False
        self._lease = lease
        self._writer = writer
        self._report = report
        self._record = record
        self._here: dict[str, Attempt] = {}

    def __len__(self) -> int:
        """Return how many wait, run, or have an end that is not recorded."""
        return len(self._here)

    def __contains__(self, name: object) -> bool:
        return name in self._here

    def __iter__(self) -> Iterator[str]:
        return iter(self._here)

    # ---- coming

    def accept(self, some: Iterable[Attempt]) -> None:
        """Accept launches whose rows are in the journal."""
        groups: dict[str, tuple[Group, list[Attempt]]] = {}
        here, handlers = self._here, self.groups.handlers
        for attempt in some:
            if attempt.name in here:
                attempt.refuse(TWICE)
                self._report((attempt,))
                continue
            here[attempt.name] = attempt
            # Its worker may have left within this turn; the launch waits a while for its return.
            name = handlers.get(attempt.spec.handler, NOBODY)
            if name not in groups:
                groups[name] = self.groups.of(name), []
            group, fresh = groups[name]
            attempt.group = name
            group.opened += 1
            if attempt.is_starting:
                fresh.append(attempt)
            else:
                group.buffer.put(attempt)
        for group, fresh in groups.values():
            self._give_fresh(group, fresh)

    def may_start(self, some: Iterable[Attempt]) -> None:
        """Give launches their slots: their start records are durable."""
        groups: dict[str, list[Attempt]] = {}
        for attempt in some:
            if self.groups.of(attempt.group).starting.pop(attempt.name, None) is not None:
                groups.setdefault(attempt.group, []).append(attempt)
        for name, fresh in groups.items():
            self._give_fresh(self.groups.of(name), fresh)

    def _give_fresh(self, group: Group, fresh: list[Attempt]) -> None:
        """Give launches that have just become ready to workers, or to the spawner; at once, if each
        finds a slot and nothing waits before them."""
        takers = [] if self.is_stopping or len(group.ready) else group.serving()
        workers = sorted(takers, key=lambda worker: -worker.room())
        rooms = [max(0, worker.room()) for worker in workers]
        now_wall_ms, handlers = wall_ms(), {one.spec.handler for one in fresh}
        if (
            sum(rooms) >= len(fresh)
            and self._lease.valid(boot_ms())
            and min((one.not_after_ms for one in fresh), default=now_wall_ms) >= now_wall_ms
            and all(handlers.issubset(one.served) for one in workers)
        ):
            for at, (room, worker) in enumerate(zip(rooms, workers, strict=True)):
                share = min(room, -(-len(fresh) // (len(workers) - at)))
                if share:
                    worker.give(fresh[:share])
                    fresh = fresh[share:]
        for attempt in fresh:
            group.ready.put(attempt)
        if self.is_stopping:
            self.refuse_all(group, STOPPING)
        self.dispatch(group)

    def dispatch(self, group: Group) -> None:
        """Give ready launches to what has room, to each its share. For as many waiting launches as
        there is room left, request start records."""
        if not group.waiting or not self._lease.valid(boot_ms()):
            return
        self.refuse_late(group, wall_ms())
        workers = [(room, worker) for worker in group.serving() if (room := worker.room()) > 0]
        workers.sort(key=lambda one: -one[0])
        left = 0
        for at, (room, worker) in enumerate(workers):
            share = -(-len(group.ready) // (len(workers) - at))
            some = group.ready.take(min(room, share), worker.served) if share else []
            if some:
                worker.give(some)
            left += room - len(some)
        left -= len(group.starting)
        if left > 0 and len(group.buffer):
            served = {name for _, worker in workers if worker.room() > 0 for name in worker.served}
            if fresh := group.buffer.take(left, served):
                group.starting.update((attempt.name, attempt) for attempt in fresh)
                self._record(fresh)

    def begin(
        self, worker: WorkerProcess, numbers: Iterable[int], now_ms: int, now_wall_ms: int
    ) -> int:
        """Record that a worker begins tasks; return the number of one that it lacks, or 0."""
        given, fresh, stranger = worker.given, list[Attempt](), 0
        for number in numbers:
            attempt = given.get(number)
            if attempt is None:
                stranger = number
            elif not attempt.began_ms:
                attempt.begin(now_ms, now_wall_ms)
                fresh.append(attempt)
        if fresh:
            worker.begun += len(fresh)
            worker.note_alone()
            self._report(fresh)
        return stranger

    # ---- going

    def recorded(self, some: Iterable[Attempt]) -> None:
        """Forget launches whose ends are in the journal."""
        here = self._here
        gone = [attempt for attempt in some if here.get(attempt.name) is attempt]
        for attempt in gone:
            del here[attempt.name]
        for name, count in Counter(map(_GROUP, gone)).items():
            self.groups.of(name).opened -= count

    def done(self, worker: WorkerProcess, ends: Iterable[Ends], now_wall_ms: int) -> int:
        """Record how tasks of a worker ended; return the number of one that it lacks, or 0."""
        given, over, stranger = worker.given, list[Attempt](), 0
        for how in ends:
            for number, started_ms, finished_ms in how.tasks:
                attempt = given.get(number)
                if attempt is None:
                    stranger = number
                elif started_ms:
                    worker.take_back(attempt)
                    attempt.end(how, started_ms, finished_ms, now_wall_ms)
                    over.append(attempt)
                else:
                    attempt.returns += 1
                    self.give_back(worker, [attempt])
        worker.ran(over)
        worker.note_alone()
        self.end(over)
        return stranger

    def end(self, some: Iterable[Attempt]) -> None:
        """Report the ends of launches that had begun and that no worker has; the end of one with
        output is reported once that is on the disk."""
        at_once: list[Attempt] = []
        for attempt in some:
            if attempt.has_output:
                self._writer.close(attempt.name, partial(self._closed, attempt))
            else:
                attempt.status = INTERRUPTED if attempt.is_lost else ENDED
                at_once.append(attempt)
        if at_once:
            self._report(at_once)

    def _closed(self, attempt: Attempt, kept: Kept) -> None:
        attempt.output_bytes = kept.size
        attempt.detail = attempt.detail or kept.problem
        attempt.status = INTERRUPTED if attempt.is_lost else ENDED
        self._report((attempt,))

    def give_back(self, worker: WorkerProcess, some: Sequence[Attempt]) -> None:
        """Let launches that a worker had and did not begin wait again, before all others; or refuse
        those that shall end anyway."""
        again: list[Attempt] = []
        for attempt in some:
            if not worker.take_back(attempt):
                continue  # it gives back twice what it had once
            stopping = attempt.stopping
            attempt.rewind()
            if self.is_stopping:
                self._refuse(attempt, STOPPING, Reason.EXECUTOR_LOST)
            elif stopping is Reason.DEADLINE:
                self._refuse(attempt, LATE, stopping)
            elif stopping is Reason.EXECUTOR_LOST:
                self._refuse(attempt, LEASE_OVER, stopping)
            elif stopping is not Reason.NONE:
                self._refuse(attempt, KILLED, stopping)
            elif attempt.returns >= RETURNS_MAX or attempt.resumes > RESUMES_MAX:
                self._refuse(attempt, RETURNED, Reason.WORKER_DIED)
            else:
                again.append(attempt)
        self.groups.of(worker.group).ready.put_back(again)

    def withdraw(self, name: str, detail: str, reason: Reason) -> bool:
        """Refuse a launch if it still waits; return whether it did."""
        attempt = self._here.get(name)
        if attempt is None:
            return False
        group = self.groups.of(attempt.group)
        waits = group.buffer.remove(attempt) or group.ready.remove(attempt)
        if waits or group.starting.pop(name, None) is not None:
            self._refuse(attempt, detail, reason)
            return True
        return False

    def holder(self, name: str) -> tuple[WorkerProcess, Attempt] | None:
        """Return a launch and the worker that has it; None if no worker does."""
        attempt = self._here.get(name)
        if attempt is not None:
            for worker in self.groups.workers():
                if worker.given.get(attempt.number) is attempt:
                    return worker, attempt
        return None

    def refuse_all(self, group: Group, detail: str, *, but_begun: bool = False) -> None:
        """Refuse all launches that wait for a group. With `but_begun`, those that had begun at a
        dead worker wait on for another one."""
        starting = list(group.starting.values())
        group.starting.clear()
        begun: list[Attempt] = []
        for attempt in (*group.ready.clear(), *starting, *group.buffer.clear()):
            if but_begun and attempt.resumes:
                begun.append(attempt)
            else:
                self._refuse(attempt, detail, Reason.EXECUTOR_LOST)
        group.ready.put_back(begun)

    def refuse_late(self, group: Group, now_wall_ms: int) -> None:
        """Refuse launches that should have begun by now."""
        for attempt in (*group.ready.late(now_wall_ms), *group.buffer.late(now_wall_ms)):
            self._refuse(attempt, LATE, Reason.DEADLINE)

    def _refuse(self, attempt: Attempt, detail: str, reason: Reason) -> None:
        """Refuse a launch that has not begun; if it was reported to have begun, end it; if it had
        begun, it is lost."""
        if attempt.resumes and attempt.status == ACCEPTED:
            attempt.lose(f"its worker died, and no other looked it up: {detail}", wall_ms())
            self.end([attempt])
            return
        if attempt.was_announced and attempt.status == ACCEPTED:
            attempt.stopping = reason
            attempt.die(reason, detail, wall_ms())
            attempt.status = ENDED
        else:
            attempt.refuse(detail)
        self._report((attempt,))

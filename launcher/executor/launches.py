"""Where each launch of a handler is: it waits, a worker has it, or its end is being recorded.

All moves between these are here. Of each launch a worker says that it begins, and later how it
ended; what it never said to have begun goes to another. A slot is taken from the row in the ledger
until the end is recorded there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from launcher.executor.buffer import Waiting
from launcher.executor.clock import boot_ms, wall_ms
from launcher.executor.lease import Lease
from launcher.executor.offers import Group, Groups
from launcher.executor.rules import LEASE_OVER, Accepted
from launcher.executor.scribe import Kept, Scribe
from launcher.executor.watches import Ending, Watch, ending
from launcher.executor.worker import Worker, waiting_of
from launcher.launch import Reason
from launcher.names import BadName
from launcher.worker.wire import Outcome

News = list[Any]

RETURNS_MAX: Final = 3
"""A launch that workers gave back so often is begun by none of this host."""
STOPPING: Final = "the executor is stopping"
KILLED: Final = "killed before it was started"
LATE: Final = "not started in time"


class Launches:
    """The launches of one executor's handlers, by name. `hear` gets what became of them, `record`
    the names of those that need a start record: `may_start` once it is on the disk."""

    def __init__(
        self,
        groups: Groups,
        lease: Lease,
        scribe: Scribe,
        hear: Callable[[list[News]], None],
        record: Callable[[list[str]], None],
    ) -> None:
        self.groups = groups
        self.is_stopping = False
        self._lease = lease
        self._scribe = scribe
        self._hear = hear
        self._record = record
        self._homes: dict[str, Group] = {}
        self._holders: dict[str, Worker] = {}
        self._news: list[News] = []

    def __len__(self) -> int:
        """How many wait, run, or have an end that is not recorded."""
        return len(self._homes)

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def flush(self) -> None:
        """Tell what has become of launches since the last call."""
        if self._news:
            news, self._news = self._news, []
            self._hear(news)

    # ---- coming

    def accept(self, some: Iterable[Accepted]) -> None:
        """Take launches whose rows are in the ledger."""
        groups: dict[str, Group] = {}
        for accepted in some:
            name = accepted.start.name
            # Who served it may have left within this turn; it waits a while for that to return.
            group = self.groups.of(self.groups.handlers.get(accepted.work.handler, ""))
            group.opened += 1
            self._homes[name] = group
            try:
                place = group.ready if accepted.is_starting else group.buffer
                place.put(waiting_of(accepted))
            except BadName as error:
                self._news.append(["refused", name, str(error)])
            groups[group.name] = group
        for group in groups.values():
            if self.is_stopping:
                self.refuse_all(group, STOPPING)
            self.dispatch(group)

    def dispatch(self, group: Group) -> None:
        """Give what is ready to workers with room, to each its share; for as much of what waits as
        there is room left for, have start records written."""
        if not group.waiting or not self._lease.valid(boot_ms()):
            return
        self.refuse_late(group, wall_ms())
        workers = [worker for worker in group.serving() if worker.room > 0]
        workers.sort(key=lambda worker: -worker.room)
        for at, worker in enumerate(workers):
            share = -(-len(group.ready) // (len(workers) - at))
            if some := group.ready.take(min(worker.room, share), worker.served):
                worker.give(some)
                self._holders.update((waiting.name, worker) for waiting in some)
        room = group.room - len(group.starting)
        if room > 0 and len(group.buffer):
            served = {name for worker in workers if worker.room > 0 for name in worker.served}
            fresh = {waiting.name: waiting for waiting in group.buffer.take(room, served)}
            if fresh:
                group.starting.update(fresh)
                self._record(list(fresh))

    def may_start(self, names: Iterable[str]) -> None:
        """The start records of launches are on the disk: give them to workers."""
        groups: dict[str, Group] = {}
        for name in names:
            group = self._homes.get(name)
            waiting = group.starting.pop(name, None) if group is not None else None
            if group is not None and waiting is not None:
                group.ready.put(waiting)
                groups[group.name] = group
        for group in groups.values():
            self.dispatch(group)

    def begin(self, worker: Worker, name: str, now_ms: int, now_wall_ms: int) -> bool:
        """A worker begins with a launch; return whether it has that one."""
        if worker.begin(name, now_ms, now_wall_ms):
            self._news.append(["started", name, 0, 0, now_wall_ms])
        return name in worker.given

    # ---- going

    def recorded(self, name: str) -> None:
        """Its end is in the ledger: the slot is free."""
        group = self._homes.pop(name, None)
        if group is not None:
            group.opened -= 1

    def done(self, worker: Worker, outcome: Outcome, now_wall_ms: int) -> bool:
        """A worker says how a launch ended; return whether it had that one."""
        watch = worker.given.get(outcome.name)
        if watch is None:
            return False
        if outcome.started_ms:
            end = ending(watch, outcome, now_wall_ms)
            worker.ran(end.finished_ms - end.started_ms)
            self.end(worker, end)
        else:
            watch.waiting.returns += 1
            self.give_back(worker, [watch])
        return True

    def end(self, worker: Worker, end: Ending) -> None:
        """What had begun is over; that is told once its output is on the disk."""
        watch = worker.take_back(end.name)
        self._holders.pop(end.name, None)
        if watch is None or not watch.has_output:
            self._news.append(end.news(0, ""))
            return

        def closed(kept: Kept) -> None:
            self._news.append(end.news(kept.size, kept.problem))
            self.flush()

        self._scribe.close(end.name, closed)

    def give_back(self, worker: Worker, watches: Sequence[Watch]) -> None:
        """Let launches wait again that a worker had and did not begin, before all others; or refuse
        them, where they were to end anyway."""
        again: list[Waiting] = []
        for watch in watches:
            waiting = watch.waiting
            if worker.take_back(waiting.name) is None:
                continue  # it gives back twice what it had once
            self._holders.pop(waiting.name, None)
            waiting.was_announced = waiting.was_announced or watch.began_ms > 0
            if self.is_stopping:
                self._refuse(waiting, STOPPING, Reason.EXECUTOR_LOST)
            elif watch.reason is Reason.DEADLINE:
                self._refuse(waiting, LATE, watch.reason)
            elif watch.reason is Reason.EXECUTOR_LOST:
                self._refuse(waiting, LEASE_OVER, watch.reason)
            elif watch.reason is not Reason.NONE:
                self._refuse(waiting, KILLED, watch.reason)
            elif waiting.returns >= RETURNS_MAX:
                self._refuse(waiting, "no worker here begins with it", Reason.WORKER_DIED)
            else:
                again.append(waiting)
        self.groups.of(worker.group).ready.put_back(again)

    def withdraw(self, name: str, detail: str, reason: Reason) -> bool:
        """Refuse a launch if it still waits here; return whether it did."""
        group = self._homes.get(name)
        waiting = None
        if group is not None:
            waiting = group.buffer.remove(name) or group.ready.remove(name)
            waiting = waiting or group.starting.pop(name, None)
        if waiting is not None:
            self._refuse(waiting, detail, reason)
        return waiting is not None

    def holder(self, name: str) -> Worker | None:
        """Return the worker that has a launch."""
        return self._holders.get(name)

    def refuse_all(self, group: Group, detail: str) -> None:
        """Refuse all that waits for a group."""
        starting = list(group.starting.values())
        group.starting.clear()
        for waiting in (*group.ready.clear(), *starting, *group.buffer.clear()):
            self._refuse(waiting, detail, Reason.EXECUTOR_LOST)

    def refuse_late(self, group: Group, now_wall_ms: int) -> None:
        """Refuse what should have begun by now."""
        for waiting in (*group.ready.late(now_wall_ms), *group.buffer.late(now_wall_ms)):
            self._refuse(waiting, LATE, Reason.DEADLINE)

    def _refuse(self, waiting: Waiting, detail: str, reason: Reason) -> None:
        """It has not begun, and will not here. Where the leader was told that it had, it ends."""
        if waiting.was_announced:
            now_ms = wall_ms()
            self._news.append(Ending(waiting.name, reason, detail, now_ms, now_ms).news(0, ""))
        else:
            self._news.append(["refused", waiting.name, detail])

"""The workers of this host: accepted, given launches, watched, and killed if need be.

Theory of operation. Everything happens on the loop's thread. Changes that the journal must have
before they take effect go to the `Listener`, which writes them in turns: a worker is given nothing
before the journal has it. A launch that shall end is cancelled first; then its process is killed.
What ran there is over only once that process is known to be dead and its socket is read to the end.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

from launcher import logs
from launcher.clock import boot_ms, until_step_s, wall_ms
from launcher.config import ExecutorConfig
from launcher.executor.attempt import ANSWER_MS, Attempt, Step
from launcher.executor.handlers import memory
from launcher.executor.handlers.connection import Peer, WorkerConnection
from launcher.executor.handlers.grants import WorkerGrants
from launcher.executor.handlers.groups import Groups
from launcher.executor.handlers.listener import WorkerListener
from launcher.executor.handlers.worker import CUT, Deaths, WorkerProcess
from launcher.executor.launches import Launches
from launcher.executor.lease import Lease
from launcher.executor.outputs import Outputs, OutputWriter
from launcher.executor.refusals import KILLED, LEASE_OVER, STOPPING
from launcher.executor.waiting import Group
from launcher.limits import PIECE_BYTES_PENDING_MAX, WORKERS_MAX
from launcher.protocol.status import Reason
from launcher.worker import wire

log = logs.get()

HELLO_WITHIN_S: Final = 10.0
TICK_MS: Final = 100
IDLE_TICK_MS: Final = 500
"""Between two looks at deadlines where nothing runs and no worker has a bound of memory."""
FLOOD_PAUSE_S: Final = 0.01


class Listener(Protocol):
    """The executor's loop, which writes changes to the journal in turns."""

    @property
    def is_gathering(self) -> bool:
        """Whether the next turn was put off. It calls `Workers.read` first."""

    def changed(self, attempts: Iterable[Attempt]) -> None:
        """Record attempts that have begun, or are over."""

    def came(self, pid: int, ticks: int) -> None:
        """Record a worker, and call `Workers.enlisted` once the journal has it."""

    def went(self, pid: int) -> None:
        """Record that a worker is gone, and all that it ran is over."""

    def starting(self, some: list[Attempt]) -> None:
        """Write start records, and call `Launches.may_start` once the journal has them."""

    def offered(self) -> None:
        """Send the changed `Groups.offers` to the leader."""


SILENT: Final = (
    "it said nothing for {:g} s: it is stopped, or a handler holds the interpreter's lock"
)


class Workers:
    """All workers of one executor, and the launches that wait for them or for the spawner."""

    def __init__(
        self,
        config: ExecutorConfig,
        outputs: Outputs,
        lease: Lease,
        listener: Listener,
        commands: Group,
    ) -> None:
        self._config = config
        self._lease = lease
        self._listener = listener
        self.groups = Groups(config.worker_buffer, commands)
        self._writer = OutputWriter(outputs, config.output_bytes_max)
        self.launches = Launches(
            self.groups, lease, self._writer, listener.changed, listener.starting
        )
        self._deaths = Deaths()
        self.grants = WorkerGrants(config.worker)
        self._unread: list[WorkerProcess] = []
        """Workers that are not read from until the next turn or look."""
        self.visitors: set[Visitor] = set()
        """Connections that have not sent their Hello yet."""
        self._noted = ""
        self._worker_listener: WorkerListener | None = None

    # ---- what the executor asks for

    def open(self) -> None:
        """Listen for workers.

        Raises:
            BadConfig: there can be no socket.
        """
        if self._config.workers:
            directory = Path(self._config.data)
            self._worker_listener = WorkerListener(
                directory, self._config.workers_group, self._enter
            )

    def _enter(self, end: socket.socket) -> None:
        """Wait for the Hello of a new connection."""
        problem = f"{len(self.visitors)} connections wait to say hello already"
        if len(self.visitors) < WORKERS_MAX:
            try:
                Visitor(self, end, Peer(end))
            except OSError as error:
                problem = f"it cannot be watched: {error}"
            else:
                return
        self.note_refusal(0, problem)
        end.close()

    def note_refusal(self, pid: int, text: str) -> None:
        """Log a refusal that a person has to end, once: a worker tries again and again."""
        if text != self._noted:
            self._noted = text
            log.warning("worker.refused", pid=pid, error=text)

    def kill(self, name: str, reason: Reason) -> bool:
        """End a launch; return whether it waited, or a worker has it."""
        if self.launches.withdraw(name, KILLED, reason):
            return True
        found = self.launches.holder(name)
        if found is not None:
            worker, attempt = found
            self._order(worker, [attempt], reason, self._config.term_grace_ms)
        return found is not None

    def renewed(self) -> None:
        """Send the renewed lease to all workers."""
        for worker in self.groups.workers():
            worker.lease(self._lease.until_ms)
        for group in self.groups:
            self.launches.dispatch(group)

    def enlisted(self, pids: Iterable[int]) -> None:
        """Let workers serve from now on: the journal has them."""
        wanted = set(pids)
        for worker in self.groups.workers():
            if worker.pid in wanted and not worker.is_enlisted:
                worker.is_enlisted = True
                welcome = wire.Welcome(self._lease.until_ms, executor=self._config.id)
                worker.connection.send(welcome)
                log.info("worker.joined", pid=worker.pid, group=worker.group)
                self._reoffer()
                self.launches.dispatch(self.groups.of(worker.group))

    # ---- life

    async def run(self) -> None:
        """Check everything that has a deadline, for ever."""
        while True:
            is_watched = self.launches or any(one.memory_max_bytes for one in self.groups.workers())
            await asyncio.sleep(until_step_s(TICK_MS if is_watched else IDLE_TICK_MS))
            self.tick()

    async def watch_memory(self) -> None:
        """Hold workers within the memory that their launches declare, for ever."""
        await memory.watch(self.groups.workers, self._kill)

    def drain(self, grace_ms: int) -> None:
        """End all launches: those that wait are refused, those that run are cancelled, and killed
        with their process after `grace_ms`."""
        self._close_worker_listener()
        for group in self.groups:
            self.launches.refuse_all(group, STOPPING)
        for worker in self.groups.workers():
            worker.connection.send(wire.Drain())
            self._order(worker, worker.given.values(), Reason.EXECUTOR_LOST, grace_ms)

    async def stop(self) -> None:
        """Close all connections, upon which the workers end; kill those that have launches."""
        self._close_worker_listener()
        for worker in self.groups.workers():
            if worker.given:
                self._kill(worker, STOPPING)
            worker.connection.close()
            if self.groups.remove(worker):
                self._unwatch(worker)
        await asyncio.to_thread(self._writer.stop)

    def _close_worker_listener(self) -> None:
        self.launches.is_stopping = True
        if self._worker_listener is not None:
            self._worker_listener.close()
        for visitor in list(self.visitors):
            visitor.connection.close()

    # ---- workers that come and go

    def refusal(self, hello: wire.Hello, peer: Peer) -> str:
        """Return why a worker with this Hello is refused, or "" if it is accepted."""
        if self.launches.is_stopping:
            return STOPPING
        return self.groups.refusal(hello, peer.pid) or self.grants.refusal(hello, peer)

    def join(self, worker: WorkerProcess) -> None:
        """Accept a worker; it gets launches once the journal has it."""
        self.groups.add(worker)
        asyncio.get_running_loop().add_reader(worker.peer.pidfd, self._died, worker)
        self._listener.came(worker.pid, worker.ticks)

    def over(self, worker: WorkerProcess, blame: str) -> None:
        """Act on the end of a worker's connection. What it runs is over only when it is dead."""
        if blame:
            log.warning("worker.refused", pid=worker.pid, error=blame)
            worker.is_garbled = True
            self._kill(worker, blame)
        elif worker.given:
            worker.killed_for = worker.killed_for or CUT
            worker.peer.kill()
            self._reoffer()
        else:
            self._bury(worker)

    def _died(self, worker: WorkerProcess) -> None:
        if worker.killed_for in ("", CUT):
            worker.killed_for = self._deaths.cause(worker, worker.killed_for)
        worker.peer.kill()  # the processes of its group may outlive it
        worker.connection.read_rest()
        self._bury(worker)

    def _bury(self, worker: WorkerProcess) -> None:
        """Forget a worker that is dead, or has nothing: what it ran is over, and what it had not
        begun waits again; so does what another worker can look up."""
        if not self.groups.remove(worker):
            return
        self._unwatch(worker)
        unbegun, over = list[Attempt](), list[Attempt]()
        now_wall_ms = wall_ms()
        detail = f"its worker, process {worker.pid}, is dead: {worker.killed_for}"
        for attempt in list(worker.given.values()):
            if not (attempt.began_ms or worker.is_garbled):
                unbegun.append(attempt)
            elif worker.served[attempt.spec.handler].resumes:
                attempt.resumes += 1
                unbegun.append(attempt)
            else:
                worker.take_back(attempt)
                attempt.die(Reason.WORKER_DIED, detail, now_wall_ms)
                over.append(attempt)
        self.launches.end(over)
        self.launches.give_back(worker, unbegun)
        log.info("worker.left", pid=worker.pid, group=worker.group, error=worker.killed_for)
        self._listener.went(worker.pid)
        self._reoffer()
        self.launches.dispatch(self.groups.of(worker.group))

    def _unwatch(self, worker: WorkerProcess) -> None:
        asyncio.get_running_loop().remove_reader(worker.peer.pidfd)
        worker.peer.close()

    # ---- messages of workers

    def receive(self, worker: WorkerProcess, messages: Sequence[wire.FromChild]) -> None:
        """Act on the messages of a worker."""
        worker.silent_ms = 0
        stranger = 0
        for message in messages:
            match message:
                case wire.Done(ends):
                    stranger = self.launches.done(worker, ends, wall_ms())
                case wire.Started(numbers):
                    stranger = self.launches.begin(worker, numbers, boot_ms(), wall_ms())
                case wire.Beat(numbers):
                    now_ms = boot_ms()
                    for number in numbers:
                        # A launch that has just ended may have beaten before: no mistake.
                        if (attempt := worker.given.get(number)) is not None:
                            attempt.beat(now_ms)
                case wire.Output(number, piece):
                    stranger = self._write_output(worker, number, piece)
                case wire.Leaving(numbers):
                    worker.is_leaving = True
                    given = worker.given
                    returned = [given[number] for number in numbers if number in given]
                    self.launches.give_back(worker, returned)
                    self._reoffer()
            if stranger and not worker.is_confused:
                worker.is_confused = True
                error = f"it speaks of task {stranger}, which it does not have"
                log.warning("worker.ignored", pid=worker.pid, error=error)
        group = self.groups.of(worker.group)
        self.launches.dispatch(group)
        if self._listener.is_gathering and not group.waiting:
            # What it says until the turn costs no wake-up: nobody waits for it.
            worker.connection.pause()
            self._unread.append(worker)

    def read(self) -> None:
        """Read what workers have sent since they were paused."""
        some, self._unread = self._unread, []
        for worker in some:
            if worker.unwritten_bytes <= PIECE_BYTES_PENDING_MAX:
                worker.connection.resume()

    def _write_output(self, worker: WorkerProcess, number: int, piece: bytes) -> int:
        """Write output of a task; return its number if the worker does not run it, else 0."""
        attempt, size = worker.given.get(number), len(piece)
        if attempt is None or not attempt.began_ms:
            return number

        def written() -> None:
            worker.unwritten_bytes -= size
            if worker.unwritten_bytes <= PIECE_BYTES_PENDING_MAX:
                resume = worker.connection.resume
                asyncio.get_running_loop().call_later(FLOOD_PAUSE_S, resume)

        attempt.has_output = True
        worker.unwritten_bytes += size
        if worker.unwritten_bytes > PIECE_BYTES_PENDING_MAX:
            worker.connection.pause()
        self._writer.write(attempt.name, piece, written)
        return 0

    # ---- what is done with them

    def _order(
        self, worker: WorkerProcess, some: Iterable[Attempt], reason: Reason, grace_ms: int
    ) -> None:
        """End launches: the worker is asked to, and killed after the grace."""
        now_ms, asked = boot_ms(), []
        for attempt in some:
            is_urgent = attempt.began_ms or self.launches.is_stopping
            if attempt.order(reason, now_ms, grace_ms if is_urgent else ANSWER_MS):
                asked.append((attempt.number, int(reason)))
        if asked:
            worker.connection.send(wire.Cancel(asked))

    def _kill(self, worker: WorkerProcess, why: str) -> None:
        if worker.killed_for:
            return
        worker.killed_for = why
        if worker.peer.kill():
            log.warning("worker.killed", pid=worker.pid, group=worker.group, error=why)
        else:
            error = f"it may not be killed by this user, and is waited for: {why}"
            hint = "run workers as the executor's user, or the executor as root"
            log.error("worker.survives", pid=worker.pid, error=error, hint=hint)
        self._reoffer()

    def _reoffer(self) -> None:
        if self.groups.changed():
            self._listener.offered()

    # ---- deadlines

    def tick(self) -> None:
        """Check everything that has a deadline, once."""
        self.read()  # a turn may take long: what a worker said meanwhile counts
        now_ms, now_wall_ms = boot_ms(), wall_ms()
        is_leased = self._lease.valid(now_ms)
        for group in self.groups:
            self.launches.refuse_late(group, now_wall_ms)
            if detail := group.reason_to_refuse_all(now_ms, is_leased=is_leased):
                but_begun = is_leased and group.awaits_worker(now_ms)
                self.launches.refuse_all(group, detail, but_begun=but_begun)
            self.launches.dispatch(group)
        for worker in self.groups.workers():
            if not worker.killed_for:
                self._look(worker, now_ms, now_wall_ms)
                if not is_leased:
                    self._end_lease(worker)
        for worker, why in self._deaths.excess(self.groups.workers(), now_ms):
            self._kill(worker, why)
        if self.groups.paced(now_ms):
            self._listener.offered()

    def _look(self, worker: WorkerProcess, now_ms: int, now_wall_ms: int) -> None:
        if worker.look(now_ms, self._config.worker_silence_ms):
            for attempt in worker.given.values():
                if attempt.began_ms:
                    attempt.stopping = attempt.stopping or Reason.SILENT
            self._kill(worker, SILENT.format(self._config.worker_silence_ms / 1000))
            return
        late: list[Attempt] = []
        for attempt in worker.given.values():
            step = attempt.look(now_ms, self._config.term_grace_ms)
            if step is Step.KILL:
                self._kill(worker, f"{attempt.name} did not end when it was told to")
                return
            if step is Step.ASK:
                worker.connection.send(wire.Cancel([(attempt.number, int(attempt.stopping))]))
            elif attempt.is_late(now_wall_ms):
                late.append(attempt)
        self._order(worker, late, Reason.DEADLINE, ANSWER_MS)

    def _end_lease(self, worker: WorkerProcess) -> None:
        """Kill a worker with guarded launches after the lease ended (rule R6). Its own watchdog and
        its parent should have done so before."""
        guarded = [attempt for attempt in worker.given.values() if attempt.spec.guarded]
        for attempt in guarded:
            attempt.stopping = attempt.stopping or Reason.EXECUTOR_LOST
        if guarded:
            self._kill(worker, LEASE_OVER)
            return
        unbegun = [attempt for attempt in worker.given.values() if not attempt.began_ms]
        self._order(worker, unbegun, Reason.EXECUTOR_LOST, ANSWER_MS)


class Visitor:
    """One connection, before and after its Hello. `workers` gets its worker and its messages."""

    def __init__(self, workers: Workers, end: socket.socket, peer: Peer) -> None:
        self._workers = workers
        self._peer = peer
        self._worker: WorkerProcess | None = None
        self.connection = WorkerConnection(end, self._receive, self._over)
        loop = asyncio.get_running_loop()
        close = self.connection.close
        self._timer = loop.call_later(HELLO_WITHIN_S, close, "it did not say hello")
        workers.visitors.add(self)

    def _receive(self, messages: list[wire.FromChild]) -> None:
        if self._worker is None:
            first, messages = messages[0], messages[1:]
            if not isinstance(first, wire.Hello):
                self.connection.close("its first message is no hello")
                return
            if refusal := self._workers.refusal(first, self._peer):
                self.connection.close(refusal)
                return
            self._leave()
            self._worker = WorkerProcess(first, self._peer, self.connection)
            self._workers.join(self._worker)
        if any(isinstance(one, wire.Hello) for one in messages):
            self.connection.close("it said hello twice")
        elif messages:
            self._workers.receive(self._worker, messages)

    def _over(self, blame: str) -> None:
        if self._worker is not None:
            self._workers.over(self._worker, blame)
            return
        if blame:
            self._workers.note_refusal(self._peer.pid, blame)
        self._leave()
        self._peer.close()

    def _leave(self) -> None:
        self._timer.cancel()
        self._workers.visitors.discard(self)

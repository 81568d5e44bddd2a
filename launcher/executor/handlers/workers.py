"""The workers of this host: let in, fed, watched, and killed where need be.

Theory of operation. Everything happens on the loop's thread. What the ledger must have before it
may be acted on goes to the `Listener`, which takes turns: a worker is given nothing before the
ledger has it. Whatever is to end is asked to first; then its process is killed. What ran there is
over only once that process is known to be dead and its socket is read to the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from launcher import logs
from launcher.config import ExecutorConfig
from launcher.executor.attempt import ANSWER_MS, Attempt, Step
from launcher.executor.clock import boot_ms, wall_ms
from launcher.executor.handlers.groups import Groups
from launcher.executor.handlers.launches import KILLED, STOPPING, Launches
from launcher.executor.handlers.listener import Handshake, WorkerListener
from launcher.executor.handlers.worker import CUT, Deaths, Worker
from launcher.executor.lease import Lease
from launcher.executor.outputs import Outputs, OutputWriter
from launcher.executor.rules import LEASE_OVER
from launcher.limits import PIECE_BYTES_PENDING_MAX
from launcher.protocol.status import Reason
from launcher.worker import wire

log = logs.get()

TICK_MS: Final = 100
FLOOD_PAUSE_S: Final = 0.01


class Listener(Protocol):
    """Who writes down what happens here, and takes turns to do so."""

    def hear(self, news: Iterable[Attempt]) -> None:
        """Take attempts that have begun, or are over."""

    def came(self, pid: int, ticks: int) -> None:
        """A worker waits to be enlisted: `Workers.enlisted` once the ledger has it."""

    def went(self, pid: int) -> None:
        """A worker is gone, and all that it ran is over."""

    def starting(self, some: list[Attempt]) -> None:
        """Launches are about to start: `Launches.may_start` once the ledger has that."""

    def offered(self) -> None:
        """What is offered here has changed."""


SILENT: Final = (
    "it said nothing for {:g} s: it is stopped, or a handler holds the interpreter's lock"
)


class Workers:
    """All workers of one executor."""

    def __init__(
        self,
        config: ExecutorConfig,
        outputs: Outputs,
        lease: Lease,
        listener: Listener,
    ) -> None:
        self._config = config
        self._lease = lease
        self._listener = listener
        self.groups = Groups(config.worker_buffer)
        self._writer = OutputWriter(outputs, config.output_bytes_max)
        self.launches = Launches(self.groups, lease, self._writer, listener.hear, listener.starting)
        self._deaths = Deaths()
        self._handshake = Handshake(self)
        self._worker_listener: WorkerListener | None = None
        self._hearers: dict[type[wire.FromChild], Callable[[Worker, Any], None]] = {
            wire.Done: self._hear_done,
            wire.Started: self._hear_started,
            wire.Beat: self._hear_beat,
            wire.Output: self._hear_output,
            wire.Leaving: self._hear_leaving,
        }

    # ---- what the executor asks for

    def open(self) -> None:
        """Let workers in.

        Raises:
            BadConfig: there can be no socket.
        """
        if self._config.workers:
            directory = Path(self._config.data)
            self._worker_listener = WorkerListener(
                directory, self._config.workers_group, self._handshake.enter
            )

    def kill(self, name: str, reason: Reason) -> bool:
        """End a launch; return whether it is one of ours."""
        if name not in self.launches:
            return False
        if not self.launches.withdraw(name, KILLED, reason):
            worker = self.launches.holder(name)
            if worker is not None:
                self._order(worker, [name], reason, self._config.term_grace_ms)
        return True

    def renewed(self) -> None:
        """Tell all that the lease was renewed."""
        for worker in self.groups.workers():
            worker.lease(self._lease.until_ms)
        for group in self.groups:
            self.launches.dispatch(group)

    def enlisted(self, pids: Iterable[int]) -> None:
        """The ledger has these: from now on they are fed."""
        wanted = set(pids)
        for worker in self.groups.workers():
            if worker.pid in wanted and not worker.is_enlisted:
                worker.is_enlisted = True
                welcome = wire.Welcome(self._lease.until_ms, executor=self._config.id)
                worker.line.send(welcome)
                log.info("worker.joined", pid=worker.pid, group=worker.group)
                self._reoffer()
                self.launches.dispatch(self.groups.of(worker.group))

    # ---- life

    async def run(self) -> None:
        """Look at everything that has a deadline, for ever."""
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self.tick()

    def drain(self, grace_ms: int) -> None:
        """End all launches: those that wait are refused, those that run are cancelled, and killed
        with their process after `grace_ms`."""
        self._close_worker_listener()
        for group in self.groups:
            self.launches.refuse_all(group, STOPPING)
        for worker in self.groups.workers():
            worker.line.send(wire.Drain())
            self._order(worker, list(worker.given), Reason.EXECUTOR_LOST, grace_ms)

    async def stop(self) -> None:
        """Close all connections, upon which the workers end; kill what still has launches."""
        self._close_worker_listener()
        for worker in self.groups.workers():
            if worker.given:
                self._kill(worker, STOPPING)
            worker.line.close()
            if self.groups.remove(worker):
                self._unwatch(worker)
        await asyncio.to_thread(self._writer.stop)

    def _close_worker_listener(self) -> None:
        self.launches.is_stopping = True
        if self._worker_listener is not None:
            self._worker_listener.close()
        self._handshake.close()

    # ---- workers that come and go

    def refusal(self, hello: wire.Hello, pid: int) -> str:
        """Why a worker that greets so is not fed, or nothing."""
        return STOPPING if self.launches.is_stopping else self.groups.refusal(hello, pid)

    def join(self, worker: Worker) -> None:
        """Take a worker in; it is fed once the ledger has it."""
        self.groups.of(worker.group).workers[worker.pid] = worker
        asyncio.get_running_loop().add_reader(worker.peer.pidfd, self._died, worker)
        self._listener.came(worker.pid, worker.ticks)

    def over(self, worker: Worker, blame: str) -> None:
        """The connection of a worker is over. What it runs is over only when it is dead."""
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

    def _died(self, worker: Worker) -> None:
        if worker.killed_for in ("", CUT):
            worker.killed_for = self._deaths.cause(worker, worker.killed_for)
        worker.peer.kill()  # for those of its group that outlive it
        worker.line.read_rest()
        self._bury(worker)

    def _bury(self, worker: Worker) -> None:
        """It is dead, or has nothing: what it ran is over, what it had not begun waits again."""
        if not self.groups.remove(worker):
            return
        self._unwatch(worker)
        unbegun: list[Attempt] = []
        now_wall_ms = wall_ms()
        detail = f"its worker, process {worker.pid}, is dead: {worker.killed_for}"
        for attempt in list(worker.given.values()):
            if attempt.began_ms or worker.is_garbled:
                attempt.die(Reason.WORKER_DIED, detail, now_wall_ms)
                self.launches.end(worker, attempt)
            else:
                unbegun.append(attempt)
        self.launches.give_back(worker, unbegun)
        log.info("worker.left", pid=worker.pid, group=worker.group, error=worker.killed_for)
        self._listener.went(worker.pid)
        self._reoffer()
        self.launches.dispatch(self.groups.of(worker.group))

    def _unwatch(self, worker: Worker) -> None:
        asyncio.get_running_loop().remove_reader(worker.peer.pidfd)
        worker.peer.close()

    # ---- what workers say

    def take(self, worker: Worker, messages: Sequence[wire.FromChild]) -> None:
        """Hear what a worker says."""
        worker.silent_ms = 0
        for message in messages:
            self._hearers[type(message)](worker, message)
        self.launches.dispatch(self.groups.of(worker.group))

    def _hear_done(self, worker: Worker, message: wire.Done) -> None:
        if stranger := self.launches.done(worker, message.outcomes, wall_ms()):
            _confused(worker, stranger)

    def _hear_started(self, worker: Worker, message: wire.Started) -> None:
        if stranger := self.launches.begin(worker, message.names, boot_ms(), wall_ms()):
            _confused(worker, stranger)

    def _hear_beat(self, worker: Worker, message: wire.Beat) -> None:
        now_ms = boot_ms()
        for name in message.names:
            # One that has just ended may have said so late: that is no mistake.
            if (attempt := worker.begun.get(name)) is not None:
                attempt.beat(now_ms)

    def _hear_output(self, worker: Worker, message: wire.Output) -> None:
        attempt, size = worker.begun.get(message.name), len(message.piece)
        if attempt is None:
            _confused(worker, message.name)
            return

        def written() -> None:
            worker.unwritten_bytes -= size
            if worker.unwritten_bytes <= PIECE_BYTES_PENDING_MAX:
                asyncio.get_running_loop().call_later(FLOOD_PAUSE_S, worker.line.resume)

        attempt.has_output = True
        worker.unwritten_bytes += size
        if worker.unwritten_bytes > PIECE_BYTES_PENDING_MAX:
            worker.line.pause()
        self._writer.write(message.name, message.piece, written)

    def _hear_leaving(self, worker: Worker, message: wire.Leaving) -> None:
        worker.is_leaving = True
        returned = [worker.given[name] for name in message.returned if name in worker.given]
        self.launches.give_back(worker, returned)
        self._reoffer()

    # ---- what is done with them

    def _order(self, worker: Worker, names: Sequence[str], reason: Reason, grace_ms: int) -> None:
        """Have launches end: the worker is asked, and killed after the grace."""
        now_ms, asked = boot_ms(), []
        for name in names:
            attempt = worker.given[name]
            is_urgent = attempt.began_ms or self.launches.is_stopping
            if attempt.order(reason, now_ms, grace_ms if is_urgent else ANSWER_MS):
                asked.append((name, int(reason)))
        if asked:
            worker.line.send(wire.Cancel(asked))

    def _kill(self, worker: Worker, why: str) -> None:
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
        """Look once at everything that has a deadline."""
        now_ms, now_wall_ms = boot_ms(), wall_ms()
        is_leased = self._lease.valid(now_ms)
        for group in self.groups:
            self.launches.refuse_late(group, now_wall_ms)
            if detail := group.hopeless(now_ms, is_leased=is_leased):
                self.launches.refuse_all(group, detail)
            self.launches.dispatch(group)
        for worker in self.groups.workers():
            if not worker.killed_for:
                self._look(worker, now_ms, now_wall_ms)
                if not is_leased:
                    self._end_lease(worker)
        for worker, why in self._deaths.excess(self.groups.workers(), now_ms):
            self._kill(worker, why)
        if self.groups.paced():
            self._listener.offered()

    def _look(self, worker: Worker, now_ms: int, now_wall_ms: int) -> None:
        if worker.look(now_ms, self._config.worker_silence_ms):
            for attempt in worker.begun.values():
                attempt.stopping = attempt.stopping or Reason.SILENT
            self._kill(worker, SILENT.format(self._config.worker_silence_ms / 1000))
            return
        late: list[str] = []
        for name, attempt in worker.given.items():
            step = attempt.look(now_ms, self._config.term_grace_ms)
            if step is Step.KILL:
                self._kill(worker, f"{name} did not end when it was told to")
                return
            if step is Step.ASK:
                worker.ask_end(name, attempt.stopping)
            elif attempt.is_late(now_wall_ms):
                late.append(name)
        self._order(worker, late, Reason.DEADLINE, ANSWER_MS)

    def _end_lease(self, worker: Worker) -> None:
        """Rule R6, after the worker's own watch and its parent's: no guarded launch goes on."""
        guarded = [attempt for attempt in worker.given.values() if attempt.spec.guarded]
        for attempt in guarded:
            attempt.stopping = attempt.stopping or Reason.EXECUTOR_LOST
        if guarded:
            self._kill(worker, LEASE_OVER)
            return
        unbegun = [name for name, attempt in worker.given.items() if not attempt.began_ms]
        self._order(worker, unbegun, Reason.EXECUTOR_LOST, ANSWER_MS)


def _confused(worker: Worker, name: str) -> None:
    if not worker.is_confused:
        worker.is_confused = True
        error = f"it speaks of {name[:300]!a}, which it does not have"
        log.warning("worker.ignored", pid=worker.pid, error=error)

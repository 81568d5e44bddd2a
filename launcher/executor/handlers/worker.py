"""One worker process as its executor sees it: what it serves, what it was given, what it does.

How a worker died is seen from beside. An executor is not the parent of its workers, so the kernel
tells it that one has ended and not how. But until its parent reaps it, a dead process shows its
exit status in /proc, and a worker's parent waits a moment with that (launcher/worker/parent.py). A
kill by the kernel for want of memory is told from any other SIGKILL by a counter of the whole host;
so a message says that the kernel was killing, not which process it chose.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from launcher.executor.attempt import Attempt
from launcher.executor.commands.footprint import tree_bytes
from launcher.executor.commands.trees import stat_of
from launcher.executor.handlers.connection import Peer, WorkerConnection
from launcher.executor.rows import Batch, Job
from launcher.limits import PIECE_BYTES_PENDING_MAX
from launcher.protocol.orders import StartBatch
from launcher.protocol.work import WorkSpec, results_bytes
from launcher.worker import wire
from launcher.worker.renewal import bytes_said, kill_bytes, resident_bytes

AHEAD_US: Final = 20_000
"""A worker gets what it ends within this beside what runs: the way to it and back, many times."""
PACE_US: Final = 10_000
"""How long a launch takes, until it is known."""
LOOK_MS_MAX: Final = 1_000
"""What one look may add to a worker's silence."""
UNSENT_BYTES_MAX: Final = 1 << 20
"""A worker that leaves so much unread hears of no lease: it could not obey."""
LOOK_EVERY_MS: Final = 250
"""Half as much memory again as its bound, in this time: 1 GiB a second for one of 512 MiB."""
WORKS_MAX: Final = 20_000
WORKS_BYTES_MAX: Final = 16 << 20
"""Works that a worker keeps; with more it forgets all, and is sent those that it needs again."""
RUN_BYTES_MAX: Final = 4 << 20
"""Payloads in one message, unless a single one has more."""
CUT: Final = "its connection ended"
_BATCH: Final = attrgetter("batch")
_VMSTAT: Final = Path("/proc/vmstat")
_TICKS, _STATUS = 19, 49
"""Fields of /proc/PID/stat after the name: start time and exit status (proc(5): 22 and 52)."""


class SentWork(NamedTuple):
    """The number of a work that a worker has, and the timeouts of its tasks there; 0 for none."""

    number: int
    timeout_ms: int
    heartbeat_ms: int


class WorkerProcess:
    """A process that sent its Hello.

    `given` has its launches by the numbers of their tasks, `begun` is how many of them have begun.
    `is_enlisted`: the journal has it, and it may be given launches. `is_garbled`: not all of its
    messages could be read, so it may have begun anything. `memory_bytes` is its resident memory at
    the last look, if it has a bound. `alone` is the launch that declares memory and runs there
    without another one beside it, on one thread; `base_bytes` is what the process tree had when
    that began.
    """

    def __init__(self, hello: wire.Hello, peer: Peer, connection: WorkerConnection) -> None:
        self.peer = peer
        self.connection = connection
        self.pid, self.ticks = peer.pid, peer.ticks
        self.group = hello.group
        self.threads = hello.threads
        self.capacity = hello.threads + hello.buffer
        self.served: Mapping[str, wire.Served] = {one.name: one for one in hello.handlers}
        self.given: dict[int, Attempt] = {}
        self.begun = 0
        self._newest = 0
        self._sent: dict[Job, SentWork] = {}
        self._sent_bytes = 0
        self.memory_max_bytes = hello.memory_max_bytes
        self.memory_bytes = 0
        self.alone: Attempt | None = None
        self.base_bytes = 0
        self.pulse_ms = hello.pulse_ms
        self.silent_ms = 0
        self._looked_ms = 0
        self.is_enlisted = False
        self.is_leaving = False
        self.killed_for = ""
        self.is_garbled = False
        self.unwritten_bytes = 0
        self.is_confused = False
        self.has_run = False
        self.pace_us = PACE_US
        """How long its launches take: an average that forgets, by an eighth each time."""

    @property
    def is_serving(self) -> bool:
        """Return whether it takes launches."""
        is_going = self.is_leaving or self.killed_for or self.connection.is_over
        return self.is_enlisted and not is_going

    def room(self) -> int:
        """Return how many launches more it should be given now.

        Of short launches it gets a few more than it has threads, so that no thread waits. Long ones
        wait at the executor, for whichever worker is free first.
        """
        ahead = self.threads * AHEAD_US // max(self.pace_us, 1)
        return min(self.capacity, self.threads + ahead) - len(self.given)

    def look(self, now_ms: int, silence_ms: int) -> bool:
        """Return whether it has been silent for too long, although it runs something.

        Only time in which the executor looked counts: after a pause of the whole host, what the
        worker said meanwhile is yet to be read.
        """
        passed_ms = min(now_ms - (self._looked_ms or now_ms), LOOK_MS_MAX)
        self._looked_ms = now_ms
        if not self.pulse_ms or not self.begun or self.unwritten_bytes > PIECE_BYTES_PENDING_MAX:
            self.silent_ms = 0
            return False
        self.silent_ms += passed_ms
        return 0 < silence_ms <= self.silent_ms and self.silent_ms > 2 * self.pulse_ms

    def give(self, some: Sequence[Attempt]) -> None:
        """Send it launches to run. Each work is sent once."""
        size = sum(len(one.spec.payload) for one in some)
        size += sum(results_bytes(one.spec) for one in some if one.spec.results)
        if len(some) > 1 and size > RUN_BYTES_MAX:
            middle = len(some) // 2
            self.give(some[:middle])
            self.give(some[middle:])
            return
        forgets = len(self._sent) > WORKS_MAX or self._sent_bytes > WORKS_BYTES_MAX
        if forgets:
            self._sent.clear()
            self._sent_bytes = 0
        works: list[wire.TaskWork] = []
        tasks = [
            self._tasks(batch, list(alike), works) for batch, alike in groupby(some, key=_BATCH)
        ]
        resumed = [attempt.number for attempt in some if attempt.resumes]
        self.connection.send(wire.Run(tasks, works, forgets, resumed))

    def _tasks(
        self, batch: Batch, some: Sequence[Attempt], works: list[wire.TaskWork]
    ) -> StartBatch[int]:
        """Return the tasks of rows of a batch; `works` gets those that are new to the worker."""
        first, jobs, sent = self._newest + 1, batch.jobs, self._sent
        numbers: list[int] = []
        for number, attempt in enumerate(some, first):
            job = jobs[attempt.place]
            known = sent.get(job)
            if known is None:
                known = sent[job] = self._add(job, attempt.spec, works)
            work, attempt.timeout_ms, attempt.heartbeat_ms = known
            attempt.number = number
            self.given[number] = attempt
            numbers.append(work)
        self._newest += len(some)
        scheduled_s, attempts, triggers, parts = (
            list(column) if len(column) == 1 else [column[one.place] for one in some]
            for column in (batch.scheduled, batch.attempts, batch.triggers, batch.parts)
        )
        return StartBatch(
            first=first, index=batch.index, epoch=batch.epoch, works=numbers,
            scheduled_s=scheduled_s, attempts=attempts, triggers=triggers, parts=parts,
        )  # fmt: skip

    def _add(self, job: Job, spec: WorkSpec, works: list[wire.TaskWork]) -> SentWork:
        number, served = len(self._sent), self.served[spec.handler]
        self._sent_bytes += len(spec.payload) + (results_bytes(spec) if spec.results else 0)
        bounds = (spec.timeout_ms, spec.heartbeat_ms, spec.guarded, spec.priority)
        beside = (spec.labels, spec.traceparent, spec.results)
        works.append(wire.TaskWork(number, job.name, spec.handler, spec.payload, *bounds, *beside))
        timeout_ms = wire.timeout_of(spec.timeout_ms, served.timeout_ms)
        heartbeat_ms = wire.effective_ms(spec.heartbeat_ms, served.heartbeat_ms)
        return SentWork(number, timeout_ms, heartbeat_ms)

    def lease(self, until_ms: int) -> None:
        """Send it the renewed lease."""
        if self.is_enlisted and self.connection.unsent_bytes < UNSENT_BYTES_MAX:
            self.connection.send(wire.Lease(until_ms))

    def take_back(self, attempt: Attempt) -> bool:
        """Remove a launch; return whether it had it."""
        if self.given.get(attempt.number) is not attempt:
            return False
        del self.given[attempt.number]
        self.begun -= attempt.began_ms > 0
        return True

    def note_alone(self) -> None:
        """Note which launch runs alone, after launches began or ended. A launch that was beside
        another one is judged by what the process gains from now on."""
        alone = None
        if self.threads == 1 and self.begun == 1:
            running = next((one for one in self.given.values() if one.began_ms), None)
            alone = running if running is not None and running.spec.memory_bytes else None
        if alone is not self.alone:
            self.alone = alone
            self.base_bytes = tree_bytes(self.pid) if alone is not None else 0

    def ran(self, some: Sequence[Attempt]) -> None:
        """Note how long launches took that have ended there."""
        self.has_run = self.has_run or bool(some)
        pace_us = self.pace_us
        for one in some:
            pace_us += ((one.finished_ms - one.started_ms) * 1_000 - pace_us) // 8
        self.pace_us = pace_us


class Deaths:
    """Looks at the memory of workers while they live, and for the cause when they are dead."""

    def __init__(self, vmstat: Path = _VMSTAT) -> None:
        self._vmstat = vmstat
        self._oom_kills = self._count()
        self._look_ms = 0

    def excess(
        self, workers: Iterable[WorkerProcess], now_ms: int
    ) -> list[tuple[WorkerProcess, str]]:
        """Return the workers with more memory than they may ever have, and how much each has. Most
        calls return at once: memory is measured every LOOK_EVERY_MS."""
        if now_ms < self._look_ms:
            return []
        self._look_ms = now_ms + LOOK_EVERY_MS
        found = []
        for worker in workers:
            if not worker.killed_for and worker.memory_max_bytes:
                worker.memory_bytes = resident_bytes(worker.pid)
                if worker.memory_bytes >= kill_bytes(worker.memory_max_bytes):
                    bound = f"half over its bound of {bytes_said(worker.memory_max_bytes)}"
                    found.append(
                        (worker, f"it had {bytes_said(worker.memory_bytes)} of memory, {bound}")
                    )
        return found

    def cause(self, worker: WorkerProcess, known: str) -> str:
        """Return how a dead worker ended. `known` is what is known so far: nothing, or that its
        connection ended, upon which it was killed in any case."""
        status = exit_status(worker.pid, worker.ticks)
        if status is not None and os.WTERMSIG(status) != signal.SIGKILL:
            return _said(status)
        before, self._oom_kills = self._oom_kills, self._count()
        cause = known or ("it ended" if status is None else _said(status))
        if self._oom_kills > before:
            cause += "; the kernel was killing for want of memory on this host"
        if worker.memory_max_bytes and worker.memory_bytes >= worker.memory_max_bytes:
            bound = f"over its bound of {bytes_said(worker.memory_max_bytes)}"
            cause += f"; it had {bytes_said(worker.memory_bytes)} of memory, {bound}"
        return cause

    def _count(self) -> int:
        """Return how many processes the kernel has killed for want of memory, 0 if unknown."""
        try:
            text = self._vmstat.read_text()
        except OSError:
            return 0
        return next((int(line[9:]) for line in text.splitlines() if line[:9] == "oom_kill "), 0)


def exit_status(pid: int, ticks: int) -> int | None:
    """Return the wait status of a dead process that started at `ticks`, or None: it was reaped, its
    user is another, or it ended with exit code 0."""
    fields = stat_of(pid)
    if not fields or fields[0] not in (b"Z", b"X") or int(fields[_TICKS]) != ticks:
        return None
    # Of a process that may not be looked at the kernel says 0.
    return int(fields[_STATUS]) or None


def _said(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"it ended with exit code {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    try:
        return f"it was killed by {signal.Signals(number).name}"
    except ValueError:
        return f"it was killed by signal {number}"

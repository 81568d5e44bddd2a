"""Workers of simulated executors: the real `Workers` at one end, at the other processes that are
timers. Each keeps to what `launcher/worker/wire.py` asks of a child, dies at times, and ends itself
when its lease is over while it runs guarded work (rule R6)."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any, Final

import msgspec

from launcher.executor.handlers.worker import WorkerProcess
from launcher.executor.handlers.workers import Workers
from launcher.protocol.status import Reason
from launcher.worker import wire
from tests.sent_tasks import SentTask, SentTasks
from tests.simulation.crontabs import HANDLERS
from tests.simulation.network import APART_S
from tests.simulation.spawners import Host

GROUP: Final = "thread_pool"
FIRST_PID: Final = 1 << 30
"""No process of the machine that this runs on has such a number."""
DIES: Final = 0.02
"""How often a process dies of a handler that it begins with."""
DEAF: Final = 0.1
"""How often a handler does not look at its cancel flag."""
RESULTS: Final = {
    "retry": wire.Result.RETRY,
    "fatal": wire.Result.FATAL,
    "snooze": wire.Result.SNOOZE,
    "raised": wire.Result.RAISED,
}


class ThreadPool(msgspec.Struct, frozen=True):
    """The workers of one host: so many processes, with so many threads each, and a bit in hand."""

    processes: int = 0
    threads: int = 1
    buffer: int = 0


def draw_thread_pool(rng: random.Random) -> ThreadPool:
    """Return some workers."""
    return ThreadPool(rng.choice((1, 2)), rng.choice((1, 2, 4)), rng.choice((0, 0, 2)))


class Peer:
    """A process as its executor sees it."""

    uid = 0

    def __init__(self, process: Process) -> None:
        self._process = process
        self.pid = self.ticks = self.pidfd = process.pid

    def kill(self) -> bool:
        """Kill it; that takes a moment."""
        loop = self._process.host.loop
        loop.call_later(self._process.host.rng.uniform(0.001, 0.03), self._process.die)
        return True

    def close(self) -> None:
        """Let it go."""


class Line:
    """The executor's end of a connection; what is under way outlives who wrote it."""

    unsent_bytes = 0

    def __init__(self, process: Process, workers: Workers) -> None:
        self.is_over = False
        self.worker: WorkerProcess | None = None
        self._process = process
        self._workers = workers
        self._under_way: list[wire.FromChild] = []
        self._free_s = 0.0
        self._frames = wire.to_child()

    # ---- the executor's end

    def send(self, message: wire.ToChild) -> None:
        """Send a message; never waits."""
        if not self.is_over:
            for one in self._frames.feed(wire.encode(message)):
                self._later(self._process.obey, one)

    def pause(self) -> None:
        """Nobody here floods."""

    def resume(self) -> None:
        """Nobody here was paused."""

    def read_rest(self) -> None:
        """Take all that is under way, then close."""
        self._arrive(len(self._under_way))
        self.close()

    def close(self, blame: str = "") -> None:
        """End the connection, upon which the process ends."""
        if not self.is_over and self.worker is not None:
            self.is_over = True
            self._process.host.loop.call_later(0.001, self._process.die)
            self._workers.over(self.worker, blame)

    # ---- the process's end

    def say(self, message: wire.FromChild) -> None:
        """Say something to the executor; it is read some time later."""
        self._under_way.append(message)
        self._later(self._arrive, 1)

    def _arrive(self, count: int) -> None:
        some, self._under_way = self._under_way[:count], self._under_way[count:]
        if some and not self.is_over and self.worker is not None:
            self._workers.receive(self.worker, some)

    def _later(self, call: Callable[[Any], None], one: Any) -> None:
        loop, rng = self._process.host.loop, self._process.host.rng
        self._free_s = max(self._free_s + APART_S, loop.time() + rng.uniform(0.0001, 0.002))
        loop.call_at(self._free_s, call, one)


class Process:
    """One worker process. `gone` is called once it is dead."""

    def __init__(
        self, host: Host, thread_pool: ThreadPool, pid: int, gone: Callable[[Process], None]
    ) -> None:
        self.host = host
        self._place = host.place  # a host that loses its ledger has a new one before this ends
        self.pid = pid
        self.is_alive = True
        self.line: Line | None = None
        self._thread_pool = thread_pool
        self._gone = gone
        self._rng = host.rng
        self._lease_ms = 0
        self._sent = SentTasks()
        self._waiting: dict[int, SentTask] = {}
        self._running: dict[int, tuple[SentTask, list[asyncio.TimerHandle]]] = {}
        self._is_leaving = False
        self._watch: asyncio.TimerHandle | None = None

    def connect(self, workers: Workers) -> bool:
        """Greet the executor; whether it lets this process in."""
        handlers = [wire.Served(name) for name in HANDLERS]
        hello = wire.Hello(
            wire.VERSION,
            GROUP,
            handlers,
            self._thread_pool.threads,
            self._thread_pool.buffer,
            self.pid,
            1,
        )
        peer: Any = Peer(self)
        if workers.refusal(hello, peer):
            return False
        line: Any = Line(self, workers)
        self.line = line
        line.worker = WorkerProcess(hello, peer, line)
        workers.join(line.worker)
        return True

    # ---- what the executor says

    def obey(self, message: wire.ToChild) -> None:
        """Take a message of the executor."""
        if not self.is_alive:
            return
        if isinstance(message, wire.Run):
            self._take(message)
        elif isinstance(message, wire.Cancel):
            for number, _ in message.tasks:
                self._cancel(number)
        elif isinstance(message, wire.Drain):
            self._is_leaving = True
            self._say(wire.Leaving(list(self._waiting)))
            self._waiting.clear()
        elif isinstance(message, wire.Welcome | wire.Lease):
            self._lease_ms = (
                message.lease_until_ms if isinstance(message, wire.Welcome) else message.until_ms
            )
            self._keep_watch()
        self._go_on()

    def _take(self, run: wire.Run) -> None:
        some = self._sent.read(run)
        if self._is_leaving:
            self._say(wire.Leaving([task.number for task in some]))
        else:
            self._waiting |= {task.number: task for task in some}

    def _go_on(self) -> None:
        while self._waiting and len(self._running) < self._thread_pool.threads and self.is_alive:
            number = next(iter(self._waiting))
            self._begin(self._waiting.pop(number))

    def _begin(self, task: SentTask) -> None:
        if task.work.guarded and self.host.boot_ms() >= self._lease_ms:
            self._say(wire.Done([wire.Ends(wire.Result.CANCELLED, [(task.number, 0, 0)])]))
            return
        self._say(wire.Started([task.number]))
        self.host.witness.started(task.name, *self._place)
        told = json.loads(task.work.payload)
        run_s = told["run"] * self._rng.uniform(0.7, 1.3)
        result, after_ms = wire.Result.OK, 0
        if self._rng.random() < told["fails"]:
            result, after_ms = RESULTS[self._rng.choice(told["how"])], told["after"]
        call_later, started_ms = self.host.loop.call_later, self.host.wall_ms()
        ends = call_later(run_s, self._end, task.number, result, after_ms, started_ms)
        timers = [ends]
        if self._rng.random() < DIES:
            timers.append(call_later(run_s * self._rng.random(), self.die))
        self._running[task.number] = (task, timers)

    def _end(self, number: int, result: wire.Result, after_ms: int, started_ms: int) -> None:
        task = self._stop(number)
        is_fine = result is wire.Result.OK
        self.host.witness.ended(task.name, int(not is_fine), 0 if is_fine else int(Reason.RAISED))
        times = (started_ms, self.host.wall_ms())
        self._say(wire.Done([wire.Ends(result, [(number, *times)], after_ms)]))
        self._go_on()

    def _cancel(self, number: int) -> None:
        if self._waiting.pop(number, None) is not None:
            self._say(wire.Done([wire.Ends(wire.Result.CANCELLED, [(number, 0, 0)])]))
        elif number in self._running and self._rng.random() > DEAF:
            now_ms, timers = self.host.wall_ms(), self._running[number][1]
            ask_s = self._rng.uniform(0.0, 1.0)
            cancelled = (number, wire.Result.CANCELLED, 0, now_ms)
            timers.append(self.host.loop.call_later(ask_s, self._end, *cancelled))

    def _stop(self, number: int) -> SentTask:
        task, timers = self._running.pop(number)
        for timer in timers:
            timer.cancel()
        return task

    def _say(self, message: wire.FromChild) -> None:
        if self.line is not None:
            self.line.say(message)

    # ---- its end

    def _keep_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self.host.loop.call_at(self._lease_ms / 1000, self.lease_over)

    def lease_over(self) -> None:
        """End, if anything runs that must not outlive the lease."""
        if any(task.work.guarded for task, _ in self._running.values()):
            self.die()

    def die(self) -> None:
        """It is dead, and all that it runs."""
        if not self.is_alive:
            return
        self.is_alive = False
        if self._watch is not None:
            self._watch.cancel()
        for number in list(self._running):
            task = self._stop(number)
            self.host.witness.ended(task.name, 1, int(Reason.WORKER_DIED))
        self._gone(self)


class Gang:
    """The parent of a host's workers: starts them, again where they die. It belongs to one life of
    the executor, whose end is theirs."""

    def __init__(self, host: Host, thread_pool: ThreadPool, workers: Workers) -> None:
        self._host = host
        self._thread_pool = thread_pool
        self._workers = workers
        self._pids = FIRST_PID
        self._is_over = False
        self._processes: dict[int, Process] = {}
        for _ in range(thread_pool.processes):
            host.loop.call_later(host.rng.uniform(0.05, 0.5), self._start)

    def _start(self) -> None:
        if self._is_over:
            return
        self._pids += 1
        process = Process(self._host, self._thread_pool, self._pids, self._gone)
        if process.connect(self._workers):
            self._processes[process.pid] = process

    def _gone(self, process: Process) -> None:
        del self._processes[process.pid]
        line = process.line
        if self._is_over or line is None or line.worker is None:
            return
        self._host.loop.call_later(self._host.rng.uniform(0.0001, 0.02), self._seen, line.worker)
        self._host.loop.call_later(self._host.rng.choice((0.1, 1.0, 8.0)), self._start)

    def _seen(self, worker: WorkerProcess) -> None:
        if not self._is_over:
            self._workers._died(worker)

    def die(self) -> None:
        """The executor is dead: their connections end, and so do they."""
        self._is_over = True
        for process in self._processes.values():
            self._host.loop.call_later(self._host.rng.uniform(0.001, 0.05), process.die)

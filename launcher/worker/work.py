"""The tasks that a child holds (which wait, which have begun, which may begin next), and the queue
of messages from its threads to the socket: in order, in batches, bounded.

A task waits until a thread is free for it. Handlers that are quick, all of whose recent calls took
next to no time, are announced up to AHEAD_MAX beyond the threads, since a message for each would
cost more than the call.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from launcher.worker.context import Context, Wire
from launcher.worker.outcome import Ended
from launcher.worker.registry import Handler, Registry
from launcher.worker.wire import OUTPUT_PIECE_BYTES_MAX, Result, Task, TaskOutcome, timeout_of

AHEAD_MAX: Final = 128
"""A few milliseconds of calls that take some ten microseconds each."""
QUICK_MS: Final = 1
_SLOWNESS_MAX: Final = 16
_SLOWNESS_QUICK: Final = 8
_SLOWNESS_STEP: Final = 4


class HeldTask:
    """A task, and what it takes to run it. `context` is there once it has begun."""

    __slots__ = ("beats", "context", "handler", "is_over", "running", "task")

    def __init__(self, task: Task, handler: Handler) -> None:
        self.task = task
        self.handler = handler
        self.context: Context | None = None
        self.running: Any = None  # its asyncio.Task, of the thread with the loop
        self.beats = False  # a heartbeat of it waits to be sent
        self.is_over = False


class Holding:
    """All tasks of a child by name. One thread, that of the socket, changes it."""

    def __init__(self, registry: Registry, threads: int) -> None:
        self._registry = registry
        self._threads = threads
        self._waiting: deque[HeldTask] = deque()
        self._held: dict[str, HeldTask] = {}
        self._slowness: dict[str, int] = {}
        self._begun = 0
        self.guarded = 0
        """How many begun ones must not outlive the lease."""
        self.is_leaving = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_busy(self) -> bool:
        """Return whether a task has begun and is not over."""
        return self._begun > 0

    def get(self, name: str) -> HeldTask | None:
        """Return the work of that name, or None; from any thread."""
        return self._held.get(name)

    def begun(self) -> list[HeldTask]:
        """Return the tasks that have begun and are not over."""
        return [work for work in self._held.values() if work.context is not None]

    def take(self, tasks: Sequence[Task]) -> list[TaskOutcome]:
        """Hold tasks that arrived, except names that are held already; return the outcomes of those
        that can never begin."""
        never = []
        for task in tasks:
            handler = self._registry.get(task.handler)
            if handler is None:
                said = f"this worker has no handler {task.handler}"
                never.append(TaskOutcome(task.name, Result.FATAL, 0, said))
            elif task.name not in self._held:
                self._held[task.name] = work = HeldTask(task, handler)
                self._waiting.append(work)
        return never

    def begin(
        self, wire: Wire, now_ms: int, lease_until_ms: int
    ) -> tuple[list[HeldTask], list[HeldTask]]:
        """Return the tasks that begin now, each with its context, and those that may not because
        the executor has no lease."""
        beginning, unleased = [], []
        while self._waiting:
            work = self._waiting[0]
            if not work.is_over and not self._has_room(work.handler.name):
                break
            self._waiting.popleft()
            if work.is_over:
                continue
            task = work.task
            if task.guarded and now_ms >= lease_until_ms:
                unleased.append(work)
                self._forget(work)
                continue
            timeout_ms = timeout_of(task.timeout_ms, work.handler.served.timeout_ms)
            work.context = Context(task, wire, timeout_ms)
            self._begun += 1
            self.guarded += task.guarded
            beginning.append(work)
        return beginning, unleased

    def end(self, work: HeldTask, ended: Ended, started_ms: int, finished_ms: int) -> TaskOutcome:
        """Forget a work that a thread has ended; return its outcome."""
        self._forget(work)
        self._begun -= 1
        self.guarded -= work.task.guarded
        self._learn(work.handler.name, finished_ms - started_ms)
        return TaskOutcome(
            work.task.name, ended.result, ended.after_ms, ended.detail, started_ms, finished_ms
        )

    def drop(self, name: str) -> bool:
        """Forget a task that waits; return whether it did wait."""
        work = self._held.get(name)
        if work is None or work.context is not None:
            return False
        self._forget(work)
        return True

    def leave(self) -> list[str]:
        """Forget all tasks that wait, and return their names; nothing begins from now on."""
        self.is_leaving = True
        names = [work.task.name for work in self._waiting if not work.is_over]
        for name in names:
            self.drop(name)
        self._waiting.clear()
        return names

    def _has_room(self, handler: str) -> bool:
        if self._begun < self._threads:
            return True
        is_quick = self._slowness.get(handler, _SLOWNESS_MAX) <= _SLOWNESS_QUICK
        return is_quick and self._begun < self._threads + AHEAD_MAX

    def _learn(self, handler: str, took_ms: int) -> None:
        step = _SLOWNESS_STEP if took_ms > QUICK_MS else -1
        slowness = self._slowness.get(handler, _SLOWNESS_MAX) + step
        self._slowness[handler] = min(_SLOWNESS_MAX, max(0, slowness))

    def _forget(self, work: HeldTask) -> None:
        work.is_over = True
        self._held.pop(work.task.name, None)


OUTPUT_WAITING_BYTES_MAX: Final = 1 << 20
"""Output of all works that waits; with OUTPUT_EVERY_MS at most 20 MB a second are sent."""
OUTPUT_EVERY_MS: Final = 50
BEATS_EVERY_MS: Final = 100
"""An executor that feeds hundreds of children must not wake for each line and each sign of life;
only an end takes what its work wrote along at once."""
_NEVER_MS: Final = 1 << 62


class EndedTask(NamedTuple):
    """A work that is over."""

    work: HeldTask
    ended: Ended
    started_ms: int
    finished_ms: int


class Messages(NamedTuple):
    """The messages since the last call. Send them in this order: an end is the last of its work."""

    output: list[tuple[str, bytes]]
    beats: list[str]
    ends: list[EndedTask]


class WakeUp:
    """Wakes the thread that polls, once for any number of rings."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._has_rung = False

    def ring(self) -> None:
        """Wake the thread that polls. For any thread and for signal handlers."""
        if not self._has_rung:
            self._has_rung = True
            os.eventfd_write(self.fd, 1)

    def reset(self) -> None:
        """Let the next ring wake the thread again. Look at the queues after this call."""
        # In this order: a thread that rings in between does not write, and need not, since the
        # reader looks afterwards. A thread that set the flag may not have written yet: that wakes
        # the reader once more.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        self._has_rung = False


class Outgoing:
    """The queue of messages that handler threads write and the socket's thread reads; no thread
    waits for another."""

    def __init__(self, holding: Holding, wake_up: WakeUp) -> None:
        self._holding = holding
        self._wake_up = wake_up
        self._ends: deque[EndedTask] = deque()
        self._beats: deque[HeldTask] = deque()
        self._writing = threading.Lock()
        self._output: dict[str, bytearray] = {}
        self._dropped: dict[str, int] = {}
        self._output_bytes = 0
        self._output_ms = 0
        self._beats_ms = 0

    def beat(self, name: str) -> None:
        """Queue a heartbeat of an attempt, unless one is queued."""
        work = self._holding.get(name)
        if work is not None and not work.beats:
            work.beats = True
            self._beats.append(work)
            self._wake_up.ring()

    def write(self, name: str, text: str) -> None:
        """Add to the output of an attempt. Output over the bound is dropped, and a line says so."""
        written = text.encode("utf-8", "replace")
        with self._writing:
            # After the end, output of a thread that its handler left behind belongs to no launch.
            if self._holding.get(name) is None:
                return
            is_first = not self._output and not self._dropped
            room = OUTPUT_WAITING_BYTES_MAX - self._output_bytes
            if len(written) > room:
                self._dropped[name] = self._dropped.get(name, 0) + len(written)
            else:
                self._output.setdefault(name, bytearray()).extend(written)
                self._output_bytes += len(written)
        if is_first:
            self._wake_up.ring()

    def end(self, work: HeldTask, ended: Ended, started_ms: int, finished_ms: int) -> None:
        """Queue the end of a work."""
        if ended.trace:
            self.write(work.task.name, ended.trace)
        self._ends.append(EndedTask(work, ended, started_ms, finished_ms))
        self._wake_up.ring()

    def take(self, now_ms: int) -> Messages:
        """Remove and return the messages to send now: ends at once, others at their time."""
        # Ends first: their works wrote all output before.
        ends = [self._ends.popleft() for _ in range(len(self._ends))]
        output: list[tuple[str, bytes]] = []
        if (self._output or self._dropped) and (ends or now_ms >= self._output_ms):
            self._output_ms = now_ms + OUTPUT_EVERY_MS
            output = self._take_output()
        return Messages(output, self._take_beats(now_ms), ends)

    def due_ms(self) -> int:
        """Return when queued messages are due for which no thread rings."""
        return min(
            self._output_ms if self._output or self._dropped else _NEVER_MS,
            self._beats_ms if self._beats else _NEVER_MS,
        )

    def _take_beats(self, now_ms: int) -> list[str]:
        if not self._beats or now_ms < self._beats_ms:
            return []
        self._beats_ms = now_ms + BEATS_EVERY_MS
        works = [self._beats.popleft() for _ in range(len(self._beats))]
        for work in works:
            work.beats = False
        return [work.task.name for work in works if not work.is_over]

    def _take_output(self) -> list[tuple[str, bytes]]:
        with self._writing:
            output, self._output = self._output, {}
            dropped, self._dropped = self._dropped, {}
            self._output_bytes = 0
        for name, size in dropped.items():
            said = f"[{size} bytes dropped: written faster than they are read]\n"
            output.setdefault(name, bytearray()).extend(said.encode())
        step = OUTPUT_PIECE_BYTES_MAX
        return [
            (name, bytes(written[at : at + step]))
            for name, written in output.items()
            if self._holding.get(name) is not None  # its end has not been sent
            for at in range(0, len(written), step)
        ]

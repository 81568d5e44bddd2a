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

import msgspec

from launcher.protocol.orders import StartBatch
from launcher.worker.context import Context, Wire
from launcher.worker.errors import BadFrame
from launcher.worker.outcome import SUCCEEDED, Ended
from launcher.worker.registry import Handler, Registry
from launcher.worker.wire import (
    OUTPUT_PIECE_BYTES_MAX,
    Ends,
    Result,
    Run,
    TaskWork,
    timeout_of,
)

AHEAD_MAX: Final = 128
"""A few milliseconds of calls that take some ten microseconds each."""
QUICK_MS: Final = 1
_SLOWNESS_MAX: Final = 16
_SLOWNESS_QUICK: Final = 8
_SLOWNESS_STEP: Final = 4


class HeldWork(NamedTuple):
    """The work of tasks, its handler if this child has one, and how long they may run, 0 for any
    time."""

    sent: TaskWork
    handler: Handler | None
    timeout_ms: int


class HeldTask(msgspec.Struct, eq=False):
    """A task, and what it takes to run it. `context` is there once it has begun, and `ended` with
    its times once it is over.

    `is_quick`: all recent calls of its handler took next to no time. `is_resumed`: it had begun in
    a child that is dead. `beats`: a heartbeat of it waits to be sent. `running` is its
    asyncio.Task, of the thread with the loop.
    """

    number: int
    work: TaskWork
    handler: Handler
    timeout_ms: int
    tasks: StartBatch[int]
    place: int
    context: Context | None = None
    is_quick: bool = False
    is_resumed: bool = False
    beats: bool = False
    is_over: bool = False
    running: Any = None
    ended: Ended = SUCCEEDED
    started_ms: int = 0
    finished_ms: int = 0


class Holding:
    """All tasks of a child by number. One thread, that of the socket, changes it."""

    def __init__(self, registry: Registry, threads: int) -> None:
        self._registry = registry
        self._threads = threads
        self._works: dict[int, HeldWork] = {}
        self._waiting: deque[HeldTask] = deque()
        self._held: dict[int, HeldTask] = {}
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

    def get(self, number: int) -> HeldTask | None:
        """Return the task of that number, or None; from any thread."""
        return self._held.get(number)

    def begun(self) -> list[HeldTask]:
        """Return the tasks that have begun and are not over."""
        return [held for held in self._held.values() if held.context is not None]

    def take(self, run: Run) -> list[Ends]:
        """Hold tasks that arrived; return the ends of those that can never begin.

        Raises:
            BadFrame: a task has work that was never sent.
        """
        works = self._learn(run)
        never: list[Ends] = []
        resumed = frozenset(run.resumed)
        for tasks in run.tasks:
            for place, number in enumerate(tasks.works):
                if number not in works:
                    raise BadFrame(f"a task has work {number}, which was not sent")
                work, handler, timeout_ms = works[number]
                if handler is None:
                    said = f"this worker has no handler {work.handler}"
                    never.append(Ends(Result.FATAL, [(tasks.first + place, 0, 0)], 0, said))
                    continue
                held = HeldTask(tasks.first + place, work, handler, timeout_ms, tasks, place)
                held.is_resumed = held.number in resumed
                self._held[held.number] = held
                self._waiting.append(held)
        return never

    def _learn(self, run: Run) -> dict[int, HeldWork]:
        works = self._works
        if run.forgets:
            works.clear()
        for work in run.works:
            handler = self._registry.get(work.handler)
            own_ms = handler.served.timeout_ms if handler is not None else 0
            works[work.number] = HeldWork(work, handler, timeout_of(work.timeout_ms, own_ms))
        return works

    def begin(
        self, wire: Wire, now_ms: int, lease_until_ms: int
    ) -> tuple[list[HeldTask], list[HeldTask]]:
        """Return the tasks that begin now, each with its context, and those that may not because
        the executor has no lease."""
        beginning: list[HeldTask] = []
        unleased: list[HeldTask] = []
        waiting, slowness = self._waiting, self._slowness
        while waiting:
            held = waiting[0]
            work = held.work
            held.is_quick = slowness.get(work.handler, _SLOWNESS_MAX) <= _SLOWNESS_QUICK
            room = self._threads + (AHEAD_MAX if held.is_quick else 0) - self._begun
            if room <= 0 and not held.is_over:
                break
            waiting.popleft()
            if held.is_over:
                continue
            if work.guarded:
                if now_ms >= lease_until_ms:
                    unleased.append(held)
                    self._forget(held)
                    continue
                self.guarded += 1
            ends_ms = now_ms + held.timeout_ms if held.timeout_ms else 0
            held.context = Context(work, held.tasks, held.place, wire, ends_ms)
            held.context.is_resumed = held.is_resumed
            self._begun += 1
            beginning.append(held)
        return beginning, unleased

    def end(self, some: Sequence[HeldTask]) -> list[Ends]:
        """Forget tasks that threads have ended; return how they ended."""
        alike: dict[tuple[Result, int, str], list[tuple[int, int, int]]] = {}
        for held in some:
            self._forget(held)
            ended, took_ms = held.ended, held.finished_ms - held.started_ms
            how = (ended.result, ended.after_ms, ended.detail)
            alike.setdefault(how, []).append((held.number, held.started_ms, held.finished_ms))
            self.guarded -= held.work.guarded
            name = held.work.handler
            step = _SLOWNESS_STEP if took_ms > QUICK_MS else -1
            slowness = self._slowness.get(name, _SLOWNESS_MAX) + step
            self._slowness[name] = min(_SLOWNESS_MAX, max(0, slowness))
        self._begun -= len(some)
        return [
            Ends(result, tasks, after_ms, detail)
            for (result, after_ms, detail), tasks in alike.items()
        ]

    def drop(self, number: int) -> bool:
        """Forget a task that waits; return whether it did wait."""
        held = self._held.get(number)
        if held is None or held.context is not None:
            return False
        self._forget(held)
        return True

    def leave(self) -> list[int]:
        """Forget all tasks that wait, and return their numbers; nothing begins from now on."""
        self.is_leaving = True
        numbers = [held.number for held in self._waiting if not held.is_over]
        for number in numbers:
            self.drop(number)
        self._waiting.clear()
        return numbers

    def _forget(self, held: HeldTask) -> None:
        held.is_over = True
        self._held.pop(held.number, None)


OUTPUT_WAITING_BYTES_MAX: Final = 1 << 20
"""Output of all works that waits; with OUTPUT_EVERY_MS at most 20 MB a second are sent."""
OUTPUT_EVERY_MS: Final = 50
BEATS_EVERY_MS: Final = 100
"""An executor that feeds hundreds of children must not wake for each line and each sign of life;
only an end takes what its work wrote along at once."""
_NEVER_MS: Final = 1 << 62


class Messages(NamedTuple):
    """The messages since the last call. Send them in this order: an end is the last of its work."""

    output: list[tuple[int, bytes]]
    beats: list[int]
    ends: list[HeldTask]


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
        self._ends: deque[HeldTask] = deque()
        self._beats: deque[HeldTask] = deque()
        self._writing = threading.Lock()
        self._output: dict[int, bytearray] = {}
        self._dropped: dict[int, int] = {}
        self._output_bytes = 0
        self._output_ms = 0
        self._beats_ms = 0

    @property
    def has_ends(self) -> bool:
        """Return whether ends are queued."""
        return bool(self._ends)

    def beat(self, number: int) -> None:
        """Queue a heartbeat of a task, unless one is queued."""
        held = self._holding.get(number)
        if held is not None and not held.beats:
            held.beats = True
            self._beats.append(held)
            self._wake_up.ring()

    def write(self, number: int, text: str) -> None:
        """Add to the output of a task. Output over the bound is dropped, and a line says so."""
        written = text.encode("utf-8", "replace")
        with self._writing:
            # After the end, output of a thread that its handler left behind belongs to no launch.
            if self._holding.get(number) is None:
                return
            is_first = not self._output and not self._dropped
            room = OUTPUT_WAITING_BYTES_MAX - self._output_bytes
            if len(written) > room:
                self._dropped[number] = self._dropped.get(number, 0) + len(written)
            else:
                self._output.setdefault(number, bytearray()).extend(written)
                self._output_bytes += len(written)
        if is_first:
            self._wake_up.ring()

    def end(self, held: HeldTask) -> None:
        """Queue the end of a task; the caller rings."""
        if held.ended.trace:
            self.write(held.number, held.ended.trace)
        self._ends.append(held)

    def take(self, now_ms: int) -> Messages:
        """Remove and return the messages to send now: ends at once, others at their time."""
        # Ends first: their tasks wrote all output before.
        ends = [self._ends.popleft() for _ in range(len(self._ends))]
        output: list[tuple[int, bytes]] = []
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

    def _take_beats(self, now_ms: int) -> list[int]:
        if not self._beats or now_ms < self._beats_ms:
            return []
        self._beats_ms = now_ms + BEATS_EVERY_MS
        some = [self._beats.popleft() for _ in range(len(self._beats))]
        for held in some:
            held.beats = False
        return [held.number for held in some if not held.is_over]

    def _take_output(self) -> list[tuple[int, bytes]]:
        with self._writing:
            output, self._output = self._output, {}
            dropped, self._dropped = self._dropped, {}
            self._output_bytes = 0
        for number, size in dropped.items():
            said = f"[{size} bytes dropped: written faster than they are read]\n"
            output.setdefault(number, bytearray()).extend(said.encode())
        step = OUTPUT_PIECE_BYTES_MAX
        return [
            (number, bytes(written[at : at + step]))
            for number, written in output.items()
            if self._holding.get(number) is not None  # its end has not been sent
            for at in range(0, len(written), step)
        ]

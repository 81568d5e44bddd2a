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
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from launcher.protocol.orders import StartBatch
from launcher.worker.context import Context, Wire
from launcher.worker.errors import BadFrame
from launcher.worker.outcome import Ended
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


Begun: TypeAlias = tuple[Handler, Context]
"""A task that has begun, and the handler that runs it."""
Over: TypeAlias = tuple[Context, Ended, int, int]
"""A task that its handler has ended: how, when it began, and when it ended (wall clock, ms)."""


class Holding:
    """All tasks of a child by number. One thread, that of the socket, changes it.

    `begun` has those that have begun and are not over. `quick` are the names of handlers all of
    whose recent calls took next to no time. `guarded` is how many begun ones must not outlive the
    lease.
    """

    def __init__(self, registry: Registry, threads: int) -> None:
        self._registry = registry
        self._threads = threads
        self._works: dict[int, HeldWork] = {}
        # Each as its handler and work, its batch, and its place in that.
        self._waiting = OrderedDict[int, tuple[Handler, HeldWork, StartBatch[int], int]]()
        self._resumed: set[int] = set()  # of those that wait: a child had begun them that is dead
        self._slowness: dict[str, int] = {}
        self.begun: dict[int, Begun] = {}
        self.quick: set[str] = set()
        self.guarded = 0
        self.is_leaving = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self.begun)

    def take(self, run: Run) -> list[Ends]:
        """Hold tasks that arrived; return the ends of those that can never begin.

        Raises:
            BadFrame: a task has work that was never sent.
        """
        works = self._works
        if run.forgets:
            works.clear()
        for sent in run.works:
            handler = self._registry.get(sent.handler)
            own_ms = handler.served.timeout_ms if handler is not None else 0
            works[sent.number] = HeldWork(sent, handler, timeout_of(sent.timeout_ms, own_ms))
        never: list[Ends] = []
        for tasks in run.tasks:
            for place, number in enumerate(tasks.works):
                if number not in works:
                    raise BadFrame(f"a task has work {number}, which was not sent")
                work = works[number]
                if work.handler is None:
                    said = f"this worker has no handler {work.sent.handler}"
                    never.append(Ends(Result.FATAL, [(tasks.first + place, 0, 0)], 0, said))
                else:
                    self._waiting[tasks.first + place] = (work.handler, work, tasks, place)
        self._resumed.update(filter(self._waiting.__contains__, run.resumed))
        return never

    def begin(self, wire: Wire, now_ms: int, lease_until_ms: int) -> tuple[list[Begun], list[int]]:
        """Return the tasks that begin now, and the numbers of those that may not because the
        executor has no lease."""
        beginning: list[Begun] = []
        unleased: list[int] = []
        waiting, begun = self._waiting, self.begun
        while waiting:
            number, (handler, held, tasks, place) = next(iter(waiting.items()))
            work, timeout_ms = held.sent, held.timeout_ms
            ahead = AHEAD_MAX if work.handler in self.quick else 0
            if len(begun) >= self._threads + ahead:
                break
            del waiting[number]
            is_resumed = number in self._resumed
            self._resumed.discard(number)
            if work.guarded:
                if now_ms >= lease_until_ms:
                    unleased.append(number)
                    continue
                self.guarded += 1
            context = Context(work, tasks, place, wire, now_ms + timeout_ms if timeout_ms else 0)
            context.is_resumed = is_resumed
            begun[number] = (handler, context)
            beginning.append((handler, context))
        return beginning, unleased

    def end(self, some: Sequence[Over]) -> list[Ends]:
        """Forget tasks that threads have ended; return how they ended."""
        alike: dict[tuple[Result, int, str], list[tuple[int, int, int]]] = {}
        for context, ended, started_ms, finished_ms in some:
            number, name = context.number, context.handler
            del self.begun[number]
            how = (ended.result, ended.after_ms, ended.detail)
            alike.setdefault(how, []).append((number, started_ms, finished_ms))
            self.guarded -= context.work.guarded
            step = _SLOWNESS_STEP if finished_ms - started_ms > QUICK_MS else -1
            slowness = self._slowness.get(name, _SLOWNESS_MAX) + step
            self._slowness[name] = slowness = min(_SLOWNESS_MAX, max(0, slowness))
            if slowness <= _SLOWNESS_QUICK:
                self.quick.add(name)
            else:
                self.quick.discard(name)
        return [
            Ends(result, tasks, after_ms, detail)
            for (result, after_ms, detail), tasks in alike.items()
        ]

    def drop(self, number: int) -> bool:
        """Forget a task that waits; return whether it did wait."""
        self._resumed.discard(number)
        return self._waiting.pop(number, None) is not None

    def leave(self) -> list[int]:
        """Forget all tasks that wait, and return their numbers; nothing begins from now on."""
        self.is_leaving = True
        numbers = list(self._waiting)
        self._waiting.clear()
        self._resumed.clear()
        return numbers


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
    ends: list[Over]


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
        self._ends: deque[Over] = deque()
        self._beats: deque[int] = deque()
        self._beating: set[int] = set()  # those in `_beats`
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
        if number in self._holding.begun and number not in self._beating:
            self._beating.add(number)
            self._beats.append(number)
            self._wake_up.ring()

    def write(self, number: int, text: str) -> None:
        """Add to the output of a task. Output over the bound is dropped, and a line says so."""
        written = text.encode("utf-8", "replace")
        with self._writing:
            # After the end, output of a thread that its handler left behind belongs to no launch.
            if number not in self._holding.begun:
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

    def end(self, over: Over) -> None:
        """Queue the end of a task; the caller rings."""
        context, ended, _, _ = over
        if ended.trace:
            self.write(context.number, ended.trace)
        self._ends.append(over)

    def take(self, now_ms: int) -> Messages:
        """Remove and return the messages to send now: ends at once, others at their time."""
        # Ends first: their tasks wrote all output before.
        ends = [self._ends.popleft() for _ in range(len(self._ends))]
        output: list[tuple[int, bytes]] = []
        if (self._output or self._dropped) and (ends or now_ms >= self._output_ms):
            self._output_ms = now_ms + OUTPUT_EVERY_MS
            output = self._take_output()
        beats: list[int] = []
        if self._beats and now_ms >= self._beats_ms:
            self._beats_ms = now_ms + BEATS_EVERY_MS
            beats = [self._beats.popleft() for _ in range(len(self._beats))]
            self._beating.difference_update(beats)
            beats = [number for number in beats if number in self._holding.begun]
        return Messages(output, beats, ends)

    def due_ms(self) -> int:
        """Return when queued messages are due for which no thread rings."""
        return min(
            self._output_ms if self._output or self._dropped else _NEVER_MS,
            self._beats_ms if self._beats else _NEVER_MS,
        )

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
            if number in self._holding.begun  # its end has not been sent
            for at in range(0, len(written), step)
        ]

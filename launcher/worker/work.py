"""The tasks that a child holds: which wait, which have begun, which may begin next. Pure.

A task waits until a thread is free for it. Handlers that are quick, all of whose recent calls took
next to no time, are announced up to AHEAD_MAX beyond the threads, since a message for each would
cost more than the call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from launcher.worker.context import Context, Wire
from launcher.worker.outcome import Ended
from launcher.worker.registry import Handler, Registry
from launcher.worker.wire import Outcome, Result, Task, timeout_of

AHEAD_MAX: Final = 128
"""A few milliseconds of calls that take some ten microseconds each."""
QUICK_MS: Final = 1
_SLOWNESS_MAX: Final = 16
_SLOWNESS_QUICK: Final = 8
_SLOWNESS_STEP: Final = 4


class Work:
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
        self._waiting: deque[Work] = deque()
        self._held: dict[str, Work] = {}
        self._slowness: dict[str, int] = {}
        self._begun = 0
        self.guarded = 0
        """How many begun ones must not outlive the lease."""
        self.is_leaving = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_busy(self) -> bool:
        """Whether something has begun and is not over."""
        return self._begun > 0

    def get(self, name: str) -> Work | None:
        """Return the work of that name, or None; from any thread."""
        return self._held.get(name)

    def begun(self) -> list[Work]:
        """Return what has begun and is not over."""
        return [work for work in self._held.values() if work.context is not None]

    def take(self, tasks: Sequence[Task]) -> list[Outcome]:
        """Keep tasks that arrived; return the outcomes of those that can never begin.

        A name that is held already is not taken twice.
        """
        never = []
        for task in tasks:
            handler = self._registry.get(task.handler)
            if handler is None:
                said = f"this worker has no handler {task.handler}"
                never.append(Outcome(task.name, Result.FATAL, 0, said))
            elif task.name not in self._held:
                self._held[task.name] = work = Work(task, handler)
                self._waiting.append(work)
        return never

    def begin(self, wire: Wire, now_ms: int, lease_until_ms: int) -> tuple[list[Work], list[Work]]:
        """Return what begins now, each with its context, and what may not for want of a lease."""
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

    def end(self, work: Work, ended: Ended, started_ms: int, finished_ms: int) -> Outcome:
        """Let go of what a thread has ended; return its outcome."""
        self._forget(work)
        self._begun -= 1
        self.guarded -= work.task.guarded
        self._learn(work.handler.name, finished_ms - started_ms)
        return Outcome(
            work.task.name, ended.result, ended.after_ms, ended.detail, started_ms, finished_ms
        )

    def drop(self, name: str) -> bool:
        """Let go of a task that waits; return whether it did wait."""
        work = self._held.get(name)
        if work is None or work.context is not None:
            return False
        self._forget(work)
        return True

    def leave(self) -> list[str]:
        """Let go of all that waits, and return its names; nothing begins from now on."""
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

    def _forget(self, work: Work) -> None:
        work.is_over = True
        self._held.pop(work.task.name, None)

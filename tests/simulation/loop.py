"""An event loop in which time is simulated: it never waits, it jumps to the next timer.

Nothing in it depends on the machine: no files, no threads, and tasks hash by the order in which
they were made, so that sets of tasks are walked in the same order in every run.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Protocol

START_S = 1_000.0
TURNS_WITHOUT_TIME_MAX = 200_000
RESOLUTION_S = 1e-6


class Stuck(Exception):
    """Nothing will ever happen any more, or everything happens at one moment for ever."""


class Disk(Protocol):
    """Stands for a thread that writes: what it is given happens at once, the answer takes time."""

    def delay_s(self) -> float:
        """How long the answer takes."""


class SimTask(asyncio.Task[Any]):
    """A task whose hash is its number."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class _Call:
    """A callback that is due now or at a time: a handle of asyncio, without what debugs it."""

    __slots__ = ("args", "callback", "context", "when_s")

    def __init__(
        self,
        when_s: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self.when_s = when_s
        self.callback: Callable[..., Any] | None = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context

    def cancel(self) -> None:
        """Forget what was to be called."""
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return self.callback is None

    def when(self) -> float:
        """Return the loop's time at which it is due."""
        return self.when_s


class SimLoop(asyncio.BaseEventLoop):
    """The loop. `time()` is seconds since some boot.

    It calls in the order in which asyncio's loop does. A simulation spends a third of its time in
    that loop, most of it on debugging and files, which nobody needs here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []  # of tasks that nobody waits for
        self._now_s = START_S
        self._still = 0
        self._numbers = itertools.count(1)
        self._calls: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call]] = []
        self._timer_numbers = itertools.count()
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Simulated seconds."""
        return self._now_s

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any
    ) -> asyncio.Future[Any]:
        return SimTask(next(self._numbers), coro, loop=loop, **options)

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Call:
        """Call in the next turn."""
        call = _Call(self._now_s, callback, args, context)
        self._calls.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Call:
        """Call at a time; of those of one time, in the order in which they were asked for."""
        call = _Call(when, callback, args, context)
        heapq.heappush(self._timers, (when, next(self._timer_numbers), call))
        return call

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Call:
        """Call after a time."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        """No file ever becomes ready."""

    def remove_reader(self, fd: Any) -> bool:
        """There is no reader to remove."""
        return False

    def _run_once(self) -> None:
        """Run a turn: all that is due now, or else the next timers."""
        calls, timers = self._calls, self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        if calls:
            self._still += 1
            if self._still > TURNS_WITHOUT_TIME_MAX:
                raise Stuck(f"time stands still at {self._now_s:.3f} s")
        elif not timers:
            raise Stuck("no timer is left")
        elif timers[0][0] > self._now_s:
            self._now_s = timers[0][0]
            self._still = 0
        while timers and timers[0][0] < self._now_s + RESOLUTION_S:
            calls.append(heapq.heappop(timers)[2])
        for _ in range(len(calls)):
            call = calls.popleft()
            if call.callback is not None:
                try:
                    call.context.run(call.callback, *call.args)
                except Exception as error:  # noqa: BLE001 - as asyncio's loop does
                    self.call_exception_handler({"message": "a callback", "exception": error})

    def run_in_executor(  # type: ignore[override]
        self, executor: Disk | Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call `func` here and now; a Disk gives the answer later, any thread at once."""
        future = self.create_future()
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to who awaits
            future.set_exception(error)
            return future
        if executor is None or isinstance(executor, Executor):
            future.set_result(result)
        else:
            self.call_later(executor.delay_s(), _answer, future, result)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note an error that nobody has heard of."""
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")


def _answer(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)

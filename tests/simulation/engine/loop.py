"""An asyncio loop for one simulated process: its callbacks run when the world says so.

What runs in it is ordinary asyncio code. It stands still while the process is stopped, and forgets
everything when it dies. What asyncio would give to a thread happens here, and is answered later.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from tests.simulation.engine.events import Events


class ProcessLoop(asyncio.AbstractEventLoop):
    """The loop. `inside` is entered around everything that it runs."""

    def __init__(
        self,
        events: Events,
        *,
        draw_lag_s: Callable[[], float],
        aside: Callable[[Callable[[], Any], Callable[[Any], None]], None],
        inside: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._events = events
        self._draw_lag_s = draw_lag_s
        self._aside = aside
        self._inside = inside
        self._queue: deque[asyncio.Handle] = deque()
        self._tasks: dict[asyncio.Task[Any], Coroutine[Any, Any, Any]] = {}
        self._woken = False
        self.paused = False
        self.dead = False
        self.errors: list[str] = []

    # --- what asyncio asks of a loop

    def time(self) -> float:
        return self._events.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.dead:
            self._queue.append(handle)
            self._wake()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._events.at(when, self._due, handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It will find itself cancelled."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        self._tasks[task] = coro
        task.add_done_callback(lambda task: self._tasks.pop(task, None) and None)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()

        def answer(result: Any) -> None:
            if future.done():
                return
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

        self._aside(lambda: func(*args), lambda result: self.call_soon(answer, result) and None)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    # --- the world's side

    def die(self) -> None:
        """Forget everything."""
        self.dead = True
        self._queue.clear()
        # A coroutine that is dropped complains that nobody waits for it, so end them; whoever
        # makes another one while it ends has that ended too.
        while self._tasks:
            tasks, self._tasks = self._tasks, {}
            with self.running():
                for coro in tasks.values():
                    _end(coro)

    def resume(self) -> None:
        """Go on after a stop."""
        self.paused = False
        if self._queue:
            self._woken = False
            self._wake()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Be the running loop."""
        before = asyncio_events._get_running_loop()
        asyncio_events._set_running_loop(self)
        try:
            with self._inside():
                yield
        finally:
            asyncio_events._set_running_loop(before)

    def _wake(self) -> None:
        if not self._woken and not self.paused:
            self._woken = True
            self._events.after(self._draw_lag_s(), self._run)

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled() and not self.dead:
            self._queue.append(handle)
            self._wake()

    def _run(self) -> None:
        self._woken = False
        if self.paused or self.dead:
            return
        with self.running():
            for _ in range(len(self._queue)):
                if self.paused or self.dead:
                    return
                handle = self._queue.popleft()
                if not handle.cancelled():
                    handle._run()
        if self._queue:
            self._wake()


def _end(coro: Coroutine[Any, Any, Any]) -> None:
    """Close `coro`, though it may wait for more on its way out, or be running now."""
    for _ in range(5):
        try:
            coro.close()
        except (RuntimeError, ValueError):
            continue
        return

"""An event loop in which time is simulated: it never waits, it jumps to the next timer.

Nothing in it depends on the machine: no files, no threads, and tasks hash by the order in which
they were made, so that sets of tasks are walked in the same order in every run.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any, Protocol

START_S = 1_000.0
TURNS_WITHOUT_TIME_MAX = 200_000


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


class _NoFiles(selectors.BaseSelector):
    """Files never become ready; waiting for them moves the clock."""

    def __init__(self) -> None:
        self.wait: Callable[[float | None], None] = lambda _timeout: None

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.wait(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)


class SimLoop(asyncio.SelectorEventLoop):
    """The loop. `time()` is seconds since some boot."""

    def __init__(self) -> None:
        self._now_s = START_S
        self.errors: list[str] = []  # of tasks that nobody waits for
        self._still = 0
        self._numbers = itertools.count(1)
        selector = _NoFiles()
        super().__init__(selector)
        selector.wait = self._advance
        self._clock_resolution = 1e-6
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Simulated seconds."""
        return self._now_s

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any
    ) -> asyncio.Future[Any]:
        return SimTask(next(self._numbers), coro, loop=loop, **options)

    def _advance(self, timeout: float | None) -> None:
        if timeout is None:
            raise Stuck("no timer is left")
        if timeout > 0:
            self._now_s += timeout
            self._still = 0
            return
        self._still += 1
        if self._still > TURNS_WITHOUT_TIME_MAX:
            raise Stuck(f"time stands still at {self._now_s:.3f} s")

    def _write_to_self(self) -> None:
        """There is no other thread that would have to wake this one."""

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

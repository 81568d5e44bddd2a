"""A thread that makes calls that may hang, one after the other.

It does not use concurrent.futures: Python waits for those threads at exit, and a store that hangs
must not keep a replica from stopping.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from cron.errors import Shutdown

_T = TypeVar("_T")


class _Call(Generic[_T]):
    """A call, and the future that waits for its result."""

    __slots__ = ("_call", "_loop", "future")

    def __init__(self, call: Callable[[], _T]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[_T] = self._loop.create_future()

    def run(self) -> None:
        """Make the call, and pass its result or error to the event loop."""
        try:
            value = self._call()
        except BaseException as error:  # noqa: BLE001 - it is the asker's
            self._bring(self._fail, error)
        else:
            self._bring(self._answer, value)

    def _bring(self, how: Callable[[Any], None], what: Any) -> None:
        with contextlib.suppress(
            RuntimeError
        ):  # the event loop is closed: nobody waits for the result
            self._loop.call_soon_threadsafe(how, what)

    def _answer(self, value: _T) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def _fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class CallThread:
    """A thread called `name`, started by the first call. Use it from one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    async def work(self, call: Callable[[], _T]) -> _T:
        """Return the result of `call`, or raise its error. Cancelling the wait does not cancel the
        call.

        Raises:
            Shutdown: the thread is closed.
        """
        if self._is_closed:
            raise Shutdown(f"{self._name} is stopped")
        return await self._put(call)

    def leave(self, call: Callable[[], object]) -> None:
        """Queue `call` and return at once; if the thread is closed, make the call now. `call` must
        be short and must not raise.
        """
        if self._is_closed or self._thread is None:
            call()
        else:
            self._put(call)

    def _put(self, call: Callable[[], _T]) -> asyncio.Future[_T]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        waiting = _Call(call)
        self._calls.put(waiting)
        return waiting.future

    def close(self) -> None:
        """Accept no more calls; do not wait for the current one. Idempotent."""
        self._is_closed = True
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()

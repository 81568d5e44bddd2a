"""The threads that run handlers, and one call of a handler: it reads the payload, sets the context,
and returns how the handler ended.

The threads take tasks that have begun and pass on how each ended; they know nothing of the socket.

Theory of operation. To wake a thread costs more than a quick call. So one thread is woken for many
quick tasks, and runs one after the other. Others are woken for the tasks behind a call that was not
quick after all, and by `nudge` if a call does not return.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Final

from launcher.clock import wall_ms
from launcher.errors import invariant
from launcher.payloads import MARK, MARK_WITHIN, whole_payload
from launcher.worker.context import Context, enter, leave
from launcher.worker.outcome import Cancelled, Ended, of_cancel, of_error, of_value
from launcher.worker.registry import Handler, Registry
from launcher.worker.wire import Result
from launcher.worker.work import QUICK_MS, Begun, Over

if TYPE_CHECKING:
    import asyncio

QUICK_EACH: Final = 32
"""Quick tasks for which one thread is woken."""
_CANCELLED: Final = Ended(Result.CANCELLED)


class ThreadPool:
    """Threads for plain handlers, and one with an asyncio loop for async ones, if a registry has
    any. All threads end with the process.

    They call `end` with each task that is over, and then `ring`, unless tasks behind it wait.
    """

    def __init__(
        self,
        registry: Registry,
        threads: int,
        end: Callable[[Over], None],
        ring: Callable[[], None],
    ) -> None:
        self._end, self._ring = end, ring
        self._ready: deque[Begun] = deque()
        self._running: dict[int, asyncio.Task[None]] = {}  # of the thread with the loop
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: list[threading.Thread] = []
        if any(not one.is_async for one in registry):
            names = [f"raftcron-handler-{number}" for number in range(1, threads + 1)]
            self._threads += [
                threading.Thread(target=self._serve, name=name, daemon=True) for name in names
            ]
        if any(one.is_async for one in registry):
            import asyncio  # only programs with async handlers pay for it

            self._loop = asyncio.new_event_loop()
            name = "raftcron-asyncio"
            self._threads += [threading.Thread(target=self._serve_async, name=name, daemon=True)]

    def start(self) -> None:
        """Start all threads."""
        for thread in self._threads:
            thread.start()

    @property
    def has_waiting(self) -> bool:
        """Return whether tasks wait for a thread."""
        return bool(self._ready)

    def submit(self, some: Sequence[Begun], quick: Container[str]) -> None:
        """Run tasks: plain ones in this order, as threads become free, async ones at once. The
        handlers in `quick` take next to no time."""
        plain = [one for one in some if not one[0].is_async]
        self._ready.extend(plain)
        count = sum([handler.name in quick for handler, _ in plain])
        for _ in range(len(plain) - count + -(-count // QUICK_EACH)):
            self._calls.put(None)
        if len(plain) < len(some) and self._loop is not None:
            waiting = [one for one in some if one[0].is_async]
            self._loop.call_soon_threadsafe(self._begin, waiting)

    def nudge(self) -> None:
        """Wake threads for the tasks that wait: a call before them takes longer than expected."""
        wanted = min(len(self._ready), len(self._threads))
        for _ in range(wanted - self._calls.qsize()):  # no more than all threads can take
            self._calls.put(None)

    def cancel(self, handler: Handler, context: Context, reason: str) -> None:
        """Set the flag of a running task; an async one gets a CancelledError at its next await."""
        context.cancelled.set(reason)
        if handler.is_async and self._loop is not None:
            self._loop.call_soon_threadsafe(self._interrupt, context.number)

    def _serve(self) -> None:
        ready = self._ready
        while True:
            self._calls.get()
            while ready:
                try:
                    handler, context = ready.popleft()
                except IndexError:
                    break  # another thread was faster
                started_ms = wall_ms()
                if context.cancelled:
                    ended = of_cancel(_CANCELLED, context.cancelled.reason)  # it never ran
                else:
                    ended = invoke(handler, context, context.work.payload)
                finished_ms = wall_ms()
                self._end((context, ended, started_ms, finished_ms))
                # In this order: if no thread rings for an end, the socket's thread sees this end,
                # or tasks that wait behind it, and looks again soon.
                is_slow = finished_ms - started_ms > QUICK_MS
                if is_slow or not ready:
                    self._ring()
                if is_slow and ready:
                    self._calls.put(None)

    def _serve_async(self) -> None:
        import asyncio

        loop = self._loop
        invariant(loop is not None, "no loop for async handlers")
        asyncio.set_event_loop(loop)
        while loop is not None:  # a handler may have stopped it, or raised SystemExit in a callback
            try:
                loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - the loop is every async handler's
                trouble = {"message": "a callback ended the loop", "exception": error}
                loop.call_exception_handler(trouble)

    def _begin(self, some: list[Begun]) -> None:
        if self._loop is not None:
            for handler, context in some:
                # Until its first step the loop refers to it, then `_running` does.
                self._loop.create_task(self._run(handler, context), name=context.name)

    async def _run(self, handler: Handler, context: Context) -> None:
        import asyncio

        # Here and not where the task is made: a task that is cancelled before its first step never
        # runs, and its end would never be reported.
        number, running = context.number, asyncio.current_task()
        if running is not None:
            self._running[number] = running
        started_ms = wall_ms()
        if context.cancelled:
            ended = of_cancel(_CANCELLED, context.cancelled.reason)  # it never ran
        else:
            ended = await invoke_async(handler, context, context.work.payload)
        del self._running[number]
        self._end((context, ended, started_ms, wall_ms()))
        self._ring()

    def _interrupt(self, number: int) -> None:
        if number in self._running:
            self._running[number].cancel()


def invoke(
    handler: Handler, context: Context, payload: bytes, caught: list[BaseException] | None = None
) -> Ended:
    """Call a plain handler and return how it ended; never raises.

    An exception that it raised is added to `caught`.
    """
    enter(context)
    try:
        call = handler.resolve()
        if MARK in payload[:MARK_WITHIN]:
            payload = whole_payload(payload)
        taken = () if call.read is None else (call.read(payload),)
        value = handler.function(*taken, *((context,) if call.takes_context else ()))
        ended = of_value(value)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the thread is ours
        ended = _of_raised(error, context, caught)
    finally:
        leave()
    return of_cancel(ended, context.cancelled.reason) if context.cancelled else ended


async def invoke_async(
    handler: Handler, context: Context, payload: bytes, caught: list[BaseException] | None = None
) -> Ended:
    """Call an async handler, await it, and return how it ended; never raises.

    An exception that it raised is added to `caught`.
    """
    enter(context)
    try:
        call = handler.resolve()
        if MARK in payload[:MARK_WITHIN]:
            import asyncio

            payload = await asyncio.to_thread(whole_payload, payload)
        taken = () if call.read is None else (call.read(payload),)
        ended = of_value(
            await handler.function(*taken, *((context,) if call.takes_context else ()))
        )
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the loop is ours
        ended = _of_raised(error, context, caught)
    finally:
        leave()
    return of_cancel(ended, context.cancelled.reason) if context.cancelled else ended


def _of_raised(error: BaseException, context: Context, caught: list[BaseException] | None) -> Ended:
    # Only its type is asked: `isinstance` would run a `__getattribute__` of the user's class.
    # asyncio's class is told by its name: importing asyncio costs more than all of this.
    kind = type(error)
    is_cancel = issubclass(kind, Cancelled) or kind.__name__ == "CancelledError"
    if caught is not None:
        caught.append(error)
    return _CANCELLED if context.cancelled and is_cancel else of_error(error)

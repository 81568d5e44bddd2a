"""The threads that run handlers, and one call of a handler: it reads the payload, sets the context,
and returns how the handler ended.

The threads take tasks that have begun and pass on how each ended; they know nothing of the socket.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from launcher.clock import wall_ms
from launcher.errors import invariant
from launcher.worker.context import Context, enter, leave
from launcher.worker.outcome import Cancelled, Ended, of_cancel, of_error, of_value
from launcher.worker.registry import Handler, Registry
from launcher.worker.wire import Result
from launcher.worker.work import HeldTask

if TYPE_CHECKING:
    import asyncio

End: TypeAlias = Callable[[HeldTask, Ended, int, int], None]
"""Called by any thread of the thread pool with a work, how it ended, and the times of its start and
end by the wall clock."""
_CANCELLED: Final = Ended(Result.CANCELLED)


class ThreadPool:
    """Threads for plain handlers, and one with an asyncio loop for async ones, if a registry has
    any. All threads end with the process."""

    def __init__(self, registry: Registry, threads: int, end: End) -> None:
        self._end = end
        self._ready: queue.SimpleQueue[HeldTask] = queue.SimpleQueue()
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

    def submit(self, works: Sequence[HeldTask]) -> None:
        """Run works: plain ones in this order, as threads become free, async ones at once."""
        for work in works:
            if not work.handler.is_async:
                self._ready.put(work)
        waiting = [work for work in works if work.handler.is_async]
        if waiting and self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin, waiting)

    def cancel(self, work: HeldTask, reason: str) -> None:
        """Set the flag of a running work; an async one gets a CancelledError at its next await."""
        _context_of(work).cancelled.set(reason)
        if work.handler.is_async and self._loop is not None:
            self._loop.call_soon_threadsafe(self._interrupt, work)

    def _serve(self) -> None:
        while True:
            work = self._ready.get()
            context, started_ms = _context_of(work), wall_ms()
            if context.cancelled:
                ended = of_cancel(_CANCELLED, context.cancelled.reason)  # it never ran
            else:
                ended = invoke(work.handler, context, work.task.payload)
            self._end(work, ended, started_ms, wall_ms())

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

    def _begin(self, works: list[HeldTask]) -> None:
        if self._loop is not None:
            for work in works:
                # Until its first step the loop refers to it, then the work does.
                self._loop.create_task(self._run(work), name=work.task.name)

    async def _run(self, work: HeldTask) -> None:
        import asyncio

        # Here and not where the task is made: a task that is cancelled before its first step never
        # runs, and its end would never be reported.
        work.running = asyncio.current_task()
        context, started_ms = _context_of(work), wall_ms()
        if context.cancelled:
            ended = of_cancel(_CANCELLED, context.cancelled.reason)  # it never ran
        else:
            ended = await invoke_async(work.handler, context, work.task.payload)
        self._end(work, ended, started_ms, wall_ms())

    def _interrupt(self, work: HeldTask) -> None:
        task: asyncio.Task[None] | None = work.running
        if task is not None and not work.is_over:
            task.cancel()


def _context_of(work: HeldTask) -> Context:
    invariant(work.context is not None, f"{work.task.name} runs without a context")
    context: Context = work.context  # type: ignore[assignment]
    return context


def invoke(
    handler: Handler, context: Context, payload: bytes, caught: list[BaseException] | None = None
) -> Ended:
    """Call a plain handler and return how it ended; never raises.

    An exception that it raised is added to `caught`.
    """
    call = invoke_async(handler, context, payload, caught)
    try:
        call.send(None)  # it awaits nothing, and so ends in its first step
    except StopIteration as end:
        ended: Ended = end.value
        return ended
    call.close()
    return Ended(Result.RAISED, 0, f"{handler.name} is async")


async def invoke_async(
    handler: Handler, context: Context, payload: bytes, caught: list[BaseException] | None = None
) -> Ended:
    """Call a handler, await it if it is async, and return how it ended; never raises.

    An exception that it raised is added to `caught`.
    """
    enter(context)
    try:
        call = handler.resolve()
        taken = () if call.read is None else (call.read(payload),)
        value = handler.function(*taken, *((context,) if call.takes_context else ()))
        ended = of_value(await value if handler.is_async else value)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the thread and loop are ours
        # Only its type is asked: `isinstance` would run a `__getattribute__` of the user's class.
        # asyncio's class is told by its name: importing asyncio costs more than all of this.
        kind = type(error)
        is_cancel = issubclass(kind, Cancelled) or kind.__name__ == "CancelledError"
        ended = _CANCELLED if context.cancelled and is_cancel else of_error(error)
        if caught is not None:
            caught.append(error)
    finally:
        leave()
    return of_cancel(ended, context.cancelled.reason) if context.cancelled else ended

"""The threads that run handlers: some for plain ones, one with an asyncio loop for async ones.

They take what has begun and give back how it ended; they know nothing of the socket.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from launcher.errors import invariant
from launcher.worker.clock import wall_ms
from launcher.worker.context import Context
from launcher.worker.invoke import invoke, invoke_async
from launcher.worker.outcome import Ended, of_cancel
from launcher.worker.wire import Result
from launcher.worker.work import Work

if TYPE_CHECKING:
    import asyncio

End: TypeAlias = Callable[[Work, Ended, int, int], None]
"""Called by any thread of the crew: work, how it ended, and from when to when by the wall clock."""
_NEVER_RAN: Final = Ended(Result.CANCELLED)


class Crew:
    """Threads for plain handlers."""

    def __init__(self, threads: int, end: End) -> None:
        self._end = end
        self._ready: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"raftcron-handler-{n}", daemon=True)
            for n in range(1, threads + 1)
        ]

    def start(self) -> None:
        """Start all threads; they end with the process."""
        for thread in self._threads:
            thread.start()

    def submit(self, works: Sequence[Work]) -> None:
        """Have these run, in this order, as threads become free."""
        for work in works:
            self._ready.put(work)

    def cancel(self, work: Work, reason: str) -> None:
        """Set the flag of what has begun."""
        context_of(work).cancelled.set(reason)

    def _serve(self) -> None:
        while True:
            work = self._ready.get()
            context = context_of(work)
            started_ms = wall_ms()
            if context.cancelled:
                ended = of_cancel(_NEVER_RAN, context.cancelled.reason)
            else:
                ended = invoke(work.handler, context, work.task.payload)
            self._end(work, ended, started_ms, wall_ms())


class Loop:
    """One thread with an asyncio loop, for async handlers."""

    def __init__(self, end: End) -> None:
        import asyncio  # only programs with async handlers pay for it

        self._end = end
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="raftcron-asyncio", daemon=True)

    def start(self) -> None:
        """Start the thread; it ends with the process."""
        self._thread.start()

    def submit(self, works: Sequence[Work]) -> None:
        """Have these run, all at once."""
        self._loop.call_soon_threadsafe(self._begin, list(works))

    def cancel(self, work: Work, reason: str) -> None:
        """Set the flag of what has begun, and raise CancelledError at its next await."""
        context_of(work).cancelled.set(reason)
        self._loop.call_soon_threadsafe(self._interrupt, work)

    def _serve(self) -> None:
        import asyncio

        asyncio.set_event_loop(self._loop)
        while True:  # a handler may have stopped it, or raised SystemExit in a callback of its own
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - the loop is every async handler's
                trouble = {"message": "a callback ended the loop", "exception": error}
                self._loop.call_exception_handler(trouble)

    def _begin(self, works: list[Work]) -> None:
        for work in works:
            # Until its first step the loop refers to it, then the work does.
            self._loop.create_task(self._run(work), name=work.task.name)

    async def _run(self, work: Work) -> None:
        import asyncio

        # Here and not where it is made: a task that is cancelled before its first step never runs,
        # and nobody would hear of its end.
        work.running = asyncio.current_task()
        context = context_of(work)
        started_ms = wall_ms()
        if context.cancelled:
            ended = of_cancel(_NEVER_RAN, context.cancelled.reason)
        else:
            ended = await invoke_async(work.handler, context, work.task.payload)
        self._end(work, ended, started_ms, wall_ms())

    def _interrupt(self, work: Work) -> None:
        task: asyncio.Task[None] | None = work.running
        if task is not None and not work.is_over:
            task.cancel()


def context_of(work: Work) -> Context:
    """Return the context of work that has begun."""
    invariant(work.context is not None, f"{work.task.name} runs without a context")
    context: Context = work.context  # type: ignore[assignment]
    return context

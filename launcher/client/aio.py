"""`AsyncClient`: what `Client` does, with await.

Calls are made by the same threads as a Client's: a task that is awaited occupies none of them, it
waits in the batcher. Submits of concurrent coroutines share calls.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import TracebackType
from typing import Any, Final, TypeVar, Unpack

from launcher.client.batching import Outcome, Parcel
from launcher.client.cell import Calls, Cell, find_place
from launcher.client.client import (
    CALL_TIMEOUT_S,
    CALLS_MAX,
    Core,
    Item,
    Settings,
    Submitted,
    batched,
    name_of,
    not_over,
    pauses,
    seconds,
    wait_deadline_s,
)
from launcher.client.errors import BadTask, NotAllSubmitted
from launcher.client.messages import TASKS_MAX, Submission, TaskView
from launcher.client.options import HandlerName, Options, submission
from launcher.lengths import Length

_THREADS: Final = 8
"""Calls at once that are no submits."""
_WAITING_MAX: Final = 10_000
"""Submits that are under way at once; further ones wait for their turn without being encoded."""
R = TypeVar("R")


class AsyncTask(Submitted):
    """A submitted task of an `AsyncClient`: as `Task`, with await."""

    def __init__(self, client: AsyncClient, made: Submission) -> None:
        super().__init__(made)
        self._client = client

    async def get(self) -> TaskView:
        """Return the task as it is now; see `Client.get`."""
        return await self._client.get(self)

    async def wait(self, timeout: Length | None = None) -> TaskView:  # noqa: ASYNC109
        """Return the task once it is over; see `Client.wait`."""
        return await self._client.wait(self, timeout)

    async def cancel(self) -> TaskView:
        """Cancel the task; see `Client.cancel`."""
        return await self._client.cancel(self)


class AsyncClient:
    """Submits tasks to a cell, and asks about them. Arguments and errors are those of `Client`.

    One is of use in one event loop.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        tls: str | None = None,
        token: str | None = None,
        tenant: str = "",
        timeout: Length = CALL_TIMEOUT_S,
        calls_max: int = CALLS_MAX,
        cell: Calls | None = None,
    ) -> None:
        found = cell if cell is not None else Cell(find_place(server, tls, token))
        self._core = Core(found, Settings(seconds("timeout", timeout), max(1, calls_max), tenant))
        self._threads: ThreadPoolExecutor | None = None
        self._room = asyncio.Semaphore(_WAITING_MAX)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all waiting calls and close all connections. A repeated call does nothing."""
        self._core.close()
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.to_thread(threads.shutdown)

    def with_timeout(self, timeout: Length) -> AsyncClient:
        """Return a client with another timeout of calls. As `Client.with_timeout`."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "raftcron-call")
        other = copy.copy(self)
        other._core = self._core.with_timeout(timeout)
        return other

    async def submit(
        self, handler: HandlerName | None, payload: object = None, **options: Unpack[Options]
    ) -> AsyncTask:
        """Submit a task; return it once the cell has committed it. As `Client.submit`."""
        made = submission(handler, payload, options, self._core.settings.tenant)
        (outcome,) = await self.send([made])
        if isinstance(outcome, Exception):
            raise outcome
        return AsyncTask(self, made).note(outcome)

    async def submit_many(self, items: Iterable[Item]) -> list[AsyncTask]:
        """Submit tasks, 1,000 in a call; return them in order. As `Client.submit_many`."""
        done: list[AsyncTask | Exception] = []
        for chunk in self._core.chunks(items):
            outcomes = await self.send(chunk)
            for made, outcome in zip(chunk, outcomes, strict=True):
                task = AsyncTask(self, made)
                done.append(outcome if isinstance(outcome, Exception) else task.note(outcome))
        return _all_submitted(done)

    async def send(self, chunk: list[Submission]) -> list[Outcome]:
        """Return what became of some submissions, soon after the deadline at the latest."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def tell() -> None:
            loop.call_soon_threadsafe(done.set)

        async with self._room:
            parcel = Parcel(chunk, self._core.deadline_s(), tell)
            self._core.batcher.put(parcel)
            try:
                async with asyncio.timeout(parcel.left_s()):
                    await done.wait()
            except TimeoutError:
                parcel.give_up()
            return parcel.outcomes()

    def batch(self) -> AsyncBatch:
        """Return an asynchronous context in which tasks are collected; they are sent at its end,
        and none of them if it ends with an exception."""
        return AsyncBatch(self, self._core)

    async def get(self, task: Any) -> TaskView:
        """Return a task as it is now. As `Client.get`."""
        return await self._called(self._core.get, name_of(task))

    async def cancel(self, task: Any) -> TaskView:
        """Cancel a task; return it as it is then. As `Client.cancel`."""
        return await self._called(self._core.cancel, name_of(task))

    async def run_now(self, task: Any) -> TaskView:
        """Make a waiting task due now; return it. As `Client.run_now`."""
        return await self._called(self._core.run_now, name_of(task))

    async def reschedule(
        self,
        task: Any,
        *,
        delay: Length | None = None,
        at: datetime | str | None = None,
        priority: int | None = None,
        revision: int | None = None,
        **payload: object,
    ) -> TaskView:
        """Give a waiting task another time, priority or `payload=`. As `Client.reschedule`."""
        if payload.keys() - {"payload"}:
            raise BadTask(f"{', '.join(payload)}: cannot be changed", "cancel it, submit another")
        changes = {"delay": delay, "at": at, "priority": priority, "revision": revision, **payload}
        return await self._called(self._core.reschedule, name_of(task), changes)

    async def wait(self, task: Any, timeout: Length | None = None) -> TaskView:  # noqa: ASYNC109
        """Return a task once it is over, however it ended. As `Client.wait`."""
        name = name_of(task)
        deadline_s = wait_deadline_s(timeout)
        for pause_s in pauses(deadline_s):
            view = await self._called(self._core.look, name, deadline_s)
            if view is not None and view.is_over:
                return view
            await asyncio.sleep(pause_s)
        raise not_over(name, timeout)

    async def _called(self, call: Callable[..., R], *given: Any) -> R:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "raftcron-call")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *given)


class AsyncBatch:
    """Tasks that are submitted together at the end of `async with client.batch() as batch:`."""

    def __init__(self, client: AsyncClient, core: Core) -> None:
        self._client = client
        self._core = core
        self._items: list[tuple[AsyncTask, Submission]] = []

    async def __aenter__(self) -> AsyncBatch:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.send()

    def submit(
        self, handler: HandlerName | None, payload: object = None, **options: Unpack[Options]
    ) -> AsyncTask:
        """Return a task that is sent with the others; its name is known at once.

        Raises:
            BadTask, BadPayload: it is not valid, or there are too many.
        """
        made = batched(len(self._items), self._core.settings, handler, payload, options)
        task = AsyncTask(self._client, made)
        self._items.append((task, made))
        return task

    async def send(self) -> None:
        """Send what was collected, and wait for the cell.

        Raises:
            NotAllSubmitted: some were refused; its `outcomes` has a task or an error for each.
        """
        items, self._items = self._items, []
        done: list[AsyncTask | Exception] = []
        for at in range(0, len(items), TASKS_MAX):
            window = items[at : at + TASKS_MAX]
            outcomes = await self._client.send([made for _, made in window])
            for (task, _), outcome in zip(window, outcomes, strict=True):
                done.append(outcome if isinstance(outcome, Exception) else task.note(outcome))
        _all_submitted(done)


def _all_submitted(outcomes: list[AsyncTask | Exception]) -> list[AsyncTask]:
    if any(isinstance(one, Exception) for one in outcomes):
        raise NotAllSubmitted(outcomes)
    return [one for one in outcomes if isinstance(one, AsyncTask)]

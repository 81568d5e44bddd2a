"""`AsyncClient`: what `Client` does, with await.

Calls are made by the same threads as a Client's: a task that is awaited occupies none of them, it
waits in the batcher. Submits of concurrent coroutines share calls.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Final, TypeAlias, TypeVar, Unpack

from launcher.client.batching import Outcome, Parcel
from launcher.client.core import (
    Collecting,
    Connected,
    Core,
    Filter,
    Grouping,
    Item,
    Submitted,
    accepted,
    not_over,
    noted,
    pauses,
    wait_deadline_s,
)
from launcher.client.dead import DeadFilter, DeadLetter, changed, listed
from launcher.client.many import Change, change_all, reschedule_all
from launcher.client.messages import GroupView, Submission, TaskChange, TaskView
from launcher.client.options import HandlerName, Options, name_of
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


Tasks: TypeAlias = list[AsyncTask]
Letters: TypeAlias = list[DeadLetter]
Views: TypeAlias = list[TaskView]
Outcomes: TypeAlias = list[AsyncTask | Exception]
Sent: TypeAlias = list[Outcome]
Made: TypeAlias = list[Submission]


class AsyncClient(Connected):
    """Submits tasks to a cell, and asks about them. Arguments and errors are those of `Client`.

    One is of use in one event loop.
    """

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_THREADS, "raftcron-call")

    @cached_property
    def _room(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(_WAITING_MAX)

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
        await asyncio.to_thread(self._threads.shutdown)

    def with_timeout(self, timeout: Length) -> AsyncClient:
        """Return a client with another timeout of calls. As `Client.with_timeout`."""
        self._threads, self._room  # noqa: B018 - both clients have the same
        other = copy.copy(self)
        other._core = self._core.with_timeout(timeout)
        return other

    async def submit(
        self, handler: HandlerName | None, payload: object = None, **options: Unpack[Options]
    ) -> AsyncTask:
        """Submit a task; return it once the cell has committed it. As `Client.submit`."""
        made = await self._stored(self._core.made, handler, payload, options)
        (outcome,) = await self.send([made])
        if isinstance(outcome, Exception):
            raise outcome
        return AsyncTask(self, made).note(outcome)

    async def submit_many(self, items: Iterable[Item]) -> Tasks:
        """Submit tasks, 1,000 in a call; return them in order. As `Client.submit_many`."""
        done: Outcomes = []
        chunks = self._core.chunks(items)
        while chunk := await self._stored(next, chunks, None):
            outcomes = zip(chunk, await self.send(chunk), strict=True)
            done += [noted(AsyncTask(self, made), outcome) for made, outcome in outcomes]
        return accepted(done)

    async def send(self, chunk: Made) -> Sent:
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

    def group(self, name: str, on_complete: Item | None = None) -> AsyncGroup:
        """Return a group of tasks, also for `async with`. As `Client.group`."""
        return AsyncGroup(self, self._core, name, on_complete)

    async def group_status(self, group: Any) -> GroupView:
        """Return a group as it is now. As `Client.group_status`."""
        return await self.called(self._core.group, name_of(group))

    async def list(self, **wanted: Unpack[Filter]) -> AsyncIterator[TaskView]:
        """Yield all tasks that fit, newest submissions first. As `Client.list`."""
        page, is_end = "", False
        while not is_end:
            found = await self.called(self._core.listed, wanted, page)
            for view in found.tasks:
                yield view
            page, is_end = found.next, not found.next

    async def watch(
        self, *, position: str = "", **wanted: Unpack[Filter]
    ) -> AsyncIterator[TaskChange]:
        """Yield tasks that fit as they change, each with its position. As `Client.watch`."""
        while rows := await self.called(self._core.watched, wanted, position):
            for one in rows:
                if one.task is not None:
                    yield one
            position = rows[-1].position

    async def cancel_all(self, *, is_dry_run: bool = False, **wanted: Unpack[Filter]) -> int:
        """Cancel all tasks that fit; return how many. As `Client.cancel_all`."""
        return await self.called(partial(self._core.cancel_all, wanted, is_dry_run=is_dry_run))

    async def get(self, task: Any) -> TaskView:
        """Return a task as it is now. As `Client.get`."""
        return await self.called(self._core.get, name_of(task))

    async def cancel(self, task: Any) -> TaskView:
        """Cancel a task; return it as it is then. As `Client.cancel`."""
        return await self.called(self._core.cancel, name_of(task))

    async def cancel_many(self, tasks: Iterable[Any]) -> Views:
        """Cancel tasks, 1,000 in a call; return each. As `Client.cancel_many`."""
        return await self.called(change_all, self._core, "Cancel", tasks)

    async def dead(self, task: Any = None, **wanted: Unpack[DeadFilter]) -> Letters:
        """Return the dead letters that fit. As `Client.dead`."""
        return await self.called(listed, self._core, task, wanted)

    async def redrive(self, task: Any = None, **wanted: Unpack[DeadFilter]) -> int:
        """Launch dead letters again; return how many. As `Client.redrive`."""
        return await self.called(changed, self._core, "Redrive", task, wanted)

    async def drop(self, task: Any = None, **wanted: Unpack[DeadFilter]) -> int:
        """Forget dead letters; return how many. As `Client.drop`."""
        return await self.called(changed, self._core, "DropDead", task, wanted)

    async def run_now(self, task: Any) -> TaskView:
        """Make a waiting task due now; return it. As `Client.run_now`."""
        return await self.called(self._core.run_now, name_of(task))

    async def run_now_many(self, tasks: Iterable[Any]) -> Views:
        """Make waiting tasks due now, 1,000 in a call; return each. As `Client.run_now_many`."""
        return await self.called(change_all, self._core, "RunNow", tasks)

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
        changes = {"delay": delay, "at": at, "priority": priority, "revision": revision, **payload}
        return await self.called(self._core.reschedule, name_of(task), changes)

    async def reschedule_many(self, changes: Iterable[Change]) -> Views:
        """Change waiting tasks, each (task, changes). As `Client.reschedule_many`."""
        return await self.called(reschedule_all, self._core, changes)

    async def wait(self, task: Any, timeout: Length | None = None) -> TaskView:  # noqa: ASYNC109
        """Return a task once it is over, however it ended. As `Client.wait`."""
        name = name_of(task)
        deadline_s = wait_deadline_s(timeout)
        for pause_s in pauses(deadline_s):
            view = await self.called(self._core.look, name, deadline_s)
            if view is not None and view.is_over:
                return view
            await asyncio.sleep(pause_s)
        raise not_over(name, timeout)

    async def called(self, call: Callable[..., R], *given: Any) -> R:
        """Make a call in a thread; return what it returns."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *given)

    async def _stored(self, call: Callable[..., R], *given: Any) -> R:
        """Call what may put a payload into a store: in a thread, if there is one."""
        if self._core.settings.payloads is None:
            return call(*given)
        return await self.called(call, *given)


class AsyncBatch(Collecting[AsyncTask]):
    """Tasks that are submitted together at the end of `async with client.batch() as batch:`."""

    def __init__(self, client: AsyncClient, core: Core) -> None:
        super().__init__(core, partial(AsyncTask, client))
        self._client = client

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

    async def send(self) -> None:
        """Send what was collected, and wait for the cell.

        Raises:
            NotAllSubmitted: some were refused; its `outcomes` has a task or an error for each.
        """
        done: Outcomes = []
        for window in self._windows(1):
            outcomes = await self._client.send([made for _, made in window])
            tasks = (task for task, _ in window)
            done += [noted(*one) for one in zip(tasks, outcomes, strict=True)]
        accepted(done)


class AsyncGroup(Grouping):
    """A group of tasks of an `AsyncClient`: as `Group`, with await."""

    def __init__(
        self, client: AsyncClient, core: Core, name: str, on_complete: Item | None
    ) -> None:
        super().__init__(core, name, on_complete)
        self._client = client

    async def __aenter__(self) -> AsyncGroup:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            error.add_note(self.stays_open)

    async def submit(
        self, handler: HandlerName | None, payload: object = None, **options: Unpack[Options]
    ) -> AsyncTask:
        """Submit a task of this group; see `Client.submit`."""
        return await self._client.submit(handler, payload, **self._options(options))

    async def submit_many(self, items: Iterable[Item]) -> Tasks:
        """Submit tasks of this group, 1,000 in a call; see `Client.submit_many`."""
        return await self._client.submit_many(map(self._member, items))

    async def close(self) -> GroupView:
        """Close the group, and submit its `on_complete`; see `Group.close`."""
        return await self._client.called(self._core.close_group, self.name, self._hook)

    async def status(self) -> GroupView:
        """Return the group as it is now; see `Client.group_status`."""
        return await self._client.called(self._core.group, self.name)

    async def cancel(self) -> int:
        """Close the group and cancel its tasks; see `Group.cancel`."""
        return await self._client.called(self._core.cancel_group, self.name)

    async def wait(self, timeout: Length | None = None) -> GroupView:  # noqa: ASYNC109
        """Return the group once it is complete; see `Group.wait`."""
        deadline_s = wait_deadline_s(timeout)
        for pause_s in pauses(deadline_s):
            view = await self._client.called(self._core.look_group, self.name, deadline_s)
            if view is not None and view.is_complete:
                return view
            await asyncio.sleep(pause_s)
        raise not_over(self.name, timeout, "complete")

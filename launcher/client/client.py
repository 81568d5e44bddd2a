"""`Client`: a program's way to a cell's tasks.

    client = Client()
    task = client.submit("billing.invoice", {"customer": "acme"}, delay="10m")
    view = client.wait(task, timeout=900)

A client is thread-safe, and one is enough for a program. It connects at its first call.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TypeAlias, Unpack

from launcher.client.batching import Parcel
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


class Task(Submitted):
    """A submitted task of a `Client`."""

    def __init__(self, client: Client, made: Submission) -> None:
        super().__init__(made)
        self._client = client

    def get(self) -> TaskView:
        """Return the task as it is now; see `Client.get`."""
        return self._client.get(self)

    def wait(self, timeout: Length | None = None) -> TaskView:
        """Return the task once it is over; see `Client.wait`."""
        return self._client.wait(self, timeout)

    def cancel(self) -> TaskView:
        """Cancel the task; see `Client.cancel`."""
        return self._client.cancel(self)


Named: TypeAlias = Task | TaskView | str
"""A task, or its name."""
Tasks: TypeAlias = list[Task]
Letters: TypeAlias = list[DeadLetter]
Views: TypeAlias = list[TaskView]
Outcomes: TypeAlias = list[Task | Exception]
Chunk: TypeAlias = tuple[list[Submission], Parcel]


class Client(Connected):
    """Submits tasks to a cell, and asks about them. Its arguments are those of `Connected`."""

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all waiting calls and close all connections. A repeated call does nothing."""
        self._core.close()

    def with_timeout(self, timeout: Length) -> Client:
        """Return a client with another timeout of calls, for the deadline of a request say. Both
        have the same connections, and closing one closes the other."""
        other = copy.copy(self)
        other._core = self._core.with_timeout(timeout)
        return other

    def submit(
        self, handler: HandlerName | None, payload: object = None, **options: Unpack[Options]
    ) -> Task:
        """Submit a task; return it once the cell has committed it.

        The key is drawn before the first try, so tries are repeated safely until the client's
        timeout. While the queue is full the task waits, as the cell says.

        Raises:
            BadTask, BadPayload: it cannot be submitted. OtherContent, UnknownHandler, UnknownQueue,
                Denied: the cell refused it. QueueFull, Unavailable: it could not in time.
            OutcomeUnknown: it may be there; submit it again with the same key.
        """
        made = self._core.made(handler, payload, options)
        parcel = Parcel([made], self._core.deadline_s())
        self._core.batcher.put(parcel)
        (outcome,) = parcel.wait()
        if isinstance(outcome, Exception):
            raise outcome
        return Task(self, made).note(outcome)

    def submit_many(self, items: Iterable[Item]) -> Tasks:
        """Submit tasks, each (handler, payload) or (handler, payload, options), 1,000 in a call;
        return them in order. The timeout counts for each call. `items` may be a generator: it is
        read as fast as the cell takes tasks.

        Raises:
            NotAllSubmitted: some were refused; its `outcomes` has a Task or an error for each.
            BadTask, BadPayload: an item is not valid; calls before its own were sent.
        """
        done: Outcomes = []
        open_: deque[Chunk] = deque()
        for chunk in self._core.chunks(items):
            if len(open_) >= self._core.settings.calls_max:
                done += self._settled(open_.popleft())
            parcel = Parcel(chunk, self._core.deadline_s())
            self._core.batcher.put(parcel)
            open_.append((chunk, parcel))
        for one in open_:
            done += self._settled(one)
        return accepted(done)

    def _settled(self, sent: Chunk) -> Outcomes:
        chunk, parcel = sent
        outcomes = zip(chunk, parcel.wait(), strict=True)
        return [noted(Task(self, made), outcome) for made, outcome in outcomes]

    def batch(self) -> Batch:
        """Return a context in which tasks are collected; they are sent at its end, and none of
        them if it ends with an exception."""
        return Batch(self._core, partial(Task, self))

    def group(self, name: str, on_complete: Item | None = None) -> Group:
        """Return a group of tasks, to submit to it, to close it and to wait for it. Its first task
        makes it. `on_complete` is one more task, (handler, payload) or (handler, payload, options),
        which is due once the group is closed and all its tasks are over, however they ended.

            with client.group("import-42", on_complete=("import.done", {"import": 42})) as group:
                group.submit_many(("import.row", row) for row in rows)

        The group is closed at the end of the block. If the block raises, it stays open.

        Raises:
            BadTask, BadPayload: `on_complete` is not valid.
        """
        return Group(self, self._core, name, on_complete)

    def group_status(self, group: Group | GroupView | str) -> GroupView:
        """Return a group as it is now.

        Raises:
            UnknownGroup: there is none, or it was forgotten.
        """
        return self._core.group(name_of(group))

    def get(self, task: Named) -> TaskView:
        """Return a task as it is now, with its attempts.

        Raises:
            UnknownTask: there is none, or it was forgotten.
        """
        return self._core.get(name_of(task))

    def list(self, **wanted: Unpack[Filter]) -> Iterator[TaskView]:
        """Yield all tasks that fit, newest submissions first; they are asked for page by page as
        they are read. Tasks that come in meanwhile are not among them.

        Raises:
            BadTask: the filter has a field that is none, or a value that cannot be.
        """
        page, is_end = "", False
        while not is_end:
            found = self._core.listed(wanted, page)
            yield from found.tasks
            page, is_end = found.next, not found.next

    def watch(self, *, position: str = "", **wanted: Unpack[Filter]) -> Iterator[TaskChange]:
        """Yield tasks that fit as they change, from now on or from the `position` of an earlier
        change; several changes of a task may come as one. It goes on over the death of a leader,
        until the caller ends it. In a cell in process it ends when nothing has changed.

        Raises:
            TaskError: `position_gone` where the changes after the position are not kept any more:
                list the tasks, and watch from now on. Unavailable: no replica answered in time.
        """
        while True:
            rows = self._core.watched(wanted, position)
            yield from (one for one in rows if one.task is not None)
            if not rows:
                return
            position = rows[-1].position

    def cancel_all(self, *, is_dry_run: bool = False, **wanted: Unpack[Filter]) -> int:
        """Cancel all tasks that fit and are not over; return how many, or how many there would be.

        Raises:
            BadTask: nothing is said, so that every task would fit; or as `list`.
        """
        return self._core.cancel_all(wanted, is_dry_run=is_dry_run)

    def cancel(self, task: Named) -> TaskView:
        """Cancel a task: before it begins it never will, afterwards it is asked to stop. Return it
        as it is then. A task that is cancelled already stays so.

        Raises:
            UnknownTask: there is none. TaskOver: it ended otherwise.
        """
        return self._core.cancel(name_of(task))

    def cancel_many(self, tasks: Iterable[Named]) -> Views:
        """Cancel tasks, 1,000 in a call; return each as it is then, in order. The timeout counts
        for each call.

        Raises:
            NotAllChanged: some were refused, as `cancel` says; its `outcomes` has a TaskView or an
                error for each.
            BadTask: one of them is no task; calls before its own were made.
        """
        return change_all(self._core, "Cancel", tasks)

    def run_now(self, task: Named) -> TaskView:
        """Make a waiting task due now; return it.

        Raises:
            UnknownTask: there is none. TaskOver: it is over.
        """
        return self._core.run_now(name_of(task))

    def run_now_many(self, tasks: Iterable[Named]) -> Views:
        """Make waiting tasks due now, 1,000 in a call; return each, in order. As `cancel_many`."""
        return change_all(self._core, "RunNow", tasks)

    def reschedule(
        self,
        task: Named,
        *,
        delay: Length | None = None,
        at: datetime | str | None = None,
        priority: int | None = None,
        revision: int | None = None,
        **payload: object,
    ) -> TaskView:
        """Give a waiting task another time, priority or `payload=`; return it. With `revision`,
        only if it was not changed since.

        Raises:
            UnknownTask: there is none. TaskOver: it is over. TaskError: it does not wait any more,
                or the revision is another one.
        """
        changes = {"delay": delay, "at": at, "priority": priority, "revision": revision, **payload}
        return self._core.reschedule(name_of(task), changes)

    def reschedule_many(self, changes: Iterable[Change]) -> Views:
        """Change waiting tasks, each (task, changes), 1,000 in a call; return each as it is then,
        in order. `changes` has the arguments of `reschedule`: `{"delay": "1h"}`. As `cancel_many`;
        a call without an answer is not repeated, its tasks have the outcome OutcomeUnknown.
        """
        return reschedule_all(self._core, changes)

    def dead(self, task: Named | None = None, **wanted: Unpack[DeadFilter]) -> Letters:
        """Return the dead letter of a task, or those that fit, at most 10,000, the oldest first:
        tasks that did not succeed and that no person ended.

        Raises:
            BadTask: the filter has a field that is none, or a value that cannot be. TaskError: the
                task that it names is no dead letter.
        """
        return listed(self._core, task, wanted)

    def redrive(self, task: Named | None = None, **wanted: Unpack[DeadFilter]) -> int:
        """Launch the dead letter of a task again, with all its retries, or those that fit; return
        how many.

        Raises:
            BadTask: nothing is said, so that every letter would fit; or as `dead`.
            TaskOver: the task has had as many attempts as there can be. TaskError: it is no dead
                letter. OutcomeUnknown: look at what is left, and repeat it.
        """
        return changed(self._core, "Redrive", task, wanted)

    def drop(self, task: Named | None = None, **wanted: Unpack[DeadFilter]) -> int:
        """Forget the dead letter of a task, with its payload, or those that fit; return how many.
        As `redrive`."""
        return changed(self._core, "DropDead", task, wanted)

    def wait(self, task: Named, timeout: Length | None = None) -> TaskView:
        """Return a task once it is over, however it ended: look at its `state`.

        Raises:
            NotOver: it was not within `timeout`. Unavailable: nobody could say within `timeout`.
            UnknownTask: there is none.
        """
        name = name_of(task)
        deadline_s = wait_deadline_s(timeout)
        for pause_s in pauses(deadline_s):
            view = self._core.look(name, deadline_s)
            if view is not None and view.is_over:
                return view
            time.sleep(pause_s)
        raise not_over(name, timeout)


class Batch(Collecting[Task]):
    """Tasks that are submitted together at the end of a `with client.batch() as batch:`."""

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.send()

    def send(self) -> None:
        """Send what was collected, and wait for the cell.

        Raises:
            NotAllSubmitted: some were refused; its `outcomes` has a Task or an error for each.
        """
        outcomes: Outcomes = []
        for window in self._windows(self._core.settings.calls_max):
            parcel = Parcel([made for _, made in window], self._core.deadline_s())
            self._core.batcher.put(parcel)
            tasks = (task for task, _ in window)
            outcomes += [noted(*one) for one in zip(tasks, parcel.wait(), strict=True)]
        accepted(outcomes)


class Group(Grouping):
    """A group of tasks of a `Client`; see `Client.group`."""

    def __init__(self, client: Client, core: Core, name: str, on_complete: Item | None) -> None:
        super().__init__(core, name, on_complete)
        self._client = client

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            error.add_note(self.stays_open)

    def submit(
        self, handler: HandlerName | None, payload: object = None, **options: Unpack[Options]
    ) -> Task:
        """Submit a task of this group; see `Client.submit`."""
        return self._client.submit(handler, payload, **self._options(options))

    def submit_many(self, items: Iterable[Item]) -> Tasks:
        """Submit tasks of this group, 1,000 in a call; see `Client.submit_many`."""
        return self._client.submit_many(map(self._member, items))

    def close(self) -> GroupView:
        """Close the group: it takes no more tasks. `on_complete` is submitted with that, once, also
        if the group is closed again. Return the group.

        Raises:
            UnknownGroup: no task was submitted to it. OtherContent: it has another `on_complete`.
        """
        return self._core.close_group(self.name, self._hook)

    def status(self) -> GroupView:
        """Return the group as it is now; see `Client.group_status`."""
        return self._core.group(self.name)

    def cancel(self) -> int:
        """Close the group and cancel its tasks that are not over; return how many."""
        return self._core.cancel_group(self.name)

    def wait(self, timeout: Length | None = None) -> GroupView:
        """Return the group once it is complete: it is closed, and all its tasks are over. The task
        `on_complete` is not one of them.

        Raises:
            NotOver: it was not within `timeout`. Unavailable: nobody could say within `timeout`.
            UnknownGroup: there is none.
        """
        deadline_s = wait_deadline_s(timeout)
        for pause_s in pauses(deadline_s):
            view = self._core.look_group(self.name, deadline_s)
            if view is not None and view.is_complete:
                return view
            time.sleep(pause_s)
        raise not_over(self.name, timeout, "complete")

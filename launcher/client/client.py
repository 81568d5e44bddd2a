"""`Client`: a program's way to a cell's tasks.

    client = Client()
    task = client.submit("billing.invoice", {"customer": "acme"}, delay="10m")
    view = client.wait(task, timeout=900)

A client is thread-safe, and one is enough for a program. It connects at its first call.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar, Unpack

import msgspec

from launcher.client.batching import Batcher, Outcome, Parcel
from launcher.client.cell import Calls, Cell, find_place
from launcher.client.errors import (
    BadTask,
    NotAllSubmitted,
    NotOver,
    OutcomeUnknown,
    Unavailable,
)
from launcher.client.messages import (
    TASKS_MAX,
    Submission,
    TasksReport,
    TaskView,
    Verdict,
)
from launcher.client.options import HandlerName, Options, submission
from launcher.lengths import Length, length_ms

CALL_TIMEOUT_S: Final = 30.0
CALLS_MAX: Final = 4
"""Calls of submits that are under way at once; each may have 1,000 tasks."""
BATCH_MAX: Final = 100_000
"""Tasks that `batch` collects before they are sent."""
POLL_S_MIN: Final = 0.02
POLL_S_MAX: Final = 1.0
LOOK_S_MIN: Final = 1.0
"""How long a look at a task may take, also where the caller waits for less."""

Item: TypeAlias = Sequence[Any]
"""A task for `submit_many`: (handler, payload) or (handler, payload, options)."""
A = TypeVar("A")


class Submitted:
    """What is known of a task that was submitted.

    `name` is `queue:key`, or `tenant/queue:key`; the rest is what the cell said of it. `is_new` is
    False where the key was known with this content.
    """

    def __init__(self, made: Submission) -> None:
        self.name = made.task
        self.key = made.key
        self.is_new = False
        self.state = ""
        self.scheduled_at = ""
        self.revision = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def note(self, verdict: Verdict) -> Self:
        """Note what the cell said; return the task."""
        self.name = verdict.task or self.name
        self.is_new, self.state = verdict.is_new, verdict.state
        self.scheduled_at, self.revision = verdict.scheduled_at, verdict.revision
        return self


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


def name_of(task: Any) -> str:
    """Return the name of a task.

    Raises:
        BadTask: it is none.
    """
    name = task if isinstance(task, str) else getattr(task, "name", None)
    name = name if name is not None else getattr(task, "task", None)
    if not isinstance(name, str) or not name:
        raise BadTask(f"{task!r} is no task", "give the Task that submit returned, or its name")
    return name


class Settings(NamedTuple):
    """How a client works: seconds that a call may take, calls at once, the tenant of its tasks."""

    timeout_s: float = CALL_TIMEOUT_S
    calls_max: int = CALLS_MAX
    tenant: str = ""


class Core:
    """What the clients with and without await share: a cell, a batcher, and how long they wait."""

    def __init__(self, cell: Calls, settings: Settings, batcher: Batcher | None = None) -> None:
        self.cell = cell
        self.settings = settings
        self.batcher = batcher or Batcher(cell, settings.calls_max)

    def with_timeout(self, timeout: Length) -> Core:
        """Return the same with another timeout.

        Raises:
            BadTask: it is no length.
        """
        timeout_s = seconds("timeout", timeout)
        return Core(self.cell, self.settings._replace(timeout_s=timeout_s), self.batcher)

    def deadline_s(self) -> float:
        """Return the deadline of a call that begins now, on the monotonic clock."""
        return time.monotonic() + self.settings.timeout_s

    def ask(
        self, method: str, request: dict[str, Any], answer: type[A], deadline_s: float | None = None
    ) -> A:
        """Return the answer to one call, by the client's timeout or the deadline that is given.

        Raises:
            TaskError: it was refused, or nobody answered in time.
        """
        content = msgspec.json.encode(request)
        is_repeatable = method != "Reschedule"
        deadline_s = self.deadline_s() if deadline_s is None else deadline_s
        got = self.cell.call(method, content, deadline_s, is_repeatable=is_repeatable)
        try:
            return msgspec.json.decode(got, type=answer)
        except msgspec.DecodeError as error:
            raise OutcomeUnknown(f"the answer is of another version: {error}") from error

    def get(self, name: str) -> TaskView:
        """Return a task as it is now."""
        return self.ask("Get", {"name": name}, TaskView)

    def look(self, name: str, deadline_s: float | None) -> TaskView | None:
        """Return a task, for one that waits until `deadline_s` for its end; None where no replica
        could act in the client's timeout and there is time for another look."""
        until_s = self.deadline_s()
        if deadline_s is not None:
            until_s = min(until_s, max(deadline_s, time.monotonic() + LOOK_S_MIN))
        try:
            return self.ask("Get", {"name": name}, TaskView, until_s)
        except Unavailable:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise
            return None

    def cancel(self, name: str) -> TaskView:
        """Cancel a task; return it as it is then. A task that is cancelled already stays so."""
        report = self.ask("Cancel", {"names": [name]}, TasksReport)
        return report.tasks[0] if report.tasks else self.get(name)

    def run_now(self, name: str) -> TaskView:
        """Make a waiting task due; return it as it is then."""
        report = self.ask("RunNow", {"names": [name]}, TasksReport)
        return report.tasks[0] if report.tasks else self.get(name)

    def reschedule(self, name: str, changes: dict[str, Any]) -> TaskView:
        """Change a waiting task; return it as it is then."""
        return self.ask("Reschedule", rescheduling(name, changes), TaskView)

    def chunks(self, items: Iterable[Item]) -> Iterator[list[Submission]]:
        """Yield what `submit_many` sends, call by call."""
        each = iter(items)
        while chunk := [self.submission_of(one) for one in itertools.islice(each, TASKS_MAX)]:
            yield chunk

    def submission_of(self, item: Item) -> Submission:
        """Return the submission of an item of `submit_many`.

        Raises:
            BadTask: it is no (handler, payload) or (handler, payload, options), or is not valid.
        """
        is_pair = isinstance(item, Sequence) and not isinstance(item, str | bytes)
        if not is_pair or not 2 <= len(item) <= 3 or not isinstance([*item, {}, {}][2], dict):
            hint = 'submit_many([("billing.invoice", payload), ("mail.send", payload, {"key": k})])'
            raise BadTask(f"{str(item)[:100]} is not (handler, payload[, options])", hint)
        handler, payload, *rest = item
        return submission(handler, payload, rest[0] if rest else {}, self.settings.tenant)

    def close(self) -> None:
        """End all waiting calls and close all connections. A repeated call does nothing."""
        self.batcher.close()
        self.cell.close()


def rescheduling(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the request of a Reschedule: only what changes.

    Raises:
        BadTask: a time, number or payload is not valid.
    """
    request: dict[str, Any] = {"name": name}
    if changes.get("revision"):
        request["revision"] = changes["revision"]
    said = Options(delay=changes["delay"], at=changes["at"], priority=changes["priority"])
    made = submission("-", changes.get("payload"), said)
    if changes["at"] is not None:
        request["at_ms"] = made.at_ms
    if changes["delay"] is not None:
        request["delay_ms"] = made.delay_ms
    if changes["priority"] is not None:
        request["priority"] = made.priority
    if "payload" in changes:
        request["payload"] = made.payload
    return request


def task_of(task: Task, outcome: Outcome) -> Task:
    """Return the task, with what the cell said of it.

    Raises:
        Exception: the outcome is one.
    """
    if isinstance(outcome, Exception):
        raise outcome
    return task.note(outcome)


class Client:
    """Submits tasks to a cell, and asks about them.

    `server` is a comma list of `host:port`, else RAFTCRON_SERVER, else the replicas of `raftcron
    dev`. `tls` is a folder of `raftcron certs issue` (else RAFTCRON_TLS), `token` what `raftcron
    token` made (else RAFTCRON_TOKEN). Tasks are of `tenant` unless they say another one. A call
    is tried for `timeout`; at most `calls_max` calls of submits are under way at once.

    Raises:
        BadTask: an address cannot be read. BadConfig: the certificate cannot be used.
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
        made = submission(handler, payload, options, self._core.settings.tenant)
        parcel = Parcel([made], self._core.deadline_s())
        self._core.batcher.put(parcel)
        (outcome,) = parcel.wait()
        return task_of(Task(self, made), outcome)

    def submit_many(self, items: Iterable[Item]) -> list[Task]:
        """Submit tasks, each (handler, payload) or (handler, payload, options), 1,000 in a call;
        return them in order. The timeout counts for each call. `items` may be a generator: it is
        read as fast as the cell takes tasks.

        Raises:
            NotAllSubmitted: some were refused; its `outcomes` has a Task or an error for each.
            BadTask, BadPayload: an item is not valid; calls before its own were sent.
        """
        outcomes = self._sent(items)
        if any(isinstance(one, Exception) for one in outcomes):
            raise NotAllSubmitted(outcomes)
        return [one for one in outcomes if isinstance(one, Task)]

    def _sent(self, items: Iterable[Item]) -> list[Task | Exception]:
        done: list[Task | Exception] = []
        open_: list[tuple[list[Submission], Parcel]] = []
        for chunk in self._core.chunks(items):
            if len(open_) >= self._core.settings.calls_max:
                done += self._settled(open_.pop(0))
            parcel = Parcel(chunk, self._core.deadline_s())
            self._core.batcher.put(parcel)
            open_.append((chunk, parcel))
        for one in open_:
            done += self._settled(one)
        return done

    def _settled(self, sent: tuple[list[Submission], Parcel]) -> list[Task | Exception]:
        chunk, parcel = sent
        return [
            outcome if isinstance(outcome, Exception) else Task(self, made).note(outcome)
            for made, outcome in zip(chunk, parcel.wait(), strict=True)
        ]

    def batch(self) -> Batch:
        """Return a context in which tasks are collected; they are sent at its end, and none of
        them if it ends with an exception."""
        return Batch(self, self._core)

    def get(self, task: Named) -> TaskView:
        """Return a task as it is now, with its attempts.

        Raises:
            UnknownTask: there is none, or it was forgotten.
        """
        return self._core.get(name_of(task))

    def cancel(self, task: Named) -> TaskView:
        """Cancel a task: before it begins it never will, afterwards it is asked to stop. Return it
        as it is then. A task that is cancelled already stays so.

        Raises:
            UnknownTask: there is none. TaskOver: it ended otherwise.
        """
        return self._core.cancel(name_of(task))

    def run_now(self, task: Named) -> TaskView:
        """Make a waiting task due now; return it.

        Raises:
            UnknownTask: there is none. TaskOver: it is over.
        """
        return self._core.run_now(name_of(task))

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
        if payload.keys() - {"payload"}:
            raise BadTask(f"{', '.join(payload)}: cannot be changed", "cancel it, submit another")
        changes = {"delay": delay, "at": at, "priority": priority, "revision": revision, **payload}
        return self._core.reschedule(name_of(task), changes)

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


def batched(
    count: int, settings: Settings, handler: HandlerName | None, payload: object, options: Options
) -> Submission:
    """Return a task for a batch that has `count` of them.

    Raises:
        BadTask, BadPayload: it is not valid, or there are too many.
    """
    if count >= BATCH_MAX:
        raise BadTask(f"a batch has at most {BATCH_MAX:,} tasks", "submit_many takes any number")
    return submission(handler, payload, options, settings.tenant)


class Batch:
    """Tasks that are submitted together at the end of a `with client.batch() as batch:`."""

    def __init__(self, client: Client, core: Core) -> None:
        self._client = client
        self._core = core
        self._items: list[tuple[Task, Submission]] = []

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

    def submit(
        self, handler: HandlerName | None, payload: object = None, **options: Unpack[Options]
    ) -> Task:
        """Return a task that is sent with the others; its name is known at once.

        Raises:
            BadTask, BadPayload: it is not valid, or there are too many.
        """
        made = batched(len(self._items), self._core.settings, handler, payload, options)
        task = Task(self._client, made)
        self._items.append((task, made))
        return task

    def send(self) -> None:
        """Send what was collected, and wait for the cell.

        Raises:
            NotAllSubmitted: some were refused; its `outcomes` has a Task or an error for each.
        """
        items, self._items = self._items, []
        outcomes: list[Task | Exception] = []
        width = TASKS_MAX * self._core.settings.calls_max
        for at in range(0, len(items), width):
            window = items[at : at + width]
            parcel = Parcel([made for _, made in window], self._core.deadline_s())
            self._core.batcher.put(parcel)
            for (task, _), outcome in zip(window, parcel.wait(), strict=True):
                outcomes.append(outcome if isinstance(outcome, Exception) else task.note(outcome))
        if any(isinstance(one, Exception) for one in outcomes):
            raise NotAllSubmitted(outcomes)


def seconds(what: str, length: Length) -> float:
    """Return the seconds of a length.

    Raises:
        BadTask: it is none.
    """
    try:
        return length_ms(length) / 1000
    except (ValueError, TypeError) as error:
        raise BadTask(f"{what}: {error}") from error


def wait_deadline_s(timeout: Length | None) -> float | None:
    """Return until when to wait for a task, on the monotonic clock; None for any time.

    Raises:
        BadTask: the timeout is no length.
    """
    return None if timeout is None else time.monotonic() + seconds("timeout", timeout)


def pauses(deadline_s: float | None) -> Iterator[float]:
    """Yield the pauses in seconds between looks at a task; the last look is at the deadline."""
    pause_s = POLL_S_MIN
    while True:
        left_s = pause_s if deadline_s is None else deadline_s - time.monotonic()
        yield max(0.0, min(pause_s, left_s))
        if left_s <= 0:
            return
        pause_s = min(1.5 * pause_s, POLL_S_MAX)


def not_over(name: str, timeout: Length | None) -> NotOver:
    """Return what `wait` raises."""
    waited_s = 0.0 if timeout is None else seconds("timeout", timeout)
    return NotOver(
        f"{name} is not over after {waited_s:g} s", "it goes on; wait again, or cancel it"
    )

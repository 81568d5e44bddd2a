"""What `Client` and `AsyncClient` share: all but how they wait.

A `Core` makes the calls. `Connected`, `Submitted`, `Collecting` and `Grouping` are the bases of the
clients, of their tasks, batches and groups.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, Generic, NamedTuple, Self, TypeAlias, TypedDict, TypeVar, Unpack

import msgspec

from launcher.client.batching import Batcher, Outcome
from launcher.client.cell import Calls, cell_at, find_place, user_name
from launcher.client.errors import (
    BadTask,
    NotAllSubmitted,
    NotOver,
    OutcomeUnknown,
    Unavailable,
)
from launcher.client.messages import (
    TASKS_MAX,
    GroupView,
    Submission,
    TaskChange,
    TaskPage,
    TasksReport,
    TaskView,
    Verdict,
)
from launcher.client.options import HandlerName, Options, moment_ms, name_of, submission
from launcher.lengths import Length, length_ms
from launcher.payloads import PayloadStore, first_store, open_store

CALL_TIMEOUT_S: Final = 30.0
CALLS_MAX: Final = 4
"""Calls of submits that are under way at once; each may have 1,000 tasks."""
BATCH_MAX: Final = 100_000
"""Tasks that `batch` collects before they are sent."""
POLL_S_MIN: Final = 0.02
POLL_S_MAX: Final = 1.0
WATCH_MS: Final = 5_000
"""How long one question of `watch` lasts where nothing changes."""
LOOK_S_MIN: Final = 1.0
"""How long a look at a task may take, also where the caller waits for less."""

_RESCHEDULES: Final = ("Reschedule", "RescheduleMany")
_LETTERS: Final = ("Redrive", "DropDead")
_CHANGES: Final = ("Cancel", "RunNow", "CloseGroup", "CancelGroup", *_RESCHEDULES, *_LETTERS)

Item: TypeAlias = Sequence[Any]
"""A task for `submit_many`: (handler, payload) or (handler, payload, options)."""
A = TypeVar("A")


T = TypeVar("T", bound="Submitted")


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


class Settings(NamedTuple):
    """How a client works: seconds that a call may take, calls at once, the tenant of its tasks, and
    where payloads go that are too long for a task."""

    timeout_s: float = CALL_TIMEOUT_S
    calls_max: int = CALLS_MAX
    tenant: str = ""
    payloads: PayloadStore | None = None


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
        if method in _CHANGES:
            request = request | {"by": user_name()}
        content = msgspec.json.encode(request)
        is_repeatable = method not in (*_RESCHEDULES, *_LETTERS)
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
        return self._looked("Get", name, TaskView, deadline_s)

    def _looked(
        self, method: str, name: str, answer: type[A], deadline_s: float | None
    ) -> A | None:
        until_s = self.deadline_s()
        if deadline_s is not None:
            until_s = min(until_s, max(deadline_s, time.monotonic() + LOOK_S_MIN))
        try:
            return self.ask(method, {"name": name}, answer, until_s)
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

    def listed(self, wanted: Filter, page: str) -> TaskPage:
        """Return a page of the tasks that fit, newest first."""
        request = {"filter": filter_of(wanted, self.settings.tenant), "page": page}
        return self.ask("List", request | {"limit": TASKS_MAX}, TaskPage)

    def cancel_all(self, wanted: Filter, *, is_dry_run: bool) -> int:
        """Cancel all tasks that fit, a thousand at a time, so that no call takes long; return how
        many."""
        if all(value is None for value in wanted.values()):
            raise BadTask("the filter fits every task", "name a queue, at least")
        request = {"filter": filter_of(wanted, self.settings.tenant), "is_dry_run": is_dry_run}
        return self._in_portions("Cancel", request)

    def _in_portions(self, method: str, request: dict[str, Any]) -> int:
        """Ask for a change portion by portion; return of how many tasks it was made."""
        count, page = 0, ""
        while True:
            report = self.ask(method, request | {"page": page}, TasksReport)
            count, page = count + report.count, report.next
            if not page:
                return count

    def watched(self, wanted: Filter, position: str) -> list[TaskChange]:
        """Return what changed after a position, once there is something, or after a while: the last
        row has the position that follows. Without a position it is the present one."""
        request: dict[str, Any] = {"filter": filter_of(wanted, self.settings.tenant)}
        wait_ms = min(WATCH_MS, max(1, round(self.settings.timeout_s * 250)))
        request |= {"position": position, "wait_ms": wait_ms, "limit": TASKS_MAX}
        rows = self.cell.rows("Watch", msgspec.json.encode(request), self.deadline_s())
        try:
            return [msgspec.json.decode(row, type=TaskChange) for row in rows]
        except msgspec.DecodeError as error:
            raise OutcomeUnknown(f"the answer is of another version: {error}") from error

    def group(self, name: str) -> GroupView:
        """Return a group as it is now."""
        return self.ask("GetGroup", {"name": name}, GroupView)

    def look_group(self, name: str, deadline_s: float | None) -> GroupView | None:
        """Return a group; as `look`."""
        return self._looked("GetGroup", name, GroupView, deadline_s)

    def close_group(self, name: str, hook: Submission | None) -> GroupView:
        """Close a group, with the task that follows it, if there is one; return it."""
        request: dict[str, Any] = {"name": name}
        return self.ask("CloseGroup", request | ({"on_complete": hook} if hook else {}), GroupView)

    def cancel_group(self, name: str) -> int:
        """Close a group and cancel its tasks; return how many."""
        return self._in_portions("CancelGroup", {"name": name})

    def made(self, handler: HandlerName | None, payload: object, options: Options) -> Submission:
        """Return the submission of a task.

        Raises:
            BadTask, BadPayload: it is not valid. Unavailable: its payload cannot be stored.
        """
        known = self.settings
        return submission(handler, payload, options, known.tenant, known.payloads)

    def chunks(self, items: Iterable[Item]) -> Iterator[list[Submission]]:
        """Yield what `submit_many` sends, call by call."""
        each = iter(items)
        while chunk := [self.submission_of(one) for one in itertools.islice(each, TASKS_MAX)]:
            yield chunk

    @staticmethod
    def check_item(item: Any) -> None:
        """Raise BadTask for what is no (handler, payload) or (handler, payload, options)."""
        is_pair = isinstance(item, Sequence) and not isinstance(item, str | bytes)
        if not is_pair or not 2 <= len(item) <= 3 or not isinstance([*item, {}, {}][2], dict):
            hint = 'submit_many([("billing.invoice", payload), ("mail.send", payload, {"key": k})])'
            raise BadTask(f"{str(item)[:100]} is not (handler, payload[, options])", hint)

    def submission_of(self, item: Item) -> Submission:
        """Return the submission of an item of `submit_many`.

        Raises:
            BadTask: it is no (handler, payload) or (handler, payload, options), or is not valid.
        """
        self.check_item(item)
        handler, payload, *rest = item
        return self.made(handler, payload, rest[0] if rest else {})

    def close(self) -> None:
        """End all waiting calls and close all connections. A repeated call does nothing."""
        self.batcher.close()
        self.cell.close()


def rescheduling(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the request of a Reschedule: only what changes.

    Raises:
        BadTask: a time, number or payload is not valid.
    """
    if unknown := changes.keys() - {"delay", "at", "priority", "revision", "payload"}:
        raise BadTask(f"{', '.join(unknown)}: cannot be changed", "cancel it, submit another")
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


class Filter(TypedDict, total=False):
    """Which tasks are meant: those that fit all that is said. `prefix` is the begin of a key;
    `due_from` (inclusive) and `due_to` (exclusive) are aware datetimes or ISO texts with a zone."""

    queue: str
    tenant: str
    group: Any
    collection: str
    state: str
    prefix: str
    due_from: datetime | str
    due_to: datetime | str


def filter_of(wanted: Filter, tenant: str) -> dict[str, Any]:
    """Return a filter as the cell takes it; it is of `tenant` unless it says another one.

    Raises:
        BadTask: it has a field that is none, or a time that cannot be read.
    """
    unknown = next((name for name in wanted if name not in Filter.__annotations__), None)
    if unknown is not None:
        known = ", ".join(sorted(Filter.__annotations__))
        raise BadTask(f"{unknown}: tasks cannot be chosen by it", f"there are {known}")
    said: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if "group" in said:
        said["group"] = name_of(said["group"])
    for name, field in (("due_from", "from_ms"), ("due_to", "to_ms")):
        if name in said:
            said[field] = moment_ms(name, said.pop(name))
    if tenant and not any("/" in said.get(name, "") for name in ("queue", "group")):
        said.setdefault("tenant", tenant)
    return said


def noted(task: T, outcome: Outcome) -> T | Exception:
    """Return a task with what the cell said of it, or why it was refused."""
    return outcome if isinstance(outcome, Exception) else task.note(outcome)


def accepted(outcomes: Iterable[T | Exception]) -> list[T]:
    """Return the tasks.

    Raises:
        NotAllSubmitted: some were refused; its `outcomes` has a task or an error for each.
    """
    outcomes = list(outcomes)
    tasks = [one for one in outcomes if not isinstance(one, Exception)]
    if len(tasks) < len(outcomes):
        raise NotAllSubmitted(outcomes)
    return tasks


class Connected:
    """A client of a cell.

    `server` is a comma list of `host:port`, or of `https://host:port` beside a token; else
    RAFTCRON_SERVER, else the replicas of `raftcron dev`. `tls` is a folder of `raftcron certs
    issue` (else RAFTCRON_TLS), `token` what `raftcron token` made (else RAFTCRON_TOKEN). Tasks are
    of `tenant` unless they say another one. A call is tried for `timeout`; at most `calls_max`
    calls of submits are under way at once. Payloads that are too long for a task go to `payloads`,
    the URL of a store or a `PayloadStore` (else the first of RAFTCRON_PAYLOADS).

    Raises:
        BadTask: an address, or the URL of a store, cannot be read.
        BadConfig: the certificate cannot be used.
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
        payloads: str | PayloadStore | None = None,
        cell: Calls | None = None,
    ) -> None:
        try:
            store = open_store(payloads) if payloads else first_store()
        except ValueError as error:
            raise BadTask(str(error)) from error
        found = cell if cell is not None else cell_at(find_place(server, tls, token))
        timeout_s, calls_max = seconds("timeout", timeout), max(1, calls_max)
        self._core = Core(found, Settings(timeout_s, calls_max, tenant, store))


class Collecting(Generic[T]):
    """Tasks that are submitted together at the end of a block."""

    def __init__(self, core: Core, task: Callable[[Submission], T]) -> None:
        self._core = core
        self._task = task
        self._items: list[tuple[T, Submission]] = []

    def submit(
        self, handler: HandlerName | None, payload: object = None, **options: Unpack[Options]
    ) -> T:
        """Return a task that is sent with the others; its name is known at once.

        Raises:
            BadTask, BadPayload: it is not valid, or there are too many.
        """
        if len(self._items) >= BATCH_MAX:
            text = f"a batch has at most {BATCH_MAX:,} tasks"
            raise BadTask(text, "submit_many takes any number")
        made = self._core.made(handler, payload, options)
        task = self._task(made)
        self._items.append((task, made))
        return task

    def _windows(self, calls: int) -> Iterator[list[tuple[T, Submission]]]:
        """Yield what was collected, as many as `calls` calls take; it is no longer collected."""
        items, self._items = self._items, []
        for at in range(0, len(items), calls * TASKS_MAX):
            yield items[at : at + calls * TASKS_MAX]


class Grouping:
    """A group of tasks. `name` is `group` or `tenant/group`; `on_complete` is the task that follows
    it: (handler, payload) or (handler, payload, options)."""

    def __init__(self, core: Core, name: str, on_complete: Item | None) -> None:
        tenant = core.settings.tenant
        self._core = core
        self.name = f"{tenant}/{name}" if tenant and "/" not in name else name
        self._hook: Submission | None = None
        if on_complete:
            core.check_item(on_complete)
            handler, payload, options = (*on_complete, {})[:3]
            tenant, slash, word = self.name.rpartition("/")
            # A key of its own, so that closing may be repeated.
            usual = {"key": f"{word}.complete"} | ({"tenant": tenant} if slash else {})
            self._hook = core.submission_of((handler, payload, usual | options))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def stays_open(self) -> str:
        """What is said where the block of a group ends with an exception."""
        return f"group {self.name} stays open: close or cancel it, or submit the rest to it"

    def _member(self, item: Item) -> Item:
        """Return a task of this group.

        Raises:
            BadTask: the item is none of `submit_many`.
        """
        self._core.check_item(item)
        handler, payload, *rest = item
        return (handler, payload, self._options(rest[0] if rest else {}))

    def _options(self, options: Any) -> Any:
        tenant, slash, word = self.name.rpartition("/")
        return ({"tenant": tenant} if slash else {}) | options | {"group": word}


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


def not_over(name: str, timeout: Length | None, what: str = "over") -> NotOver:
    """Return what `wait` raises."""
    waited_s = 0.0 if timeout is None else seconds("timeout", timeout)
    return NotOver(
        f"{name} is not {what} after {waited_s:g} s", "it goes on; wait again, or cancel it"
    )

"""Tasks: work that a program hands over once, and what is asked about it.

The calls are those of the gRPC service `raftcron.v1.Tasks`. A task is named `tenant/queue:key`; the
tenant `default` may be left out. Times are epoch milliseconds; a time in the past means now.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec

from cron import limits
from cron.api import checks
from cron.api.checks import Collection, Handler, Person, Tenant, Within, bound, instant
from cron.api.launches import LaunchView
from cron.api.rpc import TIMEOUT_MS, Fields, Request, View
from cron.errors import InvalidInput, LimitExceeded
from cron.job import TRIES_UNLIMITED, OnLost
from launcher.protocol.names import (
    DEFAULT_TENANT,
    NAME_PART_CHARS_MAX,
    TASK_MARK,
    format_time,
    short_job_name,
)

SERVICE: Final = "raftcron.v1.Tasks"
STATES: Final = (
    "waiting", "due", "running", "succeeded", "failed", "cancelled", "skipped", "lost",
)  # fmt: skip
"""All states of a task, in the order in which it passes them."""
OPEN_STATES: Final = ("waiting", "due", "running")
TASKS_MAX: Final = 1_000
"""Tasks of one call, and of one page of a list."""
LABEL_NAME_CHARS_MAX: Final = 63
GROUP_CHARS_MAX: Final = NAME_PART_CHARS_MAX - 2
"""As a queue, which has room for a colon and a key."""
TRIES_MAX: Final = 1_001
"""As a job's: 1,000 retries after the first try; or TRIES_UNLIMITED."""
BACKOFF_MS_MAX: Final = 86_400_000
WATCH_MS_MAX: Final = 3_600_000
PAGE_CHARS_MAX: Final = 400

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_decode_any: Final = msgspec.json.Decoder().decode
_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode
_PART: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_TASK: Final = re.compile(
    rf"(?:(?P<tenant>{_PART})/)?(?P<queue>{_PART}):(?P<key>{_PART})", re.ASCII
)
_LABEL: Final = re.compile(
    rf"[A-Za-z0-9_][A-Za-z0-9_./-]{{0,{LABEL_NAME_CHARS_MAX - 1}}}", re.ASCII
)
_GROUP: Final = re.compile(rf"(?:(?P<tenant>{_PART})/)?(?P<group>{_PART})", re.ASCII)
_TRACEPARENT: Final = r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"
_NAME_HINT: Final = "write queue:key or tenant/queue:key"
_GROUP_HINT: Final = "write group or tenant/group, of A-Z a-z 0-9 _ . -"
_TIME_HINT: Final = "write ISO 8601 with a zone, such as 2026-11-20T15:00:00Z"


def split_task_name(name: str) -> tuple[str, str, str]:
    """Return (tenant, queue, key) of a task's name; the default tenant may be left out.

    Raises:
        InvalidInput: it is no such name.
    """
    match = _TASK.fullmatch(name) if len(name) <= checks.NAME_CHARS_MAX else None
    if match is None:
        raise InvalidInput(f"{name[:80]!r} is not the name of a task", _NAME_HINT)
    tenant, queue, key = match["tenant"] or DEFAULT_TENANT, match["queue"], match["key"]
    if len(tenant) > NAME_PART_CHARS_MAX:
        raise InvalidInput(f"tenant {tenant[:40]!r}... has more than {NAME_PART_CHARS_MAX} letters")
    _bounded(queue, key)
    return tenant, queue, key


def task_name(text: str) -> str:
    """Return `tenant/queue:key`."""
    tenant, queue, key = split_task_name(text)
    return f"{tenant}/{queue}:{key}"


def _bounded(queue: str, key: str) -> None:
    """Refuse a queue and a key that together are too long for the name of a launch."""
    size = len(queue) + 1 + len(key)
    if size > NAME_PART_CHARS_MAX:
        raise InvalidInput(
            f"queue and key have {size} characters with the colon,"
            f" at most {NAME_PART_CHARS_MAX} are allowed",
            "use a hash of a long key",
        )


def _names(names: list[str]) -> list[str]:
    """Return full names of tasks, each once, in their order."""
    checks.between(len(names), 0, TASKS_MAX, "number of tasks")
    return list(dict.fromkeys(map(task_name, names)))


def iso_ms(text: str) -> int:
    """Return the epoch milliseconds of an ISO 8601 time with a zone.

    Raises:
        InvalidInput: it cannot be read, has no zone, or is before 1970.
    """
    try:
        if len(text) > 40 or not text.isascii():
            raise ValueError
        moment = datetime.fromisoformat(text)
        at_ms = (moment - _EPOCH) // _MS
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"time {text[:40]!r} cannot be read", _TIME_HINT) from error
    if at_ms <= 0:
        raise InvalidInput(f"time {text[:40]!r} is before 1970", _TIME_HINT)
    return at_ms


def show_iso_ms(at_ms: int) -> str:
    """Return `2026-11-20T15:00:00.000Z`; "" for never."""
    if not at_ms:
        return ""
    return f"{_show_s(at_ms // 1000)}.{at_ms % 1000:03d}Z"


@lru_cache(maxsize=1024)
def _show_s(at_s: int) -> str:
    return format_time(at_s)[:-1]


def _iso(text: str) -> str:
    iso_ms(text)
    return text


def _tries(tries: int) -> int:
    """Return tries of a task: a few, or so many that its deadline alone ends them."""
    return tries if tries == TRIES_UNLIMITED else checks.between(tries, 1, TRIES_MAX, "tries")


def _retries(retries: int) -> int:
    if retries == TRIES_UNLIMITED - 1:
        return retries
    return checks.between(retries, 0, TRIES_MAX - 1, "retries")


def _on_lost(label: str) -> str:
    known = [one.name.lower() for one in OnLost]
    if label not in known:
        raise InvalidInput(f"on_lost {label[:40]!r} is not one of {', '.join(known)}")
    return label


def _labels(labels: dict[str, str]) -> dict[str, str]:
    checks.between(len(labels), 0, limits.LABELS_MAX, "number of labels")
    for name, value in labels.items():
        if not _LABEL.fullmatch(name):
            raise InvalidInput(
                f"label {name[:80]!r} is not a name",
                f"up to {LABEL_NAME_CHARS_MAX} of A-Z a-z 0-9 _ . - /",
            )
        checks.line(f"label {name}", limits.LABEL_CHARS_MAX)(value)
    size = sum(len(text.encode()) for label in labels.items() for text in label)
    checks.between(size, 0, limits.TASK_LABELS_BYTES_MAX, "bytes of all labels")
    return labels


def _payload(payload: msgspec.Raw) -> msgspec.Raw:
    """Return a payload that is JSON, and not too long. Decoding a message leaves the values of such
    fields alone."""
    size = len(payload)
    if size > limits.PAYLOAD_BYTES_MAX:
        raise LimitExceeded(
            f"payload has {size:,} bytes, at most {limits.PAYLOAD_BYTES_MAX:,} are allowed",
            "keep it in object storage, and pass its name",
        )
    canonical_payload(payload)
    return payload


def canonical_payload(payload: msgspec.Raw | bytes) -> bytes:
    """Return a payload with its keys sorted and without blanks: what is equal is the same content.

    Raises:
        InvalidInput: it is not JSON.
    """
    try:
        return _encode_sorted(_decode_any(payload))
    except (msgspec.DecodeError, UnicodeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"payload is not JSON: {error}", "send any JSON value") from error


def _said_once(at: str, at_ms: int, *, has_delay: bool) -> None:
    """Refuse a time that is said in two ways."""
    if bool(at) + bool(at_ms) + has_delay > 1:
        raise InvalidInput("at, at_ms and delay_ms say the same thing: choose one")


def group_name(text: str) -> str:
    """Return `tenant/group`; the default tenant may be left out.

    Raises:
        InvalidInput: it is no such name.
    """
    match = _GROUP.fullmatch(text) if len(text) <= checks.NAME_CHARS_MAX else None
    if match is None:
        raise InvalidInput(f"{text[:80]!r} is not the name of a group", _GROUP_HINT)
    tenant, group = match["tenant"] or DEFAULT_TENANT, match["group"]
    if len(tenant) > NAME_PART_CHARS_MAX or len(group) > GROUP_CHARS_MAX:
        raise InvalidInput(
            f"group {text[:40]!r}... is too long",
            f"a group has at most {GROUP_CHARS_MAX} characters, a tenant {NAME_PART_CHARS_MAX}",
        )
    return f"{tenant}/{group}"


def predecessor(text: str) -> str:
    """Return the full name of a task, if it has a colon, or of a group."""
    return task_name(text) if TASK_MARK in text else group_name(text)


def _predecessors(names: list[str]) -> list[str]:
    """Return full names of tasks and groups, each once, in their order."""
    checks.between(len(names), 0, limits.PREDECESSORS_MAX, "number of tasks that it comes after")
    return list(dict.fromkeys(map(predecessor, names)))


TaskText = Annotated[str, task_name]
GroupText = Annotated[str, group_name]
Predecessors = Annotated[list[str], _predecessors]
Key = Annotated[str, checks.matching(_PART, "key {} is not a plain word",
    "A-Z a-z 0-9 _ . - not beginning with . or -; use a hash of other keys")]  # fmt: skip
Queue = Annotated[str, checks.matching(_PART, "queue {} is not a plain word",
    "A-Z a-z 0-9 _ . - not beginning with . or -")]  # fmt: skip
GroupWord = Annotated[str, checks.matching(rf"(?=.{{1,{GROUP_CHARS_MAX}}}$){_PART}",
    "group {} is not a plain word",
    f"at most {GROUP_CHARS_MAX} of A-Z a-z 0-9 _ . -; the group is of the task's own tenant",
)]  # fmt: skip
AtMs = Annotated[int, instant("at_ms")]
Payload = Annotated[msgspec.Raw | msgspec.UnsetType, _payload]
"""Any JSON value, as the client wrote it."""


class TaskError(View, frozen=True):
    """Why one task of a call was refused: as the error of a call, `code` is stable."""

    code: str
    message: str
    hint: str = ""


class TaskSubmission(Fields, frozen=True, kw_only=True):
    """One task that is handed over.

    The client draws `key` before its first try; the same key and content is the same task. Either
    `handler` or `queue` may be left out: a queue's name defaults to the handler's, and a queue that
    exists knows its handler. One of `at` (ISO 8601), `at_ms` and `delay_ms` may say when; now by
    default. `payload` is any JSON value. `retries` (after the first try; or `tries`, one more; so
    many as TRIES_UNLIMITED, 999999999 tries, go on until the deadline),
    `backoff_ms`, `deadline_ms` (how long after its time it may begin), `timeout_ms` (of each
    attempt), `collection`, `on_lost` (`skip` or `retry`) and `priority` (0 is the most urgent one;
    -1) are as the queue says where they are left out.
    `traceparent` is W3C's, and no part of the content.

    `group` is a word, the task's group in its tenant. `after` and `after_any` are the tasks and
    closed groups that it follows, by name (`queue:key`, `group`, with or without `tenant/`). It
    waits until all of them are over; then it runs at its time, unless one of `after` did not
    succeed: then it is cancelled. A task of the same call may be followed.
    """

    key: Key
    handler: Handler = ""
    queue: Queue = ""
    tenant: Tenant = DEFAULT_TENANT
    payload: Payload = msgspec.UNSET
    at: Annotated[str, _iso] = ""
    at_ms: AtMs = 0
    delay_ms: Annotated[int, bound(0, limits.TASK_AHEAD_MS_MAX, "delay_ms")] = 0
    priority: checks.Priority = -1
    tries: Annotated[int, _tries] = 0
    backoff_ms: Annotated[int, bound(1, BACKOFF_MS_MAX, "backoff_ms")] = 0
    deadline_ms: Annotated[
        int,
        bound(limits.DEADLINE_S_MIN * 1000, limits.DEADLINE_S_MAX * 1000, "deadline_ms"),
    ] = 0
    timeout_ms: Annotated[int, bound(1, limits.TIMEOUT_S_MAX * 1000, "timeout_ms")] = 0
    collection: Collection = ""
    on_lost: Annotated[str, _on_lost] = ""
    labels: Annotated[dict[str, str], _labels] = {}
    traceparent: Annotated[
        str, checks.matching(_TRACEPARENT, "traceparent {} is not one of W3C Trace Context")
    ] = ""
    group: GroupWord = ""
    after: Predecessors = []
    after_any: Predecessors = []
    retries: Annotated[int, _retries] = -1

    def check(self) -> None:
        """Refuse what does not fit together."""
        _said_once(self.at, self.at_ms, has_delay=bool(self.delay_ms))
        if self.tries and self.retries >= 0:
            raise InvalidInput(
                "retries and tries say the same", "leave one out: retries 0 is 1 try"
            )
        if not self.handler and not self.queue:
            raise InvalidInput("a task names a handler or a queue", "say which handler runs it")
        _bounded(self.queue or self.handler, self.key)
        if not (self.after or self.after_any):
            return
        follows = self.follows
        checks.between(
            len(follows), 0, limits.PREDECESSORS_MAX, "number of tasks that it comes after"
        )
        if self.name in follows:
            raise InvalidInput(f"task {short_job_name(self.name)} comes after itself")
        if self.full_group in follows:
            text = f"task {short_job_name(self.name)} comes after its own group"
            raise InvalidInput(text, "leave it out of the group, or close the group with it")
        both = [name for name in self.after if name in self.after_any]
        if both:
            text = f"{short_job_name(both[0])} is in after and in after_any"
            raise InvalidInput(text, "after needs its success, after_any only its end: choose one")

    @property
    def name(self) -> str:
        """Return `tenant/queue:key`."""
        return f"{self.tenant or DEFAULT_TENANT}/{self.queue or self.handler}:{self.key}"

    @property
    def full_group(self) -> str:
        """Return `tenant/group`, "" without one."""
        return f"{self.tenant or DEFAULT_TENANT}/{self.group}" if self.group else ""

    @property
    def follows(self) -> list[str]:
        """Return the tasks and groups that it comes after."""
        return [*self.after, *self.after_any]

    @property
    def is_delay(self) -> bool:
        """Return whether the time is said as one from now."""
        return not (self.at or self.at_ms)

    def due_ms(self, now_ms: int) -> int:
        """Return when the task is due: never before now.

        Raises:
            InvalidInput: it is more than ten years ahead.
        """
        asked_ms = iso_ms(self.at) if self.at else self.at_ms or now_ms + self.delay_ms
        return within_ten_years(asked_ms, now_ms)


def within_ten_years(asked_ms: int, now_ms: int) -> int:
    """Return a time that a task may be due at: one in the past means now.

    Raises:
        InvalidInput: it is more than ten years ahead.
    """
    if asked_ms > now_ms + limits.TASK_AHEAD_MS_MAX:
        raise InvalidInput(
            f"time {show_iso_ms(asked_ms)} is more than ten years ahead",
            "choose one within 3,650 days",
        )
    return max(asked_ms, now_ms)


class SubmitRequest(Request, frozen=True, kw_only=True):
    """Hand over tasks. Each has its own verdict, in the order of the request. The call may be
    repeated: a task that is there already is not handed over twice. A handler that is not its
    queue's has to be `within`, as if it were a queue of that name."""

    tasks: list[TaskSubmission]
    by: Person = ""
    within: Within = []

    def check(self) -> None:
        """Refuse no tasks, and too many. The service checks each task by itself."""
        checks.between(len(self.tasks), 1, TASKS_MAX, "number of tasks")


class SubmitVerdict(View, frozen=True, kw_only=True):
    """What became of one submission: the task as it stands, or an error.

    `scheduled_at` and `at_ms` are when it is due. `is_new`: this call made it; a call that is
    repeated finds it there. After an error, `retry_after_ms` says when another try may be worth it,
    0: never. `note` says of a task that is known and will not run by itself any more what runs it.
    """

    task: str
    state: str = ""
    scheduled_at: str = ""
    at_ms: int = 0
    is_new: bool = False
    revision: int = 0
    error: TaskError | None = None
    retry_after_ms: int = 0
    note: str = ""


class SubmitReport(View, frozen=True, kw_only=True):
    """The verdicts of a call, in the order of its tasks."""

    tasks: list[SubmitVerdict] = []


class TaskFilter(Request, frozen=True, kw_only=True):
    """Which tasks are meant: those that fit all that is said.

    `queue` is `queue` or `tenant/queue`; `tenant` alone is all its queues. `prefix` is the begin of
    a key. `from_ms` is inclusive, `to_ms` exclusive; both are of the time when a task is due.
    `group` is `group` or `tenant/group`.
    """

    queue: Annotated[str, checks.job_name] = ""
    tenant: Tenant = ""
    group: GroupText = ""
    collection: Collection = ""
    state: str = ""
    from_ms: Annotated[int, instant("from_ms")] = 0
    to_ms: Annotated[int, instant("to_ms")] = 0
    prefix: Key = ""
    within: Within = []

    def check(self) -> None:
        """Refuse a state that is none, and a period that is empty."""
        if self.state and self.state not in STATES:
            raise InvalidInput(f"state {self.state[:40]!r} is not one of {', '.join(STATES)}")
        if self.to_ms and self.to_ms <= self.from_ms:
            raise InvalidInput("period is empty: to_ms is not after from_ms")

    @property
    def is_all(self) -> bool:
        """Return whether every task fits that the caller may see."""
        return self == TaskFilter(within=self.within)


class TaskView(View, frozen=True, kw_only=True):
    """One task.

    `task` is its full name. `launch` is the name of its launch, "" before it is due. `attempts` and
    `payload` are there where one task is asked for; `payload_hidden`: there is one, and the caller
    may not see it. `revision` is the log index of its last change.
    `result` is the text that the handler returned, at most 1 KiB. `group` is `tenant/group`. While
    it waits, `after` and `after_any` are the tasks and groups that it comes after, of which
    `waits_for` are not over. `tries`, `backoff_ms`, `deadline_ms`, `timeout_ms` (0: that of the
    handler) and `on_lost` are its own, or its queue's; 999999999 tries go on until the deadline.
    `is_dead`: it is a dead letter, which `dead redrive` launches again.
    """

    task: str
    queue: str = ""
    key: str = ""
    tenant: str = ""
    handler: str = ""
    state: str = ""
    scheduled_at: str = ""
    at_ms: int = 0
    submitted_at: str = ""
    ended_at: str = ""
    revision: int = 0
    priority: int = 0
    collection: str = ""
    labels: dict[str, str] = {}
    payload: Any = None
    payload_hidden: bool = False
    launch: str = ""
    attempts: list[LaunchView] = []
    reason: str = ""
    by: str = ""
    result: str = ""
    group: str = ""
    after: list[str] = []
    after_any: list[str] = []
    waits_for: int = 0
    tries: int = 0
    backoff_ms: int = 0
    deadline_ms: int = 0
    timeout_ms: int = 0
    on_lost: str = ""
    is_dead: bool = False

    @property
    def is_open(self) -> bool:
        """Return whether the task is not over."""
        return self.state in OPEN_STATES

    @property
    def gone(self) -> str:
        """Return why the payload of a task that is over is not kept; "" where it is, or may be."""
        if self.is_open or self.is_dead or self.payload is not None or self.payload_hidden:
            return ""
        if self.state == "succeeded":
            return "gone: the task succeeded, and needs it no more"
        return "gone: the task is over, and no dead letter"


class RefusedTask(View, frozen=True):
    """A task that a change was refused for, and why."""

    task: str
    error: TaskError


class TaskNames(Request, frozen=True, kw_only=True):
    """Tasks by their names."""

    names: Annotated[list[str], _names]
    by: Person = ""

    def check(self) -> None:
        """Refuse no names."""
        checks.between(len(self.names), 1, TASKS_MAX, "number of tasks")


class CancelRequest(Request, frozen=True, kw_only=True):
    """Cancel tasks: by name, or those that fit a filter and are not over. A task that runs is asked
    to stop. With a filter, a call cancels a portion of them: `page` is `next` of the report before.
    """

    names: Annotated[list[str], _names] = []
    filter: TaskFilter | None = None
    is_dry_run: bool = False
    by: Person = ""
    page: Annotated[str, checks.line("page", PAGE_CHARS_MAX)] = ""

    def check(self) -> None:
        """Refuse a request that names nothing, or says it twice."""
        if bool(self.names) == (self.filter is not None):
            raise InvalidInput("it takes names or a filter, and one of them only")
        if self.filter is not None and self.filter.is_all:
            raise InvalidInput("the filter fits every task", "name a queue, at least")


class TasksReport(View, frozen=True, kw_only=True):
    """The tasks that a change was made of, or would be.

    `count` is how many there are. `errors` are those of tasks that were named beside others; of a
    single one the call fails. `next` asks for the next portion of those that fit a filter or are of
    a group, "" at the end; `truncated` says that there may be more. A portion looks through a
    bounded number of tasks: it may have none, and yet a next one.
    """

    count: int = 0
    tasks: list[TaskView] = []
    truncated: bool = False
    errors: list[RefusedTask] = []
    next: str = ""


class RescheduleRequest(Request, frozen=True, kw_only=True):
    """Change the time, the priority or the payload of a task that waits; what is left out stays.

    `revision` is that of the task as the client knows it, 0 for any: where the task was changed
    meanwhile, nothing happens. `delay_ms` -1 says nothing, 0 is now.
    """

    name: TaskText
    revision: Annotated[int, bound(1, 1 << 62, "revision")] = 0
    at: Annotated[str, _iso] = ""
    at_ms: AtMs = 0
    delay_ms: Annotated[int, bound(0, limits.TASK_AHEAD_MS_MAX, "delay_ms")] = -1
    priority: checks.Priority = -1
    payload: Payload = msgspec.UNSET
    by: Person = ""

    def check(self) -> None:
        """Refuse a request that changes nothing, or says a time twice."""
        _said_once(self.at, self.at_ms, has_delay=self.delay_ms >= 0)
        if not self.has_time and self.priority < 0 and self.payload is msgspec.UNSET:
            raise InvalidInput("nothing is to change", "say another time, priority or payload")

    @property
    def has_time(self) -> bool:
        """Return whether another time is asked for."""
        return bool(self.at) or bool(self.at_ms) or self.delay_ms >= 0

    def due_ms(self, now_ms: int) -> int:
        """Return the time that is asked for, never before now.

        Raises:
            InvalidInput: it is more than ten years ahead.
        """
        asked_ms = iso_ms(self.at) if self.at else self.at_ms or now_ms + self.delay_ms
        return within_ten_years(asked_ms, now_ms)


class RescheduleManyRequest(Request, frozen=True, kw_only=True):
    """Change up to 1,000 tasks that wait, each as `RescheduleRequest` says; each has an error of
    its own. Who asks is `by` of the whole request."""

    tasks: list[RescheduleRequest]
    by: Person = ""

    def check(self) -> None:
        """Refuse no tasks, too many, and one that is named twice."""
        checks.between(len(self.tasks), 1, TASKS_MAX, "number of tasks")
        if len(set(self.names)) < len(self.tasks):
            raise InvalidInput("a task is named twice", "say all of its changes at once")

    @property
    def names(self) -> list[str]:
        """Return the tasks that it names."""
        return [one.name for one in self.tasks]


class TasksQuery(Request, frozen=True, kw_only=True):
    """Up to 1,000 tasks that are asked about. The answer has them as a list shows them, without
    payloads and attempts."""

    names: Annotated[list[str], _names]

    def check(self) -> None:
        """Refuse no names."""
        checks.between(len(self.names), 1, TASKS_MAX, "number of tasks")


class TaskQuery(Request, frozen=True, kw_only=True):
    """A task that is asked about."""

    name: TaskText
    payloads: checks.Payloads = []


class TaskListQuery(Request, frozen=True, kw_only=True):
    """Which tasks to list, newest submissions first. `page` is `next` of the page before."""

    filter: TaskFilter = TaskFilter()
    limit: Annotated[int, bound(1, TASKS_MAX, "limit")] = 100
    page: Annotated[str, checks.line("page", PAGE_CHARS_MAX)] = ""


class TasksPage(View, frozen=True, kw_only=True):
    """A page of tasks. `next` asks for the page after it, "" at the end. A replica looks through a
    bounded number of tasks for each page: a page may have fewer than were asked for, or none, and
    yet a next one."""

    tasks: list[TaskView] = []
    next: str = ""


class WatchRequest(Request, frozen=True, kw_only=True):
    """Which changes to follow, from a position on; "" is from now on. The stream ends after
    `wait_ms` (0: an hour) or once `limit` changes were sent (0: never)."""

    filter: TaskFilter = TaskFilter()
    position: Annotated[
        str,
        checks.matching(
            r"[0-9]{1,19}(?:\.[0-9]{1,9})?", "position {} is not one", "list the tasks again"
        ),
    ] = ""
    wait_ms: Annotated[int, bound(1, WATCH_MS_MAX, "wait_ms")] = 0
    limit: Annotated[int, bound(1, 1_000_000, "limit")] = 0

    def timeout_ms(self) -> int:
        """Return how long to wait. A read is asked elsewhere after a third of its time, and that
        is longer than the stream lasts."""
        return TIMEOUT_MS + 4 * (self.wait_ms or WATCH_MS_MAX)


class TaskChange(View, frozen=True, kw_only=True):
    """A task that changed, as it is when it is sent; several changes may come as one. A row without
    a task moves the position: what was before it has nothing for this filter."""

    position: str
    task: TaskView | None = None

"""Messages of the service `raftcron.v1.Tasks`, as JSON. Pure.

A cell may be newer than this library: fields that are not known are skipped, and what is not said
is not sent, so that an older cell is not told of options that it does not know.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

SERVICE: Final = "raftcron.v1.Tasks"
TASKS_MAX: Final = 1_000
"""Tasks of one call."""
PAYLOAD_BYTES_MAX: Final = 256 << 10
ADMIN: Final = "raftcron.v1.Admin"
"""The service of the calls about dead letters, which are about jobs, too."""
OF_ADMIN: Final = frozenset({"Dead", "Redrive", "DropDead"})
READS: Final = frozenset({"Get", "GetMany", "List", "GetGroup", "ListGroups", "Watch", "Dead"})
"""Calls that change nothing."""
OVER: Final = frozenset({"succeeded", "failed", "cancelled", "skipped", "lost"})
"""States in which nothing happens to a task any more."""


class Submission(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One task as a program hands it over. Times are Unix milliseconds, lengths milliseconds; what
    is not said is as its queue says."""

    key: str
    payload: msgspec.Raw
    handler: str = ""
    queue: str = ""
    tenant: str = ""
    at_ms: int = 0
    delay_ms: int = 0
    priority: int = -1
    tries: int = 0
    backoff_ms: int = 0
    deadline_ms: int = 0
    timeout_ms: int = 0
    collection: str = ""
    on_lost: str = ""
    labels: dict[str, str] = {}
    traceparent: str = ""
    group: str = ""
    after: list[str] = []
    after_any: list[str] = []

    @property
    def task(self) -> str:
        """The name that the cell gives to this task."""
        name = f"{self.queue or self.handler}:{self.key}"
        return name if self.tenant in ("", "default") else f"{self.tenant}/{name}"


class Problem(msgspec.Struct):
    """Why one task was refused."""

    code: str
    message: str
    hint: str = ""


class Verdict(msgspec.Struct):
    """What became of one task of a Submit."""

    task: str = ""
    state: str = ""
    scheduled_at: str = ""
    at_ms: int = 0
    is_new: bool = False
    revision: int = 0
    error: Problem | None = None
    retry_after_ms: int = 0


class SubmitReport(msgspec.Struct):
    """The answer to Submit: a verdict for each task, in order."""

    tasks: list[Verdict]


class TaskView(msgspec.Struct, kw_only=True):
    """A task as the cell shows it. Times are Unix milliseconds and, as texts, ISO 8601 in UTC.

    `state` is waiting, due, running, succeeded, failed, cancelled, skipped or lost. `attempts` are
    as `raftcron show` has them, `result` is the text that the handler returned. While it waits,
    `after` and `after_any` name what it comes after, and `waits_for` of these are not over. It has
    at most `tries` attempts, or goes on until its deadline, where these are TRIES_UNLIMITED.
    """

    task: str
    queue: str = ""
    key: str = ""
    handler: str = ""
    state: str = ""
    scheduled_at: str | None = None
    at_ms: int = 0
    submitted_at: str | None = None
    ended_at: str | None = None
    revision: int = 0
    priority: int = 0
    payload: Any = None
    launch: str = ""
    attempts: list[dict[str, Any]] = []
    reason: str | None = None
    by: str = ""
    result: str | None = None
    collection: str = ""
    labels: dict[str, str] = {}
    group: str = ""
    after: list[str] = []
    after_any: list[str] = []
    waits_for: int = 0
    is_dead: bool = False
    tries: int = 0
    backoff_ms: int = 0
    deadline_ms: int = 0
    timeout_ms: int = 0
    on_lost: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing happens to it any more."""
        return self.state in OVER

    @property
    def succeeded(self) -> bool:
        """Whether it ran and succeeded."""
        return self.state == "succeeded"


class GroupView(msgspec.Struct, kw_only=True):
    """A group as the cell shows it. `state` is open, closed, or complete: closed, and all its tasks
    are over.

    `done` counts tasks that succeeded, `failed` those that failed or were lost, `dropped` those
    that were cancelled or skipped. `on_complete` is the task that follows the group, or "".
    """

    group: str
    state: str = ""
    waiting: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    dropped: int = 0
    created_at: str = ""
    completed_at: str = ""
    on_complete: str = ""
    by: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether no task will come, and none waits or runs."""
        return self.state == "complete"

    @property
    def succeeded(self) -> bool:
        """Whether it is complete, and all its tasks succeeded."""
        return self.is_complete and not self.failed and not self.dropped


class RefusedTask(msgspec.Struct):
    """A task that was named beside others, and why it was refused."""

    task: str
    error: Problem


class TasksReport(msgspec.Struct):
    """The answer to Cancel, CancelGroup, RunNow, RescheduleMany and GetMany; `next` asks for the
    next portion of a filter or a group, "" at the end."""

    count: int = 0
    tasks: list[TaskView] = []
    next: str = ""
    errors: list[RefusedTask] = []


class TaskPage(msgspec.Struct):
    """The answer to List: some tasks, and where the next ones begin ("" after the last)."""

    tasks: list[TaskView] = []
    next: str = ""


class TaskChange(msgspec.Struct):
    """A task that changed, as it was when the cell said so. `position` is where a stream goes on
    behind it. A row without a task only moves the position."""

    position: str
    task: TaskView | None = None


class Refusal(msgspec.Struct):
    """What is known of an error of a whole call beside its message (`raftcron-error-bin`)."""

    code: str
    hint: str = ""
    leader: str | None = None
    peers: list[str] = []

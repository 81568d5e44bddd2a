"""Errors of the library for programs, with hints.

TaskError                 .code (stable, snake_case)   .hint (what the caller can do, or "")
├ BadTask                 the task is not valid: options, payload, time, or its size
├ OtherContent            another task has this key
├ UnknownHandler          no worker serves the handler, and no queue waits for one
├ UnknownQueue            no queue has this name
├ UnknownTask             no task has this name, or it was forgotten
├ UnknownGroup            no group has this name, or it was forgotten
├ UnknownPredecessor      a task or group that it comes after is not there
├ GroupOpen               a group that it comes after has to be closed first
├ GroupClosed             the group takes no more tasks
├ TaskOver                the task is over, or has begun, so it cannot be changed this way
├ QueueFull               the queue stayed full until the caller's deadline
├ Denied                  the cell does not know the caller, or does not allow the call
├ Unavailable             no replica could act before the deadline; nothing happened
├ OutcomeUnknown          the deadline passed, and it may have happened. Repeat it with its key
├ NotOver                 `wait` gave up before the task or group was over; also a TimeoutError
├ NotAllSubmitted         some tasks of `submit_many` or a batch were refused; `outcomes` has each
└ NotAllChanged           the same of `cancel_many`, `run_now_many` or `reschedule_many`

Messages: lower case, no full stop, the thing first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from launcher.errors import LauncherError


class TaskError(LauncherError):
    """Base of what a client raises. `code` is the cell's, also where no class here is of it."""

    code = "task_error"


class BadTask(TaskError):
    """The task is not valid; it was not submitted."""

    code = "invalid_input"


class OtherContent(TaskError):
    """Another task has this key; the message has both digests."""

    code = "other_content"


class UnknownHandler(TaskError):
    """No worker serves this handler, and no declared queue lets its tasks wait for one."""

    code = "unknown_handler"


class UnknownQueue(TaskError):
    """No queue has this name."""

    code = "unknown_queue"


class UnknownTask(TaskError):
    """No task has this name, or it ended so long ago that it was forgotten."""

    code = "unknown_task"


class UnknownGroup(TaskError):
    """No group has this name, or it was complete so long ago that it was forgotten."""

    code = "unknown_group"


class UnknownPredecessor(TaskError):
    """A task or group that this one comes after is not there, or was forgotten."""

    code = "unknown_predecessor"


class GroupOpen(TaskError):
    """A group can be followed once it is closed: until then nobody knows what belongs to it."""

    code = "group_open"


class GroupClosed(TaskError):
    """The group is closed, and takes no more tasks."""

    code = "group_closed"


class TaskOver(TaskError):
    """The task is over, or has begun, so it cannot be cancelled or changed any more."""

    code = "not_now"


class QueueFull(TaskError):
    """The queue, or its rate, was full until the caller's deadline; the task was not submitted."""

    code = "queue_full"


class Denied(TaskError):
    """The cell does not know the caller, or does not allow this call; nothing happened."""

    code = "not_allowed"


class Unavailable(TaskError):
    """No replica could act before the caller's deadline; nothing happened."""

    code = "unavailable"


class OutcomeUnknown(TaskError):
    """The caller's deadline passed, and the call may have happened. A submit with the same key
    and content is safe to repeat."""

    code = "outcome_unknown"


class NotOver(TaskError, TimeoutError):
    """A task was not over, or a group not complete, when `wait` gave up; it goes on."""

    code = "not_over"


class _SomeRefused(TaskError):
    """Some of several tasks were refused. `outcomes` has what became of each, in order."""

    def __init__(self, outcomes: Sequence[Any]) -> None:
        refused = [one for one in outcomes if isinstance(one, Exception)]
        first = refused[0]
        super().__init__(
            f"{len(refused):,} of {len(outcomes):,} tasks were refused, the first one: {first}",
            getattr(first, "hint", ""),
        )
        self.outcomes = list(outcomes)


class NotAllSubmitted(_SomeRefused):
    """Some of several tasks were refused. `outcomes` has a Task or a TaskError for each, in order;
    tasks that were accepted stay submitted."""

    code = "not_all_submitted"


class NotAllChanged(_SomeRefused):
    """Some of several changes were refused. `outcomes` has a TaskView or a TaskError for each, in
    order; tasks that were changed stay so."""

    code = "not_all_changed"


_KINDS = (
    *(BadTask, OtherContent, UnknownHandler, UnknownQueue, UnknownTask, TaskOver, QueueFull),
    *(UnknownGroup, UnknownPredecessor, GroupOpen, GroupClosed),
    *(Denied, Unavailable, OutcomeUnknown),
)
_BY_CODE = {kind.code: kind for kind in _KINDS}
_BY_CODE |= {"rate_exceeded": QueueFull, "not_authenticated": Denied, "not_found": UnknownTask}


def error_of(code: str, message: str, hint: str = "") -> TaskError:
    """Return the error that a cell's code stands for; a code that is not known is kept."""
    error = _BY_CODE.get(code, TaskError)(message, hint)
    error.code = code
    return error

"""What users import: `from raftcron import handler, Client`. The installed package `raftcron`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from launcher.worker import testing
from launcher.worker.context import Cancellation, Context, current
from launcher.worker.embedded import Worker
from launcher.worker.errors import BadApp, BadHandler, BadPayload, NoExecutor
from launcher.worker.outcome import Cancelled, Fatal, Retry, Snooze
from launcher.worker.registry import Registry, handler
from launcher.worker.wire import Result

if TYPE_CHECKING:
    from launcher.client import outbox
    from launcher.client.aio import AsyncClient, AsyncGroup, AsyncTask
    from launcher.client.client import Batch, Client, Group, Task
    from launcher.client.errors import (
        BadTask,
        Denied,
        GroupClosed,
        GroupOpen,
        NotAllChanged,
        NotAllSubmitted,
        NotOver,
        OtherContent,
        OutcomeUnknown,
        QueueFull,
        TaskError,
        TaskOver,
        Unavailable,
        UnknownGroup,
        UnknownHandler,
        UnknownPredecessor,
        UnknownQueue,
        UnknownTask,
    )
    from launcher.client.messages import GroupView, TaskView

__all__ = [
    "AsyncClient",
    "AsyncGroup",
    "AsyncTask",
    "BadApp",
    "BadHandler",
    "BadPayload",
    "BadTask",
    "Batch",
    "Cancellation",
    "Cancelled",
    "Client",
    "Context",
    "Denied",
    "Fatal",
    "Group",
    "GroupClosed",
    "GroupOpen",
    "GroupView",
    "NoExecutor",
    "NotAllChanged",
    "NotAllSubmitted",
    "NotOver",
    "OtherContent",
    "OutcomeUnknown",
    "QueueFull",
    "Registry",
    "Result",
    "Retry",
    "Snooze",
    "Task",
    "TaskError",
    "TaskOver",
    "TaskView",
    "Unavailable",
    "UnknownGroup",
    "UnknownHandler",
    "UnknownPredecessor",
    "UnknownQueue",
    "UnknownTask",
    "Worker",
    "current",
    "handler",
    "outbox",
    "testing",
]

_LATER = {
    "AsyncClient": "launcher.client.aio",
    "AsyncGroup": "launcher.client.aio",
    "AsyncTask": "launcher.client.aio",
    "Batch": "launcher.client.client",
    "Client": "launcher.client.client",
    "Group": "launcher.client.client",
    "GroupView": "launcher.client.messages",
    "Task": "launcher.client.client",
    "TaskView": "launcher.client.messages",
    **dict.fromkeys(
        (
            *("BadTask", "Denied", "NotAllChanged", "NotAllSubmitted", "NotOver", "OtherContent"),
            *(
                "OutcomeUnknown",
                "QueueFull",
                "TaskError",
                "TaskOver",
                "Unavailable",
                "UnknownHandler",
            ),
            *("UnknownQueue", "UnknownTask", "UnknownGroup", "UnknownPredecessor"),
            *("GroupClosed", "GroupOpen"),
        ),
        "launcher.client.errors",
    ),
}
"""Imported where it is used first: a worker that submits nothing needs none of it."""


def __getattr__(name: str) -> Any:
    if name == "outbox":
        return import_module("launcher.client.outbox")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)

"""What authors of handlers use: `from raftcron import handler`. The installed `raftcron.py`."""

from __future__ import annotations

from launcher.worker import testing
from launcher.worker.context import Cancellation, Context, current
from launcher.worker.embedded import Worker
from launcher.worker.errors import BadApp, BadHandler, BadPayload, NoExecutor
from launcher.worker.outcome import Cancelled, Fatal, Retry, Snooze
from launcher.worker.registry import Registry, handler
from launcher.worker.wire import Result

__all__ = [
    "BadApp",
    "BadHandler",
    "BadPayload",
    "Cancellation",
    "Cancelled",
    "Context",
    "Fatal",
    "NoExecutor",
    "Registry",
    "Result",
    "Retry",
    "Snooze",
    "Worker",
    "current",
    "handler",
    "testing",
]

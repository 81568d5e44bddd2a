"""Work for targets, and what its attempt writes and how it ends."""

from __future__ import annotations

import json
from typing import Any

from launcher.clock import boot_ms
from launcher.targets.app import registry_of
from launcher.targets.target import Target, Work
from launcher.worker.context import Context
from launcher.worker.outcome import Ended
from launcher.worker.thread_pool import invoke
from launcher.worker.wire import Tasks, TaskWork

LAUNCH = "acme/mail@2026-11-20T15:00:00Z"
SCHEDULED_S = 1_795_186_800


class Output:
    """Gets the output and the heartbeats of an attempt."""

    def __init__(self) -> None:
        self.text = ""
        self.beats = 0

    def beat(self, number: int) -> None:
        self.beats += 1

    def write(self, number: int, text: str) -> None:
        self.text += text


def context_of(
    *, job: str = "acme/mail", attempt: int = 1, timeout_ms: int = 60_000, is_resumed: bool = False
) -> tuple[Context, Output]:
    """The context of an attempt, and its output."""
    output = Output()
    work = TaskWork(0, job, "target", b"")
    tasks = Tasks(1, 7, "1.1.r1", [0], [SCHEDULED_S], [attempt], [0], [1])
    context = Context(work, tasks, 0, output, boot_ms() + timeout_ms if timeout_ms else 0)
    context.is_resumed = is_resumed
    return context, output


def ended(target: Target, payload: object, context: Context) -> Ended:
    """How an attempt ends that runs on a target, as its worker reports it."""
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    [handler] = registry_of(target)
    return invoke(handler, context, raw)


def work_for(target: Target, payload: object, **context: Any) -> Work:
    """The work of an attempt, with a spec that the target has read."""
    return Work(context_of(**context)[0], target.read(json.dumps(payload).encode()))

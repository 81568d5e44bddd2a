"""Tasks in stories: what programs ask for, and what a story says of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from cron.job import OnLost
from cron.launch_state import LaunchState
from cron.scheduler.alerts import AlertIndex, Observed
from cron.scheduler.chains import ChainIndex
from cron.scheduler.tasks import TaskIndex
from cron.state import commands as c
from cron.state import tasks as t
from cron.state.chains import ReleaseTasks
from cron.state.groups import CloseGroups, GroupClose
from cron.state.outcome import Outcome, Result, Verdict
from cron.state.state import State

QUEUE = "default/mail"
HANDLER = "mail.send"


def spec_of(
    key: str,
    at_ms: int,
    after: str = "",
    after_any: str = "",
    group: str = "",
    *,
    lost: str = "",
    deadline: str = "0",
    payload: str = "1",
) -> t.TaskSpec:
    """Return a task. What it follows is separated by commas: keys, and groups with a `/` before."""
    follows = [tuple(map(_full, filter(None, text.split(",")))) for text in (after, after_any)]
    digest = hashlib.blake2b(f"{key} {payload}".encode(), digest_size=16).digest()
    on_lost = OnLost[lost.upper()] if lost else -1
    options = t.TaskOptions(HANDLER, deadline_s=int(deadline), on_lost=on_lost)
    joined = f"default/{group}" if group else ""
    return t.TaskSpec(QUEUE, key, at_ms, payload.encode(), digest, options, joined, *follows)


def _full(name: str) -> str:
    return f"default{name}" if name.startswith("/") else f"{QUEUE}:{name}"


def close_of(group: str, hook: t.TaskSpec | None) -> CloseGroups:
    return CloseGroups((GroupClose(f"default/{group}", hook),), "anna")


class LeadersTasks:
    """What a leader knows of tasks, and of the alerts that tasks tell of."""

    def __init__(self, state: State) -> None:
        self.chains, self.index, self.alerts = (
            ChainIndex(state),
            TaskIndex(state),
            AlertIndex(state),
        )

    def follow(self, outcome: Outcome) -> None:
        self.chains.follow(outcome)
        self.index.follow(outcome)
        self.alerts.follow(outcome)

    def plan(self, now_ms: int, observed: Observed) -> Sequence[c.Command]:
        tasks = self.index.plan(now_ms, lambda _pool: 4, 100)
        alerts = self.alerts.plan(now_ms, self.index, observed)
        return [*self.chains.plan(now_ms, 100), *tasks, *alerts]


def said_of(state: State, command: c.Command, result: Result) -> list[str] | None:
    """Return what a story says of a command about tasks, None for another command."""
    if isinstance(command, t.SubmitTasks):
        names = [f"submit {spec.key}" for spec in command.tasks]
    elif isinstance(command, t.CancelTasks):
        names = [f"cancel {name.partition(':')[2]}" for name in command.names]
    elif isinstance(command, t.ReadyTasks):
        names = [f"ready {state.tasks_by_number[number].key}" for number in command.numbers]
    elif isinstance(command, CloseGroups):
        hooks = [f" with {item.hook.key}" if item.hook else "" for item in command.items]
        short = [item.name.partition("/")[2] for item in command.items]
        names = [f"close {name}{hook}" for name, hook in zip(short, hooks, strict=True)]
    elif isinstance(command, ReleaseTasks):
        tasks = [state.tasks_by_number[number] for number in command.numbers]
        names = [_released(task) for task in tasks]
    else:
        return None
    return [
        name + ("" if verdict == Verdict.ACCEPTED else f": {Verdict(verdict).label}")
        for name, verdict in zip(names, result.items, strict=True)
    ]


def _released(task: t.TaskRecord) -> str:
    ended = f", {task.state.label} {task.reason.label}" if task.state is not LaunchState.DUE else ""
    return f"release {task.key}{ended}"

"""Dead letters of a program's tasks: what was given up, and what launches it again or forgets it.

A task that did not succeed, and that no person ended, is a dead letter with its payload.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, TypedDict

import msgspec

from launcher.client.core import Core
from launcher.client.errors import BadTask, TaskOver
from launcher.client.options import moment_ms, name_of
from launcher.protocol.names import TASK_MARK, BadName, parse_task_name

LETTERS_MAX: Final = 10_000
"""Letters of one call."""


class DeadFilter(TypedDict, total=False):
    """Which dead letters are meant: those that fit all that is said. `reason` is why it was given
    up, such as timeout, or its state, such as lost. `since` (inclusive) and `until` (exclusive) are
    when it was given up."""

    queue: str
    key: str
    reason: str
    handler: str
    tenant: str
    since: datetime | str
    until: datetime | str


class DeadLetter(msgspec.Struct, kw_only=True):
    """A dead letter as the cell shows it. `launch` is the name of the launch, `attempt` its last
    one, `tries` are those that failed. `ended_at_ms` is when it was given up. A letter of a job
    stands for `count` launches."""

    launch: str
    job: str = ""
    tenant: str = ""
    pool: str = ""
    state: str = ""
    reason: str | None = None
    attempt: int = 0
    tries: int = 0
    ended_at_ms: int = 0
    exit_code: int | None = None
    detail: str | None = None
    count: int = 1

    @property
    def task(self) -> str:
        """The name of the task that it is of; "" where it is of a job."""
        name = self.launch.rpartition("@")[0]
        return name if TASK_MARK in name else ""


class _Report(msgspec.Struct):
    letters: list[DeadLetter] = []


class _Outcome(msgspec.Struct):
    launches: list[str] = []
    kept: list[str] = []
    left: int = 0


def listed(core: Core, task: Any, wanted: DeadFilter) -> list[DeadLetter]:
    """Return the letter of a task, or those that fit, the oldest first."""
    return core.ask("Dead", _query(core, task, wanted), _Report).letters


def changed(core: Core, method: str, task: Any, wanted: DeadFilter) -> int:
    """Launch the letter of a task again, or those that fit, or forget them; return how many.

    Raises:
        BadTask: nothing is said, so that every letter would fit. TaskOver: the task cannot be
            launched again. TaskError: it is no dead letter.
    """
    if task is None and all(value is None for value in wanted.values()):
        raise BadTask("the filter fits every dead letter", "name a task or a queue, at least")
    query, count = _query(core, task, wanted), 0
    while True:
        outcome = core.ask(method, {"query": query}, _Outcome)
        count += len(outcome.launches)
        if task is not None and outcome.kept:
            raise TaskOver(outcome.kept[0])
        if not outcome.left or not outcome.launches:
            return count


def _query(core: Core, task: Any, wanted: DeadFilter) -> dict[str, Any]:
    unknown = next((name for name in wanted if name not in DeadFilter.__annotations__), None)
    if unknown is not None:
        known = ", ".join(sorted(DeadFilter.__annotations__))
        raise BadTask(f"{unknown}: dead letters cannot be chosen by it", f"there are {known}")
    said: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if task is not None:
        try:
            said["task"] = parse_task_name(name_of(task))
        except BadName as error:
            raise BadTask(str(error)) from error
    if "handler" in said:
        said["pool"] = said.pop("handler")
    for name, field in (("since", "since_ms"), ("until", "until_ms")):
        if name in said:
            said[field] = moment_ms(name, said.pop(name))
    tenant = core.settings.tenant
    if tenant and "queue" in said and "/" not in said["queue"]:
        said["queue"] = f"{tenant}/{said['queue']}"
    elif tenant and task is None:
        said.setdefault("tenant", tenant)
    return said | {"limit": LETTERS_MAX}

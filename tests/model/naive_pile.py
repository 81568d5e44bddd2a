"""The pile of dead letters as tenants were promised it: a list of names and what became of them.

A task that a program handed over succeeds, is ended by a person, or is in the pile with its payload
until somebody redrives or drops it, or a late report says that it succeeded. Nobody's letter goes
by itself. While a tenant has too many, it hands over no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cron.launch_state import LaunchState
from launcher.protocol.status import Reason

BY_WILL = {Reason.KILLED, Reason.REPLACED, Reason.CANCELLED}
STOPPED = {Reason.PAUSED, Reason.GATED}
"""A person stopped what had not begun: it is in the pile only if it had failed before, or was a
letter before."""


@dataclass
class NaiveTask:
    tenant: str
    payload: bytes
    state: str = "open"  # open, succeeded, ended (by a person), dead
    has_failed: bool = False
    was_dead: bool = False
    is_to_be_killed: bool = False
    lost: int = 0  # the attempt that was lost last, of which a late report may come


@dataclass
class NaivePile:
    """All tasks by name, and what a tenant may have."""

    count_max: int
    bytes_max: int
    cell_max: int
    tasks: dict[str, NaiveTask] = field(default_factory=dict)

    def dead(self, tenant: str = "") -> list[str]:
        return [
            name
            for name, one in self.tasks.items()
            if one.state == "dead" and tenant in ("", one.tenant)
        ]

    def is_full(self, tenant: str) -> bool:
        mine, everybody = self.dead(tenant), self.dead()
        if len(mine) >= self.count_max:
            return True
        if sum(len(self.tasks[name].payload) for name in mine) >= self.bytes_max:
            return True
        tenants = {self.tasks[name].tenant for name in everybody}
        return len(everybody) >= self.cell_max and len(mine) >= self.cell_max / max(len(tenants), 1)

    def ended(self, name: str, state: LaunchState, reason: Reason) -> None:
        task = self.tasks[name]
        task.has_failed = task.has_failed or state is LaunchState.FAILED
        if state is LaunchState.SUCCEEDED:
            task.state = "succeeded"
        elif (
            reason in BY_WILL
            or task.is_to_be_killed
            or (reason in STOPPED and not (task.has_failed or task.was_dead))
        ):
            task.state = "ended"
        else:
            task.state = "dead"

    def redriven(self, name: str) -> None:
        task = self.tasks[name]
        task.state, task.was_dead, task.has_failed = "open", True, False

"""Which tasks wait for others: the holds of State, and the command that releases them.

A task that follows others has a hold beside its record. It keeps the hold until it has a launch or
is over. Until then no task and no group that it follows is forgotten.

The end of a predecessor changes nothing here: it may have a hundred thousand followers. The leader
finds these and appends `ReleaseTasks` in portions.

Evolution: as in `commands.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from cron.launch_state import LaunchState
from cron.limits import WORK_RESULTS_BYTES_MAX
from launcher.protocol.work import WorkSpec, results_bytes

if TYPE_CHECKING:
    from cron.state.state import State

SUCCEEDED: Final = LaunchState.SUCCEEDED  # members of an enumeration are slow to look up
Predecessor: TypeAlias = int | str
"""The number of a task, or the full name of a group."""


class Hold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the task `number` follows. It runs if all of `after` succeeded and all of `after_any`
    are over. `is_released`: that is so, and it waits for its time."""

    number: int
    after: tuple[Predecessor, ...] = ()
    after_any: tuple[Predecessor, ...] = ()
    is_released: bool = False

    @property
    def predecessors(self) -> tuple[Predecessor, ...]:
        """All that it follows."""
        return self.after + self.after_any


class HoldTable(dict[int, Hold]):
    """All holds by the number of the task, in ascending order.

    `followed` counts the holds of each predecessor, `edges` the predecessors of each hold.
    """

    def __init__(self) -> None:
        super().__init__()
        self.followed: dict[Predecessor, int] = {}
        self.edges = 0

    def put(self, hold: Hold) -> None:
        """Add a hold, or replace the one of the same task, which has the same predecessors."""
        if hold.number not in self:
            self.edges += len(hold.after) + len(hold.after_any)
            for one in hold.predecessors:
                self.followed[one] = self.followed.get(one, 0) + 1
        self[hold.number] = hold

    def load(self, holds: Iterable[Hold]) -> None:
        """Take over holds of an image."""
        names: dict[Predecessor, Predecessor] = {}  # equal ones, kept once
        for hold in holds:
            after, after_any = (
                tuple([names.setdefault(one, one) for one in ones])
                for ones in (hold.after, hold.after_any)
            )
            self.put(Hold(hold.number, after, after_any, hold.is_released))

    def let_go(self, number: int) -> list[Predecessor]:
        """Remove the hold of a task; return the predecessors that nobody follows any more."""
        hold = self.pop(number)
        free: list[Predecessor] = []
        self.edges -= len(hold.after) + len(hold.after_any)
        for one in hold.predecessors:
            count = self.followed.pop(one) - 1
            if count:
                self.followed[one] = count
            else:
                free.append(one)
        return free

    def holds_back(self, number: int) -> bool:
        """Return whether a task waits for others."""
        hold = self.get(number)
        return hold is not None and not hold.is_released


def is_over(state: State, predecessor: Predecessor) -> bool:
    """Return whether a task is over, or a group complete."""
    if isinstance(predecessor, str):
        return state.groups[predecessor].is_complete
    return state.tasks_by_number[predecessor].is_over


def has_succeeded(state: State, predecessor: Predecessor) -> bool:
    """Return whether a task, or each task of a complete group, succeeded."""
    if isinstance(predecessor, str):
        return state.groups[predecessor].has_succeeded
    return state.tasks_by_number[predecessor].state is SUCCEEDED


def waits_for(state: State, hold: Hold) -> list[Predecessor]:
    """Return the predecessors of a task that are not over."""
    return [one for one in hold.predecessors if not is_over(state, one)]


def failure_of(state: State, hold: Hold) -> Predecessor | None:
    """Return the first predecessor that was to succeed and is over otherwise, None if there is
    none."""
    for one in hold.after:
        if is_over(state, one) and not has_succeeded(state, one):
            return one
    return None


def end_of(state: State, predecessor: Predecessor) -> LaunchState:
    """Return how a predecessor that is over has ended; a group of which a task did not succeed has
    failed."""
    if isinstance(predecessor, str):
        return SUCCEEDED if has_succeeded(state, predecessor) else LaunchState.FAILED
    return state.tasks_by_number[predecessor].state


def name_of(state: State, predecessor: Predecessor) -> str:
    """Return the full name of a task or a group."""
    if isinstance(predecessor, str):
        return predecessor
    return state.tasks_by_number[predecessor].name


def names_of(state: State, predecessors: Iterable[Predecessor]) -> list[str]:
    """Return the full names of tasks and groups."""
    return [name_of(state, one) for one in predecessors]


def results_of(state: State, number: int) -> tuple[tuple[str, str], ...]:
    """Return the results of the tasks that a task follows, each with its full name, up to the
    bound; () for a task that follows none."""
    hold = state.holds.get(number)
    if hold is None:
        return ()
    room, results = WORK_RESULTS_BYTES_MAX, []
    for one in hold.predecessors:
        task = state.tasks_by_number[one] if isinstance(one, int) else None
        if task is not None and task.result:
            room -= len(task.name) + len(task.result.encode())
            if room >= 0:
                results.append((task.name, task.result))
    return tuple(results)


def work_bytes(work: WorkSpec) -> int:
    """Return what a task's work counts among the payloads."""
    return len(work.payload) + results_bytes(work)


class ReleaseTasks(msgspec.Struct, frozen=True, array_like=True, tag="release-tasks"):
    """Tasks, by number, all of whose predecessors are over, or of which one has failed: they wait
    only for their time, or are cancelled; an item each."""

    numbers: tuple[int, ...]

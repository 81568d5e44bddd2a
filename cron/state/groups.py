"""Groups of tasks as State keeps them, and the commands about them.

A group counts its tasks, whatever their queues. It is open while tasks may join it. Once it is
closed and all of its tasks are over, it is complete: tasks that follow it may run, among them its
hook, the one task that was given with its close.

A record is never changed after the entry that made it: the first change of a later entry replaces
it. So an image that is being written has each record as it was when the image began.

Evolution: as in `commands.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Final

import msgspec

from cron.state.tasks import TaskOptions, TaskSpec

IDLE_MS: Final = 31 * 86_400_000
"""So long after its newest change an open group is closed, if all of its tasks are over."""
REMEMBER_MS: Final = 86_400_000
"""So long after its completion a group is known at least."""


class GroupRecord(msgspec.Struct, array_like=True):
    """A group of tasks. `name` has its tenant.

    `by` is who made it. `revision` is the log index and `changed_ms` the time of its newest change.
    `waiting`, `running`, `done`, `failed` and `dropped` count its tasks as a queue counts its own,
    those included that are forgotten; `members` counts those that are not. `hook` is the number of
    the task that its close has brought, 0 for none. `completed_ms` is 0 until it is complete.
    """

    name: str
    created_ms: int
    by: str = ""
    revision: int = 0
    is_closed: bool = False
    waiting: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    dropped: int = 0
    members: int = 0
    hook: int = 0
    changed_ms: int = 0
    completed_ms: int = 0

    @property
    def is_busy(self) -> bool:
        """Whether any of its tasks is not over."""
        return self.waiting > 0 or self.running > 0

    @property
    def is_complete(self) -> bool:
        """Whether it is closed and all of its tasks are over."""
        return self.is_closed and not self.is_busy

    @property
    def has_succeeded(self) -> bool:
        """Whether it is complete and each of its tasks succeeded."""
        return self.is_complete and not self.failed and not self.dropped

    @property
    def state(self) -> str:
        """The word for people: open, closed or complete."""
        return "complete" if self.is_complete else "closed" if self.is_closed else "open"


class GroupTable(dict[str, GroupRecord]):
    """All groups by name, the oldest first. `moved` are those that this entry has changed or
    forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: dict[str, None] = {}

    def changeable(self, name: str) -> GroupRecord:
        """Return the record of a group, to be changed by this entry.

        Raises:
            KeyError: there is no such group.
        """
        if name in self.moved:
            return self[name]
        group = copy(self[name])
        self[name], self.moved[name] = group, None
        return group

    def add(self, group: GroupRecord) -> None:
        """Add a new group."""
        self[group.name], self.moved[group.name] = group, None

    def load(self, groups: Iterable[GroupRecord]) -> None:
        """Take over groups of an image."""
        for group in groups:
            self[group.name] = group

    def forget(self, name: str) -> None:
        """Forget a group."""
        del self[name]
        self.moved[name] = None


class GroupClose(msgspec.Struct, frozen=True, array_like=True):
    """A group that takes no more tasks. `hook`, if there is one, is submitted as a task that
    follows the group, however its tasks end."""

    name: str
    hook: TaskSpec | None = None


class CloseGroups(msgspec.Struct, frozen=True, array_like=True, tag="close-groups"):
    """Groups that take no more tasks; an item each. If a hook is refused, its group stays open.
    `defaults` are as in SubmitTasks."""

    items: tuple[GroupClose, ...]
    by: str = ""
    defaults: TaskOptions | None = None


class ForgetGroups(msgspec.Struct, frozen=True, array_like=True, tag="forget-groups"):
    """Groups, by full name, that need not be known any more; an item each."""

    names: tuple[str, ...]

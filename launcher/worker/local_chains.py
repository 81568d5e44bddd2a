"""Chains and groups of the cell in process (`local_cell.py`): who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

import msgspec

from launcher.client.errors import UnknownGroup
from launcher.client.messages import GroupView, Problem, Submission, TaskView


class LocalGroup(msgspec.Struct):
    """A group, and the names of its tasks."""

    name: str
    created_at: str
    members: list[str] = []
    is_closed: bool = False
    completed_at: str = ""
    hook: Submission | None = None


class Chains:
    """The groups by full name, and what is over. `views` are the tasks by full name."""

    def __init__(self, views: dict[str, TaskView]) -> None:
        self.groups: dict[str, LocalGroup] = {}
        self._views = views

    def refusal(self, one: Submission) -> Problem | None:
        """Return why a task can neither join its group nor follow what it names."""
        group = self.groups.get(group_of(one))
        if group is not None and group.is_closed:
            return Problem("group_closed", f"group {group.name} is closed and takes no more tasks")
        for name in follows_of(one):
            known = self.groups.get(name)
            if known is None and name not in self._views:
                text = f"{name}, which it comes after, does not exist"
                return Problem("unknown_predecessor", text, "submit it first, or in the same call")
            if known is not None and not known.is_closed:
                text = f"the task cannot come after group {name}, which is open"
                return Problem("group_open", text, "close it first")
        return None

    def join(self, one: Submission, name: str, at: str) -> None:
        """Note a task that is new in its group, if it has one; its first task makes it."""
        if one.group:
            group = self.groups.setdefault(group_of(one), LocalGroup(group_of(one), at))
            group.members.append(name)

    def group(self, name: str) -> LocalGroup:
        """Return a group. Raises UnknownGroup."""
        found = self.groups.get(full_name(name))
        if found is None:
            raise UnknownGroup(f"group {name} does not exist", "its first task makes it")
        return found

    def is_over(self, name: str) -> bool:
        """Return whether a task is over, or a group complete."""
        group = self.groups.get(name)
        if group is None:
            return self._views[name].is_over
        return group.is_closed and all(self._views[one].is_over for one in group.members)

    def has_succeeded(self, name: str) -> bool:
        """Return whether a task that is over, or each task of a complete group, succeeded."""
        group = self.groups.get(name)
        names = [name] if group is None else group.members
        return all(self._views[one].succeeded for one in names)

    def failure(self, one: Submission) -> str:
        """Return the first task or group that was to succeed and did not, "" if there is none."""
        names = map(full_name, one.after)
        return next((x for x in names if self.is_over(x) and not self.has_succeeded(x)), "")

    def left(self, one: Submission) -> int:
        """Return how many of those that a task comes after are not over."""
        return sum(not self.is_over(name) for name in follows_of(one))

    def results(self, one: Submission) -> dict[str, str]:
        """Return what the tasks that a task comes after returned, by name."""
        views = (self._views.get(name) for name in follows_of(one))
        return {view.task: view.result for view in views if view is not None and view.result}

    def complete(self, at: str) -> None:
        """Note the time at which groups were complete."""
        for group in self.groups.values():
            is_complete = not group.completed_at and self.is_over(group.name)
            group.completed_at = at if is_complete else group.completed_at

    def view(self, group: LocalGroup) -> GroupView:
        """Return a group as it is shown."""
        states = [self._views[one].state for one in group.members]
        is_complete = self.is_over(group.name)
        return GroupView(
            group=group.name,
            state="complete" if is_complete else "closed" if group.is_closed else "open",
            waiting=states.count("waiting"),
            running=states.count("running"),
            done=states.count("succeeded"),
            failed=states.count("failed"),
            dropped=states.count("cancelled"),
            created_at=group.created_at,
            completed_at=group.completed_at,
            on_complete=full_name(group.hook.task) if group.hook is not None else "",
        )


def in_order(each: Sequence[Submission]) -> tuple[list[Submission], Sequence[str]]:
    """Return the tasks of a call, each after those that it follows; and the names of some that
    follow each other in a circle, if there are any: then they are in no order."""
    known: dict[str, Submission] = {}
    for one in each:
        known.setdefault(full_name(one.task), one)
    follows = {
        name: [other for other in follows_of(one) if other in known] for name, one in known.items()
    }
    try:
        order = {name: at for at, name in enumerate(TopologicalSorter(follows).static_order())}
    except CycleError as error:
        return [*each], error.args[1]
    return sorted(each, key=lambda one: order[full_name(one.task)]), ()


def follows_of(one: Submission) -> list[str]:
    """Return the full names of the tasks and groups that a task comes after."""
    return [full_name(name) for name in (*one.after, *one.after_any)]


def group_of(one: Submission) -> str:
    """Return the full name of a task's group, "" if it has none."""
    return f"{one.tenant or 'default'}/{one.group}" if one.group else ""


def full_name(name: str) -> str:
    """Return a name with its tenant."""
    return name if "/" in name else f"default/{name}"

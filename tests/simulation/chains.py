"""Tasks that follow others, and groups: how programs draw them, and who watches over them.

The witness reads the log by itself: what a task follows, who joined a group, when it was closed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec

from cron.launch_state import LaunchState
from cron.state import tasks as t
from cron.state.groups import CloseGroups
from cron.state.outcome import Verdict
from cron.state.rows import Row
from cron.state.state import State
from launcher.protocol.names import TASK_MARK
from launcher.protocol.status import Reason

GROUPS_OPEN: Final = 3
"""So many groups take tasks at once, as far as programs know."""
RECENT: Final = 12
"""Of so many acknowledged tasks some are followed."""


def name_of(spec: t.TaskSpec) -> str:
    return f"{spec.queue}{TASK_MARK}{spec.key}"


class DrawnTies:
    """What programs know of groups, and have tasks join and follow."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._first = 1  # number of the oldest group that is not closed, as far as it is known
        self.hooks: dict[str, t.TaskSpec] = {}

    def tied(self, spec: t.TaskSpec, names: list[str]) -> t.TaskSpec:
        """Return a task with what it follows and joins. `names` are tasks that were acknowledged,
        and the earlier ones of its batch."""
        rng, recent = self._rng, names[-RECENT:]
        if rng.random() < 0.5:
            return spec
        followed = rng.sample(recent, min(len(recent), rng.choice((0, 1, 1, 2, 4))))
        closed = [f"default/g{n}" for n in range(max(1, self._first - 3), self._first)]
        if closed and rng.random() < 0.2:
            followed.append(rng.choice(closed))
        cut = rng.randint(0, len(followed))
        return msgspec.structs.replace(
            spec,
            group=rng.choice(("", self.open_group())),
            after=tuple(followed[:cut]),
            after_any=tuple(followed[cut:]),
        )

    def open_group(self) -> str:
        """Return one of the groups that take tasks, or one that is about to."""
        return f"default/g{self._first + self._rng.randrange(GROUPS_OPEN)}"

    def closed(self) -> None:
        """Programs go on to the next group."""
        self._first += 1

    def group_to_close(self) -> str:
        """Return a group that is closed next, or is closed already."""
        return f"default/g{max(1, self._first - self._rng.choice((0, 0, 1)))}"


class Watched(Protocol):
    """What the witness of tasks knows of one."""

    attempt: int
    end: LaunchState | None


class Ties(msgspec.Struct):
    """What a task follows."""

    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()


class ChainWitness:
    """Knows what follows what, and which groups are closed."""

    def __init__(
        self, accuse: Callable[[str, str], None], known: Callable[[], Mapping[str, Watched]]
    ) -> None:
        self._accuse = accuse
        self._tasks = known
        self._ties: dict[str, Ties] = {}
        self._members: dict[str, list[str]] = {}
        self._closed: dict[str, None] = {}
        self._hooks: dict[str, str] = {}
        self._over_ms: dict[str, int] = {}

    def restored(self, state: State, kept: Container[str]) -> None:
        """The cell begins with this again, and with these tasks in memory and on disk."""
        self._ties = {name: one for name, one in self._ties.items() if name in kept}
        self._members = {
            name: [one for one in members if one in kept] for name, members in self._members.items()
        }
        self._closed = {name: None for name, one in state.groups.items() if one.is_closed}
        with_hook = [name for name, one in state.groups.items() if one.hook]
        self._hooks = {name: self._hooks[name] for name in with_hook if name in self._hooks}

    def taken(self, spec: t.TaskSpec) -> None:
        """Note a new task."""
        name = name_of(spec)
        if spec.group in self._closed:
            self._accuse("t", f"{name} joined {spec.group}, which was closed")
        if spec.group:
            self._members.setdefault(spec.group, []).append(name)
        if spec.after or spec.after_any:
            self._ties[name] = Ties(spec.after, spec.after_any)

    def closes(
        self, command: CloseGroups, verdicts: tuple[int, ...], known: Mapping[str, Watched]
    ) -> Iterator[t.TaskSpec]:
        """Note which groups are closed; yield the hooks that are new tasks."""
        for item, verdict in zip(command.items, verdicts, strict=True):
            if verdict != Verdict.ACCEPTED:
                continue
            self._closed[item.name] = None
            if item.hook is None:
                continue
            hook = msgspec.structs.replace(item.hook, after_any=(*item.hook.after_any, item.name))
            if item.name in self._hooks:
                self._accuse("t", f"{item.name} has a second hook, {name_of(hook)}")
            self._hooks[item.name] = name_of(hook)
            if name_of(hook) not in known:
                yield hook

    def begun(self, state: State, name: str) -> None:
        """Check that a task that begins may."""
        ties = self._ties.get(name, Ties())
        for one in ties.after:
            if not self._is_over(state, one) or not self._has_succeeded(one):
                self._accuse("t", f"{name} was begun, and {one} had not succeeded")
        for one in ties.after_any:
            if not self._is_over(state, one):
                self._accuse("t", f"{name} was begun, and {one} was not over")

    def ended(self, state: State, name: str, row: Row) -> bool:
        """Note an end; return whether the task is cancelled because of another."""
        self._over_ms[name] = row.ended_at_ms
        if row.reason is not Reason.PREDECESSOR:
            return False
        ties = self._ties.get(name, Ties())
        if all(self._has_succeeded(one) for one in ties.after):
            self._accuse("t", f"{name} was cancelled, and all that it follows succeeded")
        return True

    def held_until_ms(self, state: State, name: str) -> int | None:
        """Return when the last of what a task follows was over, None while one is not."""
        ties = self._ties.get(name, Ties())
        until_ms = 0
        for one in (*ties.after, *ties.after_any):
            if not self._is_over(state, one):
                return None
            names = [one] if TASK_MARK in one else self._members.get(one, [])
            until_ms = max([until_ms, *(self._over_ms.get(each, 0) for each in names)])
        return until_ms

    def _is_over(self, state: State, name: str) -> bool:
        if TASK_MARK not in name:
            members = self._members.get(name, [])
            return name in self._closed and all(self._is_over(state, one) for one in members)
        known, task = self._tasks().get(name), state.tasks.get(name)
        return known is None or (known.end is not None and (task is None or task.is_over))

    def _has_succeeded(self, name: str) -> bool:
        names = [name] if TASK_MARK in name else self._members.get(name, [])
        known = map(self._tasks().get, names)
        return all(one is None or one.end is LaunchState.SUCCEEDED for one in known)

    def judge(self, state: State) -> None:
        """At the end: the counts of groups are those of their tasks."""
        for name, group in state.groups.items():
            members: list[Any] = [state.tasks.get(one) for one in self._members.get(name, [])]
            there = [one for one in members if one is not None]
            on_disk = [state.spilled.find(one) for one in self._members.get(name, [])]
            waiting = sum(one.is_waiting for one in there)
            waiting += sum(one is not None for one in on_disk)
            running = sum(not one.is_over and one.job > 0 for one in there)
            if (group.waiting, group.running) != (waiting, running):
                counts = f"{group.waiting} and {group.running} tasks, not {waiting} and {running}"
                self._accuse("t", f"group {name} counts {counts}")

"""The graph around a task or a group: what it follows, what follows it, and what is in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from cron.access import names_within
from cron.api.graphs import AFTER, AFTER_ANY, MEMBER, GraphEdge, GraphNode, GraphQuery, TaskGraph
from cron.pace import in_turns
from cron.service import spilled
from cron.service.groups import unknown_group
from cron.service.replica import Replica
from cron.service.task_views import state_of, unknown_task
from cron.state.chains import Predecessor, name_of
from cron.state.state import State
from launcher.protocol.names import TASK_MARK

LOOKS_MAX: Final = 200_000
"""Predecessors, or tasks, that one question looks through: some tenths of a second."""
_RANKS: Final = {"failed": 0, "lost": 0, "running": 1, "due": 2, "waiting": 3}

Found = tuple[Predecessor, Predecessor, str]
"""An edge: before, after, kind."""


async def graph(replica: Replica, query: GraphQuery) -> TaskGraph:
    """Return the tasks and groups around one, the nearest first.

    Raises:
        UnknownTask, UnknownGroup: there is no such thing.
    """
    start = await _start(replica, query.name)
    state, now_ms = replica.state, replica.clock.wall_ms()
    if start is None:  # on disk: nothing follows it, and it follows nothing
        return TaskGraph(nodes=[GraphNode(name=query.name, state="waiting")])
    followers, is_cut = await _followers(state)
    members: list[int] = []
    if isinstance(start, str):
        members, is_cut_too = await _members(state, start, now_ms)
        is_cut = is_cut or is_cut_too
    around = _Around(state, followers, {start: members} if isinstance(start, str) else {})
    chosen, left = around.walk(start, query.limit, names_within(query.within))
    count = state.groups[start].members if isinstance(start, str) else 0
    edges = {edge for one in chosen for edge in around.edges(one)}
    return TaskGraph(
        nodes=[_node(state, one, now_ms) for one in chosen],
        edges=[
            GraphEdge(name_of(state, before), name_of(state, after), kind)
            for before, after, kind in sorted(edges, key=str)
            if before in chosen and after in chosen
        ],
        left=max(left, count + 1 - len(chosen)),
        is_cut=is_cut,
    )


async def _start(replica: Replica, name: str) -> Predecessor | None:
    if TASK_MARK not in name:
        if name not in replica.state.groups:
            raise unknown_group(name)
        return name
    task = await spilled.read(replica, name)
    if task is None or task.queue not in replica.state.queues:
        raise unknown_task(name)
    return task.number if task.number in replica.state.tasks_by_number else None


async def _followers(state: State) -> tuple[dict[Predecessor, list[int]], bool]:
    """Return the tasks that follow each task and group, and whether there are too many to say."""
    found: dict[Predecessor, list[int]] = {}
    looked_at = 0
    async for hold in in_turns(list(state.holds.values())):
        looked_at += 1 + len(hold.after) + len(hold.after_any)
        if looked_at > LOOKS_MAX:
            return found, True
        for one in hold.predecessors:
            found.setdefault(one, []).append(hold.number)
    return found, False


async def _members(state: State, group: str, now_ms: int) -> tuple[list[int], bool]:
    """Return the tasks of a group, those first that a person may have to look at; and whether there
    are too many tasks to find all."""
    numbers = list(state.tasks_by_number)[-LOOKS_MAX:]
    found: list[tuple[int, int]] = []
    async for number in in_turns(numbers):
        task = state.tasks_by_number.get(number)
        if task is not None and task.group == group and task.queue in state.queues:
            found.append((_RANKS.get(state_of(state, task, now_ms), 4), number))
    return [number for _, number in sorted(found)], len(numbers) < len(state.tasks_by_number)


class _Around:
    """The neighbours of tasks and groups; `members` are those of the groups that are opened."""

    def __init__(
        self,
        state: State,
        followers: dict[Predecessor, list[int]],
        members: dict[str, list[int]],
    ) -> None:
        self._state = state
        self._followers = followers
        self._members = members

    def walk(
        self, start: Predecessor, limit: int, is_within: Callable[[str], bool] | None
    ) -> tuple[dict[Predecessor, None], int]:
        """Return the nearest tasks and groups, and how many of their neighbours are left out."""
        chosen: dict[Predecessor, None] = {start: None}
        left: set[Predecessor] = set()
        waiting = deque([start])
        while waiting:
            for edge in self.edges(waiting.popleft()):
                for one in edge[:2]:
                    if one in chosen or not self._is_known(one):
                        continue
                    name = name_of(self._state, one)
                    if len(chosen) >= limit or not (is_within is None or is_within(name)):
                        left.add(one)
                        continue
                    chosen[one] = None
                    waiting.append(one)
        return chosen, len(left)

    def edges(self, one: Predecessor) -> Iterable[Found]:
        """Yield the edges of a task or group; those to the members of an opened group last."""
        hold = self._state.holds.get(one) if isinstance(one, int) else None
        if hold is not None:
            yield from ((before, one, AFTER) for before in hold.after)
            yield from ((before, one, AFTER_ANY) for before in hold.after_any)
        for number in self._followers.get(one, ()):
            follower = self._state.holds.get(number)
            if follower is not None:
                yield one, number, AFTER if one in follower.after else AFTER_ANY
        if isinstance(one, str):
            yield from ((number, one, MEMBER) for number in self._members.get(one, ()))
            return
        task = self._state.tasks_by_number.get(one)
        if task is not None and task.group in self._state.groups:
            yield one, task.group, MEMBER

    def _is_known(self, one: Predecessor) -> bool:
        if isinstance(one, str):
            return one in self._state.groups
        task = self._state.tasks_by_number.get(one)
        return task is not None and task.queue in self._state.queues


def _node(state: State, one: Predecessor, now_ms: int) -> GraphNode:
    if isinstance(one, str):
        group = state.groups[one]
        total = group.waiting + group.running + group.done + group.failed + group.dropped
        return GraphNode(name=one, state=group.state, is_group=True, total=total)
    task = state.tasks_by_number[one]
    return GraphNode(name=task.name, state=state_of(state, task, now_ms))

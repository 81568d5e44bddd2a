"""Which tasks may be released, and which groups are closed and forgotten: the leader's index. Pure.

Theory of operation. Each task that waits for others stands in the array of each predecessor that is
not over, and the index counts these predecessors. When one is over, its whole array is put aside,
and each plan goes through a portion of what is put aside. A task whose count is zero is released,
and so is one that was to follow a success that was none: State then cancels it.

The index only proposes. State looks at all predecessors of a task before it releases it, and the
index reads a task again that State has refused. So an entry too many does no harm, and no entry is
removed before its turn: a task that was cancelled is passed over.

New holds, and all holds after a takeover, are read in portions too. A predecessor that is over by
then is not counted.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Iterable
from typing import Final, TypeAlias

from cron.state.chains import Predecessor, ReleaseTasks, has_succeeded, is_over
from cron.state.groups import (
    IDLE_MS,
    REMEMBER_MS,
    CloseGroups,
    ForgetGroups,
    GroupClose,
    GroupRecord,
)
from cron.state.outcome import Outcome
from cron.state.state import State

RELEASE_MAX: Final = 1_000
"""Tasks that one entry releases or cancels."""
LOOKED_AT_ONCE: Final = 10_000
"""Predecessors, or followers, that one plan looks at: about 0.01 s."""
GROUPS_AT_ONCE: Final = 1_000
"""Groups that one entry closes or forgets."""
STALE_MAX: Final = 100_000
"""Entries that are not true any more, beside as many as there are predecessors."""
AGAIN_MS: Final = 3_600_000
"""So much later the index looks again at a group that could not be closed or forgotten."""
_MINUTE_MS: Final = 60_000
ChainCommand: TypeAlias = ReleaseTasks | CloseGroups | ForgetGroups


class ChainIndex:
    """The holds and groups of a State, as one leader's term needs them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._unread: deque[int] = deque(state.holds)
        self._followers: dict[Predecessor, array[int]] = {}
        self._edges = 0  # in all of these
        self._left: dict[int, int] = {}  # predecessors of held tasks that are not over
        self._over: deque[tuple[Predecessor, array[int]]] = deque()
        self._releasable: deque[int] = deque()
        self._unread_groups: deque[str] = deque(state.groups)
        self._timed: dict[str, int] = {}  # groups, with the minute in which to look at them
        self._by_minute: list[tuple[int, str]] = []  # a heap of these, with some that have moved

    @property
    def is_stale(self) -> bool:
        """Whether so many entries are not true any more that a new index is cheaper."""
        return self._edges > 2 * self._state.holds.edges + STALE_MAX

    # ---- what State says

    def follow(self, outcome: Outcome) -> None:
        """Update the index from State after an entry."""
        state, left = self._state, self._left
        if state.holds or left:
            for number in outcome.moved_tasks:
                if number in self._followers:
                    task = state.tasks_by_number.get(number)
                    if task is None or task.is_over:  # forgotten: what followed it is cancelled
                        self._put_aside(number)
                if not state.holds.holds_back(number):
                    left.pop(number, None)
                elif number not in left:
                    self._unread.append(number)
        for name in outcome.moved_groups:
            group = state.groups.get(name)
            if group is not None:
                if name in self._followers and group.is_complete:
                    self._put_aside(name)
                self._note(group)

    def put_back(self, numbers: Iterable[int]) -> None:
        """Take back tasks that a plan released and State has refused."""
        self._unread += numbers

    def _put_aside(self, predecessor: Predecessor) -> None:
        followers = self._followers.pop(predecessor)
        self._edges -= len(followers)
        self._over.append((predecessor, followers))

    def _note(self, group: GroupRecord, not_before_ms: int = 0) -> None:
        """Note when to look at a group, unless that is noted for earlier."""
        if group.is_busy:
            return
        since_ms = group.completed_ms + REMEMBER_MS
        if not group.is_closed:
            since_ms = group.changed_ms + IDLE_MS
        minute = max(since_ms, not_before_ms) // _MINUTE_MS + 1
        if minute < self._timed.get(group.name, minute + 1):
            self._timed[group.name] = minute
            heapq.heappush(self._by_minute, (minute, group.name))

    # ---- what the plan does

    def plan(self, now_ms: int, most: int) -> list[ChainCommand]:
        """Return the commands by which tasks are released, `most` at most, and groups are closed
        and forgotten."""
        self._read()
        self._look_at_followers()
        commands: list[ChainCommand] = []
        if self._releasable:
            count = min(most, RELEASE_MAX, len(self._releasable))
            numbers = tuple(self._releasable.popleft() for _ in range(count))
            commands.append(ReleaseTasks(numbers))
        if self._unread_groups or self._by_minute:
            commands += self._groups(now_ms)
        return commands

    def _read(self) -> None:
        """Read a portion of the holds that are new."""
        state, looked_at = self._state, 0
        while self._unread and looked_at < LOOKED_AT_ONCE:
            number = self._unread.popleft()
            if number in self._left or not state.holds.holds_back(number):
                continue
            hold = state.holds[number]
            looked_at += len(hold.predecessors)
            left, has_failed = 0, False
            for one in hold.predecessors:
                if not is_over(state, one):
                    followers = self._followers.setdefault(one, array("Q"))
                    followers.append(number)
                    left += 1
                elif one in hold.after and not has_succeeded(state, one):
                    has_failed = True
            self._edges += left
            self._left[number] = left
            if has_failed or not left:
                self._release(number)

    def _look_at_followers(self) -> None:
        """Look at a portion of the followers of what is over."""
        holds, left = self._state.holds, self._left
        looked_at = 0
        while self._over and looked_at < LOOKED_AT_ONCE:
            predecessor, followers = self._over.popleft()
            portion = followers[: LOOKED_AT_ONCE - looked_at]
            if len(portion) < len(followers):
                self._over.appendleft((predecessor, followers[len(portion) :]))
            looked_at += len(portion)
            # Nobody follows it any more if it is forgotten.
            is_known = predecessor in holds.followed
            has_failed = is_known and not has_succeeded(self._state, predecessor)
            for number in portion:
                if number not in left:
                    continue
                left[number] -= 1
                if left[number] <= 0 or (has_failed and predecessor in holds[number].after):
                    self._release(number)

    def _release(self, number: int) -> None:
        """Have the next plan release a task; if State refuses, it is read again."""
        del self._left[number]
        self._releasable.append(number)

    def _groups(self, now_ms: int) -> list[ChainCommand]:
        """Return the commands by which groups are closed and forgotten."""
        state = self._state
        for _ in range(min(len(self._unread_groups), LOOKED_AT_ONCE)):
            group = state.groups.get(self._unread_groups.popleft())
            if group is not None:
                self._note(group)
        close: list[GroupClose] = []
        forget: list[str] = []
        while self._by_minute and self._by_minute[0][0] * _MINUTE_MS <= now_ms:
            if len(close) + len(forget) >= GROUPS_AT_ONCE:
                break
            minute, name = heapq.heappop(self._by_minute)
            group = state.groups.get(name)
            if self._timed.get(name) != minute:
                continue
            del self._timed[name]
            if group is None or group.is_busy:
                continue
            if not group.is_closed and group.changed_ms + IDLE_MS <= now_ms:
                close.append(GroupClose(name))
            elif group.is_closed and group.completed_ms + REMEMBER_MS <= now_ms:
                if not group.members and name not in state.holds.followed:
                    forget.append(name)
            else:
                self._note(group)
                continue
            self._note(group, now_ms + AGAIN_MS)
        commands: list[ChainCommand] = []
        if close:
            commands.append(CloseGroups(tuple(close)))
        if forget:
            commands.append(ForgetGroups(tuple(forget)))
        return commands

    def next_ms(self) -> int | None:
        """Return 0 if there is work now, None if an entry or the housekeeping brings it about."""
        is_more = self._unread or self._over or self._releasable or self._unread_groups
        return 0 if is_more else None

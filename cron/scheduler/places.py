"""The executors that may get work, what is free on them, and where one launch goes. Pure.

The *load* of an executor, for launches of a pool, is the highest of three: the used fractions of
the slots that serve the pool, of cpu and of memory, in millionths. The least loaded executor with
room is chosen, of equals the one with the lowest number. What is taken is kept by the executor's
number, whether the executor is here or not.

Theory of operation. The executors that fit a need are in a heap by load. An entry is never above
its true load: if a load rises, the entry is replaced when it comes to the top. If anything is given
back, or an executor comes or goes, all heaps are rebuilt at their next use. Within a turn launches
only begin, so a choice costs next to nothing, and a turn costs one pass over the executors for each
need.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heapreplace, nsmallest
from typing import Final

import msgspec

from cron.errors import invariant
from cron.job import COMMAND
from cron.where import EXECUTOR_LABEL, HOST_LABEL, BadWhere, Where, parse_where
from launcher.protocol.reports import Accounts

FULL: Final = 1_000_000
"""The load of what has nothing left."""
NO_LIMIT: Final = 1 << 100
"""More than launches can ask for together."""
NUMBER_BITS: Final = 32
NUMBER_MAX: Final = (1 << NUMBER_BITS) - 1
"""An entry of a heap is one integer, the load above so many bits of the number."""
FITS_MAX: Final = 10_000
ENTRIES_MAX: Final = 3_000_000
"""Needs whose executors are known, and executors of all of them: about 100 bytes each."""


class Capacity(msgspec.Struct, frozen=True):
    """Slots that some pools share: those for commands, or those of one group of workers.

    `ahead` launches more may wait there, because slots come free soon.
    """

    slots: int
    pools: tuple[str, ...] = (COMMAND,)
    ahead: int = 0


class Place(msgspec.Struct, frozen=True):
    """An executor that may get work. A pool is in one of its capacities at most; the first counts.

    `number` is its number in State, from 0 to NUMBER_MAX. `cpu_milli` (thousandths of a CPU) and
    `memory_bytes` are what its launches may use together, 0 for no limit. `users` are those that
    its commands may run as, None for any. `withheld` are pools that it would serve, and that the
    cell does not grant it. With `knows_secrets`, it gives commands the secrets that their jobs
    name. `accounts` are those as which it says it runs commands, None if it does not say it.
    """

    number: int
    labels: dict[str, str]
    capacities: tuple[Capacity, ...]
    cpu_milli: int = 0
    memory_bytes: int = 0
    users: tuple[str, ...] | None = None
    withheld: tuple[str, ...] = ()
    knows_secrets: bool = False
    accounts: Accounts | None = None

    def refuses(self, need: Need) -> bool:
        """Return whether it says that it would not start such a launch."""
        if not need.has_account or self.accounts is None:
            return False
        return not self.accounts.runs(need.user)

    def runs_as(self, user: str) -> bool:
        """Return whether commands run there as a user; "" is the executor's own, which it always
        may."""
        return not user or self.users is None or user in self.users

    @classmethod
    def of(
        cls,
        number: int,
        executor: str,
        host: str,
        labels: dict[str, str],
        capacities: tuple[Capacity, ...],
        cpu_milli: int = 0,
        memory_bytes: int = 0,
    ) -> Place:
        """Return the place of an executor with its configured `labels` and the built-in ones, which
        override them."""
        labels = {**labels, EXECUTOR_LABEL: executor, HOST_LABEL: host}
        return cls(number, labels, capacities, cpu_milli, memory_bytes)


class Need(msgspec.Struct, frozen=True, cache_hash=True):
    """Everything that decides which executors a launch may go to.

    With `has_account`, it goes to none that says it runs no commands as `user`. A handler has
    no user. A launch on each of some executors goes to all of them, and fails where it is refused.
    """

    pool: str = COMMAND
    where: str = ""
    cpu_milli: int = 0
    memory_bytes: int = 0
    user: str = ""
    has_secrets: bool = False
    has_account: bool = False

    @property
    def takes_resources(self) -> bool:
        """Whether it takes more than a slot."""
        return bool(self.cpu_milli or self.memory_bytes)


class Wanted(msgspec.Struct, frozen=True, cache_hash=True):
    """What a launch needs on each of its executors, and on how many or which."""

    need: Need
    parts: int = 1
    each: str = ""

    @property
    def has_parts(self) -> bool:
        """Whether it needs several executors, or all that `each` describes."""
        return self.parts > 1 or bool(self.each)


def where_of(text: str) -> Where | None:
    """Return the parsed requirement, None if it cannot be read: such a launch waits, and `why` says
    so."""
    try:
        return parse_where(text)
    except BadWhere:
        return None


class SlotGroup(msgspec.Struct, eq=False):
    """The slots of one capacity of one executor. `limit`: how many launches it may have, those that
    wait there included. `load`: how full it is, in millionths; more than FULL if launches wait, or
    too much was taken."""

    view: ExecutorView
    slots: int
    limit: int
    used: int
    load: int = 0

    def has_room(self, need: Need) -> bool:
        """Return whether one more launch fits now. A launch that takes nothing of a resource fits
        although too much of that resource was taken."""
        is_open = self.used < self.limit and not self.view.is_cordoned
        if need.has_secrets and not self.view.place.knows_secrets:
            return False
        return is_open and not (need.takes_resources and self.view.is_short(need))


class ExecutorView:
    """One executor with all its slots. What was taken is kept by pool, so that it still counts when
    the executor offers something else or comes back.

    `by_pool`: the slots that serve a pool. `is_cordoned`: whether it gets no launches until there
    is room for a large one. `load`: how full cpu and memory are, the fuller counts.
    """

    __slots__ = (
        "by_pool", "cpu_milli", "groups", "is_cordoned", "load", "memory_bytes", "place", "taken"
    )  # fmt: skip

    def __init__(self, place: Place, before: ExecutorView | None = None) -> None:
        """`before`: the same executor with an earlier offer."""
        self.place = place
        self.taken: Counter[str] = +before.taken if before else Counter[str]()
        self.cpu_milli: int = before.cpu_milli if before else 0
        self.memory_bytes: int = before.memory_bytes if before else 0
        self.is_cordoned = False
        self.by_pool: dict[str, SlotGroup] = {}
        for capacity in place.capacities:
            pools = [pool for pool in capacity.pools if pool not in self.by_pool]
            limit = capacity.slots + capacity.ahead if capacity.slots else 0
            used = sum(self.taken[pool] for pool in pools)
            group = SlotGroup(self, capacity.slots, limit, used)
            self.by_pool.update(dict.fromkeys(pools, group))
        self.groups = tuple(dict.fromkeys(self.by_pool.values()))
        self.weigh()

    def fits(self, need: Need) -> bool:
        """Return whether an idle executor would have enough for the need, and its secrets."""
        place = self.place
        if need.has_secrets and not place.knows_secrets:
            return False
        return (not place.cpu_milli or need.cpu_milli <= place.cpu_milli) and (
            not place.memory_bytes or need.memory_bytes <= place.memory_bytes
        )

    def is_short(self, need: Need, more: int = 1) -> bool:
        """Return whether `more` launches would take more than there is. Of a resource that they
        take nothing of there is always enough."""
        cpu_max = self.place.cpu_milli or NO_LIMIT
        memory_max = self.place.memory_bytes or NO_LIMIT
        if need.cpu_milli and self.cpu_milli + more * need.cpu_milli > cpu_max:
            return True
        memory = self.memory_bytes + more * need.memory_bytes
        return bool(need.memory_bytes) and memory > memory_max

    def weigh(self) -> None:
        """Recompute the load: the highest of slots, cpu and memory counts. An executor with a free
        slot is never as full as one where launches would wait for a slot."""
        place = self.place
        cpu = self.cpu_milli * FULL // place.cpu_milli if place.cpu_milli else 0
        memory = self.memory_bytes * FULL // place.memory_bytes if place.memory_bytes else 0
        self.load = min(max(cpu, memory), FULL - 1)
        for group in self.groups:
            slots = group.used * FULL // group.slots if group.slots else FULL
            group.load = max(slots, self.load)


class Fit(msgspec.Struct):
    """The slot groups that fit a need, by executor, full or not; and those with room in a heap by
    load and number, as of `version` of the places."""

    groups: dict[int, SlotGroup]
    heap: list[int] = []
    version: int = -1


class Places:
    """All executors, with room or without. Questions take nothing; `take` does.

    `views` are those that may get work, in no order. `version` rises when room comes free.
    `may_wait` is how many launches may wait on all of them together. `ahead_ms`: those of them
    whose clock is ahead of the leader's, and how far at least.
    """

    def __init__(self) -> None:
        self.views: dict[int, ExecutorView] = {}
        self.version = 0
        self.may_wait = 0
        self.ahead_ms: dict[int, int] = {}
        self._away: dict[int, ExecutorView] = {}
        self._fits: dict[Need, Fit] = {}

    # ---- who may get work

    def put(self, place: Place) -> None:
        """Add an executor that may get work, or change its offer; what is taken stays taken."""
        number = place.number
        invariant(0 <= number <= NUMBER_MAX, f"executor number {number} is out of range")
        old = self.views.get(number)
        if old is not None and old.place == place:
            return
        view = self.views[number] = ExecutorView(place, old or self._away.pop(number, None))
        self._revise(number, old, view)

    def drop(self, number: int) -> None:
        """Remove an executor that left, drains or lost its lease. What is taken there is kept until
        it is given back."""
        view = self.views.pop(number, None)
        if view is None:
            return
        self.ahead_ms.pop(number, None)
        self._revise(number, view, None)
        if any(view.taken.values()):
            self._away[number] = ExecutorView(Place(number, {}, ()), view)

    def set_clock(self, number: int, ahead_ms: int) -> None:
        """Set how far the clock of an executor is ahead of the leader's, below 0 if behind."""
        if ahead_ms > 0:
            self.ahead_ms[number] = ahead_ms
        else:
            self.ahead_ms.pop(number, None)

    def _revise(self, number: int, old: ExecutorView | None, view: ExecutorView | None) -> None:
        self.version += 1
        for one, by in ((old, -1), (view, 1)):
            if one is not None:
                self.may_wait += by * sum(capacity.ahead for capacity in one.place.capacities)
        for need, fit in self._fits.items():
            fit.groups.pop(number, None)
            group = self._group(view, need)
            if group is not None:
                fit.groups[number] = group

    @staticmethod
    def _group(view: ExecutorView | None, need: Need) -> SlotGroup | None:
        """Return the slots that an idle executor would have for the need."""
        group = view.by_pool.get(need.pool) if view else None
        if group is None or not (group.view.fits(need) and group.view.place.runs_as(need.user)):
            return None
        if group.view.place.refuses(need):
            return None
        where = where_of(need.where)
        return group if where is not None and where.matches(group.view.place.labels) else None

    # ---- where a launch goes

    def fit(self, need: Need) -> Fit:
        """Return the executors that fit a need."""
        fit = self._fits.get(need)
        if fit is None:
            most = min(FITS_MAX, ENTRIES_MAX // (len(self.views) + 1))
            if len(self._fits) >= most:
                del self._fits[next(iter(self._fits))]
            found = ((number, self._group(view, need)) for number, view in self.views.items())
            groups = {number: group for number, group in found if group is not None}
            fit = self._fits[need] = Fit(groups)
        return fit

    def choose(self, need: Need, avoid: Collection[int] = ()) -> int | None:
        """Return the executor for one launch, None if none has room. An executor of `avoid`, which
        refused the launch say, is returned only if no other one has room."""
        fit = self.fit(need)
        if fit.version != self.version:
            fit.version = self.version
            fit.heap = [
                group.load << NUMBER_BITS | number
                for number, group in fit.groups.items()
                if group.used < group.limit
            ]
            heapify(fit.heap)
        heap, groups = fit.heap, fit.groups
        takes_resources = need.cpu_milli or need.memory_bytes
        while heap:
            entry = heap[0]
            number = entry & NUMBER_MAX
            group = groups[number]
            view = group.view
            is_short = takes_resources and view.is_short(need)
            if group.used >= group.limit or view.is_cordoned or is_short:
                heappop(heap)
            elif entry >> NUMBER_BITS != group.load:
                heapreplace(heap, group.load << NUMBER_BITS | number)
            elif number not in avoid:
                return number
            else:
                ranked = self._ranked(need, len(avoid) + 1)
                return next((one for one in ranked if one not in avoid), number)
        return None

    def _ranked(self, need: Need, count: int) -> list[int]:
        """Return up to `count` executors with room, least loaded first. One pass over all."""
        groups = self.fit(need).groups.items()
        fit = ((one.load, number) for number, one in groups if one.has_room(need))
        return [number for _, number in nsmallest(count, fit)]

    def slots(self, need: Need, most: int) -> int:
        """Return how many launches of a need fit now, up to `most`."""
        free = 0
        for group in self.fit(need).groups.values():
            if group.used < group.limit and not group.view.is_cordoned:
                free += group.limit - group.used
                if free >= most:
                    return most
        return free

    def free(self, pool: str) -> int:
        """Return the free slots of all executors that serve a pool, without those that come free
        soon; one pass over them."""
        free = 0
        for view in self.views.values():
            group = view.by_pool.get(pool)
            if group is not None and group.used < group.slots and not view.is_cordoned:
                free += group.slots - group.used
        return free

    def spread(self, need: Need, count: int) -> dict[int, int]:
        """Return how many of `count` launches go to which executor if each goes where `choose`
        would place it; fewer if there is no room. Not for a need that takes cpu or memory."""
        if count == 1:
            number = self.choose(need)
            return {} if number is None else {number: 1}
        groups = {
            number: group
            for number, group in self.fit(need).groups.items()
            if group.used < group.limit and not group.view.is_cordoned
        }

        def below(level: int) -> dict[int, int]:
            """How many go to each until none has a load below that."""
            return {
                number: max(0, min(-(-level * group.slots // FULL), group.limit) - group.used)
                for number, group in groups.items()
                if group.view.load < level
            }

        # A level a little too low, at which nearly all are placed; the last ones go one by one.
        slots = sum(group.slots for group in groups.values())
        used = sum(group.used for group in groups.values())
        level = max(0, used + count - len(groups)) * FULL // slots if slots else 0
        shares = below(level)
        if sum(shares.values()) > count:  # one is so full that the others get more than their part
            levels = range(level)
            level = bisect_right(levels, count, key=lambda level: sum(below(level).values())) - 1
            shares = below(level)
        used_by = {number: one.used + shares.get(number, 0) for number, one in groups.items()}
        heap = [
            (max(one.view.load, used_by[number] * FULL // one.slots), number)
            for number, one in groups.items()
            if used_by[number] < one.limit
        ]
        heapify(heap)
        for _ in range(count - sum(shares.values())):
            if not heap:
                break
            number = heap[0][1]
            one = groups[number]
            shares[number] = shares.get(number, 0) + 1
            used_by[number] += 1
            if used_by[number] < one.limit:
                load = max(one.view.load, used_by[number] * FULL // one.slots)
                heapreplace(heap, (load, number))
            else:
                heappop(heap)
        return {number: share for number, share in shares.items() if share}

    def choose_parts(self, need: Need, parts: int, avoid: Collection[int] = ()) -> list[int] | None:
        """Return `parts` different executors that are not in `avoid`, least loaded first; None if
        fewer have room."""
        ranked = self._ranked(need, parts + len(avoid))
        numbers = [number for number in ranked if number not in avoid][:parts]
        return numbers if len(numbers) == parts else None

    def choose_each(self, need: Need, each: str) -> list[int] | None:
        """Return all executors that `each` and the need describe, by number. None if one of them
        has no room, or is too small; empty if there are none."""
        groups = self.each(need, each)
        return sorted(groups) if all(one.has_room(need) for one in groups.values()) else None

    def each(self, need: Need, each: str) -> dict[int, SlotGroup]:
        """Return the slots, full or not, of all executors that `each` and the need describe."""
        groups = self.fit(Need(need.pool, each, user=need.user)).groups
        where = where_of(need.where)
        if where is None or not where.terms:
            return {} if where is None else groups
        return {
            number: group
            for number, group in groups.items()
            if where.matches(group.view.place.labels)
        }

    # ---- what is taken

    def take(self, number: int, need: Need, count: int = 1) -> None:
        """Count launches on an executor, whether there is room or not."""
        self.count(number, {need: count})

    def give(self, number: int, need: Need, count: int = 1) -> None:
        """Remove launches that were counted with the same need."""
        self.count(number, {need: -count})

    def count(self, number: int, counts: Mapping[Need, int]) -> None:
        """Count launches on an executor by need, whether there is room or not; negative numbers
        remove some that were counted with the same need."""
        view = self.views.get(number) or self._away.get(number)
        if view is None:
            view = self._away[number] = ExecutorView(Place(number, {}, ()))
        taken, by_pool = view.taken, view.by_pool
        is_whole, gives = True, False
        for need, count in counts.items():
            pool = need.pool
            taken[pool] += count
            group = by_pool.get(pool)
            if group is not None:
                group.used += count
            if need.cpu_milli or need.memory_bytes:
                view.cpu_milli += need.cpu_milli * count
                view.memory_bytes += need.memory_bytes * count
            if count < 0:
                gives = True
                is_whole = is_whole and taken[pool] >= 0
        is_whole = is_whole and view.cpu_milli >= 0 and view.memory_bytes >= 0
        invariant(is_whole, f"executor {number} was given back more than was taken")
        view.weigh()
        if gives:
            self.version += 1
            if number in self._away and not any(taken.values()):
                del self._away[number]

    def cordon(self, number: int, *, is_cordoned: bool) -> None:
        """Cordon an executor, which gets no launches then, or uncordon it."""
        view = self.views.get(number)
        if view is not None and view.is_cordoned != is_cordoned:
            view.is_cordoned = is_cordoned
            self.version += 1

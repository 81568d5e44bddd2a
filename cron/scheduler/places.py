"""The executors that may get work, what is free on them, and where one launch goes.

The *load* of an executor, for launches of a pool, is the fullest of three: the slots that serve the
pool, cpu and memory, in millionths of what there is. The least loaded executor that has room is
chosen, of equals the one with the lowest number. What is taken is remembered by the executor's
number, whether the executor is still here or not.

Theory of operation. Each need that is asked for has its executors in a heap by load. An entry is
never above what it should be: where a load rises nothing is done until the entry comes to the top,
and is replaced by the true one. Numbers of executors where something is given back go to a log,
and each heap reads what is new of it before its next look. So taking and giving cost next to
nothing, and a look never more than one pass over the executors, whatever the number of launches.
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush, heapreplace, nsmallest
from typing import Final

import msgspec

from cron.errors import invariant
from cron.job import COMMAND
from launcher.where import EXECUTOR_LABEL, HOST_LABEL, BadWhere, Where, parse_where

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
STALE_MIN: Final = 64
PASS_SHARE: Final = 2
"""Where one in so many executors is to be looked at, one pass over all is less work."""


class Capacity(msgspec.Struct, frozen=True):
    """Slots that some pools share: those for commands, or those of one group of workers."""

    slots: int
    pools: tuple[str, ...] = (COMMAND,)


class Place(msgspec.Struct, frozen=True):
    """An executor that may get work. A pool is in one of its capacities at most; the first counts.

    `number` is what it is called here, from 0 to NUMBER_MAX. `cpu_milli` (thousandths of a CPU) and
    `memory_bytes` are what launches may use together, 0 where that is not limited.
    """

    number: int
    labels: dict[str, str]
    capacities: tuple[Capacity, ...]
    cpu_milli: int = 0
    memory_bytes: int = 0

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
        """Return the place of an executor that was configured with `labels`, and has the built-in
        ones whatever these say."""
        labels = {**labels, EXECUTOR_LABEL: executor, HOST_LABEL: host}
        return cls(number, labels, capacities, cpu_milli, memory_bytes)


class Need(msgspec.Struct, frozen=True, cache_hash=True):
    """All that decides which executors a launch may go to."""

    pool: str = COMMAND
    where: str = ""
    cpu_milli: int = 0
    memory_bytes: int = 0

    @property
    def takes_resources(self) -> bool:
        """Whether it takes more than a slot."""
        return bool(self.cpu_milli or self.memory_bytes)


class Wanted(msgspec.Struct, frozen=True, cache_hash=True):
    """What a launch on several executors needs on each of them, and on how many, or on which."""

    need: Need
    parts: int = 1
    each: str = ""

    @property
    def is_much(self) -> bool:
        """Whether it may find no room although room comes free all the time."""
        return self.need.takes_resources or self.parts > 1 or bool(self.each)


class Used(msgspec.Struct, frozen=True):
    """What launches take of an executor: slots by pool, cpu and memory."""

    slots: dict[str, int]
    cpu_milli: int
    memory_bytes: int


def where_of(text: str) -> Where | None:
    """Return what `text` says, None where it says nothing that could be met: such a launch waits,
    and is told why; a leader must not fall over it."""
    try:
        return parse_where(text)
    except BadWhere:
        return None


class SlotGroup:
    """The slots of one capacity of one executor, and what is used of them. `load`: how full it is,
    in millionths; more than FULL where too much was taken."""

    __slots__ = ("load", "slots", "used", "view")

    def __init__(self, view: ExecutorView, slots: int, used: int) -> None:
        self.view, self.slots, self.used = view, slots, used
        self.load = 0
        self.weigh()

    def weigh(self) -> None:
        """Count anew how full it is."""
        slots = self.used * FULL // self.slots if self.slots else FULL
        self.load = max(slots, self.view.load)

    def below(self, load: int) -> int:
        """Return how many launches come here while it is less full than that."""
        if self.view.load >= load:
            return 0
        return max(0, min(-(-load * self.slots // FULL), self.slots) - self.used)

    def has_room(self, cpu_milli: int, memory_bytes: int) -> bool:
        """Whether one more launch fits now that takes so much. What takes nothing of a resource
        fits also where too much of it was taken."""
        view = self.view
        if self.used >= self.slots or view.is_cordoned:
            return False
        return not (cpu_milli or memory_bytes) or not view.is_short(cpu_milli, memory_bytes)


class ExecutorView:
    """One executor with all its slots. What was taken is remembered by pool, so that it still
    counts when the executor offers something else, or comes back."""

    __slots__ = (
        "by_pool", "cpu_milli", "is_cordoned", "load", "memory_bytes", "place", "taken"
    )  # fmt: skip

    def __init__(self, place: Place, used: Used | None = None) -> None:
        self.place = place
        self.taken = Counter(used.slots if used else {})
        self.cpu_milli = used.cpu_milli if used else 0
        self.memory_bytes = used.memory_bytes if used else 0
        self.load = 0
        """How full cpu and memory are, the fuller of the two counts."""
        self.is_cordoned = False
        """Whether it gets nothing now, until there is room for a launch that needs much."""
        self.by_pool: dict[str, SlotGroup] = {}
        """The slots that serve a pool."""
        for capacity in place.capacities:
            pools = [pool for pool in capacity.pools if pool not in self.by_pool]
            group = SlotGroup(self, capacity.slots, sum(self.taken[pool] for pool in pools))
            self.by_pool.update(dict.fromkeys(pools, group))
        self._weigh()

    @property
    def used(self) -> Used:
        """What is taken here, as a value."""
        slots = {pool: count for pool, count in self.taken.items() if count}
        return Used(slots, self.cpu_milli, self.memory_bytes)

    @property
    def is_used(self) -> bool:
        """Whether anything is taken here."""
        return any(self.taken.values())

    def fits(self, need: Need) -> bool:
        """Whether all of it would be enough for the need, were nothing taken."""
        place = self.place
        return (not place.cpu_milli or need.cpu_milli <= place.cpu_milli) and (
            not place.memory_bytes or need.memory_bytes <= place.memory_bytes
        )

    def is_short(self, cpu_milli: int, memory_bytes: int, more: int = 1) -> bool:
        """Whether there is less than what is taken and so many `more` launches take; of a resource
        that they take nothing of there is always enough."""
        place = self.place
        if cpu_milli and self.cpu_milli + more * cpu_milli > (place.cpu_milli or NO_LIMIT):
            return True
        memory_max = place.memory_bytes or NO_LIMIT
        return bool(memory_bytes) and self.memory_bytes + more * memory_bytes > memory_max

    def bears(self, need: Need) -> bool:
        """Whether what is taken here, the need included, is no more than there is."""
        group = self.by_pool.get(need.pool)
        is_enough = group is not None and group.used <= group.slots
        return is_enough and not self.is_short(need.cpu_milli, need.memory_bytes, more=0)

    def take(self, need: Need, count: int) -> None:
        """Take `count` times what is needed; give it back where `count` is negative."""
        self.taken[need.pool] += count
        group = self.by_pool.get(need.pool)
        if group is not None:
            group.used += count
            group.weigh()
        if need.takes_resources:
            self.cpu_milli += need.cpu_milli * count
            self.memory_bytes += need.memory_bytes * count
            self._weigh()

    def _weigh(self) -> None:
        place = self.place
        cpu = self.cpu_milli * FULL // place.cpu_milli if place.cpu_milli else 0
        memory = self.memory_bytes * FULL // place.memory_bytes if place.memory_bytes else 0
        self.load = max(cpu, memory)
        for group in self.by_pool.values():
            group.weigh()


class Fit:
    """The executors that fit a need, least loaded first, ties by number. `seen`: how much of the
    log of what was given back it has read."""

    __slots__ = ("groups", "heap", "need", "seen", "takes_resources")

    def __init__(self, need: Need, groups: dict[int, SlotGroup]) -> None:
        self.need = need
        self.takes_resources = need.takes_resources
        self.groups = groups
        self.heap: list[int] = []
        self.seen = 0

    def has_room(self, group: SlotGroup) -> bool:
        """Whether one more launch fits there now."""
        return group.has_room(self.need.cpu_milli, self.need.memory_bytes)

    def put(self, number: int, group: SlotGroup | None) -> None:
        """Let an executor have these slots for the need, or none."""
        self.groups.pop(number, None)
        if group is not None:
            self.groups[number] = group
            heappush(self.heap, group.load << NUMBER_BITS | number)

    def rank_all(self) -> None:
        """Look at all executors anew."""
        self.heap = [
            group.load << NUMBER_BITS | number
            for number, group in self.groups.items()
            if self.has_room(group)
        ]
        heapify(self.heap)

    def look(self, freed: list[int]) -> None:
        """Look where something was given back since the last time."""
        if PASS_SHARE * len(freed) >= max(1, len(self.groups)):
            self.rank_all()
            return
        for number in freed:
            group = self.groups.get(number)
            if group is not None:
                heappush(self.heap, group.load << NUMBER_BITS | number)
        if len(self.heap) > 2 * len(self.groups) + STALE_MIN:
            self.rank_all()

    def top(self) -> int | None:
        """Put right what is on top until that is true; return its number, None for none."""
        heap, groups, takes_resources = self.heap, self.groups, self.takes_resources
        while heap:
            entry = heap[0]
            number = entry & NUMBER_MAX
            group = groups.get(number)
            if group is None or group.used >= group.slots or group.view.is_cordoned:
                heappop(heap)
                continue
            if takes_resources and not self.has_room(group):
                heappop(heap)
                continue
            true = group.load << NUMBER_BITS | number
            if true == entry:
                return number
            heapreplace(heap, true)
        return None

    def ranked(self, count: int) -> list[int]:
        """Return up to `count` executors with room, least loaded first. One pass over all."""
        fit = ((one.load, number) for number, one in self.groups.items() if self.has_room(one))
        return [number for _, number in nsmallest(count, fit)]


class Places:
    """All executors, with room or without. Of its answers none takes anything: `take` does."""

    def __init__(self) -> None:
        self.views: dict[int, ExecutorView] = {}
        """Those that may get work, in no order."""
        self._away: dict[int, ExecutorView] = {}
        self._fits: dict[Need, Fit] = {}
        self._freed: list[int] = []
        self._begin = 0  # how much of what was given back the log has forgotten

    # ---- who may get work

    def put(self, place: Place) -> None:
        """Let an executor get work, or change what it offers; what is taken there stays taken."""
        number = place.number
        invariant(0 <= number <= NUMBER_MAX, f"executor number {number} is out of range")
        old = self.views.get(number)
        if old is not None and old.place == place:
            return
        before = old or self._away.pop(number, None)
        view = self.views[number] = ExecutorView(place, before.used if before else None)
        self._revise(number, view)

    def drop(self, number: int) -> None:
        """Let an executor get no more work: it left, drains, or its lease is over. What is taken
        there is remembered until it is given back."""
        view = self.views.pop(number, None)
        if view is None:
            return
        self._revise(number, None)
        if view.is_used:
            self._away[number] = ExecutorView(Place(number, {}, ()), view.used)

    def _revise(self, number: int, view: ExecutorView | None) -> None:
        for need, fit in self._fits.items():
            fit.put(number, self._group(view, need))

    @staticmethod
    def _group(view: ExecutorView | None, need: Need) -> SlotGroup | None:
        """Return the slots that the need could have here, were nothing taken."""
        group = view.by_pool.get(need.pool) if view else None
        if group is None or not group.view.fits(need):
            return None
        where = where_of(need.where)
        return group if where is not None and where.matches(group.view.place.labels) else None

    # ---- where a launch goes

    def fit(self, need: Need) -> Fit:
        """Return the executors that fit a need, put right for what was given back."""
        fit = self._fits.get(need)
        end = self._begin + len(self._freed)
        if fit is None:
            most = min(FITS_MAX, ENTRIES_MAX // (len(self.views) + 1))
            if len(self._fits) >= most:
                del self._fits[next(iter(self._fits))]
            found = ((number, self._group(view, need)) for number, view in self.views.items())
            groups = {number: group for number, group in found if group is not None}
            fit = self._fits[need] = Fit(need, groups)
            fit.rank_all()
        elif fit.seen < self._begin:
            fit.rank_all()
        elif fit.seen < end:
            fit.look(self._freed[fit.seen - self._begin :])
        fit.seen = end
        return fit

    def has_room(self, need: Need) -> bool:
        """Whether some executor has room for one more launch."""
        return self.fit(need).top() is not None

    def slots(self, need: Need, most: int) -> int:
        """Return how many slots are free for a need, as far as `most`."""
        free = 0
        for group in self.fit(need).groups.values():
            if group.used < group.slots and not group.view.is_cordoned:
                free += group.slots - group.used
                if free >= most:
                    return most
        return free

    def choose(self, need: Need, avoid: int | None = None) -> int | None:
        """Return the executor for one launch, None while none has room. `avoid` refused it, and
        gets it only if no other has room."""
        fit = self.fit(need)
        number = fit.top()
        if number is None or number != avoid:
            return number
        return next((one for one in fit.ranked(2) if one != avoid), avoid)

    def spread(self, need: Need, count: int) -> dict[int, int]:
        """Return how many of so many launches go to which executor, if each goes where `choose`
        would have it, one after the other; fewer where there is no room. Not for a need that takes
        cpu or memory."""
        groups = {
            number: group
            for number, group in self.fit(need).groups.items()
            if group.used < group.slots and not group.view.is_cordoned
        }
        low, high = 0, FULL + 1  # all whose load is below `low` are filled up to it
        while low < high:
            level = (low + high + 1) // 2
            if sum(group.below(level) for group in groups.values()) <= count:
                low = level
            else:
                high = level - 1
        taken = {number: group.below(low) for number, group in groups.items()}
        left = count - sum(taken.values())
        for number in sorted(groups) if left > 0 else ():  # those at that load, by number
            more = min(groups[number].below(low + 1) - taken[number], left)
            taken[number] += more
            left -= more
        return {number: share for number, share in taken.items() if share}

    def choose_parts(self, need: Need, parts: int) -> list[int] | None:
        """Return as many different executors, least loaded first; None while fewer have room."""
        numbers = self.fit(need).ranked(parts)
        return numbers if len(numbers) == parts else None

    def choose_each(self, need: Need, each: str) -> list[int] | None:
        """Return all executors that `each` and the need describe, by number; None while one of them
        has no room, if only because it is too small; empty where there are none."""
        groups = self.each(need, each)
        has_room = (one.has_room(need.cpu_milli, need.memory_bytes) for one in groups.values())
        return sorted(groups) if all(has_room) else None

    def each(self, need: Need, each: str) -> dict[int, SlotGroup]:
        """Return the slots, full or not, of all executors that `each` and the need describe."""
        groups = self.fit(Need(need.pool, each)).groups
        where = where_of(need.where)
        if where is None or not where.terms:
            return {} if where is None else groups
        return {
            number: group
            for number, group in groups.items()
            if where.matches(group.view.place.labels)
        }

    def is_fit(self, number: int, need: Need) -> bool:
        """Whether this executor could have one launch, were nothing taken."""
        group = self._group(self.views.get(number), need)
        return group is not None and group.slots > 0

    def fits(self, number: int, need: Need) -> bool:
        """Whether this executor has room for one more launch, and is fit for it."""
        group = self._group(self.views.get(number), need)
        return group is not None and group.has_room(need.cpu_milli, need.memory_bytes)

    # ---- what is taken

    def take(self, number: int, need: Need, count: int = 1) -> None:
        """Count launches on an executor, whether there is room or not: what runs there runs."""
        view = self.views.get(number) or self._away.get(number)
        if view is None:
            view = self._away[number] = ExecutorView(Place(number, {}, ()))
        view.take(need, count)

    def give(self, number: int, need: Need, count: int = 1) -> None:
        """Count launches no more that were taken with the same need."""
        view = self.views.get(number) or self._away.get(number)
        is_taken = view is not None and view.taken[need.pool] >= count
        invariant(is_taken, f"executor {number} has nothing of pool {need.pool} to give back")
        if view is None:
            return
        view.take(need, -count)
        is_whole = view.cpu_milli >= 0 and view.memory_bytes >= 0
        invariant(is_whole, f"executor {number} was given back more than was taken")
        self._note_freed(number)
        if number in self._away and not view.is_used:
            del self._away[number]

    def _note_freed(self, number: int) -> None:
        self._freed.append(number)
        if len(self._freed) > 2 * len(self.views) + STALE_MIN:  # then a pass over all is less work
            self._begin += len(self._freed)
            self._freed.clear()

    def cordon(self, number: int, *, is_cordoned: bool) -> None:
        """Let an executor get no more launches, or get them again."""
        view = self.views.get(number)
        if view is not None and view.is_cordoned != is_cordoned:
            view.is_cordoned = is_cordoned
            self._note_freed(number)

    def is_short(self, number: int, need: Need) -> bool:
        """Whether an executor has too little cpu or memory left for a launch."""
        view = self.views.get(number)
        return view is not None and view.is_short(need.cpu_milli, need.memory_bytes)

    def bears(self, number: int, need: Need) -> bool:
        """Whether an executor is fit for a launch that was taken there, and not overbooked."""
        return self.is_fit(number, need) and self.views[number].bears(need)

    def used(self, number: int) -> Used:
        """Return what is taken of an executor, also of one that is away."""
        view = self.views.get(number) or self._away.get(number)
        return view.used if view else Used({}, 0, 0)

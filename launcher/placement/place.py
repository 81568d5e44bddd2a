"""What an executor offers, what a launch needs, and how full an executor is.

The *load* of an executor, for launches of a pool, is the fullest of three: the slots that serve the
pool, cpu and memory, in millionths of what there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from launcher.where import EXECUTOR_LABEL, HOST_LABEL, BadWhere, Where, parse_where

COMMAND: Final = "command"
"""The pool of launches that are commands."""
FULL: Final = 1_000_000
"""The load of what has nothing left."""
NO_LIMIT: Final = 1 << 100
"""More than launches can ask for together."""


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
    """A place class: all that decides which executors a launch may go to."""

    pool: str = COMMAND
    where: str = ""
    cpu_milli: int = 0
    memory_bytes: int = 0

    @property
    def takes_resources(self) -> bool:
        """Whether it takes more than a slot."""
        return bool(self.cpu_milli or self.memory_bytes)


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


class Seat:
    """The slots of one capacity of one executor, and what is used of them."""

    __slots__ = ("bench", "slots", "used", "watchers")

    def __init__(self, bench: Bench, slots: int, used: int) -> None:
        self.bench, self.slots, self.used = bench, slots, used
        self.watchers: dict[int, set[int]] = {}
        """By a number of theirs, of those who want to know where something was given back: the
        executors for which they have not looked yet."""

    @property
    def load(self) -> int:
        """How full it is, in millionths; more than FULL where too much was taken."""
        slots = self.used * FULL // self.slots if self.slots else FULL
        return max(slots, self.bench.load)

    def has_room(self, cpu_milli: int, memory_bytes: int) -> bool:
        """Whether one more launch fits now that takes so much. What takes nothing of a resource
        fits also where too much of it was taken."""
        bench = self.bench
        if self.used >= self.slots or bench.is_barred:
            return False
        return not (cpu_milli or memory_bytes) or not bench.is_short(cpu_milli, memory_bytes)


class Bench:
    """One executor with all its seats. What was taken is remembered by pool, so that it still
    counts when the executor offers something else, or comes back."""

    __slots__ = (
        "by_pool", "cpu_milli", "is_barred", "load", "memory_bytes", "place", "seats", "taken"
    )  # fmt: skip

    def __init__(self, place: Place, used: Used | None = None) -> None:
        self.place = place
        self.taken = Counter(used.slots if used else {})
        self.cpu_milli = used.cpu_milli if used else 0
        self.memory_bytes = used.memory_bytes if used else 0
        self.load = 0
        """How full cpu and memory are, the fuller of the two counts."""
        self.is_barred = False
        """Whether it gets nothing now, until there is room for a launch that needs much."""
        self.by_pool: dict[str, Seat] = {}
        """The seat that serves a pool."""
        self.seats: list[Seat] = []
        for capacity in place.capacities:
            pools = [pool for pool in capacity.pools if pool not in self.by_pool]
            seat = Seat(self, capacity.slots, sum(self.taken[pool] for pool in pools))
            self.seats.append(seat)
            self.by_pool.update(dict.fromkeys(pools, seat))
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
        seat = self.by_pool.get(need.pool)
        is_enough = seat is not None and seat.used <= seat.slots
        return is_enough and not self.is_short(need.cpu_milli, need.memory_bytes, more=0)

    def take(self, need: Need, count: int) -> None:
        """Take `count` times what is needed; give it back where `count` is negative."""
        self.taken[need.pool] += count
        seat = self.by_pool.get(need.pool)
        if seat is not None:
            seat.used += count
        if need.takes_resources:
            self.cpu_milli += need.cpu_milli * count
            self.memory_bytes += need.memory_bytes * count
            self._weigh()
        if count < 0:
            self._tell(self.seats if need.takes_resources or seat is None else (seat,))

    def unbar(self) -> None:
        """Let it get launches again."""
        if self.is_barred:
            self.is_barred = False
            self._tell(self.seats)

    def _tell(self, seats: Iterable[Seat]) -> None:
        for seat in seats:
            for unseen in seat.watchers.values():
                unseen.add(self.place.number)

    def _weigh(self) -> None:
        place = self.place
        cpu = self.cpu_milli * FULL // place.cpu_milli if place.cpu_milli else 0
        memory = self.memory_bytes * FULL // place.memory_bytes if place.memory_bytes else 0
        self.load = max(cpu, memory)

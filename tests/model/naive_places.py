"""Where a launch goes, so simply that one can see it is right: everything is counted each time."""

from __future__ import annotations

from collections.abc import Collection

from cron.scheduler.places import Need, Place
from cron.where import parse_where


class NaivePlaces:
    """As `Places`, by a list of what is taken and a look at each executor for each question."""

    def __init__(self) -> None:
        self.places: dict[int, Place] = {}
        self.taken: list[tuple[int, Need]] = []

    def serving(self, place: Place, pool: str) -> int | None:
        """Which capacity serves the pool."""
        found = [at for at, one in enumerate(place.capacities) if pool in one.pools]
        return found[0] if found else None

    def lets(self, place: Place, need: Need) -> bool:
        return place.users is None or need.user in ("", *place.users)

    def used(self, number: int) -> tuple[list[Need], int, int]:
        needs = [need for at, need in self.taken if at == number]
        return needs, sum(n.cpu_milli for n in needs), sum(n.memory_bytes for n in needs)

    def slots_used(self, place: Place, pool: str) -> int:
        needs, _, _ = self.used(place.number)
        at = self.serving(place, pool)
        return sum(self.serving(place, need.pool) == at for need in needs)

    def load(self, place: Place, pool: str) -> int:
        """The fullest of slots, cpu and memory, in millionths."""
        at = self.serving(place, pool)
        assert at is not None
        _, cpu, memory = self.used(place.number)
        loads = [self.slots_used(place, pool) * 1_000_000 // place.capacities[at].slots]
        most = 999_999  # a free slot is better than none, whatever else is short
        loads += [min(cpu * 1_000_000 // place.cpu_milli, most)] if place.cpu_milli else []
        loads += [min(memory * 1_000_000 // place.memory_bytes, most)] if place.memory_bytes else []
        return max(loads)

    def has_room_at(self, place: Place, need: Need) -> bool:
        at = self.serving(place, need.pool)
        if at is None or not parse_where(need.where).matches(place.labels):
            return False
        if not self.lets(place, need):
            return False
        _, cpu, memory = self.used(place.number)
        capacity = place.capacities[at]
        if self.slots_used(place, need.pool) >= capacity.slots + capacity.ahead:
            return False
        if need.cpu_milli and place.cpu_milli and cpu + need.cpu_milli > place.cpu_milli:
            return False
        if need.memory_bytes and place.memory_bytes:
            return memory + need.memory_bytes <= place.memory_bytes
        return True

    def ranked(self, need: Need) -> list[int]:
        """All that have room, least loaded first."""
        fit = [place for place in self.places.values() if self.has_room_at(place, need)]
        fit.sort(key=lambda place: (self.load(place, need.pool), place.number))
        return [place.number for place in fit]

    def choose(self, need: Need, avoid: Collection[int] = ()) -> int | None:
        ranked = self.ranked(need)
        others = [number for number in ranked if number not in avoid]
        return (others or ranked or [None])[0]

    def choose_parts(self, need: Need, parts: int, avoid: Collection[int] = ()) -> list[int] | None:
        ranked = [number for number in self.ranked(need) if number not in avoid]
        return ranked[:parts] if len(ranked) >= parts else None

    def choose_each(self, need: Need, each: str) -> list[int] | None:
        wheres = [parse_where(need.where), parse_where(each)]
        all_of_them = sorted(
            place.number
            for place in self.places.values()
            if self.serving(place, need.pool) is not None
            and self.lets(place, need)
            and all(where.matches(place.labels) for where in wheres)
        )
        has_room = [self.has_room_at(self.places[number], need) for number in all_of_them]
        return all_of_them if all(has_room) else None

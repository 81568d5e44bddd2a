"""The executors that may get work now, and what is free on them: where a launch goes.

The least loaded executor that has room is chosen, of equals the one with the lowest number. An
executor is told from others by its number; whoever takes gives back the same need, whether the
executor is still here or not.

Theory of operation. Each need that is asked for has a `Ranking`, which is made by one pass over the
executors that serve its pool, and shared by all needs that take the same resources and fit the same
seats: a hundred handlers that the same workers serve have one. From then on it follows what
changes; nothing is passed over again. Rankings that nobody asks for are forgotten when there are
many.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from launcher.errors import invariant
from launcher.placement.place import Bench, Need, Place, Seat, Used, where_of
from launcher.placement.ranking import NUMBER_MAX, Ranking

NEEDS_MAX: Final = 10_000
"""Needs whose ranking is known: 200 bytes each, and half a microsecond of each executor that comes
or goes."""
RANKINGS_MAX: Final = 256
"""About 200 bytes for each member of each: with 10,000 executors 0.5 GB if all rank all."""


class Places:
    """All executors with room or without. Not one of its answers takes anything: `take` does."""

    def __init__(self) -> None:
        self.benches: dict[int, Bench] = {}
        """Those that may get work, in no order."""
        self._away: dict[int, Bench] = {}
        self._serving: dict[str, dict[int, Seat]] = {}
        self._rankings: dict[Need, Ranking] = {}
        self._known: dict[Ranking, dict[Need, None]] = {}
        self._serial = 0

    # ---- who may get work

    def put(self, place: Place) -> None:
        """Let an executor get work, or change what it offers; what is taken there stays taken."""
        number = place.number
        invariant(0 <= number <= NUMBER_MAX, f"executor number {number} is out of range")
        old = self.benches.get(number)
        if old is not None and old.place == place:
            return
        before = old or self._away.pop(number, None)
        bench = Bench(place, before.used if before else None)
        self._unserve(old)
        self.benches[number] = bench
        for pool, seat in bench.by_pool.items():
            self._serving.setdefault(pool, {})[number] = seat
        self._revise(number, bench)

    def drop(self, number: int) -> None:
        """Let an executor get no more work: it left, drains, or its lease is over. What is taken
        there is remembered until it is given back."""
        bench = self.benches.pop(number, None)
        if bench is None:
            return
        self._unserve(bench)
        self._revise(number, None)
        if bench.is_used:
            self._away[number] = Bench(Place(number, {}, ()), bench.used)

    def _unserve(self, bench: Bench | None) -> None:
        if bench is None:
            return
        for pool in bench.by_pool:
            serving = self._serving[pool]
            del serving[bench.place.number]
            if not serving:
                del self._serving[pool]

    def _revise(self, number: int, bench: Bench | None) -> None:
        """Let the rankings know what `number` is now. Needs that no longer fit the same seats as
        the first with which they share a ranking get one of their own when they are asked for."""
        for ranking, needs in list(self._known.items()):
            fitting = [self._seat(bench, need) for need in needs]
            first = fitting[0]
            for need, seat in zip(list(needs), fitting, strict=True):
                if seat is not first:
                    del needs[need], self._rankings[need]
            if ranking.members.get(number) is not first:
                ranking.put(number, first)

    @staticmethod
    def _seat(bench: Bench | None, need: Need) -> Seat | None:
        """Return the seat that the need could have here, were nothing taken."""
        seat = bench.by_pool.get(need.pool) if bench else None
        if seat is None or not seat.bench.fits(need):
            return None
        where = where_of(need.where)
        return seat if where is not None and where.matches(seat.bench.place.labels) else None

    # ---- where a launch goes

    def has_room(self, need: Need) -> bool:
        """Whether some executor has room for one more launch."""
        return self._ranking(need).first() is not None

    def slots(self, need: Need, most: int) -> int:
        """Return how many slots are free for a need, as far as `most`."""
        free = 0
        for seat in self._ranking(need).members.values():
            if seat.used < seat.slots and not seat.bench.is_barred:
                free += seat.slots - seat.used
                if free >= most:
                    return most
        return free

    def choose(
        self, need: Need, avoid: int | None = None, barred: Collection[int] = ()
    ) -> int | None:
        """Return the executor for one launch, None while none has room.

        `avoid` refused it, and gets it only if no other has room; none of `barred` gets it, which
        have other parts of it, say.
        """
        return self._ranking(need).first(avoid, barred)

    def choose_parts(self, need: Need, parts: int) -> list[int] | None:
        """Return as many different executors, least loaded first; None while fewer have room."""
        numbers = self._ranking(need).firsts(parts)
        return numbers if len(numbers) == parts else None

    def choose_each(self, need: Need, each: str) -> list[int] | None:
        """Return all executors that `each` and the need describe, by number; None while one of them
        has no room, if only because it is too small; empty where there are none."""
        seats = self.each(need, each)
        has_room = (one.has_room(need.cpu_milli, need.memory_bytes) for one in seats.values())
        return sorted(seats) if all(has_room) else None

    def each(self, need: Need, each: str) -> dict[int, Seat]:
        """Return the seats, full or not, of all executors that `each` and the need describe."""
        members = self._ranking(Need(need.pool, each)).members
        where = where_of(need.where)
        if where is None or not where.terms:
            return {} if where is None else members
        return {
            number: seat
            for number, seat in members.items()
            if where.matches(seat.bench.place.labels)
        }

    def could_fit(self, need: Need) -> dict[int, Seat]:
        """Return the seats that one launch could have, were nothing taken. One pass over all."""
        return {number: seat for number, seat in self._fitting(need).items() if seat.slots}

    def is_fit(self, number: int, need: Need) -> bool:
        """Whether this executor could have one launch, were nothing taken."""
        seat = self._seat(self.benches.get(number), need)
        return seat is not None and seat.slots > 0

    def fits(self, number: int, need: Need) -> bool:
        """Whether this executor has room for one more launch, and is fit for it."""
        seat = self._seat(self.benches.get(number), need)
        return seat is not None and seat.has_room(need.cpu_milli, need.memory_bytes)

    # ---- what is taken

    def take(self, number: int, need: Need) -> None:
        """Count a launch on an executor, whether there is room or not: what runs there runs."""
        bench = self.benches.get(number) or self._away.get(number)
        if bench is None:
            bench = self._away[number] = Bench(Place(number, {}, ()))
        bench.take(need, 1)

    def give(self, number: int, need: Need) -> None:
        """Count a launch no more that was taken with the same need."""
        bench = self.benches.get(number) or self._away.get(number)
        is_taken = bench is not None and bench.taken[need.pool] > 0
        invariant(is_taken, f"executor {number} has nothing of pool {need.pool} to give back")
        if bench is not None:
            bench.take(need, -1)
            is_whole = bench.cpu_milli >= 0 and bench.memory_bytes >= 0
            invariant(is_whole, f"executor {number} was given back more than was taken")
            if number in self._away and not bench.is_used:
                del self._away[number]

    def hold(self, number: int, need: Need, *, may_bar: bool = True) -> bool:
        """Take room for a launch that cannot begin yet, whoever else waits for some here. Where
        cpu or memory is short for that, nobody gets anything here until `unbar`, if that may be."""
        bench = self.benches.get(number)
        if bench is None:
            return False
        seat = self._seat(bench, need)
        is_short = bench.is_short(need.cpu_milli, need.memory_bytes)
        is_held = seat is not None and seat.used < seat.slots and not is_short
        if is_held:
            self.take(number, need)
        if is_short and may_bar:
            bench.is_barred = True
        else:
            bench.unbar()
        return is_held

    def bears(self, number: int, need: Need) -> bool:
        """Whether an executor is fit for a launch that was taken there, and not overbooked."""
        return self.is_fit(number, need) and self.benches[number].bears(need)

    def unbar(self, number: int) -> None:
        """Let an executor get launches again."""
        bench = self.benches.get(number)
        if bench is not None:
            bench.unbar()

    def used(self, number: int) -> Used:
        """Return what is taken of an executor, also of one that is away."""
        bench = self.benches.get(number) or self._away.get(number)
        return bench.used if bench else Used({}, 0, 0)

    # ---- rankings

    def _ranking(self, need: Need) -> Ranking:
        ranking = self._rankings.get(need)
        if ranking is None:
            ranking = self._make(need)
        ranking.asked = True
        return ranking

    def _make(self, need: Need) -> Ranking:
        self._forget_some()
        members = self._fitting(need)
        ranking = self._like(need, members)
        if ranking is None:
            self._serial += 1
            ranking = Ranking(self._serial, need.cpu_milli, need.memory_bytes, members)
            self._known[ranking] = {}
        self._rankings[need] = ranking
        self._known[ranking][need] = None
        return ranking

    def _fitting(self, need: Need) -> dict[int, Seat]:
        """Return all seats that `_seat` would, quickly for many."""
        where = where_of(need.where)
        if where is None:
            return {}
        members = self._serving.get(need.pool, {})
        if where.terms:
            members = {
                number: seat
                for number, seat in members.items()
                if where.matches(seat.bench.place.labels)
            }
        if need.takes_resources:
            return {number: seat for number, seat in members.items() if seat.bench.fits(need)}
        return members if where.terms else dict(members)

    def _like(self, need: Need, members: dict[int, Seat]) -> Ranking | None:
        """Return a ranking that would be no different."""
        for ranking in self._known:
            takes_same = (ranking.cpu_milli, ranking.memory_bytes) == (
                need.cpu_milli,
                need.memory_bytes,
            )
            if takes_same and ranking.members == members:
                return ranking
        return None

    def _forget_some(self) -> None:
        """Keep to the bounds: forget what nobody asked for since the last time, or else all."""
        if len(self._known) < RANKINGS_MAX and len(self._rankings) < NEEDS_MAX:
            return
        idle = [ranking for ranking in self._known if not ranking.asked]
        for ranking in idle if idle and len(self._rankings) < NEEDS_MAX else list(self._known):
            ranking.forget()
            for need in self._known.pop(ranking):
                del self._rankings[need]
        for ranking in self._known:
            ranking.asked = False

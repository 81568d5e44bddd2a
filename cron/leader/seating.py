"""Which executors the launches of this leader occupy, and where one more would go."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Final, cast

import msgspec

from cron.job import Job
from cron.state.commands import Key
from cron.state.state import ExecutorRecord
from launcher.errors import invariant
from launcher.placement.earmark import Earmarks, Wanted
from launcher.placement.place import COMMAND, Need, where_of
from launcher.placement.places import Places
from launcher.pool.events import Offer
from launcher.where import EXECUTOR_LABEL, HOST_LABEL

TOLD_MAX: Final = 8
"""Executors that are named where something is said of them."""


class Running(msgspec.Struct, gc=False):
    """Where a launch runs, or is about to, and what it takes on each executor there."""

    executors: tuple[int, ...]
    need: Need


class Seating:
    """What runs where, beside the places that executors offer. `executors` are those of the log."""

    def __init__(self, executors: Mapping[int, ExecutorRecord] | None = None) -> None:
        self._executors = executors if executors is not None else {}
        self._absent: dict[tuple[str, str], str] = {}  # as of this round
        self.places = Places()
        self.running: dict[Key, Running] = {}
        self.domains: dict[str, str] = {}
        """Handler -> the group of workers that serves it, whose slots it shares."""
        self.earmarks = Earmarks(self.places, self._hold)
        self._starving: Mapping[Hashable, int] | None = None
        self._reserved: Mapping[Hashable, int] = {}
        self._free: dict[object, int] = {}  # free slots by domain, as of this round
        self._kept = 0

    def begin_round(
        self, starving: Mapping[Hashable, int], reserved: Mapping[Hashable, int], now_ms: int
    ) -> None:
        """Begin a plan: count anew what is free, look anew who is there, and put by room for those
        place classes that starve, since when. `reserved`: slots by domain, not used yet."""
        self._free.clear()
        self._absent.clear()
        self._kept = 0
        self._reserved = reserved
        is_known, self._starving = starving is self._starving, starving
        wanted = None
        if not is_known:
            wanted = {_wanted(place): since_ms for place, since_ms in starving.items()}
        self.earmarks.look(wanted, now_ms)

    def _hold(self, number: int, need: Need) -> bool:
        """Hold room on an executor, if that leaves all slots that are reserved; where any are, no
        executor is barred, which may have some of them."""
        domain = self.domain(need.pool)
        kept = self._reserved.get(domain, 0)
        if kept and self.free(domain) <= kept:
            return False
        is_held = self.places.hold(number, need, may_bar=not self._reserved)
        if is_held and domain in self._free:
            self._free[domain] -= 1
        return is_held

    # ---- who offers what

    def learn(self, offers: Iterable[Offer]) -> dict[str, str]:
        """Learn which group of workers serves which handler; return what is new, by handler."""
        moved = {
            handler: offer.group
            for offer in offers
            for handler in offer.handlers
            if self.domains.get(handler) != offer.group
        }
        self.domains.update(moved)
        return moved

    def domain(self, pool: str) -> str:
        """Return whose slots the launches of a pool share: a group's, or those for commands."""
        return self.domains.get(pool, pool) if pool != COMMAND else COMMAND

    def free(self, domain: object) -> int:
        """Return the free slots of a domain, with those that are kept for the class that was asked
        about last. It is asked for each launch that begins: so counted once in a round, and kept
        up."""
        known = self._free.get(domain)
        if known is None:
            pools = (pool for pool, group in self.domains.items() if group == domain)
            known = self._free[domain] = free_slots(self.places, next(pools, str(domain)))
        return known + self._kept

    def has_room(self, place: object) -> bool:
        """Return whether there is room for a start of that place class: on some executor, or for
        all of its parts, where it is (need, parts, each). While there is not, the pump does not ask
        for any other launch of the class."""
        mark = self.earmarks.mark
        self._kept = 0
        if mark is not None and self._is_kept(_wanted(place)):
            self._kept = len(mark.held)
            return True
        if isinstance(place, Need):
            return self.places.has_room(place)
        return isinstance(place, Wanted) and bool(self._seats(place))

    def room(self, place: object, most: int) -> int:
        """Return how many starts of that place class have room now, as far as `most`; of those
        that take more than a slot only whether one has."""
        if not self.has_room(place):
            return 0
        if most <= 1 or not isinstance(place, Need) or place.takes_resources:
            return 1
        return self.places.slots(place, most)

    def _seats(self, wanted: Wanted) -> list[int] | None:
        need, each = wanted.need, wanted.each
        if not each:
            return self.places.choose_parts(need, wanted.parts)
        return None if self.absent(need, each) else self.places.choose_each(need, each)

    def _is_kept(self, wanted: Wanted) -> bool:
        """Whether room for a launch of that class was put by, and is complete."""
        is_ready = self.earmarks.is_ready(wanted)
        return is_ready and not (wanted.each and self.absent(wanted.need, wanted.each))

    def absent(self, need: Need, each: str) -> str:
        """Return who is missing for a launch on `each`, by id, "" for nobody: an executor that fits
        and gets no work now though the log has it. It has not found a new leader yet, rests, or is
        cut off; it is waited for until its lease is over. Left out, nobody would notice."""
        wanted = (need.where, each)
        if wanted not in self._absent:
            self._absent[wanted] = self._find_absent(*wanted)
        return self._absent[wanted]

    def _find_absent(self, where: str, each: str) -> str:
        wheres = [where_of(text) for text in (where, each)]
        benches = self.places.benches
        there = {bench.place.labels.get(EXECUTOR_LABEL) for bench in benches.values()}
        for number, record in self._executors.items():
            if number in benches or record.drained_by or record.executor in there:
                continue
            labels = {
                **dict(record.labels), EXECUTOR_LABEL: record.executor, HOST_LABEL: record.host
            }  # fmt: skip
            if all(one is not None and one.matches(labels) for one in wheres):
                return record.executor
        return ""

    # ---- what is taken

    def choose(self, need: Need, job: Job, refused_by: int | None) -> tuple[int, ...]:
        """Return the executors of a launch, one for each of its parts; none while there is no room
        for all of them, or nobody is such as it asks for."""
        if job.has_parts or self.earmarks.mark is not None:
            wanted = Wanted(need, job.parts, job.each)
            if self._is_kept(wanted):
                self._free.clear()
                self._kept = 0
                return self.earmarks.take(wanted)
            if job.has_parts:
                return tuple(self._seats(wanted) or ())
        executor = self.places.choose(need, refused_by)
        return () if executor is None else (executor,)

    def began(self, need: Need, job: Job) -> None:
        """Learn that a launch of this job begins, for which room may have been put by."""
        marks = self.earmarks
        if not marks.is_idle and marks.began(Wanted(need, job.parts, job.each)):
            self._free.clear()

    def kept_for(self, need: Need, job: Job) -> str:
        """Return where room is put by for the next launch of a job, as people get to read it."""
        mark = self.earmarks.mark
        if mark is None or mark.wanted != Wanted(need, job.parts, job.each):
            return ""
        names = [
            self._executors[number].executor if number in self._executors else str(number)
            for number in mark.numbers[:TOLD_MAX]
        ]
        rest = len(mark.numbers) - len(names)
        if rest:
            names.append(f"{rest} more")
        held = f"{len(mark.held)} of {len(mark.numbers)}"
        return f"; what comes free on {', '.join(names)} is kept for it ({held} so far)"

    def occupy(self, key: Key, executors: tuple[int, ...], need: Need) -> None:
        """Count a launch where it is begun, or runs."""
        self.running[key] = Running(executors, need)
        for executor in executors:
            self.places.take(executor, need)
        domain = self.domain(need.pool)
        if domain in self._free:
            self._free[domain] -= len(executors)

    def keep(self, key: Key, executors: Collection[int]) -> None:
        """Count a launch no more where parts of it are over; `executors` are where others run."""
        ran = self.running[key]
        if len(ran.executors) == len(executors):
            return
        for executor in ran.executors:
            if executor not in executors:
                self.places.give(executor, ran.need)
        ran.executors = tuple(one for one in ran.executors if one in executors)

    def vacate(self, key: Key) -> bool:
        """Count a launch no more; return whether it was counted."""
        ran = self.running.pop(key, None)
        if ran is None:
            return False
        for executor in ran.executors:
            self.places.give(executor, ran.need)
        return True


def _wanted(place: Hashable) -> Wanted:
    """Return what a place class of the pump asks for."""
    if isinstance(place, Need):
        return Wanted(place)
    invariant(isinstance(place, Wanted), f"{place!r} is no place class")
    return cast(Wanted, place)


def free_slots(places: Places, pool: str) -> int:
    """Return the free slots of all executors that serve a pool; one pass over them."""
    benches = (bench for bench in places.benches.values() if not bench.is_barred)
    seats = (bench.by_pool.get(pool) for bench in benches)
    return sum(max(0, seat.slots - seat.used) for seat in seats if seat is not None)

"""Which executors launches occupy, where the next one goes, and the reservation for large needs.
Pure.

A launch of several parts, or one that needs most of an executor, finds room only if enough comes
free at one moment. If small launches follow each other without a gap, that never happens. So the
need that has waited longest for room, at least 30 s, gets a *reservation*: the executors that fit
best, as many as it needs, hold each slot for it as it comes free; an executor whose cpu or memory
is short is cordoned until there is enough. There is one reservation at a time. It lasts as long as
the need had waited; then the next need gets one. Slots that limits reserve are not held, and while
there are any no executor is cordoned.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Final, cast

import msgspec

from cron.scheduler.flows import FlowKey
from cron.scheduler.places import Need, Places, Wanted, where_of
from cron.state.commands import Key
from cron.state.state import ExecutorRecord
from cron.where import EXECUTOR_LABEL, HOST_LABEL

NAMED_MAX: Final = 8
"""Executors that a text names; the others are counted."""
LOOK_MS: Final = 500
"""The time between two searches for executors to reserve: each is a pass over all executors."""
UNSEEN_MS: Final = 5_000
"""A reservation ends if its need has not starved for so long."""
RESERVED_MAX: Final = 256
"""A launch on more executors gets no reservation: each round looks at all reserved ones."""


class Running(msgspec.Struct, gc=False):
    """Where a launch runs or is about to run, and what it takes on each executor."""

    executors: tuple[int, ...]
    need: Need


class Reservation(msgspec.Struct):
    """Executors that are kept for the next launch of a need. `held`: those on which room is held;
    the others are cordoned. `seen_ms`: when the need was last found waiting for room."""

    wanted: Wanted
    numbers: tuple[int, ...]
    from_ms: int
    until_ms: int
    seen_ms: int
    held: set[int] = msgspec.field(default_factory=set)


class Placement:
    """What runs where, beside the places that executors offer. `executors` are those of State."""

    def __init__(
        self,
        executors: Mapping[int, ExecutorRecord] | None = None,
        domains: Mapping[str, Hashable] | None = None,
    ) -> None:
        """`domains`: whose slots the launches of a pool share, if that is not the pool."""
        self._executors = executors if executors is not None else {}
        self._domains = domains if domains is not None else {}
        self._absent: dict[tuple[str, str], str] = {}  # as of this round
        self.places = Places()
        self.running: dict[Key, Running] = {}  # but those that are only counted
        self.reservation: Reservation | None = None
        self._look_ms = 0
        self._had_ms: dict[Wanted, int] = {}  # when a need was last looked at, or let go
        self._reserved: Mapping[Hashable, int] = {}
        self._free: dict[object, int] = {}  # free slots by domain, as of this round
        self._kept = 0

    # ---- rounds, and what is kept for large needs

    def begin_round(
        self, starving: Mapping[Hashable, int], reserved: Mapping[Hashable, int], now_ms: int
    ) -> None:
        """Begin a plan: forget counts of the last round, and keep executors for the need (`Wanted`)
        that starves longest. `starving`: since when, by need. `reserved`: unused reserved slots by
        domain."""
        self._free.clear()
        self._absent.clear()
        self._kept, self._reserved = 0, reserved
        mark = self.reservation
        if mark is not None:
            if mark.wanted in starving:
                mark.seen_ms = now_ms
            is_on = mark.from_ms <= now_ms < mark.until_ms and now_ms - mark.seen_ms < UNSEEN_MS
            if not is_on or not self._is_sound(mark):
                self._had_ms[mark.wanted] = now_ms
                self._let_go()
        is_time = now_ms >= self._look_ms or now_ms < self._look_ms - LOOK_MS
        if self.reservation is None and starving and is_time:
            self._look_ms = now_ms + LOOK_MS
            self._reserve(cast(Mapping[Wanted, int], starving), now_ms)
        if self.reservation is not None:
            self._gather(self.reservation)

    def _is_sound(self, mark: Reservation) -> bool:
        """Return whether these are still the executors that the need requires, and the held room
        exists."""
        need, each = mark.wanted.need, mark.wanted.each
        if each and self.places.each(need, each).keys() != set(mark.numbers):
            return False
        groups = self.places.fit(need).groups
        for number in mark.numbers:
            group = groups.get(number)
            if group is None or not group.slots:
                return False
            is_overbooked = group.used > group.limit or group.view.is_short(need, more=0)
            if number in mark.held and is_overbooked:
                return False
        return True

    def _reserve(self, starving: Mapping[Wanted, int], now_ms: int) -> None:
        """Reserve the executors that fit best, if there are enough, for the need that has waited
        longest since it was last looked at."""
        self._had_ms = {one: ms for one, ms in self._had_ms.items() if one in starving}
        # These may find no room although slots come free all the time.
        large = [one for one in starving if one.need.takes_resources or one.has_parts]
        if not large:
            return
        wanted = min(large, key=lambda one: (self._had_ms.get(one, 0), starving[one]))
        self._had_ms[wanted] = now_ms
        fit = self.places.fit(wanted.need).groups
        groups, count = {number: one for number, one in fit.items() if one.slots}, wanted.parts
        if wanted.each:
            meant = self.places.each(wanted.need, wanted.each)
            groups = dict(meant) if meant.keys() <= groups.keys() else {}
            count = len(groups)
        if 0 < count <= min(len(groups), RESERVED_MAX):
            best = sorted(groups, key=lambda number: (groups[number].load, number))[:count]
            until_ms = 2 * now_ms - starving[wanted]
            self.reservation = Reservation(wanted, tuple(best), now_ms, until_ms, now_ms)

    def _gather(self, mark: Reservation) -> None:
        """Hold what has come free. Executors whose cpu or memory is short are cordoned until there
        is enough."""
        need = mark.wanted.need
        domain = self._domains.get(need.pool, need.pool)
        groups = self.places.fit(need).groups
        for number in mark.numbers:
            if number in mark.held:
                continue
            self.places.cordon(number, is_cordoned=False)
            kept = self._reserved.get(domain, 0)
            if kept and self.free(domain) <= kept:
                continue
            if groups[number].has_room(need):
                self.places.take(number, need)
                mark.held.add(number)
                if domain in self._free:
                    self._free[domain] -= 1
            elif not self._reserved and groups[number].view.is_short(need):
                self.places.cordon(number, is_cordoned=True)

    def _let_go(self) -> None:
        mark, self.reservation = self.reservation, None
        if mark is None:
            return
        self._free.clear()
        for number in mark.numbers:
            self.places.cordon(number, is_cordoned=False)
            if number in mark.held:
                self.places.give(number, mark.wanted.need)

    def _is_kept(self, wanted: Wanted) -> bool:
        """Return whether all that a launch of a need takes is held for it."""
        mark = self.reservation
        if mark is None or mark.wanted != wanted or len(mark.held) < len(mark.numbers):
            return False
        return self._is_sound(mark) and not self.absent(wanted)

    # ---- what is free

    def free(self, domain: object) -> int:
        """Return the free slots of a domain, including those held for the need that `room` was last
        asked about. It is called for each launch that begins, so it is counted once in a round and
        updated."""
        known = self._free.get(domain)
        if known is None:
            pools = (pool for pool, group in self._domains.items() if group == domain)
            known = self._free[domain] = self.places.free(next(pools, str(domain)))
        return known + self._kept

    def room(self, need: Hashable, most: int) -> int:
        """Return how many launches with a need (`Wanted`) have room now, up to `most`; at most one
        if a launch takes more than a slot."""
        wanted = cast(Wanted, need)
        self._kept = 0
        if self.reservation is not None and self._is_kept(wanted):
            self._kept = len(self.reservation.held)
            return 1
        if wanted.parts > 1 or wanted.each:
            return int(bool(self._executors_of(wanted)))
        if most > 1 and not wanted.need.takes_resources:
            return self.places.slots(wanted.need, most)
        return int(self.places.choose(wanted.need) is not None)

    def _executors_of(self, wanted: Wanted, unreached: Collection[int] = ()) -> list[int] | None:
        need, each = wanted.need, wanted.each
        if not each:
            return self.places.choose_parts(need, wanted.parts, unreached)
        return None if self.absent(wanted) else self.places.choose_each(need, each)

    def absent(self, wanted: Wanted) -> str:
        """Return the id of an executor that a launch on `each` lacks, "" for none: one that fits
        and is in State but gets no work now. It has not joined a new leader yet, rests, or is cut
        off. The launch waits for it until its lease is over."""
        key = (wanted.need.where, wanted.each)
        if not wanted.each or key in self._absent:
            return self._absent.get(key, "")
        wheres = [where_of(text) for text in key]
        views = self.places.views
        there = {view.place.labels.get(EXECUTOR_LABEL) for view in views.values()}
        self._absent[key] = ""
        for number, record in self._executors.items():
            if number in views or record.drained_by or record.executor in there:
                continue
            labels = {
                **dict(record.labels), EXECUTOR_LABEL: record.executor, HOST_LABEL: record.host
            }  # fmt: skip
            if all(one is not None and one.matches(labels) for one in wheres):
                self._absent[key] = record.executor
                break
        return self._absent[key]

    # ---- what is taken

    def choose(
        self, wanted: Wanted, refused_by: int, unreached: Collection[int] = ()
    ) -> tuple[int, ...]:
        """Return the executors of a launch, one for each part; none while there is no room for all
        parts. The order cannot reach an executor of `unreached` in time. `refused_by`, 0 for none,
        refused the launch before, but may take it now."""
        mark = self.reservation
        if mark is not None and self._is_kept(wanted):
            if any(number in unreached for number in mark.numbers):
                return ()
            self._kept = 0
            self._had_ms.pop(wanted, None)
            self._let_go()
            return mark.numbers
        if wanted.has_parts:
            chosen = tuple(self._executors_of(wanted, unreached) or ())
        else:
            avoid = (refused_by, *unreached) if refused_by else unreached
            executor = self.places.choose(wanted.need, avoid)
            if refused_by and executor in unreached:
                executor = self.places.choose(wanted.need, unreached)
            chosen = () if executor is None else (executor,)
        return () if any(number in unreached for number in chosen) else chosen

    def reaches_enough(self, wanted: Wanted, unreached: Collection[int]) -> bool:
        """Return whether enough executors fit a launch, idle or not, without those that its order
        cannot reach in time."""
        if wanted.each:
            each = self.places.each(wanted.need, wanted.each)
            return not any(number in unreached for number in each)
        fit = self.places.fit(wanted.need).groups.items()
        others = [number for number, group in fit if group.slots and number not in unreached]
        return len(others) >= wanted.parts

    def began(self, wanted: Wanted) -> None:
        """Release the reservation if it was for the need of a launch that begins."""
        if self.reservation is not None and self.reservation.wanted == wanted:
            self._let_go()

    def kept_for(self, wanted: Wanted) -> str:
        """Return where room is kept for the next launch with a need, as text."""
        mark = self.reservation
        if mark is None or mark.wanted != wanted:
            return ""
        names = [
            self._executors[number].executor if number in self._executors else str(number)
            for number in mark.numbers[:NAMED_MAX]
        ]
        rest = len(mark.numbers) - len(names)
        if rest:
            names.append(f"{rest} more")
        held = f"{len(mark.held)} of {len(mark.numbers)}"
        return f"; what comes free on {', '.join(names)} is kept for it ({held} so far)"

    def occupy(self, keys: Collection[Key], executors: tuple[int, ...], need: Need) -> None:
        """Count launches that begin or run, each on all of these executors."""
        for key in keys:
            self.running[key] = Running(executors, need)
        for executor in executors:
            self.places.take(executor, need, len(keys))
        domain = self._domains.get(need.pool, need.pool)
        if domain in self._free:
            self._free[domain] -= len(executors) * len(keys)

    def count(self, executor: int, flows: Mapping[FlowKey, int], sign: int = 1) -> None:
        """Count launches of flows that begin or run on an executor, without their keys; with -1,
        forget them."""
        needs: dict[Need, int] = {}
        for flow, count in flows.items():
            need = cast(Wanted, flow.need).need
            needs[need] = needs.get(need, 0) + sign * count
            domain = self._domains.get(need.pool, need.pool) if self._free else None
            if domain in self._free:
                self._free[domain] -= sign * count
        self.places.count(executor, needs)

    def vacate(self, keys: Iterable[Key]) -> None:
        """Forget launches that were counted."""
        counts: dict[int, dict[Need, int]] = {}
        for key in keys:
            ran = self.running.pop(key)
            for executor in ran.executors:
                mine = counts.setdefault(executor, {})
                mine[ran.need] = mine.get(ran.need, 0) - 1
        for executor, mine in counts.items():
            self.places.count(executor, mine)

    def keep(self, key: Key, executors: Collection[int]) -> None:
        """Forget the parts of a launch that are over; `executors` are those of the other parts."""
        ran = self.running[key]
        if len(ran.executors) == len(executors):
            return
        for executor in ran.executors:
            if executor not in executors:
                self.places.give(executor, ran.need)
        ran.executors = tuple(one for one in ran.executors if one in executors)

"""Which executors launches occupy, where the next one goes, and for whom room is kept.

A launch of several parts, or one that needs most of an executor, finds room only if enough comes
free at one moment; where small launches follow each other without a gap that never happens. So the
need that has waited longest for room, 30 s at least, gets a *reservation*: the executors that fit
best, as many as it needs, hold room for it as that comes free, slot by slot; an executor whose cpu
or memory is short is cordoned until there is enough. There is one reservation at a time. It lasts
as long as the need had waited; then the next need has its turn. Slots that are reserved by limits
are not held, and while there are any no executor is cordoned.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Final

import msgspec

from cron.job import Job
from cron.scheduler.places import Need, Places, Wanted, where_of
from cron.state.commands import Key
from cron.state.state import ExecutorRecord
from launcher.where import EXECUTOR_LABEL, HOST_LABEL

TOLD_MAX: Final = 8
"""Executors that are named where something is said of them."""
LOOK_MS: Final = 500
"""Between two looks for executors that could be reserved: each is a pass over all executors."""
UNSEEN_MS: Final = 5_000
"""A reservation for a need that does not starve any more for so long is let go."""
RESERVED_MAX: Final = 256
"""A launch on more executors gets no reservation: each round looks at all of them."""


class Running(msgspec.Struct, gc=False):
    """Where a launch runs, or is about to, and what it takes on each executor there."""

    executors: tuple[int, ...]
    need: Need


class Reservation(msgspec.Struct):
    """Executors that are kept for the next launch of a need. `held`: where room is held for it;
    the others are cordoned. `seen_ms`: when the need was last found waiting for room."""

    wanted: Wanted
    numbers: tuple[int, ...]
    from_ms: int
    until_ms: int
    seen_ms: int
    held: set[int] = msgspec.field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        """Whether the launch may begin."""
        return len(self.held) == len(self.numbers)


class Placement:
    """What runs where, beside the places that executors offer. `executors` are those of the log."""

    def __init__(
        self,
        executors: Mapping[int, ExecutorRecord] | None = None,
        domains: Mapping[str, Hashable] | None = None,
    ) -> None:
        """`domains`: whose slots the launches of a pool share, where that is not the pool."""
        self._executors = executors if executors is not None else {}
        self._domains = domains if domains is not None else {}
        self._absent: dict[tuple[str, str], str] = {}  # as of this round
        self.places = Places()
        self.running: dict[Key, Running] = {}
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
        """Begin a plan: count anew what is free, look anew who is there, and keep executors for the
        need that `starving` names longest, with since when. `reserved`: slots by domain, not used
        yet."""
        self._free.clear()
        self._absent.clear()
        self._kept = 0
        self._reserved = reserved
        if self.reservation is None and not starving:
            return
        wanted = {_wanted(need): since_ms for need, since_ms in starving.items()}
        mark = self.reservation
        if mark is not None:
            if mark.wanted in wanted:
                mark.seen_ms = now_ms
            if self._is_over(mark, now_ms):
                self._had_ms[mark.wanted] = now_ms
                self._let_go()
        is_time = now_ms >= self._look_ms or now_ms < self._look_ms - LOOK_MS
        if self.reservation is None and is_time:
            self._look_ms = now_ms + LOOK_MS
            self._reserve(wanted, now_ms)
        if self.reservation is not None:
            self._gather(self.reservation)

    def _is_over(self, mark: Reservation, now_ms: int) -> bool:
        if not mark.from_ms <= now_ms < mark.until_ms or now_ms - mark.seen_ms >= UNSEEN_MS:
            return True
        return not self._is_sound(mark)

    def _is_sound(self, mark: Reservation) -> bool:
        """Whether these are still the executors that it needs, and what is held is there."""
        places, need, each = self.places, mark.wanted.need, mark.wanted.each
        if each and places.each(need, each).keys() != set(mark.numbers):
            return False
        return all(
            places.bears(number, need) if number in mark.held else places.is_fit(number, need)
            for number in mark.numbers
        )

    def _reserve(self, starving: Mapping[Wanted, int], now_ms: int) -> None:
        """Reserve for the need that has waited longest since it was last looked at."""
        self._had_ms = {one: ms for one, ms in self._had_ms.items() if one in starving}
        large = [one for one in starving if one.is_much]
        if not large:
            return
        wanted = min(large, key=lambda one: (self._had_ms.get(one, 0), starving[one]))
        self._had_ms[wanted] = now_ms
        numbers = self._best(wanted)
        if numbers:
            until_ms = 2 * now_ms - starving[wanted]
            self.reservation = Reservation(wanted, numbers, now_ms, until_ms, now_ms)

    def _best(self, wanted: Wanted) -> tuple[int, ...]:
        """Return the executors that fit a need best; none where there are not enough."""
        fit = self.places.fit(wanted.need).groups
        groups = {number: group for number, group in fit.items() if group.slots}
        if wanted.each:
            meant = self.places.each(wanted.need, wanted.each)
            groups = dict(meant) if meant.keys() <= groups.keys() else {}
        count = len(groups) if wanted.each else wanted.parts
        if not 0 < count <= min(len(groups), RESERVED_MAX):
            return ()
        return tuple(sorted(groups, key=lambda number: (groups[number].load, number))[:count])

    def _gather(self, mark: Reservation) -> None:
        """Hold what has come free. Executors whose cpu or memory is short get nothing else until
        there is enough; a slot that comes free is held before others are asked for."""
        need = mark.wanted.need
        domain = self._domains.get(need.pool, need.pool)
        for number in mark.numbers:
            if number in mark.held:
                continue
            self.places.cordon(number, is_cordoned=False)
            kept = self._reserved.get(domain, 0)
            if kept and self.free(domain) <= kept:
                continue
            if self.places.fits(number, need):
                self.places.take(number, need)
                mark.held.add(number)
                if domain in self._free:
                    self._free[domain] -= 1
            elif not self._reserved and self.places.is_short(number, need):
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
        """Whether all that a launch of that need takes is held for it."""
        mark = self.reservation
        if mark is None or mark.wanted != wanted or not mark.is_ready or not self._is_sound(mark):
            return False
        return not (wanted.each and self.absent(wanted.need, wanted.each))

    # ---- what is free

    def free(self, domain: object) -> int:
        """Return the free slots of a domain, with those that are kept for the class that was asked
        about last. It is asked for each launch that begins: so counted once in a round, and kept
        up."""
        known = self._free.get(domain)
        if known is None:
            pools = (pool for pool, group in self._domains.items() if group == domain)
            known = self._free[domain] = self.places.free(next(pools, str(domain)))
        return known + self._kept

    def room(self, need: object, most: int) -> int:
        """Return how many launches with a need have room now, as far as `most`; of those that take
        more than a slot only whether one has."""
        self._kept = 0
        mark = self.reservation
        if mark is not None and self._is_kept(_wanted(need)):
            self._kept = len(mark.held)
            return 1
        if isinstance(need, Wanted):
            return int(bool(self._executors_of(need)))
        if not isinstance(need, Need):
            return 0
        if most > 1 and not need.takes_resources:
            return self.places.slots(need, most)
        return int(self.places.choose(need) is not None)

    def _executors_of(self, wanted: Wanted) -> list[int] | None:
        need, each = wanted.need, wanted.each
        if not each:
            return self.places.choose_parts(need, wanted.parts)
        return None if self.absent(need, each) else self.places.choose_each(need, each)

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
        views = self.places.views
        there = {view.place.labels.get(EXECUTOR_LABEL) for view in views.values()}
        for number, record in self._executors.items():
            if number in views or record.drained_by or record.executor in there:
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
        for all of them, or no executor is such as it asks for."""
        if job.has_parts or self.reservation is not None:
            wanted = Wanted(need, job.parts, job.each)
            mark = self.reservation
            if mark is not None and self._is_kept(wanted):
                self._kept = 0
                self._had_ms.pop(wanted, None)
                self._let_go()
                return mark.numbers
            if job.has_parts:
                return tuple(self._executors_of(wanted) or ())
        executor = self.places.choose(need, refused_by)
        return () if executor is None else (executor,)

    def began(self, need: Need, job: Job) -> None:
        """Learn that a launch of this job begins, for which room may have been kept."""
        mark = self.reservation
        if mark is not None and mark.wanted == Wanted(need, job.parts, job.each):
            self._let_go()

    def kept_for(self, need: Need, job: Job) -> str:
        """Return where room is kept for the next launch of a job, as people get to read it."""
        mark = self.reservation
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

    def occupy(self, keys: Iterable[Key], executors: tuple[int, ...], need: Need) -> None:
        """Count launches where they are begun, or run: each on all of these executors."""
        new = dict.fromkeys(keys, Running(executors, need))
        self.running.update(new)
        for executor in executors:
            self.places.take(executor, need, len(new))
        domain = self._domains.get(need.pool, need.pool)
        if domain in self._free:
            self._free[domain] -= len(executors) * len(new)

    def vacate(self, keys: Iterable[Key]) -> None:
        """Count launches no more that were counted."""
        counts: dict[int, tuple[Running, int]] = {}  # those that began together share one
        for key in keys:
            ran = self.running.pop(key)
            counts[id(ran)] = (ran, counts.get(id(ran), (ran, 0))[1] + 1)
        for ran, count in counts.values():
            for executor in ran.executors:
                self.places.give(executor, ran.need, count)

    def keep(self, key: Key, executors: Collection[int]) -> None:
        """Count a launch no more where parts of it are over; `executors` are where others run."""
        ran = self.running[key]
        if len(ran.executors) == len(executors):
            return
        for executor in ran.executors:
            if executor not in executors:
                self.places.give(executor, ran.need)
        ran.executors = tuple(one for one in ran.executors if one in executors)


def _wanted(need: Hashable) -> Wanted:
    """Return what launches with a need take altogether."""
    if isinstance(need, Wanted):
        return need
    return Wanted(need) if isinstance(need, Need) else Wanted(Need(str(need)))

"""The pump: what waits goes in, what may begin next comes out, fairly. Pure; the caller has clocks.

The order of service: band (live, late, then both again for tenants beyond their share; but one in
ten is a late one, if any waits), round robin over the classes that have room, within a class the
priority whose turn is oldest by age, within it deficit round robin over tenants, within a tenant
first in, first out. Each decision is O(1) in tenants and in waiting launches, O(10) in priorities.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Final

import msgspec

from launcher.errors import invariant
from launcher.fairness.book import is_scope
from launcher.fairness.floor import LIVE_STREAK, Floor
from launcher.fairness.item import (
    PRIORITIES,
    Depth,
    Item,
    Key,
    Limits,
    Scope,
    Stage,
    Wait,
    WaitingLimit,
)
from launcher.fairness.jobs import JobGauge
from launcher.fairness.lanes import Lane, Line, Shelf
from launcher.fairness.starving import Starving
from launcher.fairness.views import Views

NEW: Final = Stage.NEW  # members of an enumeration are slow to look up
ADMITTED: Final = Stage.ADMITTED
GONE: Final = Stage.GONE
Room = Callable[[Hashable], bool]
Free = Callable[[Hashable], int]


class Pump:
    """Decides which waiting launch is next. Not thread safe; keys, jobs and places are opaque."""

    def __init__(self) -> None:
        self._floor = Floor()
        self._views = Views(self._floor)
        self.starving = Starving()
        self._seq = 0

    def __len__(self) -> int:
        return len(self._floor.waiting)

    @property
    def running(self) -> int:
        """How many launches run."""
        return len(self._floor.running)

    def ready(self, tenant: str, pool: str, priority: int) -> int:
        """Return how many live launches of a tenant's queue wait for nothing but room, a limit of
        the pool's or tenant's, or a rate: not those that are held, nor behind their job's limit."""
        queue = self._floor.queues.get((tenant, pool, priority))
        lines = queue.lines.values() if queue is not None else ()
        return sum(line.size for line in lines if not line.is_late)

    # ---- what waits

    def add(self, item: Item, not_before_ms: int = 0) -> bool:
        """Let `item` wait; held until `not_before_ms` if given. False if it waits or runs already.

        Items of one job in one queue begin in the order in which they were added.
        """
        floor, key = self._floor, item.key
        if key in floor.waiting or key in floor.running:
            return False
        item = self._entered(item)
        floor.waiting[key] = item
        queue = floor.queue_of(item)
        queue.waiting += 1
        for gauge in queue.gauges:
            gauge.waiting += 1
        if not_before_ms:
            floor.hold(item, not_before_ms)
        else:
            floor.enqueue(item)
        return True

    def add_running(self, item: Item) -> bool:
        """Count `item` as running from the start, whatever the limits say. False if it was."""
        floor, key = self._floor, item.key
        if key in floor.running:
            return False
        if key in floor.waiting:
            return self.began(key)
        item = self._entered(item)
        queue = floor.queue_of(item)
        queue.count(1, 0)
        floor.begin(item, queue)
        return True

    def _entered(self, item: Item) -> Item:
        if not 0 <= item.priority < PRIORITIES:
            invariant(False, f"priority {item.priority} is not 0 to 9")
        if item.stage is not NEW:
            item = msgspec.structs.replace(item, stage=NEW)
        self._seq += 1
        item.seq = self._seq
        if item.job in self._floor.jobs:
            self._floor.limit_job(item.job, item.job_limit)
        return item

    def remove(self, key: Key) -> bool:
        """Forget a launch, whether it waits or runs. False if it is not known."""
        item = self._floor.waiting.pop(key, None)
        if item is None:
            return self.ended(key)
        self._floor.withdraw(item)
        self._floor.reopen(item.job)
        queue = self._floor.queue_of(item)
        queue.count(0, -1)
        self._floor.drop_idle(queue)
        return True

    def hold(self, key: Key, until_ms: int) -> bool:
        """Let a waiting launch wait aside until `until_ms`. False if it does not wait."""
        item = self._floor.waiting.get(key)
        if item is None:
            return False
        fresh = self._floor.waiting[key] = self._floor.withdraw(item)
        self._floor.hold(fresh, until_ms)
        self._floor.reopen(item.job)
        return True

    # ---- what runs

    def began(self, key: Key) -> bool:
        """Count a waiting launch as running, whatever the limits say; what `take` returned does
        already. False if it does not wait."""
        floor = self._floor
        item = floor.waiting.pop(key, None)
        if item is None:
            return False
        fresh = floor.withdraw(item)
        queue = floor.queue_of(fresh)
        queue.count(1, -1)
        floor.begin(fresh, queue)
        floor.reopen(fresh.job)
        return True

    def ended(self, key: Key) -> bool:
        """Count a running launch no more and forget it. False if it does not run."""
        floor = self._floor
        found = floor.running.get(key)
        if found is None:
            return False
        item, queue = found
        floor.end(item, queue, 0)
        item.stage = GONE
        floor.freed(item, queue)
        if not queue.running:
            floor.drop_idle(queue)
        return True

    def put_back(self, item: Item, not_before_ms: int = 0) -> bool:
        """Return a taken launch to its place in front, as if it had not been taken.

        With `not_before_ms` it is held until then, and in front afterwards. False if it does not
        run.
        """
        floor = self._floor
        found = floor.running.get(item.key)
        if found is None:
            return False
        item, queue = found
        floor.end(item, queue, 1)
        place = floor.line_of(item).normal.lane.place
        place.lacks_since_ms = place.lacks_since_ms or place.lacked_since_ms
        floor.streak = LIVE_STREAK if item.is_late else max(0, floor.streak - 1)
        for gauge in queue.gauges:
            if gauge.bucket is not None:
                gauge.bucket.give()
                if gauge.timer_ms:
                    gauge.wake(floor.now_ms)
        floor.waiting[item.key] = item
        if not_before_ms:
            floor.hold(item, not_before_ms)
        else:
            floor.requeue(item)
        floor.freed(item, queue)
        return True

    def put_aside(self, item: Item) -> bool:
        """Put back a launch that would take reserved slots, and leave all like it out until the
        next round. False if it does not run."""
        if not self.put_back(item):
            return False
        line, now_ms = self._floor.line_of(item), self._floor.now_ms
        self._floor.set_aside(line.shelf if line.shelf is not None else line.normal)
        self.starving.note(line.normal.lane.place, now_ms, lambda: (line, item))
        return True

    # ---- what is next

    def begin_round(self) -> None:
        """Ask anew of what was set aside for want of room or of slots that are not reserved."""
        floor = self._floor
        if floor.aside:
            aside, floor.aside = floor.aside, {}
            for thing in aside:
                thing.is_aside = False
                thing.refresh()
        floor.book.sweep(floor.now_ms)
        self.starving.begin_round(floor.now_ms)

    def take(
        self, now_ms: int, room: Room, late_budget: int = 1, free: Free | None = None
    ) -> Item | None:
        """Return the launch that is next, which counts as running from now on, or None.

        `room(place)` says whether an executor has room for that class; one without is not asked
        again before `begin_round`. Late launches begin only while `late_budget` is above 0, which
        the caller counts. `free(domain)` is the number of free slots; without it reservations are
        not regarded.
        """
        floor = self._floor
        if now_ms != floor.now_ms or floor.until or floor.book.timers.heap:
            floor.tick(now_ms)
        for band in floor.bands(late_budget):
            turns = floor.turns[band]
            while turns:
                found = self._visit(turns.first(), room, free)
                if found is not None:
                    turns.took(found[0])
                    self._begin(*found)
                    return found[1]
        return None

    def spares(self, item: Item, slots: int, free: Free) -> bool:
        """Return whether a launch that was taken, and takes so many slots, leaves those that are
        reserved for others. `take` has looked at one."""
        claims = self._floor.book.claims
        domain = claims.domains.get(item.pool, item.domain)  # it may have waited since before
        kept = claims.kept_from(item.pool, item.priority, domain)
        return not kept or free(domain) - slots >= kept

    def tick(self, now_ms: int) -> None:
        """Let go on what waited for a time that has come; `take` does so by itself."""
        self._floor.tick(now_ms)

    def _visit(self, lane: Lane, room: Room, free: Free | None) -> tuple[Line, Item] | None:
        """Return what may begin in `lane`; if nothing, it has left the ring."""
        floor, place = self._floor, lane.place
        for gauge in lane.gauges:
            if not gauge.has_room(floor.now_ms):
                gauge.park(lane)
                lane.refresh()
                return None
        if not room(place.place):
            self.starving.note(place, floor.now_ms, lambda: self._oldest(lane)[1])
            floor.set_aside(place)
            return None
        while lane.shelves:
            shelf, found = self._oldest(lane)
            if shelf is None or free is None or not floor.book.claims.sums:
                return found
            left = free(place.domain)
            if floor.book.claims.allows(place.pool, shelf.priority, place.domain, left):
                return found
            floor.set_aside(shelf)
        return None

    def _oldest(self, lane: Lane) -> tuple[Shelf | None, tuple[Line, Item] | None]:
        """Return the shelf whose turn is oldest, and what is next there."""
        shelves = lane.shelves
        if len(shelves) == 1:
            (shelf,) = shelves
            found = self._next(shelf)
            return (None if found is None else shelf), found
        best, best_rank, best_found = None, 0, None
        for shelf in list(shelves):
            found = self._next(shelf)
            if found is not None:
                rank = shelf.rank(found[1])
                if best is None or rank < best_rank:
                    best, best_rank, best_found = shelf, rank, found
        return best, best_found

    def _next(self, shelf: Shelf) -> tuple[Line, Item] | None:
        """Return whose turn it is in `shelf`; if nobody's, it has left the lane."""
        floor, ring = self._floor, shelf.ring
        for gauge in shelf.gauges:
            if not gauge.has_room(floor.now_ms):
                gauge.park(shelf)
                shelf.refresh()
                return None
        jobs = floor.jobs
        while ring:
            line = next(iter(ring))
            if line.owner.own and not line.settle(floor.now_ms):
                continue
            item = line.queue[0] if not (line.early or line.shells) else line.first()
            job = jobs.get(item.job)
            if job is None or (not job.lines and job.running < job.limit):
                return line, item
            if job.running < job.limit and not job.has_before(item, line):
                return line, item
            self._park(item, line, job)
        return None

    def _park(self, item: Item, line: Line, job: JobGauge) -> None:
        """Let `item`, the first of `line`, wait for its job, or for an older one of its job."""
        line.pop(item)
        job.park(item, line)
        if job.running < job.limit:
            job.open(self._floor.now_ms)
        if not line.size:
            line.leave()

    def _begin(self, line: Line, item: Item) -> None:
        """Count `item`, the first of `line`, as running, and end the line's turn if it is over."""
        floor, queue = self._floor, line.owner
        floor.streak = 0 if item.is_late else floor.streak + 1
        line.pop(item)
        if not line.size:
            line.leave()
        elif line.credit > 1:
            line.credit -= 1
        elif line.shelf is not None:
            line.credit = queue.weight
            line.shelf.ring.move_to_end(line)
        if item.stage is ADMITTED:
            floor.jobs[item.job].lines[line].admitted -= 1
        place = line.normal.lane.place
        place.lacked_since_ms, place.lacks_since_ms = place.lacks_since_ms, 0
        queue.running += 1
        queue.waiting -= 1
        for gauge in queue.gauges:
            gauge.count(1, -1)
            if gauge.bucket is not None:
                gauge.bucket.take()
        del floor.waiting[item.key]
        floor.begin(item, queue)

    def next_ms(self) -> int | None:
        """Return when something may become runnable by time alone."""
        return self._floor.next_ms()

    # ---- limits

    def set_limits(self, scope: Scope, limits: Limits) -> None:
        """Go by `limits` for `scope` from now on; what they allow more goes on, nothing is stopped.

        ValueError for a scope that limits nothing: see `book.is_scope`.
        """
        if not is_scope(scope):
            raise ValueError(f"{scope!r} limits nothing; give it a pool, or no priority")
        self._floor.book.put(scope, limits, self._floor.now_ms)
        self._floor.relink(scope)

    def clear_limits(self, scope: Scope) -> None:
        """Limit `scope` no more; nothing happens if it was not limited."""
        if scope in self._floor.book.limits:
            self._floor.book.put(scope, None, self._floor.now_ms)
            self._floor.relink(scope)

    def set_job_limits(self, limits: Mapping[Hashable, int]) -> None:
        """Set how many launches of each job may run at once (0: any number); O(waiting)."""
        floor = self._floor
        for item in floor.waiting.values():
            if item.job in limits:
                item.job_limit = limits[item.job]
        for job, limit in limits.items():
            floor.limit_job(job, limit)

    def set_domain(self, pool: str, domain: Hashable) -> None:
        """Say where the slots are that are reserved for `pool`; else its first launch tells."""
        self._floor.book.claims.set_domain(pool, domain)
        for (name, _), place in self._floor.places.items():
            if name == pool:  # what runs keeps its class, whose slots are elsewhere now
                place.domain = domain

    @property
    def reserved(self) -> Mapping[Hashable, int]:
        """How many slots are reserved and not used, by domain."""
        return self._floor.book.claims.sums

    # ---- what people ask

    def waiting_limits(self, tenant: str, pool: str, priority: int) -> list[WaitingLimit]:
        """Return the limits of how many launches may wait that a launch is subject to."""
        return self._floor.book.waiting_limits(tenant, pool, priority)

    def depths(self) -> list[Depth]:
        """Return what waits and runs, by pool, priority and tenant."""
        return self._views.depths()

    def position(self, key: Key) -> int | None:
        """Return how many of its tenant's queue wait before a launch, or None. O(waiting)."""
        return self._views.position(key)

    def why(self, key: Key) -> Wait | None:
        """Return what a launch waits for, as of the last `take`, or None if it does not wait."""
        return self._views.why(key)

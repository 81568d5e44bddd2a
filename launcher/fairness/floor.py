"""Where everything stands: the tables of the pump and the moves between them, one launch each."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Final

from launcher.fairness.arrivals import Arrivals
from launcher.fairness.book import LimitBook, covers
from launcher.fairness.gauge import UNLIMITED, Gauge
from launcher.fairness.item import ALL_TENANTS, Item, Key, Scope, Stage
from launcher.fairness.jobs import JobGauge
from launcher.fairness.lanes import (
    BANDS,
    BURST,
    LATE,
    LIVE,
    Lane,
    Line,
    LineKey,
    PlaceClass,
    Shelf,
    TenantQueue,
)
from launcher.fairness.turns import Turns

QueueKey = tuple[str, str, int]
"""tenant, pool, priority"""
QUEUED: Final = Stage.QUEUED  # members of an enumeration are slow to look up
RUNNING: Final = Stage.RUNNING
LIVE_STREAK: Final = 9
"""So many live launches begin, then a late one that waits: else those would starve where live ones
never leave a slot free."""
LIVE_ONLY: Final = (LIVE, LIVE + BURST)
LIVE_FIRST: Final = (LIVE, LATE, LIVE + BURST, LATE + BURST)
LATE_FIRST: Final = (LATE, LIVE, LIVE + BURST, LATE + BURST)
LINES_MIN: Final = 8
"""Empty lines of a busy tenant's queue that are kept before they are swept."""


class Floor:
    """Tables by key. `now_ms` is the last time that anybody told."""

    def __init__(self) -> None:
        self.book = LimitBook()
        self.turns = tuple(Turns() for _ in range(BANDS))
        self.places: dict[tuple[str, Hashable], PlaceClass] = {}
        self.lines: dict[LineKey, Line] = {}
        self.queues: dict[QueueKey, TenantQueue] = {}
        self.jobs: dict[Hashable, JobGauge] = {}
        self.waiting: dict[Key, Item] = {}
        self.running: dict[Key, tuple[Item, TenantQueue]] = {}
        self.holds = Arrivals()
        self.until: dict[Key, int] = {}
        self.aside: dict[PlaceClass | Shelf, None] = {}
        self.now_ms = 0
        self.is_late_open = True
        self.streak = 0  # live launches that began since the last late one

    # ---- tables

    def queue_of(self, item: Item) -> TenantQueue:
        """Return what the item's tenant has in its queue, made if it has nothing."""
        key = (item.tenant, item.pool, item.priority)
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = TenantQueue(*key)
            self.book.link(queue, self.now_ms)
        return queue

    def line_of(self, item: Item) -> Line:
        """Return the line in which `item` stands or would stand."""
        key = (item.pool, item.place, item.priority, item.tenant, item.is_late)
        return self.lines.get(key) or self._new_line(key, item)

    def _new_line(self, key: LineKey, item: Item) -> Line:
        owner = self.queues[item.tenant, item.pool, item.priority]
        if len(owner.lines) >= LINES_MIN:
            self._sweep(owner)  # before the class is looked up: it may have been its last line
        place = self.places.get(key[:2]) or self._new_place(item)
        band = int(item.is_late)
        normal, surplus = [
            self._shelf(place, number, item.priority) for number in (band, band + BURST)
        ]
        line = self.lines[key] = owner.lines[key] = Line(key, owner, normal, surplus)
        place.enter(item.tenant)
        return line

    def _new_place(self, item: Item) -> PlaceClass:
        # What was held since before its pool was told another domain does not know of it.
        domain = self.book.claims.domains.get(item.pool, item.domain)
        place = PlaceClass(item.pool, item.place, domain)
        self.places[item.pool, item.place] = place
        self.book.claims.seen(item.pool, domain)
        return place

    def _shelf(self, place: PlaceClass, band: int, priority: int) -> Shelf:
        lane = place.lanes.get(band)
        if lane is None:
            gauges = self.book.lane_gauges(place.pool)
            lane = place.lanes[band] = Lane(place, self.turns[band], gauges)
        shelf = lane.all.get(priority)
        if shelf is None:
            gauges = self.book.shelf_gauges(place.pool, priority)
            shelf = lane.all[priority] = Shelf(lane, priority, gauges)
        return shelf

    def _sweep(self, owner: TenantQueue) -> None:
        for line in list(owner.lines.values()):
            if not line.size and not line.parked:
                self._drop_line(line)

    def _drop_line(self, line: Line) -> None:
        del self.lines[line.key], line.owner.lines[line.key]
        place = line.normal.lane.place
        place.leave(line.owner.tenant)
        if not place.tenants:
            place.close()
            del self.places[line.key[:2]]
            self.aside.pop(place, None)
            for lane in place.lanes.values():
                for shelf in lane.all.values():
                    self.aside.pop(shelf, None)

    def drop_idle(self, queue: TenantQueue) -> None:
        """Forget `queue` if nothing of it waits or runs."""
        if queue.waiting or queue.running:
            return
        for line in list(queue.lines.values()):
            self._drop_line(line)
        del self.queues[queue.tenant, queue.pool, queue.priority]
        if queue.gauges:
            self.book.drop(self.book.unlink(queue), self.now_ms)

    # ---- moves

    def _is_admitted(self, item: Item, line: Line) -> bool:
        job = self.jobs.get(item.job)
        if job is None:
            if not item.job_limit:
                item.stage = QUEUED
                return True
            job = self.jobs[item.job] = JobGauge(item.job_limit)
        return job.admit(item, line)

    def enqueue(self, item: Item) -> None:
        """Let an item that arrived last stand in its line, or behind its job's limit."""
        line = self.line_of(item)
        if not item.job_limit and item.job not in self.jobs:
            item.stage = QUEUED
        elif not self._is_admitted(item, line):
            return
        line.queue.append(item)
        line.size += 1
        if line.size == 1:
            line.settle(self.now_ms)

    def requeue(self, item: Item) -> None:
        """Let an item that arrived before others stand in its line, or behind its job's limit."""
        line = self.line_of(item)
        if not self._is_admitted(item, line):
            self.reopen(item.job)
            return
        line.insert(item)
        if line.size == 1:
            line.settle(self.now_ms)

    def hold(self, item: Item, until_ms: int) -> None:
        """Let `item`, which stands nowhere, wait for a time."""
        item.stage = Stage.HELD
        self.until[item.key] = until_ms
        self.holds.push(until_ms, item)

    def withdraw(self, item: Item) -> Item:
        """Take a waiting item from where it stands; return it anew, standing nowhere.

        The caller reopens its job.
        """
        fresh, was = copy.copy(item), item.stage
        item.stage, fresh.stage = Stage.GONE, Stage.NEW
        if was is Stage.HELD:
            del self.until[item.key]
            self.holds.lose()
            return fresh
        line = self.line_of(item)
        if was is not Stage.PARKED:
            line.lose()
            if not line.size:
                line.leave()
        if was is not Stage.QUEUED:
            self.jobs[item.job].lose(line, was)
        return fresh

    def begin(self, item: Item, queue: TenantQueue) -> None:
        """Count `item`, which stands nowhere, as running."""
        item.stage = RUNNING
        self.running[item.key] = (item, queue)
        job = self.jobs.get(item.job)
        if job is None:
            job = self.jobs[item.job] = JobGauge(item.job_limit)
        job.running += 1

    def end(self, item: Item, queue: TenantQueue, waiting: int) -> None:
        """Count a running item no more; `waiting` is 1 if it waits again. Wakes nobody yet."""
        del self.running[item.key]
        queue.running -= 1
        queue.waiting += waiting
        for gauge in queue.gauges:
            gauge.count(-1, waiting)
        self.jobs[item.job].running -= 1

    def freed(self, item: Item, queue: TenantQueue) -> None:
        """Let go on what waited for the end of `item`."""
        for gauge in queue.gauges:
            if gauge.parked or gauge.bursting:
                gauge.freed(self.now_ms)
        job = self.jobs[item.job]
        if job.lines:
            self.reopen(item.job)
        elif not job.running:
            del self.jobs[item.job]

    def reopen(self, key: Hashable) -> None:
        """Let stand in their lines what the job's limit allows; forget a job without launches."""
        job = self.jobs.get(key)
        if job is not None and not (job.open(self.now_ms) if job.lines else job.running):
            del self.jobs[key]

    def limit_job(self, key: Hashable, limit: int) -> None:
        """Set how many launches of a job may run at once, 0 for any number."""
        job = self.jobs.get(key)
        if job is not None and job.limit != (limit or UNLIMITED):
            job.limit = limit or UNLIMITED
            self.reopen(key)

    def bands(self, late_budget: int) -> tuple[int, ...]:
        """Return the bands in the order in which they are looked at for what is next."""
        self.is_late_open = late_budget > 0
        if not self.is_late_open:
            return LIVE_ONLY
        return LIVE_FIRST if self.streak < LIVE_STREAK else LATE_FIRST

    def set_aside(self, thing: PlaceClass | Shelf) -> None:
        """Leave `thing` out until the next round."""
        thing.is_aside = True
        thing.refresh()
        self.aside[thing] = None

    # ---- time

    def tick(self, now_ms: int) -> None:
        """Let go on what waited for a time that has come."""
        timers = self.book.timers
        if now_ms < self.now_ms:  # a clock was set back: nobody waits for the old time to come
            timers.wake_all(now_ms)
        self.now_ms = now_ms
        if timers.heap and timers.heap[0][0] <= now_ms:
            timers.wake_due(now_ms)
        while self.until:
            row = self.holds.first()
            if row is None or row[0] > now_ms:
                break
            item = self.holds.pop()
            del self.until[item.key]
            self.requeue(item)

    def next_ms(self) -> int | None:
        """Return when the next rate or hold may let something go on."""
        row = self.holds.first()
        times = [at_ms for at_ms in (self.book.timers.next_ms(), row and row[0]) if at_ms]
        return min(times, default=None)

    def relink(self, scope: Scope) -> None:
        """Count anew, after its limits changed, all that `scope` concerns, and wake it."""
        touched: dict[Gauge, None] = {}
        for queue in self.queues.values():
            if covers(scope, queue):
                touched.update(dict.fromkeys(self.book.unlink(queue)))
                self.book.link(queue, self.now_ms)
                touched.update(dict.fromkeys(queue.gauges))
        if scope[0] == ALL_TENANTS:
            self._regauge()
        for gauge in touched:
            gauge.wake(self.now_ms)
            gauge.calm(self.now_ms)
        self.book.drop(tuple(touched), self.now_ms)

    def _regauge(self) -> None:
        for place in self.places.values():
            self.book.claims.seen(place.pool, place.domain)
            for lane in place.lanes.values():
                lane.gauges = self.book.lane_gauges(place.pool)
                for shelf in lane.all.values():
                    shelf.gauges = self.book.shelf_gauges(place.pool, shelf.priority)

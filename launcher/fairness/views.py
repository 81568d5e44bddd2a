"""What people ask the pump: how much waits where, what is before a launch, why it waits."""

from __future__ import annotations

from launcher.fairness.floor import Floor
from launcher.fairness.gauge import UNLIMITED, Gauge
from launcher.fairness.item import ALL_TENANTS, Depth, Item, Key, Stage, Wait, WaitFor
from launcher.fairness.lanes import Line, TenantQueue


class Views:
    """Answers from the tables of a floor; changes nothing that matters."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor

    def depths(self) -> list[Depth]:
        """Return a row per (pool, priority, tenant) with launches, sorted. O(lines, jobs, held)."""
        oldest = self._oldest()
        return [
            Depth(
                pool=queue.pool,
                priority=queue.priority,
                tenant=queue.tenant,
                waiting=queue.waiting,
                running=queue.running,
                oldest_ms=oldest.get(queue, 0),
                blocked_by=self._blocker(queue),
            )
            for _, queue in sorted(
                ((queue.pool, queue.priority, queue.tenant), queue)
                for queue in self._floor.queues.values()
            )
        ]

    def _oldest(self) -> dict[TenantQueue, int]:
        """Return the time since which the first of each queue waits."""
        floor, found = self._floor, dict[TenantQueue, int]()
        firsts = [(line.owner, line.first()) for line in floor.lines.values() if line.size]
        for job in floor.jobs.values():
            for line, mine in job.lines.items():
                row = mine.parked.first()
                if row is not None:
                    firsts.append((line.owner, row[1]))
        for key in floor.until:
            item = floor.waiting[key]
            firsts.append((floor.queue_of(item), item))
        for queue, item in firsts:
            found[queue] = min(found.get(queue, item.enqueued_ms), item.enqueued_ms)
        return found

    def _blocker(self, queue: TenantQueue) -> tuple[str, str, int] | None:
        if queue.waiting:
            for gauge in queue.gauges:
                if not gauge.has_room(self._floor.now_ms):
                    return gauge.scope
        return None

    def position(self, key: Key) -> int | None:
        """Return how many of the same tenant's queue wait before `key`, or None. O(waiting)."""
        mine = self._floor.waiting.get(key)
        if mine is None:
            return None
        return sum(
            item.seq < mine.seq
            and item.tenant == mine.tenant
            and item.pool == mine.pool
            and item.priority == mine.priority
            for item in self._floor.waiting.values()
        )

    def why(self, key: Key) -> Wait | None:
        """Return what `key` waits for, the nearest reason first; None if it does not wait."""
        floor = self._floor
        item = floor.waiting.get(key)
        if item is None:
            return None
        if item.stage is Stage.HELD:
            return Wait(WaitFor.HOLD, until_ms=floor.until[key])
        job = floor.jobs.get(item.job)
        if item.stage is Stage.PARKED or (job is not None and job.running >= job.limit):
            limit = job.limit if job is not None and job.limit < UNLIMITED else item.job_limit
            return Wait(WaitFor.JOB_LIMIT, limit=limit)
        queue = floor.queue_of(item)
        for gauge in (*queue.own, *queue.gauges):
            wait = self._limited(gauge)
            if wait is not None:
                return wait
        return self._elsewhere(item, floor.line_of(item))

    def _limited(self, gauge: Gauge) -> Wait | None:
        now_ms, limits = self._floor.now_ms, gauge.limits
        if gauge.has_room(now_ms):
            return None
        if gauge.running >= gauge.hard:
            is_shared = gauge.scope[0] == ALL_TENANTS
            what = WaitFor.QUEUE_LIMIT if is_shared else WaitFor.TENANT_LIMIT
            return Wait(what, gauge.scope, gauge.hard)
        ready_ms = gauge.bucket.ready_ms() if gauge.bucket is not None else now_ms
        return Wait(WaitFor.RATE, gauge.scope, limits.rate_milli, ready_ms)

    def _elsewhere(self, item: Item, line: Line) -> Wait:
        """Say what `item` waits for that is no limit of its own."""
        shelf = line.shelf if line.shelf is not None else line.normal
        if shelf.lane.place.is_aside:
            return Wait(WaitFor.NO_ROOM)
        if item.is_late and not self._floor.is_late_open:
            return Wait(WaitFor.LATE)
        if shelf.is_aside:
            return Wait(WaitFor.RESERVED)
        if line.over is not None:  # it may burst, and others who are within their limits go first
            return Wait(WaitFor.TENANT_LIMIT, line.over.scope, line.over.soft)
        return Wait(WaitFor.TURN)

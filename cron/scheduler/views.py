"""What people ask the fair queue: how much waits where, what is before a launch, why it waits."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import IntEnum

import msgspec

from cron.scheduler.backlog import LineKey
from cron.scheduler.fair_queue import FairQueue, Room
from cron.scheduler.flows import Flow, FlowKey, Key, Share
from cron.scheduler.limits import Limiter
from cron.scopes import ALL_TENANTS, Scope


class WaitFor(IntEnum):
    """What a launch waits for."""

    TURN = 0
    HOLD = 1
    JOB_LIMIT = 2
    TENANT_LIMIT = 3
    QUEUE_LIMIT = 4  # of its queue, its pool, its priority or everything: `scope` says which
    RATE = 5
    RESERVED = 6
    NO_ROOM = 7
    LATE = 8  # catch-up, for which the caller has no budget now


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Why a launch waits: the limit's scope where one is reached, and until when if it is timed."""

    what: WaitFor
    scope: Scope | None = None
    limit: int = 0
    until_ms: int = 0


class Depth(msgspec.Struct, frozen=True, gc=False):
    """One tenant in one queue: `oldest_ms` is 0 and `blocked_by` None where nothing is."""

    pool: str
    priority: int
    tenant: str
    waiting: int
    running: int
    oldest_ms: int
    blocked_by: Scope | None


def depths(queue: FairQueue) -> list[Depth]:
    """Return a row per (pool, priority, tenant) with launches, sorted. O(flows, parked, held)."""
    oldest: dict[Share, int] = {}
    for share, due_ms in _firsts(queue):
        oldest[share] = min(oldest.get(share, due_ms), due_ms)
    return [
        Depth(
            share.pool,
            share.priority,
            share.tenant,
            share.waiting,
            share.running,
            oldest.get(share, 0),
            _blocker(queue, share),
        )
        for share in sorted(
            queue.shares.values(), key=lambda one: (one.pool, one.priority, one.tenant)
        )
        if share.waiting or share.running
    ]


def _firsts(queue: FairQueue) -> list[tuple[Share, int]]:
    """Return when something of each share fell due, the oldest of each flow among it."""
    firsts = [(flow.share, flow.first_ms()) for flow in queue.flows.values() if flow.size]
    firsts += [(queue.parked[key].share, due_ms) for key, due_ms in queue.parked_due()]
    return firsts + [(one.flow.share, one.due_ms) for one in queue.held.values()]


def _blocker(queue: FairQueue, share: Share) -> Scope | None:
    if share.waiting:
        for limiter in share.limiters:
            if limiter.room(queue.now_ms) <= 0:
                return limiter.scope
    return None


def position(queue: FairQueue, key: Key) -> int | None:
    """Return how many of the same tenant's queue wait before a launch, None if it does not wait.

    O(waiting of the tenant in that queue, parked, held).
    """
    held = queue.held.get(key)
    mine = held.flow if held is not None else queue.parked.get(key) or queue.ready.get(key)
    if mine is None:
        return None
    found = [one for flow in mine.share.flows.values() for one in flow.waiting()]
    found += [(due_ms, one) for one, due_ms in queue.parked_due()]
    found += [(one.due_ms, other) for other, one in queue.held.items()]
    due = {one: due_ms for due_ms, one in found}
    return sum(
        (due_ms, one) < (due[key], key) and _share(queue, one) is mine.share
        for one, due_ms in due.items()
    )


def _share(queue: FairQueue, key: Key) -> Share:
    held = queue.held.get(key)
    flow = held.flow if held is not None else queue.parked.get(key) or queue.ready[key]
    return flow.share


def why(queue: FairQueue, key: Key) -> Wait | None:
    """Return what a launch waits for as of the last `take`, the nearest reason first; None if it
    does not wait."""
    held = queue.held.get(key)
    if held is not None:
        return Wait(WaitFor.HOLD, until_ms=held.until_ms)
    flow = queue.parked.get(key) or queue.ready.get(key)
    if flow is None:
        return None
    if flow.key.is_limited:
        limit = queue.job_limit(key[0])
        if key in queue.parked or (limit and queue.runs.get(key[0], 0) >= limit):
            return Wait(WaitFor.JOB_LIMIT, limit=limit)
    for limiter in (*flow.share.own, *flow.share.limiters):
        wait = _limited(limiter, queue.now_ms)
        if wait is not None:
            return wait
    return _elsewhere(queue, flow)


def _limited(limiter: Limiter, now_ms: int) -> Wait | None:
    if limiter.room(now_ms) > 0:
        return None
    if limiter.running >= limiter.hard:
        is_shared = limiter.scope[0] == ALL_TENANTS
        what = WaitFor.QUEUE_LIMIT if is_shared else WaitFor.TENANT_LIMIT
        return Wait(what, limiter.scope, limiter.hard)
    ready_ms = limiter.bucket.ready_ms() if limiter.bucket is not None else now_ms
    return Wait(WaitFor.RATE, limiter.scope, limiter.limits.rate_milli, ready_ms)


def _elsewhere(queue: FairQueue, flow: Flow) -> Wait:
    """Say what a launch waits for that is no limit of its own."""
    if flow.need.is_aside:
        return Wait(WaitFor.RESERVED if flow.need.is_kept_out else WaitFor.NO_ROOM)
    if flow.key.is_late and not queue.is_late_open:
        return Wait(WaitFor.LATE)
    if flow.need.pool.turns[flow.band].all[flow.key.priority].is_aside:
        return Wait(WaitFor.RESERVED)
    if flow.over is not None:  # it may burst, and others who are within their limits go first
        return Wait(WaitFor.TENANT_LIMIT, flow.over.scope, flow.over.soft)
    return Wait(WaitFor.TURN)


def ready(queue: FairQueue, line: LineKey) -> int:
    """Return how many live launches of a line's jobs, and of others like them, wait for nothing but
    room, a limit of their pool or tenant, or a rate: not those that are held, nor behind their
    job's limit."""
    place = (line.tenant, line.pool, line.priority, line.need)
    keys = (FlowKey(*place, False, limited, line.is_patient) for limited in (False, True))
    flows = (queue.flows.get(key) for key in keys)
    return sum(flow.size for flow in flows if flow is not None)


def unbound(
    queue: FairQueue, counts: Mapping[FlowKey, int], others: int, room: Room
) -> set[FlowKey]:
    """Return the flows of which so many live launches more could begin now, whatever begins first:
    no limit counts them, and there is room for all that waits for the same slots, and for `others`.
    """
    table = queue.table
    if table.kept:
        return set()
    waiting: dict[Hashable, int] = {}  # by domain
    for key, count in counts.items():
        domain = table.domain(key.pool)
        if domain not in waiting:
            waiting[domain] = others + queue.in_domain(key.pool)
        waiting[domain] += count
    is_plenty: dict[tuple[str, Hashable], bool] = {}
    for key in counts:
        if (key.pool, key.need) not in is_plenty:
            most = waiting[table.domain(key.pool)]
            is_plenty[key.pool, key.need] = room(key.need, most) >= most
    return {
        key
        for key in counts
        if is_plenty[key.pool, key.need] and not table.binds(key.tenant, key.pool, key.priority)
    }

"""Questions about the fair queue: how much waits where, what is ahead of a launch, why it waits."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import IntEnum
from operator import attrgetter

import msgspec

from cron.scheduler.fair_queue import FairQueue, Room
from cron.scheduler.flows import FlowKey, Key, Share
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
    """Why a launch waits: the scope of a limit that is reached, and until when if a clock decides
    that."""

    what: WaitFor
    scope: Scope | None = None
    limit: int = 0
    until_ms: int = 0


class Depth(msgspec.Struct, frozen=True, gc=False):
    """One tenant in one queue. `oldest_ms` is 0 if nothing waits; `blocked_by` is the limit that is
    reached, or None."""

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
    firsts = [(flow.share, flow.front()[0]) for flow in queue.flows.values() if flow.size]
    firsts += [(queue.parked[key].share, due_ms) for key, due_ms in queue.parked_due()]
    firsts += [(one.flow.share, one.due_ms) for one in queue.held.values()]
    for share, due_ms in firsts:
        oldest[share] = min(oldest.get(share, due_ms), due_ms)
    found: list[Depth] = []
    for share in sorted(queue.shares.values(), key=attrgetter("pool", "priority", "tenant")):
        if share.waiting or share.running:
            place = (share.pool, share.priority, share.tenant)
            full = (one.scope for one in share.limiters if one.room(queue.now_ms) <= 0)
            blocked_by = next(full, None) if share.waiting else None
            since_ms = oldest.get(share, 0)
            found.append(Depth(*place, share.waiting, share.running, since_ms, blocked_by))
    return found


def position(queue: FairQueue, key: Key) -> int | None:
    """Return how many launches of the same tenant's queue wait before a launch, None if it does not
    wait.

    O(waiting of the tenant in that queue, parked, held).
    """
    mine = queue.flow_of(key)
    if mine is None:
        return None
    found = [one for flow in mine.share.flows.values() for one in flow.waiting()]
    found += [(due_ms, one) for one, due_ms in queue.parked_due()]
    found += [(one.due_ms, other) for other, one in queue.held.items()]
    due = {one: due_ms for due_ms, one in found}
    before = [one for one, due_ms in due.items() if (due_ms, one) < (due[key], key)]
    flows = map(queue.flow_of, before)
    return sum(flow is not None and flow.share is mine.share for flow in flows)


def why(queue: FairQueue, key: Key) -> Wait | None:
    """Return what a launch waits for as of the last `take`, the nearest reason first; None if it
    does not wait."""
    held = queue.held.get(key)
    if held is not None:
        return Wait(WaitFor.HOLD, until_ms=held.until_ms)
    flow = queue.flow_of(key)
    if flow is None:
        return None
    if flow.key.is_limited:
        limit = queue.job_limit(key[0])
        if key in queue.parked or (limit and queue.runs.get(key[0], 0) >= limit):
            return Wait(WaitFor.JOB_LIMIT, limit=limit)
    for limiter in (*flow.share.own, *flow.share.limiters):
        if limiter.room(queue.now_ms) <= 0:
            if limiter.running < limiter.hard and limiter.bucket is not None:
                ready_ms = limiter.bucket.ready_ms()
                return Wait(WaitFor.RATE, limiter.scope, limiter.limits.rate_milli, ready_ms)
            is_shared = limiter.scope[0] == ALL_TENANTS
            what = WaitFor.QUEUE_LIMIT if is_shared else WaitFor.TENANT_LIMIT
            return Wait(what, limiter.scope, limiter.hard)
    # It waits for no limit of its own.
    if flow.need.is_aside:
        return Wait(WaitFor.RESERVED if flow.need.is_kept_out else WaitFor.NO_ROOM)
    if flow.key.is_late and not queue.is_late_open:
        return Wait(WaitFor.LATE)
    if flow.need.pool.turns[flow.band].all[flow.key.priority].is_aside:
        return Wait(WaitFor.RESERVED)
    if flow.over is not None:  # it may burst, and others who are within their limits go first
        return Wait(WaitFor.TENANT_LIMIT, flow.over.scope, flow.over.soft)
    return Wait(WaitFor.TURN)


def unbound(
    queue: FairQueue, counts: Mapping[FlowKey, int], others: int, room: Room
) -> set[FlowKey]:
    """Return the flows of which `counts` live launches could begin now, whatever begins first: no
    limit counts them, and there is room for all that waits for the same slots and for `others`."""
    table = queue.table
    if table.kept:
        return set()
    waiting: dict[Hashable, int] = {}  # by domain
    for key, count in counts.items():
        domain = table.domains.get(key.pool, key.pool)
        if domain not in waiting:
            pools = queue.domains.get(domain, ())
            waiting[domain] = others + sum([queue.pools[name].ready for name in pools])
        waiting[domain] += count
    is_plenty: dict[tuple[str, Hashable], bool] = {}
    found: set[FlowKey] = set()
    for key in counts:
        place = (key.pool, key.need)
        if place not in is_plenty:
            most = waiting[table.domains.get(key.pool, key.pool)]
            is_plenty[place] = room(key.need, most) >= most
        is_bound = table.limits and (
            table.shared(key.pool)
            or table.shared(key.pool, key.priority)
            or table.of_tenant(key.tenant, key.pool, key.priority)
        )
        if is_plenty[place] and not is_bound:
            found.add(key)
    return found

"""The limits that were set, who is subject to which, and the gauges that count for them.

For a tenant in a queue the most specific scope wins, as a whole: (T, P, p), (T, P, any),
("*", P, p), ("*", P, any); for a tenant altogether (T, any, any), ("*", any, any). A limit of a
tenant for all priorities of a pool counts what is subject to it, in all of them together. Only
what is limited is counted: without limits there are no gauges.
"""

from __future__ import annotations

from typing import Final

from launcher.fairness.claims import Claims
from launcher.fairness.gauge import Gauge, Timers
from launcher.fairness.item import (
    ALL_TENANTS,
    ANY_PRIORITY,
    EACH_TENANT,
    PRIORITIES,
    Limits,
    Scope,
    WaitingLimit,
)
from launcher.fairness.lanes import TenantQueue

LINGERING_MIN: Final = 64
"""Idle tenants' buckets that are kept before anybody looks which of them are full again."""


def is_scope(scope: Scope) -> bool:
    """Return whether limits can be set for `scope`: a tenant's has a pool or any priority."""
    tenant, pool, priority = scope
    if not ANY_PRIORITY <= priority < PRIORITIES:
        return False
    return tenant == ALL_TENANTS or bool(pool) or priority == ANY_PRIORITY


def covers(scope: Scope, queue: TenantQueue) -> bool:
    """Return whether limits of `scope` may concern `queue`."""
    tenant, pool, priority = scope
    return (
        tenant in (ALL_TENANTS, EACH_TENANT, queue.tenant)
        and pool in ("", queue.pool)
        and priority in (ANY_PRIORITY, queue.priority)
    )


class LimitBook:
    """Limits by scope and gauges by what they count (a tenant's own instead of "*")."""

    def __init__(self) -> None:
        self.limits: dict[Scope, Limits] = {}
        self.gauges: dict[Scope, Gauge] = {}
        self.lingering: dict[Gauge, None] = {}
        self.timers = Timers()
        self.claims = Claims()
        self._sweep_at = LINGERING_MIN
        self._queued = self._weighted = 0  # limits of a tenant in a queue, and with a weight

    def put(self, scope: Scope, limits: Limits | None, now_ms: int) -> None:
        """Set or (None) clear the limits of `scope`; the caller links its queues anew."""
        self._count(scope, -1)
        if limits is None:
            self.limits.pop(scope, None)
        else:
            self.limits[scope] = limits
        self._count(scope, 1)
        if scope[0] != ALL_TENANTS:
            return
        if limits is None:
            self.gauges.pop(scope, None)
        else:
            self._gauge(scope, limits, now_ms)
        self._rebuild(scope[1])

    def _count(self, scope: Scope, by: int) -> None:
        """Count the limits of `scope`, if it has any; a new leader sets ten thousand at once."""
        limits = self.limits.get(scope)
        if limits is not None:
            self._queued += by * bool(scope[0] and scope[1])
            self._weighted += by * (limits.weight > 0)

    def _rebuild(self, pool: str) -> None:
        if pool:
            scopes = [(ALL_TENANTS, pool, number) for number in range(ANY_PRIORITY, PRIORITIES)]
            found = [self.gauges[scope] for scope in scopes if scope in self.gauges]
            for gauge in found:
                gauge.claim = None
            reserving = {gauge.scope[2]: gauge for gauge in found if gauge.limits.reserved}
            self.claims.rebuild(pool, reserving)

    def _gauge(self, scope: Scope, limits: Limits, now_ms: int) -> Gauge:
        gauge = self.gauges.get(scope)
        if gauge is None:
            gauge = self.gauges[scope] = Gauge(scope, self.timers)
        gauge.set(limits, now_ms)
        return gauge

    # ---- who is subject to what

    def lane_gauges(self, pool: str) -> tuple[Gauge, ...]:
        """Return the gauges of everything and of `pool`, where they are limited."""
        scopes = ((ALL_TENANTS, "", ANY_PRIORITY), (ALL_TENANTS, pool, ANY_PRIORITY))
        return self._found(scopes if pool else scopes[:1])

    def shelf_gauges(self, pool: str, priority: int) -> tuple[Gauge, ...]:
        """Return the gauges of a priority and of a queue, where they are limited."""
        scopes = ((ALL_TENANTS, "", priority), (ALL_TENANTS, pool, priority))
        return self._found(scopes if pool else scopes[:1])

    def _found(self, scopes: tuple[Scope, ...]) -> tuple[Gauge, ...]:
        if not self.limits:
            return ()
        return tuple([self.gauges[scope] for scope in scopes if scope in self.gauges])

    def tenant_scopes(self, tenant: str, pool: str, priority: int) -> list[tuple[Scope, Limits]]:
        """Return what a tenant is subject to: (what is counted, limits); at most two."""
        found, any_ = [], ANY_PRIORITY
        for own, set_ in (
            ((tenant, "", any_), (tenant, "", any_)),
            ((tenant, "", any_), (EACH_TENANT, "", any_)),
        ):
            if set_ in self.limits:
                found.append((own, self.limits[set_]))
                break
        if not pool or not self._queued:
            return found
        for own, set_ in (
            ((tenant, pool, priority), (tenant, pool, priority)),
            ((tenant, pool, any_), (tenant, pool, any_)),
            ((tenant, pool, priority), (EACH_TENANT, pool, priority)),
            ((tenant, pool, any_), (EACH_TENANT, pool, any_)),
        ):
            if set_ in self.limits:
                found.append((own, self.limits[set_]))
                break
        return found

    def weight(self, tenant: str, pool: str, priority: int) -> int:
        """Return the tenant's weight in a queue: the most specific that is not 0, else 1."""
        if not self._weighted:
            return 1
        for scope in (
            (tenant, pool, priority),
            (tenant, pool, ANY_PRIORITY),
            (EACH_TENANT, pool, priority),
            (EACH_TENANT, pool, ANY_PRIORITY),
            (tenant, "", ANY_PRIORITY),
            (EACH_TENANT, "", ANY_PRIORITY),
        ):
            limits = self.limits.get(scope)
            if limits is not None and limits.weight > 0:
                return limits.weight
        return 1

    def waiting_limits(self, tenant: str, pool: str, priority: int) -> list[WaitingLimit]:
        """Return the limits of how many launches may wait that a launch is subject to."""
        if not self.limits:
            return []
        gauges = self.lane_gauges(pool) + self.shelf_gauges(pool, priority)
        found = [(gauge.scope, gauge.waiting, gauge.limits.waiting_max) for gauge in gauges]
        for scope, limits in self.tenant_scopes(tenant, pool, priority):
            own = self.gauges.get(scope)
            found.append((scope, own.waiting if own else 0, limits.waiting_max))
        return [WaitingLimit(*one) for one in found if one[2] > 0]

    # ---- linking

    def link(self, queue: TenantQueue, now_ms: int) -> None:
        """Count `queue` in all gauges that it is subject to."""
        if not self.limits:
            return
        tenant, pool, priority = queue.tenant, queue.pool, queue.priority
        own = [
            self._gauge(scope, limits, now_ms)
            for scope, limits in self.tenant_scopes(tenant, pool, priority)
        ]
        queue.own = tuple(own)
        shared = self.lane_gauges(pool) + self.shelf_gauges(pool, priority)
        queue.gauges = shared + queue.own
        queue.weight = self.weight(tenant, pool, priority)
        for gauge in queue.gauges:
            gauge.users += 1
            gauge.count(queue.running, queue.waiting)

    def unlink(self, queue: TenantQueue) -> tuple[Gauge, ...]:
        """Count `queue` nowhere; return the gauges in which it was counted."""
        gauges = queue.gauges
        for gauge in gauges:
            gauge.users -= 1
            gauge.count(-queue.running, -queue.waiting)
        queue.gauges = queue.own = ()
        queue.weight = 1
        return gauges

    def drop(self, gauges: tuple[Gauge, ...], now_ms: int) -> None:
        """Forget those of `gauges` that are a tenant's and count nobody any more.

        One with a rate stays until its bucket is full, or a new one would give starts away.
        """
        for gauge in gauges:
            if gauge.users or gauge.scope[0] == ALL_TENANTS:
                continue
            if gauge.bucket is not None and not gauge.bucket.is_full(now_ms):
                self.lingering[gauge] = None
            elif self.gauges.get(gauge.scope) is gauge:
                del self.gauges[gauge.scope]

    def sweep(self, now_ms: int) -> None:
        """Forget what lingers without need; O(1) on average."""
        if len(self.lingering) < self._sweep_at:
            return
        lingering, self.lingering = tuple(self.lingering), {}
        self.drop(lingering, now_ms)
        self._sweep_at = 2 * len(self.lingering) + LINGERING_MIN

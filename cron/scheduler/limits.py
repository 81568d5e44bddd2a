"""Limits of launches: counters, token buckets and reserved slots, at two levels.

A launch counts towards the limits of everything, of its pool, of its priority and of its queue; and
towards two limits of its tenant: the total, and the one in the pool. At each of these two levels
the most specific limits apply as a whole: (T, P, p), (T, P, any), ("*", P, p), ("*", P, any) for a
tenant in a pool; (T, any, any), ("*", any, any) for the total. Only what is limited is counted.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappush
from itertools import count
from typing import Final, NamedTuple, Protocol

import msgspec

from cron.scopes import ALL_TENANTS, ANY_PRIORITY, EACH_TENANT, PRIORITIES, Scope
from cron.state.pool import Limits

UNLIMITED: Final = 1 << 60
NO_LIMITS: Final = Limits()
START: Final = 1_000_000
"""One start in a bucket's units: thousandths of a start per second, times milliseconds."""
LINGERING_MIN: Final = 64
"""Idle tenants' buckets that are kept before anybody looks which of them are full again."""
_NUMBERS: Final = count(1)


class Bucket:
    """A token bucket in integers: it holds the starts of one second, at least one.

    In any window of w ms at most `capacity + rate * w` units are taken and not given back.
    """

    __slots__ = ("capacity", "level", "rate_milli", "seen_ms")

    def __init__(self, rate_milli: int, now_ms: int) -> None:
        self.rate_milli = rate_milli
        self.level = self.capacity = max(START, rate_milli * 1000)
        self.seen_ms = now_ms

    def change(self, rate_milli: int, now_ms: int) -> None:
        """Change the rate, and keep the level as far as it still fits."""
        self.fill(now_ms)
        self.rate_milli = rate_milli
        self.capacity = max(START, rate_milli * 1000)
        self.level = min(self.level, self.capacity)

    def fill(self, now_ms: int) -> None:
        """Add what came in since the last call; nothing if the clock went back."""
        if now_ms > self.seen_ms:
            gained = self.level + self.rate_milli * (now_ms - self.seen_ms)
            self.level = min(gained, self.capacity)
        self.seen_ms = now_ms

    def starts(self, now_ms: int) -> int:
        """Return how many starts may be taken now."""
        if now_ms != self.seen_ms:
            self.fill(now_ms)
        return self.level // START

    def take(self, count: int) -> None:
        """Take `count` starts; a negative `count` gives them back."""
        self.level = min(self.level - count * START, self.capacity)

    def ready_ms(self) -> int:
        """Return when a start may be taken, as of the last `fill` or `starts`."""
        missing = START - self.level
        return self.seen_ms if missing <= 0 else self.seen_ms - (-missing // self.rate_milli)

    def is_full(self, now_ms: int) -> bool:
        """Return whether a new bucket would be the same."""
        self.fill(now_ms)
        return self.level >= self.capacity


class Parked(Protocol):
    """A part of the queue that may park at a limiter; `limiter` is None while it does not."""

    limiter: Limiter | None

    def resume(self, now_ms: int) -> None:
        """Continue after the limiter has room again."""


class Limiter(msgspec.Struct, eq=False):
    """Running and waiting launches of one scope, and its limits.

    `soft` is the limit of a tenant's share, `hard` the limit of all; they differ only if bursting
    is allowed. A part of the queue that finds the limiter full parks here, and no decision looks at
    it until a launch ends. `timers` is a heap of (ms, number, limiter) that all limiters share:
    until then the rate of a limiter is used up. `timer_ms` is 0 unless the rate is used up and
    something is parked.
    """

    scope: Scope
    timers: list[tuple[int, int, Limiter]]
    limits: Limits = NO_LIMITS
    running: int = 0
    waiting: int = 0
    users: int = 0
    timer_ms: int = 0
    soft: int = UNLIMITED
    hard: int = UNLIMITED
    bucket: Bucket | None = None
    reserved: Reserved | None = None
    parked: dict[Parked, None] = {}
    bursting: dict[Parked, None] = {}

    def set(self, limits: Limits, now_ms: int) -> None:
        """Change the limits; the caller wakes what is parked."""
        if limits == self.limits:
            return
        self.limits = limits
        self.soft = self.hard = limits.concurrent or UNLIMITED
        if limits.burst and limits.concurrent and self.scope[0] != ALL_TENANTS:
            self.hard = max(limits.burst, limits.concurrent)
        if not limits.rate_milli:
            self.bucket = None
        elif self.bucket is None:
            self.bucket = Bucket(limits.rate_milli, now_ms)
        else:
            self.bucket.change(limits.rate_milli, now_ms)

    def room(self, now_ms: int) -> int:
        """Return how many more launches may begin now, bursting included; 0 or less for none."""
        room = self.hard - self.running
        if self.bucket is None or room <= 0:
            return room
        return min(room, self.bucket.starts(now_ms))

    def count(self, running: int, waiting: int) -> None:
        """Add to the running and waiting launches; negative numbers subtract."""
        self.running += running
        self.waiting += waiting
        if self.reserved is not None:
            self.reserved.refresh()

    def park(self, thing: Parked) -> None:
        """Park `thing`, which found no room."""
        thing.limiter = self
        self.parked[thing] = None
        if self.running < self.hard and self.bucket is not None and not self.timer_ms:
            self.timer_ms = self.bucket.ready_ms()
            heappush(self.timers, (self.timer_ms, next(_NUMBERS), self))

    def freed(self, now_ms: int) -> None:
        """Wake the flows that the end of a launch lets go on; flows that wait for a rate stay."""
        if self.parked and not self.timer_ms and self.running < self.hard:
            self.wake(now_ms)
        if self.bursting and self.running < self.soft:
            self.calm(now_ms)

    def wake(self, now_ms: int) -> None:
        """Have everything that is parked here look again."""
        self.timer_ms = 0
        parked, self.parked = self.parked, {}
        for thing in parked:
            thing.resume(now_ms)

    def calm(self, now_ms: int) -> None:
        """Have everything that bursts because of this limit look again."""
        for thing in list(self.bursting):
            thing.resume(now_ms)


class Reserved:
    """The reserved slots of one pool and its queues that they do not use: these stay free for them.

    A queue's reserved slots are part of its pool's: together they keep the larger of the pool's
    number and the sum of the queues'. `sums` are the slots kept by all pools, by domain.
    """

    __slots__ = ("amount", "domain", "pool", "queues", "sums")

    def __init__(
        self, sums: dict[Hashable, int], domain: Hashable, limiters: dict[int, Limiter]
    ) -> None:
        self.sums = sums
        self.domain = domain
        self.pool = limiters.get(ANY_PRIORITY)
        self.queues = {number: one for number, one in limiters.items() if number >= 0}
        self.amount = 0
        for limiter in limiters.values():
            limiter.reserved = self
        self.refresh()

    def refresh(self) -> None:
        """Recompute the slots to keep from what runs now."""
        self._keep(max(_unmet(self.pool), self._queued()))

    def withdraw(self) -> None:
        """Keep no slots any more."""
        self._keep(0)
        for limiter in (self.pool, *self.queues.values()):
            if limiter is not None:
                limiter.reserved = None

    def _queued(self) -> int:
        return sum(map(_unmet, self.queues.values()))

    def _keep(self, amount: int) -> None:
        total = self.sums.get(self.domain, 0) + amount - self.amount
        self.amount = amount
        if total:
            self.sums[self.domain] = total
        else:
            self.sums.pop(self.domain, None)

    def is_for(self, priority: int) -> bool:
        """Return whether a start of `priority` would use a slot that is reserved for it."""
        own = self.queues.get(priority)
        return _unmet(own) > 0 or _unmet(self.pool) > self._queued()

    def kept_from(self, priority: int) -> int:
        """Return how many of the pool's reserved slots a start of `priority` must not use."""
        return self._queued() - _unmet(self.queues.get(priority))


def _unmet(limiter: Limiter | None) -> int:
    """Return how many of its reserved slots a limiter does not use."""
    return 0 if limiter is None else max(0, limiter.limits.reserved - limiter.running)


class WaitingLimit(NamedTuple):
    """How many launches wait in a scope whose `waiting` is limited, and the limit."""

    scope: Scope
    waiting: int
    most: int


class LimitTable:
    """Limits by scope, and limiters by what they count: a tenant's own instead of "*"."""

    def __init__(self) -> None:
        self.limits: dict[Scope, Limits] = {}
        self.limiters: dict[Scope, Limiter] = {}
        self.lingering: dict[Limiter, None] = {}
        self.timers: list[tuple[int, int, Limiter]] = []
        self.kept: dict[Hashable, int] = {}
        """Slots that are reserved and not used, by domain."""
        self._reserved: dict[str, Reserved] = {}
        self.domains: dict[str, Hashable] = {}
        """Pool -> whose slots its launches share; its own, if nobody said."""
        self._sweep_at = LINGERING_MIN
        self._queued = self._weighted = 0  # limits of a tenant in a pool, and with a weight

    def put(self, scope: Scope, limits: Limits | None, now_ms: int) -> None:
        """Set the limits of `scope`, or clear them with None; the caller links its shares again."""
        before = self.limits.pop(scope, None)
        for one, by in ((before, -1), (limits, 1)):
            if one is not None:
                self._queued += by * bool(scope[0] and scope[1])
                self._weighted += by * (one.weight > 0)
        if limits is not None:
            self.limits[scope] = limits
        if scope[0] == ALL_TENANTS:
            if limits is None:
                self.limiters.pop(scope, None)
            else:
                self._limiter(scope, limits, now_ms)
            self._reserve(scope[1])

    def _limiter(self, scope: Scope, limits: Limits, now_ms: int) -> Limiter:
        limiter = self.limiters.get(scope)
        if limiter is None:
            limiter = self.limiters[scope] = Limiter(scope, self.timers)
        limiter.set(limits, now_ms)
        return limiter

    # ---- reserved slots

    def set_domain(self, pool: str, domain: Hashable) -> None:
        """Set the domain whose slots the launches of `pool` share."""
        self.domains[pool] = domain
        self._reserve(pool)

    def _reserve(self, pool: str) -> None:
        """Recompute the reserved slots of a pool and its queues."""
        before = self._reserved.pop(pool, None)
        if before is not None:
            before.withdraw()
        scopes = [(ALL_TENANTS, pool, number) for number in range(ANY_PRIORITY, PRIORITIES)]
        found = [self.limiters[scope] for scope in scopes if scope in self.limiters] if pool else []
        reserving = {one.scope[2]: one for one in found if one.limits.reserved}
        if reserving:
            self._reserved[pool] = Reserved(self.kept, self.domains.get(pool, pool), reserving)

    def leaves_reserved(self, pool: str, priority: int, free: int) -> bool:
        """Return whether a start uses a slot that is reserved for it, or leaves a slot for each
        that is reserved for others. `free`: the free slots of its domain."""
        reserved = self._reserved.get(pool)
        if reserved is not None and reserved.is_for(priority):
            return True
        kept = self.kept.get(self.domains.get(pool, pool), 0)
        return not kept or free > kept

    def kept_from(self, pool: str, priority: int) -> int:
        """Return how many slots of its domain are reserved for other queues and not used."""
        kept = self.kept.get(self.domains.get(pool, pool), 0)
        reserved = self._reserved.get(pool)
        if reserved is not None:
            kept += reserved.kept_from(priority) - reserved.amount
        return kept

    # ---- which limits apply

    def shared(self, pool: str, priority: int = ANY_PRIORITY) -> tuple[Limiter, ...]:
        """Return the limiters of all tenants together: of everything and a pool, or (with a
        priority) of that priority and the queue."""
        if not self.limits:
            return ()
        scopes = ((ALL_TENANTS, "", priority), (ALL_TENANTS, pool, priority))
        return tuple([self.limiters[scope] for scope in scopes if scope in self.limiters])

    def of_tenant(self, tenant: str, pool: str, priority: int) -> list[tuple[Scope, Limits]]:
        """Return the limits that apply to a tenant, as (what is counted, limits); at most two."""
        any_ = ANY_PRIORITY
        levels = [(((tenant, "", any_), tenant), ((tenant, "", any_), EACH_TENANT))]
        if self._queued:
            levels.append(
                tuple(
                    ((tenant, pool, one), who)
                    for who in (tenant, EACH_TENANT)
                    for one in (priority, any_)
                )  # type: ignore[arg-type]
            )
        found = []
        for level in levels:
            for counted, who in level:
                limits = self.limits.get((who, *counted[1:]))
                if limits is not None:
                    found.append((counted, limits))
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
        """Return the limits of waiting launches that apply to a launch."""
        if not self.limits:
            return []
        limiters = self.shared(pool) + self.shared(pool, priority)
        found = [(one.scope, one.waiting, one.limits.waiting_max) for one in limiters]
        for scope, limits in self.of_tenant(tenant, pool, priority):
            own = self.limiters.get(scope)
            found.append((scope, own.waiting if own else 0, limits.waiting_max))
        return [WaitingLimit(*one) for one in found if one[2] > 0]

    # ---- what is counted where

    def enter(self, tenant: str, pool: str, priority: int, now_ms: int) -> tuple[Limiter, ...]:
        """Return the limiters of a tenant in a queue; the queue counts there from now on."""
        if not self.limits:
            return ()
        applying = self.of_tenant(tenant, pool, priority)
        own = tuple([self._limiter(scope, limits, now_ms) for scope, limits in applying])
        for limiter in own:
            limiter.users += 1
        return own

    def leave(self, own: tuple[Limiter, ...], now_ms: int) -> None:
        """Release limiters that `enter` returned; forget those without users.

        A limiter with a rate stays until its bucket is full: a new bucket would give starts away.
        """
        for limiter in own:
            limiter.users -= 1
            self._forget(limiter, now_ms)

    def _forget(self, limiter: Limiter, now_ms: int) -> None:
        if limiter.users:
            return
        if limiter.bucket is not None and not limiter.bucket.is_full(now_ms):
            self.lingering[limiter] = None
        elif self.limiters.get(limiter.scope) is limiter:
            del self.limiters[limiter.scope]

    def sweep(self, now_ms: int) -> None:
        """Forget lingering limiters whose buckets are full; O(1) on average."""
        if len(self.lingering) < self._sweep_at:
            return
        lingering, self.lingering = tuple(self.lingering), {}
        for limiter in lingering:
            self._forget(limiter, now_ms)
        self._sweep_at = 2 * len(self.lingering) + LINGERING_MIN


def covers(scope: Scope, tenant: str, pool: str, priority: int) -> bool:
    """Return whether limits of `scope` may apply to a tenant's launches in a queue."""
    return (
        scope[0] in (ALL_TENANTS, EACH_TENANT, tenant)
        and scope[1] in ("", pool)
        and scope[2] in (ANY_PRIORITY, priority)
    )

"""Limits of launches: counters, token buckets and reserved slots, at two levels.

A launch counts for everything, its pool, its priority and its queue, where these are limited; and
for its tenant at two levels: the tenant altogether, and the tenant in the pool. At each of these
two the most specific limits apply, as a whole: (T, P, p), (T, P, any), ("*", P, p), ("*", P, any)
for a tenant in a pool; (T, any, any), ("*", any, any) for a tenant altogether. Only what is limited
is counted.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Final, NamedTuple, Protocol

from cron.scopes import ALL_TENANTS, ANY_PRIORITY, EACH_TENANT, PRIORITIES, Scope
from cron.state.pool import Limits

UNLIMITED: Final = 1 << 60
NO_LIMITS: Final = Limits()
START: Final = 1_000_000
"""One start in a bucket's units: thousandths of a start per second, times milliseconds."""
LINGERING_MIN: Final = 64
"""Idle tenants' buckets that are kept before anybody looks which of them are full again."""


class Bucket:
    """A token bucket in integers: it holds up to a second's worth of starts, one at least.

    In any window of w ms at most `capacity + rate * w` units are taken and not given back.
    """

    __slots__ = ("capacity", "level", "rate_milli", "seen_ms")

    def __init__(self, rate_milli: int, now_ms: int) -> None:
        self.rate_milli = rate_milli
        self.level = self.capacity = max(START, rate_milli * 1000)
        self.seen_ms = now_ms

    def change(self, rate_milli: int, now_ms: int) -> None:
        """Go on at another rate with what is in the bucket, as far as it still fits."""
        self.fill(now_ms)
        self.rate_milli = rate_milli
        self.capacity = max(START, rate_milli * 1000)
        self.level = min(self.level, self.capacity)

    def fill(self, now_ms: int) -> None:
        """Add what came in since the last call; a clock that went back adds nothing."""
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
        """Take `count` starts; give them back where `count` is negative."""
        self.level = min(self.level - count * START, self.capacity)

    def ready_ms(self) -> int:
        """Return when a start may be taken, as of the last `fill` or `starts`."""
        missing = START - self.level
        return self.seen_ms if missing <= 0 else self.seen_ms - (-missing // self.rate_milli)

    def is_full(self, now_ms: int) -> bool:
        """Return whether a new bucket would be no different."""
        self.fill(now_ms)
        return self.level >= self.capacity


class Parked(Protocol):
    """A part of the queue that waits at a limiter; `limiter` is None while it waits at none."""

    limiter: Limiter | None

    def resume(self, now_ms: int) -> None:
        """Go on after the limiter freed."""


class Timers:
    """When limiters whose rate is used up have a start again: (ms, number, limiter)."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Limiter]] = []
        self._count = 0

    def push(self, at_ms: int, limiter: Limiter) -> None:
        """Remember that `limiter` is to be looked at then."""
        self._count += 1
        limiter.timer_ms = at_ms
        heappush(self.heap, (at_ms, self._count, limiter))

    def wake_due(self, now_ms: int) -> None:
        """Wake what waits at limiters whose time has come."""
        while self.heap and self.heap[0][0] <= now_ms:
            at_ms, _, limiter = heappop(self.heap)
            if limiter.timer_ms == at_ms:
                limiter.wake(now_ms)

    def wake_all(self, now_ms: int) -> None:
        """Wake everything: the clock was set back, and nobody waits for the old time to come."""
        rows, self.heap = self.heap, []
        for _, _, limiter in rows:
            limiter.wake(now_ms)

    def next_ms(self) -> int | None:
        """Return when `wake_due` has something to wake, or None."""
        heap = self.heap
        while heap and not (heap[0][2].timer_ms == heap[0][0] and heap[0][2].parked):
            limiter = heappop(heap)[2]
            if not limiter.parked:
                limiter.timer_ms = 0
        return heap[0][0] if heap else None


class Limiter:
    """Running and waiting launches of one scope, against its limits.

    `soft` is where a tenant's normal share ends, `hard` where everything ends; they differ only
    where bursting is allowed. A part of the queue that finds the limiter full parks here, and no
    decision walks over it until something ends. `timer_ms` is 0 unless the rate is used up and
    something waits.
    """

    __slots__ = (
        "bucket", "bursting", "hard", "limits", "parked", "reserved", "running", "scope", "soft",
        "timer_ms", "timers", "users", "waiting",
    )  # fmt: skip

    def __init__(self, scope: Scope, timers: Timers) -> None:
        self.scope = scope
        self.timers = timers
        self.limits = NO_LIMITS
        self.running = self.waiting = self.users = self.timer_ms = 0
        self.soft = self.hard = UNLIMITED
        self.bucket: Bucket | None = None
        self.reserved: Reserved | None = None
        self.parked: dict[Parked, None] = {}
        self.bursting: dict[Parked, None] = {}

    def set(self, limits: Limits, now_ms: int) -> None:
        """Go by other limits from now on; the caller wakes what waits."""
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
        """Return how many more may begin now, bursting included; 0 or less for none."""
        room = self.hard - self.running
        if self.bucket is None or room <= 0:
            return room
        return min(room, self.bucket.starts(now_ms))

    def count(self, running: int, waiting: int) -> None:
        """Add to what runs and waits (or take away, below 0)."""
        self.running += running
        self.waiting += waiting
        if self.reserved is not None:
            self.reserved.refresh()

    def park(self, thing: Parked) -> None:
        """Let `thing`, which has found no room, wait here."""
        thing.limiter = self
        self.parked[thing] = None
        if self.running < self.hard and self.bucket is not None and not self.timer_ms:
            self.timers.push(self.bucket.ready_ms(), self)

    def freed(self, now_ms: int) -> None:
        """Wake what may go on after a launch ended; what waits for the rate goes on waiting."""
        if self.parked and not self.timer_ms and self.running < self.hard:
            self.wake(now_ms)
        if self.bursting and self.running < self.soft:
            self.calm(now_ms)

    def wake(self, now_ms: int) -> None:
        """Let everything that is parked here look again."""
        self.timer_ms = 0
        parked, self.parked = self.parked, {}
        for thing in parked:
            thing.resume(now_ms)

    def calm(self, now_ms: int) -> None:
        """Let everything that bursts because of this limit look again."""
        for thing in list(self.bursting):
            thing.resume(now_ms)


class Reserved:
    """The slots that one pool and its queues have reserved and do not use: kept free for them.

    A queue's reservation lies within its pool's: together they keep the larger of the pool's and
    the sum of the queues'. `sums` are the slots kept, by domain, of all pools.
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
        """Keep what is right for what runs now."""
        self._keep(max(_unmet(self.pool), self._queued()))

    def withdraw(self) -> None:
        """Keep nothing any more."""
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
        """Return whether a start of that priority would use a slot that is reserved for it."""
        own = self.queues.get(priority)
        return _unmet(own) > 0 or _unmet(self.pool) > self._queued()

    def kept_from(self, priority: int) -> int:
        """Return how many of the pool's reserved slots a start of that priority must not use."""
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
    """Limits by scope, and limiters by what they count (a tenant's own instead of "*")."""

    def __init__(self) -> None:
        self.limits: dict[Scope, Limits] = {}
        self.limiters: dict[Scope, Limiter] = {}
        self.lingering: dict[Limiter, None] = {}
        self.timers = Timers()
        self.kept: dict[Hashable, int] = {}
        """Slots that are reserved and not used, by domain."""
        self._reserved: dict[str, Reserved] = {}
        self.domains: dict[str, Hashable] = {}
        """Pool -> whose slots its launches share; its own, if nobody said."""
        self._sweep_at = LINGERING_MIN
        self._queued = self._weighted = 0  # limits of a tenant in a pool, and with a weight

    def put(self, scope: Scope, limits: Limits | None, now_ms: int) -> None:
        """Set or (None) clear the limits of `scope`; the caller links its queue anew."""
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
        """Say whose slots the launches of `pool` share."""
        self.domains[pool] = domain
        self._reserve(pool)

    def _reserve(self, pool: str) -> None:
        """Keep anew what is reserved for a pool and its queues."""
        before = self._reserved.pop(pool, None)
        if before is not None:
            before.withdraw()
        scopes = [(ALL_TENANTS, pool, number) for number in range(ANY_PRIORITY, PRIORITIES)]
        found = [self.limiters[scope] for scope in scopes if scope in self.limiters] if pool else []
        reserving = {one.scope[2]: one for one in found if one.limits.reserved}
        if reserving:
            self._reserved[pool] = Reserved(self.kept, self.domains.get(pool, pool), reserving)

    def leaves_reserved(self, pool: str, priority: int, free: int) -> bool:
        """Return whether a start, with `free` slots in its domain, uses a slot that is reserved for
        it, or leaves one for each that is reserved for others."""
        reserved = self._reserved.get(pool)
        if reserved is not None and reserved.is_for(priority):
            return True
        kept = self.kept.get(self.domains.get(pool, pool), 0)
        return not kept or free > kept

    def kept_from(self, pool: str, priority: int) -> int:
        """Return how many slots of its domain are reserved, and not used, for other queues."""
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
        """Return which limits apply to a tenant: (what is counted, limits); at most two."""
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
        """Return the limits of how many launches may wait that apply to a launch."""
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
        """Return the limiters of a tenant in a queue, which counts there from now on."""
        if not self.limits:
            return ()
        applying = self.of_tenant(tenant, pool, priority)
        own = tuple([self._limiter(scope, limits, now_ms) for scope, limits in applying])
        for limiter in own:
            limiter.users += 1
        return own

    def leave(self, own: tuple[Limiter, ...], now_ms: int) -> None:
        """Let go of limiters that `enter` returned; forget those that count for nobody any more.

        One with a rate stays until its bucket is full, or a new one would give starts away.
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
        """Forget what lingers without need; O(1) on average."""
        if len(self.lingering) < self._sweep_at:
            return
        lingering, self.lingering = tuple(self.lingering), {}
        for limiter in lingering:
            self._forget(limiter, now_ms)
        self._sweep_at = 2 * len(self.lingering) + LINGERING_MIN


def covers(scope: Scope, tenant: str, pool: str, priority: int) -> bool:
    """Return whether limits of `scope` may concern a tenant's launches in a queue."""
    return (
        scope[0] in (ALL_TENANTS, EACH_TENANT, tenant)
        and scope[1] in ("", pool)
        and scope[2] in (ANY_PRIORITY, priority)
    )

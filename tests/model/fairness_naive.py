"""Which launches may be next, found by looking at all of them: written from the rules."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from cron.scopes import Scope
from cron.state.pool import Limits

AGE_MS = 30_000
ORDER = ((False, False), (True, False), (False, True), (True, True))
"""(late, beyond the tenant's share), in order of service."""


@dataclass(frozen=True)
class Item:
    """A launch with all that its place in the queue depends on."""

    key: tuple[Hashable, ...]
    job: str
    tenant: str
    pool: str
    priority: int
    place: Hashable
    enqueued_ms: int
    is_late: bool
    domain: Hashable


@dataclass
class Waiting:
    """A launch that waits; `number` is its place in the order of arrival."""

    item: Item
    number: int
    until_ms: int = 0

    @property
    def line(self) -> tuple[Hashable, ...]:
        item = self.item
        return (item.pool, item.place, item.priority, item.tenant, item.is_late)


@dataclass
class Bucket:
    """Starts in hand, as a fraction."""

    rate_milli: int
    level: Fraction
    at_ms: int

    def refill(self, now_ms: int) -> None:
        gained = Fraction(self.rate_milli * (now_ms - self.at_ms), 1_000_000)
        self.level = min(self.capacity, self.level + gained)
        self.at_ms = now_ms

    @property
    def capacity(self) -> Fraction:
        return max(Fraction(1), Fraction(self.rate_milli, 1000))


@dataclass
class NaiveFloor:
    """What waits, in order of arrival, what runs, and the limits."""

    now_ms: int = 0
    waiting: dict[Hashable, Waiting] = field(default_factory=dict)
    running: dict[Hashable, Waiting] = field(default_factory=dict)
    limits: dict[Scope, Limits] = field(default_factory=dict)
    job_limits: dict[Hashable, int] = field(default_factory=dict)
    domains: dict[str, Hashable] = field(default_factory=dict)
    buckets: dict[Scope, Bucket] = field(default_factory=dict)

    # ---- limits

    def scopes(self, item: Item) -> dict[Scope, Limits]:
        """What limits the item: what is counted, and its limits."""
        t, p, r = item.tenant, item.pool, item.priority
        found = {}
        for scope in (("", "", -1), ("", p, -1), ("", "", r), ("", p, r)):
            if scope in self.limits:
                found[scope] = self.limits[scope]
        for chain in (
            [((t, "", -1), t), ((t, "", -1), "*")],
            [((t, p, r), t), ((t, p, -1), t), ((t, p, r), "*"), ((t, p, -1), "*")],
        ):
            for counted, who in chain:
                set_ = (who, *counted[1:])
                if set_ in self.limits:
                    found[counted] = self.limits[set_]
                    break
        return found

    def weight(self, item: Item) -> int:
        t, p, r = item.tenant, item.pool, item.priority
        chain = [(t, p, r), (t, p, -1), ("*", p, r), ("*", p, -1), (t, "", -1), ("*", "", -1)]
        for scope in chain:
            if scope in self.limits and self.limits[scope].weight:
                return self.limits[scope].weight
        return 1

    def count(self, scope: Scope, among: dict[Hashable, Waiting]) -> int:
        return sum(scope in self.scopes(one.item) for one in among.values())

    def room(self, item: Item, now_ms: int) -> tuple[bool, bool]:
        """Whether all limits allow one more, and whether it would be beyond the tenant's share."""
        is_over = False
        for scope, limits in self.scopes(item).items():
            running = self.count(scope, self.running)
            hard = limits.concurrent
            if scope[0] and limits.concurrent:
                hard = max(limits.concurrent, limits.burst)
                is_over = is_over or running >= limits.concurrent
            if hard and running >= hard:
                return False, False
            if limits.rate_milli and self.tokens(scope, limits, now_ms) < 1:
                return False, False
        return True, is_over

    def tokens(self, scope: Scope, limits: Limits, now_ms: int) -> Fraction:
        bucket = self.bucket(scope, limits)
        looked = replace(bucket)
        looked.refill(now_ms)
        return looked.level

    def bucket(self, scope: Scope, limits: Limits) -> Bucket:
        if scope not in self.buckets:
            bucket = Bucket(limits.rate_milli, Fraction(0), self.now_ms)
            bucket.level = bucket.capacity
            self.buckets[scope] = bucket
        return self.buckets[scope]

    def spend(self, item: Item, starts: int) -> None:
        for scope, limits in self.scopes(item).items():
            if limits.rate_milli:
                bucket = self.bucket(scope, limits)
                bucket.refill(self.now_ms)
                bucket.level = min(bucket.capacity, bucket.level - starts)

    def job_is_full(self, item: Item) -> bool:
        limit = self.job_limits.get(item.job, 0)
        return bool(limit) and sum(o.item.job == item.job for o in self.running.values()) >= limit

    # ---- reservations

    def unmet(self, pool: str, priority: int) -> int:
        limits = self.limits.get(("", pool, priority), Limits())
        running = [
            one
            for one in self.running.values()
            if one.item.pool == pool and priority in (-1, one.item.priority)
        ]
        return max(0, limits.reserved - len(running))

    def claimed(self, domain: Hashable) -> int:
        pools = [pool for pool, where in self.domains.items() if where == domain]
        return sum(max(self.unmet(p, -1), sum(self.unmet(p, r) for r in range(10))) for p in pools)

    def draws(self, item: Item) -> bool:
        if self.unmet(item.pool, item.priority):
            return True
        return self.unmet(item.pool, -1) > sum(self.unmet(item.pool, r) for r in range(10))

    def spares(self, item: Item, slots: int, free: int) -> bool:
        """Whether so many slots of `item`, which runs, are reserved for nobody else."""
        kept = self.claimed(item.domain)
        if self.domains[item.pool] == item.domain:
            queued = [self.unmet(item.pool, priority) for priority in range(10)]
            kept -= max(self.unmet(item.pool, -1), sum(queued))
            kept += sum(queued) - queued[item.priority]
        return kept == 0 or free - slots >= kept

    # ---- what may be next

    def candidates(
        self,
        now_ms: int,
        room: Callable[[Hashable], bool],
        free: Callable[[Hashable], int] | None,
    ) -> dict[tuple[bool, bool], list[Waiting]]:
        """All that may begin, by band: of each line, the oldest of each job that may."""
        found: dict[tuple[bool, bool], list[Waiting]] = {band: [] for band in ORDER}
        oldest: dict[Hashable, int] = {}
        for one in sorted(self.waiting.values(), key=lambda one: one.item.enqueued_ms):
            item = one.item
            limit = self.job_limits.get(item.job, 0)
            line = (one.line, item.job if limit else "")
            if one.until_ms > now_ms or self.job_is_full(item):
                continue
            if oldest.setdefault(line, item.enqueued_ms) < item.enqueued_ms:
                continue
            may, is_over = self.room(item, now_ms)
            if not may or not room(item.place):
                continue
            claimed = self.claimed(item.domain)
            is_short = free is not None and free(item.domain) <= claimed
            if claimed and is_short and not self.draws(item):
                continue
            found[item.is_late, is_over].append(one)
        return found


def rank(item: Item) -> tuple[int, int]:
    """Age and priority: the smaller goes first."""
    return (item.enqueued_ms + item.priority * AGE_MS, item.priority)

"""Reserved capacity: how many free slots of a domain are spoken for and not used yet."""

from __future__ import annotations

from collections.abc import Hashable

from launcher.fairness.gauge import Gauge


def unmet(gauge: Gauge) -> int:
    """Return how many of its reserved slots `gauge` does not use."""
    return max(0, gauge.limits.reserved - gauge.running)


class Claim:
    """What one pool and its queues have reserved and do not use.

    A queue's reservation lies within its pool's: together they claim the larger of the pool's and
    the sum of the queues'. Without a known domain nothing is claimed yet.
    """

    __slots__ = ("amount", "domain", "is_placed", "pool", "queues", "sums")

    def __init__(self, sums: dict[Hashable, int]) -> None:
        self.sums = sums
        self.pool: Gauge | None = None
        self.queues: dict[int, Gauge] = {}
        self.amount = 0
        self.domain: Hashable = None
        self.is_placed = False

    def place(self, domain: Hashable) -> None:
        """Claim in `domain` from now on."""
        self.withdraw()
        self.domain, self.is_placed = domain, True
        self.refresh()

    def withdraw(self) -> None:
        """Claim nothing any more."""
        self._book(0)
        self.is_placed = False

    def refresh(self) -> None:
        """Claim what is right for what runs now."""
        if self.is_placed:
            whole = unmet(self.pool) if self.pool is not None else 0
            self._book(max(whole, self._queued()))

    def _queued(self) -> int:
        return sum([unmet(gauge) for gauge in self.queues.values()])

    def _book(self, amount: int) -> None:
        if amount != self.amount:
            total = self.sums.get(self.domain, 0) + amount - self.amount
            self.amount = amount
            if total:
                self.sums[self.domain] = total
            else:
                self.sums.pop(self.domain, None)

    def is_drawn(self, priority: int) -> bool:
        """Return whether a start of that priority would use a slot that is reserved for it."""
        own = self.queues.get(priority)
        if own is not None and unmet(own):
            return True
        return self.pool is not None and unmet(self.pool) > self._queued()

    def of_others(self, priority: int) -> int:
        """Return how much of it a start of that priority must not use."""
        own = self.queues.get(priority)
        return self._queued() - (unmet(own) if own is not None else 0)


class Claims:
    """The claims of all pools that have any, and their sums by domain."""

    __slots__ = ("domains", "pools", "sums")

    def __init__(self) -> None:
        self.pools: dict[str, Claim] = {}
        self.sums: dict[Hashable, int] = {}
        self.domains: dict[str, Hashable] = {}

    def rebuild(self, pool: str, gauges: dict[int, Gauge]) -> None:
        """Go by `gauges` (by priority, -1 for the pool's), the ones of `pool` that reserve."""
        claim, known = self.pools.pop(pool, None), None
        if claim is not None:
            known = (claim.domain,) if claim.is_placed else None
            claim.withdraw()
        if not gauges:
            return
        fresh = self.pools[pool] = Claim(self.sums)
        fresh.queues = {priority: gauge for priority, gauge in gauges.items() if priority >= 0}
        fresh.pool = gauges.get(-1)
        for gauge in gauges.values():
            gauge.claim = fresh
        if pool in self.domains:
            fresh.place(self.domains[pool])
        elif known is not None:
            fresh.place(known[0])

    def set_domain(self, pool: str, domain: Hashable) -> None:
        """Say where the slots of `pool` are; until then its first waiting launch tells."""
        self.domains[pool] = domain
        if pool in self.pools:
            self.pools[pool].place(domain)

    def seen(self, pool: str, domain: Hashable) -> None:
        """Note where a launch of `pool` would go."""
        claim = self.pools.get(pool)
        if claim is not None and not claim.is_placed:
            claim.place(domain)

    def allows(self, pool: str, priority: int, domain: Hashable, free: int) -> bool:
        """Return whether a start leaves a free slot for each that is reserved, or uses its own."""
        claim = self.pools.get(pool)
        if claim is not None and claim.domain == domain and claim.is_drawn(priority):
            return True
        claimed = self.sums.get(domain, 0)
        return not claimed or free > claimed

    def kept_from(self, pool: str, priority: int, domain: Hashable) -> int:
        """Return how many slots are reserved, and not used, for others than that queue."""
        kept = self.sums.get(domain, 0)
        claim = self.pools.get(pool)
        if claim is not None and claim.is_placed and claim.domain == domain:
            kept += claim.of_others(priority) - claim.amount
        return kept

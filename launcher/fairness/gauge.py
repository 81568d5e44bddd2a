"""A gauge counts what one limit is about; what finds it full parks there until it frees."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from launcher.fairness.item import ALL_TENANTS, Limits, Scope
from launcher.fairness.rates import Bucket

if TYPE_CHECKING:
    from launcher.fairness.claims import Claim

UNLIMITED: Final = 1 << 60


class Parkable:
    """What can wait at a gauge; `gauge` is None while it waits at none."""

    __slots__ = ("gauge",)

    gauge: Gauge | None

    def refresh(self) -> None:
        """Be in the ring above or not, as it is now right; does nothing if it is."""
        raise NotImplementedError

    def resume(self, now_ms: int) -> None:
        """Go on after the gauge freed."""
        self.gauge = None
        self.refresh()


class Timers:
    """When dry gauges have a start again: a heap of (ms, number, gauge), stale ones included."""

    __slots__ = ("count", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Gauge]] = []
        self.count = 0

    def push(self, at_ms: int, gauge: Gauge) -> None:
        """Remember that `gauge` is to be looked at then."""
        self.count += 1
        gauge.timer_ms = at_ms
        heappush(self.heap, (at_ms, self.count, gauge))

    def wake_due(self, now_ms: int) -> None:
        """Wake what waits at gauges whose time has come."""
        while self.heap and self.heap[0][0] <= now_ms:
            at_ms, _, gauge = heappop(self.heap)
            if gauge.timer_ms == at_ms:
                gauge.wake(now_ms)

    def wake_all(self, now_ms: int) -> None:
        """Wake everything, whatever the time."""
        rows, self.heap = self.heap, []
        for _, _, gauge in rows:
            gauge.wake(now_ms)

    def next_ms(self) -> int | None:
        """Return when `wake_due` has something to wake, or None."""
        heap = self.heap
        while heap and not (heap[0][2].timer_ms == heap[0][0] and heap[0][2].parked):
            gauge = heappop(heap)[2]
            if not gauge.parked:
                gauge.timer_ms = 0
        return heap[0][0] if heap else None


class Gauge:
    """Running and waiting launches of one scope, against its limits.

    `soft` is where a tenant's normal share ends, `hard` where everything ends; they differ only
    where bursting is allowed. `timer_ms` is 0 unless the rate is used up and something waits.
    """

    __slots__ = (
        "bucket", "bursting", "claim", "hard", "limits", "parked", "running", "scope", "soft",
        "timer_ms", "timers", "users", "waiting",
    )  # fmt: skip

    def __init__(self, scope: Scope, timers: Timers) -> None:
        self.scope = scope
        self.timers = timers
        self.limits = Limits()
        self.running = self.waiting = self.users = 0
        self.soft = self.hard = UNLIMITED
        self.bucket: Bucket | None = None
        self.claim: Claim | None = None
        self.parked: dict[Parkable, None] = {}
        self.bursting: dict[Parkable, None] = {}
        self.timer_ms = 0

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

    def has_room(self, now_ms: int) -> bool:
        """Return whether one more may begin now, bursting included."""
        if self.running >= self.hard:
            return False
        return self.bucket is None or self.bucket.has_token(now_ms)

    def count(self, running: int, waiting: int) -> None:
        """Add to what runs and waits (or take away, below 0)."""
        self.running += running
        self.waiting += waiting
        if self.claim is not None:
            self.claim.refresh()

    def park(self, thing: Parkable) -> None:
        """Let `thing`, which has found no room, wait here."""
        thing.gauge = self
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

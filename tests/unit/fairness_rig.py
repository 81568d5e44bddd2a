"""A fair queue with a clock and slots, and launches by one word: what the fairness tests share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

import msgspec

from cron.scheduler.fair_queue import FairQueue
from cron.scheduler.flows import FlowKey
from cron.scheduler.limits import WaitingLimit
from cron.scheduler.views import Depth, Wait, depths, position, why
from cron.scopes import Scope
from cron.state.pool import Limits


class Item(msgspec.Struct):
    """A launch with what decides its place in the queue."""

    key: str
    job: str
    tenant: str
    pool: str
    priority: int
    place: Hashable
    enqueued_ms: int
    is_late: bool = False
    job_limit: int = 0
    domain: Hashable = None

    @property
    def flow(self) -> FlowKey:
        is_limited = self.job_limit > 0
        return FlowKey(self.tenant, self.pool, self.priority, self.place, self.is_late, is_limited)


class Pump:
    """The fair queue by the names of launches; it remembers of each what a leader does."""

    def __init__(self) -> None:
        self.limits: dict[Hashable, int] = {}
        self.queue = FairQueue(lambda job: self.limits.get(job, 0), idle_max=0)
        self.items: dict[str, Item] = {}

    def __len__(self) -> int:
        return len(self.queue)

    @property
    def running(self) -> int:
        return len(self.queue.running)

    def _known(self, item: Item) -> tuple[str, str]:
        self.items[item.key] = item
        self.limits[item.job] = item.job_limit
        return (item.job, item.key)

    def _key(self, name: Hashable) -> tuple[str, str]:
        item = self.items.get(str(name))
        return (item.job if item else "", str(name))

    def add(self, item: Item, not_before_ms: int = 0) -> bool:
        return self.queue.add(self._known(item), item.flow, item.enqueued_ms, not_before_ms)

    def add_running(self, item: Item) -> bool:
        return self.queue.add_running(self._known(item), item.flow)

    def remove(self, name: Hashable) -> bool:
        return self.queue.remove(self._key(name))

    def hold(self, name: Hashable, until_ms: int) -> bool:
        return self.queue.hold(self._key(name), self.items[str(name)].enqueued_ms, until_ms)

    def began(self, name: Hashable) -> bool:
        key = self._key(name)
        return key in self.queue and self.queue.add_running(key, self.items[str(name)].flow)

    def ended(self, name: Hashable) -> bool:
        key = self._key(name)
        is_running = key in self.queue.running
        self.queue.ended([key] if is_running else [])
        return is_running

    def put_back(self, item: Item, not_before_ms: int = 0) -> bool:
        return self.queue.put_back(self._key(item.key), item.enqueued_ms, not_before_ms)

    def put_aside(self, item: Item) -> bool:
        return self.queue.put_aside(self._key(item.key), item.enqueued_ms)

    def begin_round(self) -> None:
        self.queue.begin_round()

    def take(self, now_ms: int, room: Any, late_budget: int = 1, free: Any = None) -> Item | None:
        taken = self.queue.take(now_ms, lambda need, most: int(room(need)), late_budget, free)
        return self.items[str(taken[0][1])] if taken else None

    def spares(self, item: Item, slots: int, free: Any) -> bool:
        return self.queue.spares(self._key(item.key), slots, free)

    def tick(self, now_ms: int) -> None:
        self.queue.tick(now_ms)

    def next_ms(self) -> int | None:
        return self.queue.next_ms()

    def set_limits(self, scope: Scope, limits: Limits) -> None:
        self.queue.set_limits(scope, limits)

    def clear_limits(self, scope: Scope) -> None:
        self.queue.set_limits(scope, None)

    def set_domain(self, pool: str, domain: Hashable) -> None:
        self.queue.set_domain(pool, domain)

    @property
    def reserved(self) -> Any:
        return self.queue.table.kept

    def waiting_limits(self, tenant: str, pool: str, priority: int) -> list[WaitingLimit]:
        return self.queue.table.waiting_limits(tenant, pool, priority)

    def depths(self) -> list[Depth]:
        return depths(self.queue)

    def position(self, name: Hashable) -> int | None:
        return position(self.queue, self._key(name))

    def why(self, name: Hashable) -> Wait | None:
        return why(self.queue, self._key(name))


class Rig:
    """Launches are named `tenant/job@n`; there is no room for classes that are in `closed`.

    `slots` are the free ones by domain; a domain that is not among them has enough.
    """

    def __init__(self) -> None:
        self.pump = Pump()
        self.now_ms = 1_000_000
        self.closed: set[Hashable] = set()
        self.asked: list[Hashable] = []
        self.slots: dict[Hashable, int] = {}
        self.domains: dict[Hashable, Hashable] = {}
        self.items: dict[Hashable, Item] = {}
        self.numbers: Counter[str] = Counter()

    def item(self, job: str, **fields: Any) -> Item:
        """A launch of `job` (`tenant/name`), in pool `mail` with priority 5 unless said."""
        self.numbers[job] += 1
        fields = {"pool": "mail", "priority": 5, "enqueued_ms": self.now_ms} | fields
        fields.setdefault("place", fields["pool"])
        key = fields.pop("key", f"{job}@{self.numbers[job]}")
        item = Item(key=key, job=job, tenant=job.split("/")[0], **fields)
        self.items[key] = item
        self.domains[item.place] = item.domain
        if item.domain is not None:
            self.pump.set_domain(item.pool, item.domain)
        return item

    def add(self, job: str, count: int = 1, **fields: Any) -> list[str]:
        """Let `count` launches of `job` wait; return their keys."""
        items = [self.item(job, **fields) for _ in range(count)]
        for item in items:
            assert self.pump.add(item)
        return [item.key for item in items]

    def room(self, place: Hashable) -> bool:
        self.asked.append(place)
        return place not in self.closed and self.slots.get(self.domains[place], 1) > 0

    def free(self, domain: Hashable) -> int:
        return self.slots.get(domain, 0)

    def take(self, count: int = 1, late_budget: int = 1, reserves: bool = False) -> list[str]:
        """Take up to `count` in a new round; return their keys."""
        self.pump.begin_round()
        free = self.free if reserves else None
        taken: list[str] = []
        for _ in range(count):
            item = self.pump.take(self.now_ms, self.room, late_budget, free)
            if item is None:
                break
            taken.append(item.key)
            if reserves:
                self.slots[item.domain] -= 1
        return taken

    def end(self, keys: Iterable[Hashable]) -> None:
        """All of `keys` end."""
        for key in keys:
            assert self.pump.ended(key)


def jobs(keys: Iterable[Hashable]) -> list[str]:
    """The jobs of launches, in order."""
    return [str(key).split("@")[0] for key in keys]


def tenants(keys: Iterable[Hashable]) -> list[str]:
    """The tenants of launches, in order."""
    return [str(key).split("/")[0] for key in keys]

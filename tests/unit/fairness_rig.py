"""A pump with a clock and slots, and launches by one word: what the fairness tests share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

from launcher.fairness.item import Item
from launcher.fairness.pump import Pump


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
        return item

    def add(self, job: str, count: int = 1, **fields: Any) -> list[Hashable]:
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

    def take(self, count: int = 1, late_budget: int = 1, reserves: bool = False) -> list[Hashable]:
        """Take up to `count` in a new round; return their keys."""
        self.pump.begin_round()
        free = self.free if reserves else None
        taken: list[Hashable] = []
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

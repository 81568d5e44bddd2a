"""The order of service: bands of lanes (classes), of shelves (priorities), of lines (tenants).

A ring holds exactly what may have its turn: a line is in its shelf's ring, a shelf among its lane's
and a lane in its band's (`turns.py`) only while it is not empty, not parked at a gauge and not set
aside. What finds its gauge full parks there when its turn comes, so that no decision walks over it
again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final

from launcher.fairness.arrivals import SHELLS_MIN, TIES
from launcher.fairness.gauge import Gauge, Parkable
from launcher.fairness.item import AGE_MS, Item, Stage
from launcher.fairness.turns import Group, Turns

LIVE: Final = 0
LATE: Final = 1
BURST: Final = 2
"""Added to LIVE or LATE: beyond a tenant's share, after everything that is within."""
BANDS: Final = 4
GONE: Final = Stage.GONE
SPREAD: Final = 16
"""Room for the priority below the milliseconds of a shelf's rank: it decides between equals."""

LineKey = tuple[str, Hashable, int, str, bool]
"""pool, place, priority, tenant, is_late"""


class PlaceClass:
    """All launches of one pool that may go to the same executors; `lanes` by band."""

    __slots__ = (
        "domain", "is_aside", "lacked_since_ms", "lacks_since_ms", "lanes", "noted_ms", "place",
        "pool", "sole", "tenants",
    )  # fmt: skip

    def __init__(self, pool: str, place: Hashable, domain: Hashable) -> None:
        self.lacks_since_ms = 0  # since when no executor has room; 0 where something has begun
        self.lacked_since_ms = 0  # the same, before what was taken last
        self.noted_ms = 0  # when it was last found without room
        self.pool = pool
        self.place = place
        self.domain = domain
        self.is_aside = False
        self.lanes: dict[int, Lane] = {}
        self.tenants: dict[str, int] = {}
        """How many lines each has here."""
        self.sole: str | None = None
        """The tenant that is alone here."""

    @property
    def key(self) -> tuple[str, Hashable] | None:
        """Who is alone here, and in which domain; None where several are."""
        return None if self.sole is None else (self.sole, self.domain)

    def enter(self, tenant: str) -> None:
        """Count one more line of a tenant."""
        self.tenants[tenant] = self.tenants.get(tenant, 0) + 1
        self.sole = tenant if len(self.tenants) == 1 else None

    def leave(self, tenant: str) -> None:
        """Count one line less of a tenant."""
        self.tenants[tenant] -= 1
        if not self.tenants[tenant]:
            del self.tenants[tenant]
            self.sole = next(iter(self.tenants)) if len(self.tenants) == 1 else None

    def refresh(self) -> None:
        """Have turns in the bands or not."""
        for lane in self.lanes.values():
            lane.refresh()

    def close(self) -> None:
        """Wait nowhere any more: nothing is left of this class."""
        for lane in self.lanes.values():
            for thing in (lane, *lane.all.values()):
                if thing.gauge is not None:
                    thing.gauge.parked.pop(thing, None)


class Lane(Parkable):
    """A class in one band; `shelves` are those with something that may have its turn."""

    __slots__ = ("all", "credit", "gauges", "group", "is_in", "place", "shelves", "turns")

    def __init__(self, place: PlaceClass, turns: Turns, gauges: tuple[Gauge, ...]) -> None:
        self.gauge = None
        self.place = place
        self.turns = turns
        self.group: Group | None = None
        self.credit = 0
        self.gauges = gauges
        self.is_in = False
        self.shelves: dict[Shelf, None] = {}
        self.all: dict[int, Shelf] = {}

    def front(self) -> Lane:
        """Return the lane whose turn it is where this one is in a ring itself."""
        return self

    def refresh(self) -> None:
        """Have turns in the band or not."""
        is_open = bool(self.shelves) and self.gauge is None and not self.place.is_aside
        if is_open == self.is_in:
            return
        self.is_in = is_open
        if is_open:
            self.turns.add(self)
        else:
            self.turns.remove(self)


class Shelf(Parkable):
    """A priority in a lane: the ring of its tenants' lines."""

    __slots__ = ("gauges", "is_aside", "is_in", "lane", "priority", "ring", "tilt")

    def __init__(self, lane: Lane, priority: int, gauges: tuple[Gauge, ...]) -> None:
        self.gauge = None
        self.lane = lane
        self.priority = priority
        self.gauges = gauges
        self.is_aside = self.is_in = False
        self.ring: OrderedDict[Line, None] = OrderedDict()
        self.tilt = priority * (AGE_MS * SPREAD + 1)

    def refresh(self) -> None:
        """Be among the lane's shelves or not."""
        is_open = bool(self.ring) and self.gauge is None and not self.is_aside
        if is_open == self.is_in:
            return
        self.is_in = is_open
        if is_open:
            self.lane.shelves[self] = None
        else:
            del self.lane.shelves[self]
        self.lane.refresh()

    def rank(self, item: Item) -> int:
        """Return what the lane compares: age and priority of the line whose turn it is."""
        return item.enqueued_ms * SPREAD + self.tilt


class TenantQueue:
    """What one tenant has in one (pool, priority), whatever class and band.

    `gauges` are all that count its launches; `own` of them the tenant's, checked line by line.
    """

    __slots__ = (
        "gauges", "lines", "own", "pool", "priority", "running", "tenant", "waiting", "weight",
    )  # fmt: skip

    def __init__(self, tenant: str, pool: str, priority: int) -> None:
        self.tenant = tenant
        self.pool = pool
        self.priority = priority
        self.waiting = self.running = 0
        self.weight = 1
        self.gauges: tuple[Gauge, ...] = ()
        self.own: tuple[Gauge, ...] = ()
        self.lines: dict[LineKey, Line] = {}

    def count(self, running: int, waiting: int) -> None:
        """Add to what runs and waits, in all gauges too."""
        self.running += running
        self.waiting += waiting
        for gauge in self.gauges:
            gauge.running += running
            gauge.waiting += waiting
            if gauge.claim is not None:
                gauge.claim.refresh()


class Line(Parkable):
    """One tenant's launches of one class and priority, in order of arrival.

    New ones go to `queue`; what comes back (put back, unparked, released) to `early`, a heap by
    arrival. `size` counts both without shells; `parked` are behind their jobs' limits. `credit` is
    what is left of its turn.
    """

    __slots__ = (
        "credit", "early", "key", "normal", "over", "owner", "parked", "queue", "shelf", "shells",
        "size", "surplus",
    )  # fmt: skip

    def __init__(self, key: LineKey, owner: TenantQueue, normal: Shelf, surplus: Shelf) -> None:
        self.gauge = None
        self.key = key
        self.owner = owner
        self.normal = normal
        self.surplus = surplus
        self.shelf: Shelf | None = None
        self.over: Gauge | None = None
        self.queue: deque[Item] = deque()
        self.early: list[tuple[int, int, Item]] = []
        self.size = self.shells = self.parked = self.credit = 0

    @property
    def is_late(self) -> bool:
        """Whether catch-up stands here."""
        return self.key[4]

    def first(self) -> Item:
        """Return the item that is next; only while `size`."""
        if self.shells:
            self._trim()
        queue, early = self.queue, self.early
        if early and (not queue or early[0][0] < queue[0].seq):
            return early[0][2]
        return queue[0]

    def pop(self, item: Item) -> None:
        """Take out `item`, which `first` returned."""
        self.size -= 1
        queue = self.queue
        if queue and queue[0] is item:
            queue.popleft()
        else:
            heappop(self.early)

    def insert(self, item: Item) -> None:
        """Take in an item that arrived before others."""
        heappush(self.early, (item.seq, next(TIES), item))
        self.size += 1

    def lose(self) -> None:
        """Count that one item in here is now a shell."""
        self.size -= 1
        self.shells += 1
        if not self.size or self.shells > self.size + SHELLS_MIN:
            self.queue = deque([one for one in self.queue if one.stage is not GONE])
            self.early = [row for row in self.early if row[2].stage is not GONE]
            heapify(self.early)
            self.shells = 0

    def _trim(self) -> None:
        queue, early = self.queue, self.early
        while queue and queue[0].stage is GONE:
            queue.popleft()
            self.shells -= 1
        while early and early[0][2].stage is GONE:
            heappop(early)
            self.shells -= 1

    # ---- where it stands

    def settle(self, now_ms: int) -> bool:
        """Stand where the tenant's limits allow it; return whether it stands where it stood."""
        over = None
        for gauge in self.owner.own:
            if gauge.bucket is None and gauge.running < gauge.soft:
                continue
            if not gauge.has_room(now_ms):
                if gauge is not self.gauge:
                    self.leave()
                    gauge.park(self)
                return False
            if gauge.running >= gauge.soft:
                over = gauge
        if self.shelf is not None and over is self.over:
            return True
        self._enter(over)
        return False

    def _enter(self, over: Gauge | None) -> None:
        self.leave()
        self.over = over
        if over is not None:
            over.bursting[self] = None
        shelf = self.shelf = self.normal if over is None else self.surplus
        self.credit = self.owner.weight
        shelf.ring[self] = None
        if not shelf.is_in:
            shelf.refresh()

    def leave(self) -> None:
        """Stand nowhere."""
        if self.gauge is not None:
            self.gauge.parked.pop(self, None)
            self.gauge = None
        if self.over is not None:
            del self.over.bursting[self]
            self.over = None
        shelf, self.shelf = self.shelf, None
        if shelf is not None:
            del shelf.ring[self]
            if not shelf.ring:
                shelf.refresh()

    def resume(self, now_ms: int) -> None:
        """Stand anew after a gauge freed."""
        self.gauge = None
        self.settle(now_ms)

    def refresh(self) -> None:
        """Lines stand by `settle`."""

"""The order of service: bands of pools, of priority levels, of classes of needs, of tenants' flows.

A flow is the waiting launches of one tenant in one queue with one need, in runs that fell due
together. A level is one priority of one pool in one band. Tenants take turns in a level by deficit
round robin, implemented as virtual time: a served tenant advances by one turn divided by its
weight, and the tenant that is furthest behind is next, in whichever class of needs its flows are.
Tenants therefore share fairly whatever their launches need, and a class of needs without room is
skipped without a look at its flows.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from cron.scheduler.limits import Limiter

AGE_MS: Final = 30_000
"""After so long a launch counts as one priority better."""
LIVE: Final = 0
LATE: Final = 1
BURST: Final = 2
"""Added to LIVE or LATE: beyond a tenant's share, after everything that is within."""
BANDS: Final = 4
TURN: Final = 1 << 20
"""Virtual time of one launch of a tenant with weight 1."""
SPREAD: Final = 16
"""Room for the priority below the milliseconds of a level's rank: it decides between equals."""
TILT: Final = AGE_MS * SPREAD + 1
"""What one priority adds to the rank of a level."""
STALE_MIN: Final = 64
"""Fewer stale entries than this are not worth rebuilding for."""
TICKS: Final = count(1)

Key = tuple[Any, ...]
"""A launch; the first of it is its job. Keys have an order."""
Rank = tuple[int, int, int, int]
"""Virtual time of the tenant, when it got there, age of its oldest launch, number of the flow."""


class FlowKey(msgspec.Struct, frozen=True, cache_hash=True):
    """What the launches of one flow have in common, and the jobs of one line (`backlog`).

    `need` decides which executors they may go to. `is_limited`: their jobs limit how many of their
    launches run at once. `is_patient`: their instants are far apart and may begin late, and wait
    for rows apart from the others.
    """

    tenant: str
    pool: str
    priority: int
    need: Hashable
    is_late: bool = False
    is_limited: bool = False
    is_patient: bool = False


class Class(msgspec.Struct, eq=False):
    """All launches of one pool with the same need.

    `is_aside`: no executor has room in this round. `is_kept_out`: there is room, but it is reserved
    for others. `is_plenty`: there is room for all that waits in the domain; None if unknown.
    `lacks_since_ms`: since when none of them began for want of room alone, else 0. `noted_ms`: when
    that was last seen. `starves_since_ms`: since when the next launch waits for room, 0 if none may
    be kept for it.
    """

    pool: Pool
    need: Hashable
    need_classes: dict[Level, NeedClass] = {}
    users: int = 0
    lacks_since_ms: int = 0
    lacked_since_ms: int = 0
    noted_ms: int = 0
    starves_since_ms: int = 0
    is_aside: bool = False
    is_kept_out: bool = False
    is_plenty: bool | None = None


class Pool(msgspec.Struct, eq=False):
    """The launches of one handler, or the commands. `ready`: how many are in flows."""

    name: str
    ready: int = 0
    users: int = 0
    turns: dict[int, PoolTurn] = {}


class PoolTurn(msgspec.Struct, eq=False):
    """A pool in one band. `levels`: those that may have a turn."""

    pool: Pool
    band: Band
    limiters: tuple[Limiter, ...]
    limiter: Limiter | None = None
    is_in: bool = False
    all: dict[int, Level] = {}
    levels: dict[Level, None] = {}

    def refresh(self) -> None:
        """Enter or leave the band, as the levels and the limiter say."""
        is_open = bool(self.levels) and self.limiter is None
        if is_open != self.is_in:
            self.is_in = is_open
            if is_open:
                self.band[self] = None
            else:
                del self.band[self]

    def resume(self, now_ms: int) -> None:
        """Continue after the limiter has room again."""
        self.limiter = None
        self.refresh()


Band = OrderedDict[PoolTurn, None]
"""The pools of a band that may have their turn, in its order."""


class Level(msgspec.Struct, eq=False):
    """One priority of a pool in one band, with a heap of classes of needs by next flow.

    `time`: the virtual time of the tenant that was served last. `is_aside`: in this round all free
    slots are reserved for others.
    """

    turn: PoolTurn
    priority: int
    limiters: tuple[Limiter, ...]
    limiter: Limiter | None = None
    is_aside: bool = False
    is_in: bool = False
    time: int = 0
    heap: list[tuple[Rank, int, NeedClass]] = []

    def refresh(self) -> None:
        """Enter or leave the pool's levels."""
        is_open = bool(self.heap) and self.limiter is None and not self.is_aside
        if is_open != self.is_in:
            self.is_in = is_open
            if is_open:
                self.turn.levels[self] = None
            else:
                del self.turn.levels[self]
            self.turn.refresh()

    def resume(self, now_ms: int) -> None:
        """Continue after the limiter has room again."""
        self.limiter = None
        self.refresh()

    def front(self) -> Flow | None:
        """Return the next flow; None if there is none, and then the level leaves the pool's
        levels."""
        heap = self.heap
        while heap:
            rank, tick, need_class = heap[0]
            top = need_class.top() if need_class.tick == tick else None
            if top is not None and len(heap) == 1:
                # The only class of needs: its rank among others is put right when there are.
                return top[1]
            if top is not None and top[0] == rank:
                return top[1]
            if need_class.tick != tick:
                heappop(heap)
            elif top is None:
                need_class.tick = 0
                heappop(heap)
            else:
                need_class.tick = next(TICKS)
                heapreplace(heap, (top[0], need_class.tick, need_class))
        self.refresh()
        return None

    def put(self, need_class: NeedClass) -> None:
        """Add a class of needs to the heap, at the rank of its next flow."""
        top = None if need_class.need.is_aside else need_class.top()
        if top is None:
            need_class.tick = 0
            return
        need_class.tick = next(TICKS)
        heappush(self.heap, (top[0], need_class.tick, need_class))
        if not self.is_in:
            self.refresh()


class NeedClass(msgspec.Struct, eq=False):
    """The flows of one level with one need, in a heap by rank. `tick` is 0 while the level's heap
    does not have it."""

    level: Level
    need: Class
    tick: int = 0
    heap: list[tuple[Rank, Flow]] = []

    def top(self) -> tuple[Rank, Flow] | None:
        """Return the next flow and its rank, None for none.

        A tenant that was served has advanced: the ranks of its flows are corrected when they come
        to the top.
        """
        heap = self.heap
        while heap:
            top = heap[0]
            rank, flow = top
            if flow.tick != rank[3] or flow.need_class is not self:
                heappop(heap)
            elif flow.share.times[flow.band] == rank[0]:
                return top
            else:
                heapreplace(heap, (flow.rank(), flow))
        return None

    def put(self, flow: Flow) -> None:
        """Add a flow, not before those that are next now."""
        flow.need_class, flow.tick = self, next(TICKS)
        flow.share.catch_up(flow.band, self.level.time)
        heappush(self.heap, (flow.rank(), flow))
        if not self.tick or self.heap[0][1] is flow:
            self.level.put(self)


class Share(msgspec.Struct, eq=False):
    """What one tenant has in one queue, whatever the need and band.

    `limiters` are all that count its launches; `own` are the tenant's among them, which are checked
    for each flow. `times` are its virtual times by band, `ticks` when it got there: earlier goes
    first.
    """

    tenant: str
    pool: str
    priority: int
    running: int = 0
    waiting: int = 0
    weight: int = 1
    limiters: tuple[Limiter, ...] = ()
    own: tuple[Limiter, ...] = ()
    times: list[int] = msgspec.field(default_factory=lambda: [0] * BANDS)
    ticks: list[int] = msgspec.field(default_factory=lambda: [0] * BANDS)
    flows: dict[FlowKey, Flow] = {}

    def count(self, running: int, waiting: int) -> None:
        """Add to the running and waiting launches, in all limiters too."""
        self.running += running
        self.waiting += waiting
        for limiter in self.limiters:
            limiter.count(running, waiting)

    def catch_up(self, band: int, time: int) -> None:
        """Advance to the tenant that was served last: turns cannot be accumulated."""
        if self.times[band] < time:
            self.times[band], self.ticks[band] = time, next(TICKS)

    def serve(self, level: Level, band: int, count: int) -> None:
        """Advance by the part of a turn that `count` launches take."""
        level.time = max(level.time, self.times[band])
        self.times[band] = level.time - (-count * TURN // self.weight)
        self.ticks[band] = next(TICKS)


class Run(msgspec.Struct, eq=False):
    """Launches of a flow that fell due together; those before `at` are taken."""

    due_ms: int
    keys: list[Key]
    at: int = 0


class Flow(msgspec.Struct, eq=False):
    """The waiting launches of one tenant in one queue with one need, the oldest first.

    New launches go to `runs`; launches that return (put back, unparked, released) go to `early`, a
    heap by age. An entry counts only while `ready` has the launch in this flow: a launch that
    leaves from the middle stays as a stale entry until it comes to the front, or until stale
    entries outnumber the others. `ready` belongs to the queue. `size` counts the launches,
    `entries` the entries, `open` all that wait or run.
    """

    key: FlowKey
    share: Share
    need: Class
    ready: dict[Key, Flow]
    band: int
    limiter: Limiter | None = None
    over: Limiter | None = None
    need_class: NeedClass | None = None
    tick: int = 0
    size: int = 0
    entries: int = 0
    open: int = 0
    runs: deque[Run] = msgspec.field(default_factory=deque)
    early: list[tuple[int, Key]] = []

    def append(self, keys: Sequence[Key], due_ms: int) -> None:
        """Add launches that fell due together and arrived last."""
        runs = self.runs
        if runs and runs[-1].due_ms == due_ms:
            runs[-1].keys += keys
        elif runs and runs[-1].due_ms > due_ms:
            for key in keys:
                heappush(self.early, (due_ms, key))
        else:
            runs.append(Run(due_ms, [*keys]))
        self._entered(keys)

    def insert(self, key: Key, due_ms: int) -> None:
        """Add a launch that arrived before others."""
        heappush(self.early, (due_ms, key))
        self._entered((key,))

    def _entered(self, keys: Sequence[Key]) -> None:
        count = len(keys)
        self.ready.update(dict.fromkeys(keys, self))
        self.size += count
        self.entries += count
        self.need.pool.ready += count

    def lose(self, key: Key) -> None:
        """Remove a launch; its entry becomes stale."""
        del self.ready[key]
        self.size -= 1
        self.need.pool.ready -= 1
        if not self.size or self.entries > 2 * self.size + STALE_MIN:
            self._rebuild()

    def _rebuild(self) -> None:
        """Keep one entry for each launch, the oldest."""
        seen: set[Key] = set()
        early: list[tuple[int, Key]] = []
        for entry in sorted(self.early):
            if self.ready.get(entry[1]) is self and entry[1] not in seen:
                seen.add(entry[1])
                early.append(entry)
        self.early = early  # sorted, which is a heap
        for run in self.runs:
            keys, run.keys, run.at = run.keys[run.at :], [], 0
            for key in keys:
                if self.ready.get(key) is self and key not in seen:
                    seen.add(key)
                    run.keys.append(key)
        self.runs = deque(run for run in self.runs if run.keys)
        self.entries = len(seen)

    def _is_early(self) -> bool:
        """Return whether the first entry is one that returned."""
        early, runs = self.early, self.runs
        return bool(early) and (not runs or early[0][0] <= runs[0].due_ms)

    def _drop(self, count: int) -> None:
        """Drop the first entries, of one run."""
        self.entries -= count
        if self.early and self._is_early():
            heappop(self.early)
            return
        run = self.runs[0]
        run.at += count
        if run.at == len(run.keys):
            self.runs.popleft()

    def front(self) -> tuple[int, Key]:
        """Return when the next launch fell due, and its key; only while `size`."""
        while True:
            if self.early and self._is_early():
                found = self.early[0]
            else:
                run = self.runs[0]
                found = (run.due_ms, run.keys[run.at])
            if self.entries == self.size or self.ready.get(found[1]) is self:
                return found
            self._drop(1)  # stale

    def pop(self, count: int) -> list[Key]:
        """Remove and return the next launches, up to `count`."""
        keys: list[Key] = []
        ready, count = self.ready, min(count, self.size)
        while len(keys) < count:
            if count == 1 or self._is_early():
                _, key = self.front()
                self._drop(1)
                del ready[key]
                keys.append(key)
                self.size -= 1
                continue
            run = self.runs[0]
            chunk = run.keys[run.at : run.at + count - len(keys)]
            has_stale = self.entries > self.size
            self._drop(len(chunk))
            if has_stale:
                chunk = [key for key in chunk if ready.get(key) is self and ready.pop(key)]
            else:
                for key in chunk:
                    del ready[key]
            keys += chunk
            self.size -= len(chunk)
        self.need.pool.ready -= count
        return keys

    def rank(self) -> Rank:
        """Return the rank that decides whose turn it is: the tenant's virtual time, then age."""
        share, band = self.share, self.band
        return (share.times[band], share.ticks[band], self.front()[0], self.tick)

    def waiting(self) -> list[tuple[int, Key]]:
        """Return the launches with when they fell due, in no order."""
        found = {key: due_ms for due_ms, key in self.early}
        for run in self.runs:
            found.update((key, run.due_ms) for key in run.keys[run.at :])
        return [(due_ms, key) for key, due_ms in found.items() if self.ready.get(key) is self]

    # ---- where it stands

    def leave(self) -> None:
        """Leave the class of needs and the limiter."""
        if self.limiter is not None:
            self.limiter.parked.pop(self, None)
            self.limiter = None
        if self.over is not None:
            del self.over.bursting[self]
            self.over = None
        self.need_class, self.tick = None, 0

    def enter(self, now_ms: int) -> bool:
        """Enter the band that the tenant's limits allow, or park at a limit; return whether the
        flow was there already."""
        over = None
        for limiter in self.share.own:
            if limiter.bucket is None and limiter.running < limiter.soft:
                continue
            if limiter.room(now_ms) <= 0:
                if limiter is not self.limiter:
                    self.leave()
                    limiter.park(self)
                return False
            if limiter.running >= limiter.soft:
                over = limiter
        if self.need_class is not None and over is self.over:
            return True
        self.leave()
        if over is not None:
            self.over = over
            over.bursting[self] = None
        self.band = (LATE if self.key.is_late else LIVE) + (BURST if over is not None else 0)
        self.stand()
        return False

    def stand(self) -> None:
        """Enter the class of needs of the flow's band."""
        turn = self.need.pool.turns[self.band]
        level = turn.all[self.key.priority]
        need_class = self.need.need_classes.get(level)
        if need_class is None:
            need_class = self.need.need_classes[level] = NeedClass(level, self.need)
        need_class.put(self)

    def resume(self, now_ms: int) -> None:
        """Continue after a limiter has room again."""
        self.limiter = None
        if self.size:
            self.enter(now_ms)


class Held(NamedTuple):
    """A launch that is held until a time."""

    until_ms: int
    flow: Flow
    due_ms: int

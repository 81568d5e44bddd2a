"""The order of service: bands of pools, of priority levels, of classes of needs, of tenants' flows.

A flow is what waits of one tenant in one queue with one need, in runs of launches that fell due
together. A level is one priority of one pool in one band. Tenants take turns in a level by deficit
round robin, kept as virtual time: a tenant that is served moves on by its weight's share of a turn,
and the tenant that is furthest behind is next, in whichever class of needs it stands. So tenants
share fairly whatever their launches need, and a class of needs without room is passed over without
a look at its flows.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
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
STALE_MIN: Final = 64
"""Fewer stale entries than this are not worth rebuilding for."""
TICKS: Final = count(1)

Key = tuple[Any, ...]
"""A launch; the first of it is its job. Keys have an order."""
Rank = tuple[int, int, int, int]
"""Virtual time of the tenant, when it got there, age of its oldest launch, number of the flow."""


class FlowKey(msgspec.Struct, frozen=True, cache_hash=True):
    """What launches of one flow have in common, and jobs of one line (`backlog`). `need` decides
    which executors they may go to: where none fits, they must not take the room of others.
    `is_limited`: their jobs limit how many of their launches run at once. `is_patient`: their
    instants are far apart and may begin late, and wait for rows apart from the others."""

    tenant: str
    pool: str
    priority: int
    need: Hashable
    is_late: bool = False
    is_limited: bool = False
    is_patient: bool = False


class Class:
    """All launches of one pool with the same need. `is_aside`: no executor has room in this round;
    `is_kept_out`: there is room, and too much of it is reserved for others.

    `is_plenty`: in this round there is room for all that waits in the domain, None if unknown.
    `lacks_since_ms`: since when none of them began for want of room alone, else 0; `noted_ms`: when
    that was last seen; `starves_since_ms`: since when its next launch waits for that, 0 if it must
    not have room kept for it.
    """

    __slots__ = (
        "is_aside",
        "is_kept_out",
        "is_plenty",
        "lacked_since_ms",
        "lacks_since_ms",
        "need",
        "need_classes",
        "noted_ms",
        "pool",
        "starves_since_ms",
        "users",
    )  # fmt: skip

    def __init__(self, pool: Pool, need: Hashable) -> None:
        self.pool = pool
        self.need = need
        self.need_classes: dict[Level, NeedClass] = {}
        self.users = self.lacks_since_ms = self.lacked_since_ms = self.noted_ms = 0
        self.starves_since_ms = 0
        self.is_aside = self.is_kept_out = False
        self.is_plenty: bool | None = None


class Pool:
    """What waits for one handler, or as commands. `ready`: launches that stand in flows."""

    __slots__ = ("name", "ready", "turns", "users")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = self.users = 0
        self.turns: dict[int, PoolTurn] = {}


class PoolTurn:
    """A pool in one band; `levels` are those with something that may have its turn."""

    __slots__ = ("all", "band", "is_in", "levels", "limiter", "limiters", "pool")

    def __init__(self, pool: Pool, band: Band, limiters: tuple[Limiter, ...]) -> None:
        self.pool = pool
        self.band = band
        self.limiters = limiters
        self.limiter: Limiter | None = None
        self.is_in = False
        self.all: dict[int, Level] = {}
        self.levels: dict[Level, None] = {}

    def refresh(self) -> None:
        """Have turns in the band or not."""
        is_open = bool(self.levels) and self.limiter is None
        if is_open != self.is_in:
            self.is_in = is_open
            if is_open:
                self.band[self] = None
            else:
                del self.band[self]

    def resume(self, now_ms: int) -> None:
        """Go on after the limiter freed."""
        self.limiter = None
        self.refresh()


Band = OrderedDict[PoolTurn, None]
"""The pools of a band that may have their turn, in its order."""


class Level:
    """One priority of a pool in one band. Its classes of needs are a heap, ordered by next flow.

    `time` is the virtual time of the tenant that was served last. `is_aside`: in this round all
    free slots are reserved for others.
    """

    __slots__ = (
        "heap", "is_aside", "is_in", "limiter", "limiters", "priority", "tilt", "time", "turn"
    )  # fmt: skip

    def __init__(self, turn: PoolTurn, priority: int, limiters: tuple[Limiter, ...]) -> None:
        self.turn = turn
        self.priority = priority
        self.limiters = limiters
        self.limiter: Limiter | None = None
        self.is_aside = self.is_in = False
        self.time = 0
        self.tilt = priority * (AGE_MS * SPREAD + 1)
        self.heap: list[tuple[Rank, int, NeedClass]] = []

    def refresh(self) -> None:
        """Be among the pool's levels or not."""
        is_open = bool(self.heap) and self.limiter is None and not self.is_aside
        if is_open != self.is_in:
            self.is_in = is_open
            if is_open:
                self.turn.levels[self] = None
            else:
                del self.turn.levels[self]
            self.turn.refresh()

    def resume(self, now_ms: int) -> None:
        """Go on after the limiter freed."""
        self.limiter = None
        self.refresh()

    def rank(self, flow: Flow) -> int:
        """Return what the pool compares: age and priority of the flow whose turn it is."""
        return flow.front()[0] * SPREAD + self.tilt

    def front(self) -> Flow | None:
        """Return the flow whose turn it is; None if there is none, and then it has no turn."""
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
        """Let a class of needs have its turn, at the time of the flow that is next there."""
        top = None if need_class.need.is_aside else need_class.top()
        if top is None:
            need_class.tick = 0
            return
        need_class.tick = next(TICKS)
        heappush(self.heap, (top[0], need_class.tick, need_class))
        if not self.is_in:
            self.refresh()


class NeedClass:
    """The flows of one level that have one need, in a heap by rank; 0 is the `tick` of a class of
    needs that is not in its level's heap."""

    __slots__ = ("heap", "level", "need", "tick")

    def __init__(self, level: Level, need: Class) -> None:
        self.level = level
        self.need = need
        self.tick = 0
        self.heap: list[tuple[Rank, Flow]] = []

    def top(self) -> tuple[Rank, Flow] | None:
        """Return the flow that is next and its rank, None for none.

        A tenant that was served since has moved on: its flows are put right when they are next.
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
        """Let a flow have its turn: not before those that are next now."""
        flow.need_class, flow.tick = self, next(TICKS)
        flow.share.catch_up(flow.band, self.level.time)
        heappush(self.heap, (flow.rank(), flow))
        if not self.tick or self.heap[0][1] is flow:
            self.level.put(self)


class Share:
    """What one tenant has in one queue, whatever the need and band.

    `limiters` are all that count its launches; `own` of them the tenant's, checked flow by flow.
    `times` are its virtual times by band, `ticks` when it got there: earlier goes first.
    """

    __slots__ = (
        "flows", "limiters", "own", "pool", "priority", "running", "tenant", "ticks", "times",
        "waiting", "weight",
    )  # fmt: skip

    def __init__(self, tenant: str, pool: str, priority: int) -> None:
        self.tenant = tenant
        self.pool = pool
        self.priority = priority
        self.waiting = self.running = 0
        self.weight = 1
        self.limiters: tuple[Limiter, ...] = ()
        self.own: tuple[Limiter, ...] = ()
        self.times = [0] * BANDS
        self.ticks = [0] * BANDS
        self.flows: dict[FlowKey, Flow] = {}

    def count(self, running: int, waiting: int) -> None:
        """Add to what runs and waits, in all limiters too."""
        self.running += running
        self.waiting += waiting
        for limiter in self.limiters:
            limiter.count(running, waiting)

    def catch_up(self, band: int, time: int) -> None:
        """Be no further behind than the tenant that was served last: no turns are saved up."""
        if self.times[band] < time:
            self.times[band], self.ticks[band] = time, next(TICKS)

    def serve(self, level: Level, band: int, count: int) -> None:
        """Move on by the share of a turn that `count` launches take."""
        level.time = max(level.time, self.times[band])
        self.times[band] = level.time - (-count * TURN // self.weight)
        self.ticks[band] = next(TICKS)


class Run:
    """Launches of a flow that fell due together; those before `at` are taken."""

    __slots__ = ("at", "due_ms", "keys")

    def __init__(self, due_ms: int, key: Key) -> None:
        self.due_ms = due_ms
        self.keys = [key]
        self.at = 0


class Flow:
    """One tenant's launches in one queue with one need, the oldest first.

    New ones go to `runs`; what comes back (put back, unparked, released) to `early`, a heap by age.
    An entry counts only while `ready` has the launch in this flow: one that leaves from the middle
    stays as a stale entry until it comes to the front, or until stale ones outnumber the others.
    `ready` is the queue's; `size` counts the launches, `entries` the entries, `open` all that waits
    or runs.
    """

    __slots__ = (
        "band",
        "early",
        "entries",
        "key",
        "limiter",
        "need",
        "need_class",
        "open",
        "over",
        "ready",
        "runs",
        "share",
        "size",
        "tick",
    )  # fmt: skip

    def __init__(self, key: FlowKey, share: Share, need: Class, ready: dict[Key, Flow]) -> None:
        self.key = key
        self.share = share
        self.need = need
        self.ready = ready
        self.limiter: Limiter | None = None
        self.over: Limiter | None = None
        self.need_class: NeedClass | None = None
        self.band = LATE if key.is_late else LIVE
        self.tick = self.size = self.entries = self.open = 0
        self.runs: deque[Run] = deque()
        self.early: list[tuple[int, Key]] = []

    def append(self, key: Key, due_ms: int) -> None:
        """Let a launch that arrived last stand in the flow."""
        runs = self.runs
        if runs and runs[-1].due_ms == due_ms:
            runs[-1].keys.append(key)
        elif runs and runs[-1].due_ms > due_ms:
            heappush(self.early, (due_ms, key))
        else:
            runs.append(Run(due_ms, key))
        self._entered(key)

    def insert(self, key: Key, due_ms: int) -> None:
        """Let a launch stand in the flow that arrived before others."""
        heappush(self.early, (due_ms, key))
        self._entered(key)

    def _entered(self, key: Key) -> None:
        self.ready[key] = self
        self.size += 1
        self.entries += 1
        self.need.pool.ready += 1

    def lose(self, key: Key) -> None:
        """Let go of a launch that stands in the flow; its entry is stale now."""
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
        """Return whether the first entry is one that came back."""
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
        """Return when the launch that is next fell due, and which it is; only while `size`."""
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
        """Take out the next `count` launches, as many as there are at most."""
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
        """Return what decides whose turn it is: the tenant's time, then age."""
        share, band = self.share, self.band
        return (share.times[band], share.ticks[band], self.front()[0], self.tick)

    def waiting(self) -> list[tuple[int, Key]]:
        """Return what stands here, with when it fell due, in no order."""
        found = {key: due_ms for due_ms, key in self.early}
        for run in self.runs:
            found.update((key, run.due_ms) for key in run.keys[run.at :])
        return [(due_ms, key) for key, due_ms in found.items() if self.ready.get(key) is self]

    # ---- where it stands

    def leave(self) -> None:
        """Have no turn, and wait at no limiter."""
        if self.limiter is not None:
            self.limiter.parked.pop(self, None)
            self.limiter = None
        if self.over is not None:
            del self.over.bursting[self]
            self.over = None
        self.need_class, self.tick = None, 0

    def settle(self, now_ms: int) -> bool:
        """Stand where the tenant's limits allow it; return whether that is where it stood."""
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
        """Have turns in the class of needs of the flow's band."""
        turn = self.need.pool.turns[self.band]
        level = turn.all[self.key.priority]
        need_class = self.need.need_classes.get(level)
        if need_class is None:
            need_class = self.need.need_classes[level] = NeedClass(level, self.need)
        need_class.put(self)

    def resume(self, now_ms: int) -> None:
        """Stand anew after a limiter freed."""
        self.limiter = None
        if self.size:
            self.settle(now_ms)


class Held(NamedTuple):
    """A launch that waits aside until a time."""

    until_ms: int
    flow: Flow
    due_ms: int

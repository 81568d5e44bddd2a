"""The fair queue: waiting launches go in, launches that may begin next come out. Pure.

The order of service: bands (live, late, then both again for tenants beyond their share; but one
launch in ten is a late one, if any waits); round robin over pools; within a pool the priority level
whose next launch is oldest by age; within a level deficit round robin over tenants; within a flow
the oldest launch.

If there is room for all launches that wait in a domain, nothing has to be decided, and launches of
a flow are taken by count. Otherwise launches are taken one by one. A decision then costs O(log
flows) and O(10) in priorities, however many launches wait.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Final

from cron.errors import invariant
from cron.scheduler.flows import (
    BANDS,
    BURST,
    LATE,
    LIVE,
    SPREAD,
    STALE_MIN,
    TICKS,
    TILT,
    Band,
    Class,
    Flow,
    FlowKey,
    Held,
    Key,
    Level,
    Pool,
    PoolTurn,
    Share,
)
from cron.scheduler.limits import UNLIMITED, Limiter, LimitTable, covers
from cron.scopes import PRIORITIES, Scope, is_scope
from cron.state.pool import Limits

LIVE_STREAK: Final = 9
"""After so many live launches a late one begins: late ones would starve if live ones never
leave a slot free."""
LIVE_ONLY: Final = (LIVE, LIVE + BURST)
LIVE_FIRST: Final = (LIVE, LATE, LIVE + BURST, LATE + BURST)
LATE_FIRST: Final = (LATE, LIVE, LIVE + BURST, LATE + BURST)
IDLE_MAX: Final = 1_000
"""Flows without launches that are kept: most of them soon have one again."""
PATIENCE_MS: Final = 30_000
"""A class starves if none of its launches has begun for so long, for want of room alone."""
GAP_MS: Final = 2_000
"""A class that was not seen without room for so long waited for something else meanwhile."""

Room = Callable[[Hashable, int], int]
"""(need, most): how many launches with that need have room now, as far as `most`."""
Free = Callable[[Hashable], int]
"""The free slots of a domain."""


class FairQueue:
    """Decides which waiting launches are next. Not thread safe.

    `job_limit(job)` returns how many launches of a job may run at once, 0 for any number; it is
    asked for flows that are limited. When it changes, the caller removes the waiting launches of
    the job and adds them again.
    """

    def __init__(
        self, job_limit: Callable[[Hashable], int] = lambda job: 0, idle_max: int = IDLE_MAX
    ) -> None:
        self.table = LimitTable()
        self.ready: dict[Key, Flow] = {}
        self.held: dict[Key, Held] = {}
        self.parked: dict[Key, Flow] = {}  # behind their jobs' limits
        self.running: dict[Key, Flow] = {}  # but those that are only counted
        self.runs: Counter[Hashable] = Counter()  # of each job, how many of these
        self.flows: dict[FlowKey, Flow] = {}
        self.shares: dict[tuple[str, str, int], Share] = {}
        self.pools: dict[str, Pool] = {}
        self.classes: dict[tuple[str, Hashable], Class] = {}
        self.is_late_open = True
        self.now_ms = self.streak = 0  # streak: live launches that began since the last late one
        self.job_limit = job_limit
        self._idle_max = idle_max
        self._bands = tuple(Band() for _ in range(BANDS))
        self._holds: list[tuple[int, int, Key]] = []
        self._behind: dict[Hashable, list[tuple[int, Key]]] = {}  # parked, by job
        self._idle: OrderedDict[Flow, None] = OrderedDict()
        self._aside: dict[Class | Level, None] = {}
        self._known: dict[Class, None] = {}  # those whose room was asked for in this round
        self.domains: dict[Hashable, dict[str, None]] = {}  # the pools of each

    def __len__(self) -> int:
        return len(self.ready) + len(self.held) + len(self.parked)

    def __contains__(self, key: object) -> bool:
        return key in self.ready or key in self.held or key in self.parked

    # ---- flows

    def _flow(self, key: FlowKey) -> Flow:
        flow = self.flows.get(key)
        if flow is None:
            flow = self.flows[key] = self._new_flow(key)
        self._idle.pop(flow, None)
        flow.open += 1
        return flow

    def _new_flow(self, key: FlowKey) -> Flow:
        invariant(0 <= key.priority < PRIORITIES, f"priority {key.priority} is not 0 to 9")
        place = (key.tenant, key.pool, key.priority)
        share = self.shares.get(place)
        if share is None:
            share = self.shares[place] = Share(*place)
            self._link(share)
        pool = self.pools.get(key.pool)
        if pool is None:
            pool = self.pools[key.pool] = Pool(key.pool)
            self.domains.setdefault(self.table.domains.get(key.pool, key.pool), {})[key.pool] = None
        need = self.classes.get((key.pool, key.need))
        if need is None:
            need = self.classes[key.pool, key.need] = Class(pool, key.need)
        for band in (int(key.is_late), int(key.is_late) + BURST):
            turn = pool.turns.get(band)
            if turn is None:
                limiters = self.table.shared(pool.name)
                turn = pool.turns[band] = PoolTurn(pool, self._bands[band], limiters)
            if key.priority not in turn.all:
                limiters = self.table.shared(pool.name, key.priority)
                turn.all[key.priority] = Level(turn, key.priority, limiters)
        band = LATE if key.is_late else LIVE
        flow = share.flows[key] = Flow(key, share, need, self.ready, band)
        pool.users += 1
        need.users += 1
        return flow

    def _forget(self, flow: Flow) -> None:
        """Forget a flow without launches, and what existed only for it."""
        del self.flows[flow.key], flow.share.flows[flow.key]
        share, need = flow.share, flow.need
        if not share.flows:
            del self.shares[share.tenant, share.pool, share.priority]
            self.table.leave(share.own, self.now_ms)
        need.users -= 1
        if not need.users:
            del self.classes[need.pool.name, need.need]
            self._aside.pop(need, None)
            self._known.pop(need, None)
        pool = need.pool
        pool.users -= 1
        if pool.users:
            return
        del self.pools[pool.name]
        domain = self.table.domains.get(pool.name, pool.name)
        del self.domains[domain][pool.name]
        if not self.domains[domain]:
            del self.domains[domain]
        for turn in pool.turns.values():
            turn.levels.clear()
            turn.refresh()
            if turn.limiter is not None:
                turn.limiter.parked.pop(turn, None)
            for level in turn.all.values():
                self._aside.pop(level, None)
                if level.limiter is not None:
                    level.limiter.parked.pop(level, None)

    # ---- what waits

    def add(self, key: Key, flow_key: FlowKey, due_ms: int, not_before_ms: int = 0) -> bool:
        """Add a launch, held until `not_before_ms` if given. Returns False if it waits or runs.

        Launches of one flow begin by age; launches that fell due together begin in the order in
        which they were added.
        """
        if key in self or key in self.running:
            return False
        flow = self._flow(flow_key)
        flow.share.count(0, 1)
        if not_before_ms:
            self._hold(key, flow, due_ms, not_before_ms)
        elif flow_key.is_limited and key[0] in self._behind:
            self._park(key, flow, due_ms)
            self._reopen(key[0])  # what waited there may be gone, and the limit another
        else:
            flow.append((key,), due_ms)
            if flow.size == 1:
                flow.enter(self.now_ms)
        return True

    def add_alike(self, keys: Sequence[Key], flow_key: FlowKey, due_ms: int) -> None:
        """Add launches that fell due together, of jobs without a limit, which neither wait nor
        run."""
        flow, count = self._flow(flow_key), len(keys)
        flow.open += count - 1
        flow.share.count(0, count)
        flow.append(keys, due_ms)
        if flow.size == count:
            flow.enter(self.now_ms)

    def add_running(self, key: Key, flow_key: FlowKey) -> bool:
        """Count a launch as running, whatever the limits say. Returns False if it runs already."""
        if key in self.running:
            return False
        self.remove(key)
        flow = self._flow(flow_key)
        flow.share.count(1, 0)
        self.running[key] = flow
        self.runs[key[0]] += 1
        return True

    def _hold(self, key: Key, flow: Flow, due_ms: int, until_ms: int) -> None:
        self.held[key] = Held(until_ms, flow, due_ms)
        heappush(self._holds, (until_ms, next(TICKS), key))
        self._tidy()

    def _tidy(self) -> None:
        """Rebuild the heap of holds when stale entries outnumber the others."""
        if len(self._holds) > 2 * len(self.held) + STALE_MIN:
            self._holds = [(one.until_ms, next(TICKS), key) for key, one in self.held.items()]
            heapify(self._holds)

    def _park(self, key: Key, flow: Flow, due_ms: int) -> None:
        """Have a launch that is in no flow wait behind its job's limit."""
        self.parked[key] = flow
        heappush(self._behind.setdefault(key[0], []), (due_ms, key))

    def _withdraw(self, key: Key) -> Flow | None:
        """Take a waiting launch from its place; return its flow, None if it does not wait."""
        held = self.held.pop(key, None)
        if held is not None:
            self._tidy()
            return held.flow
        flow = self.parked.pop(key, None)
        if flow is None:
            flow = self.ready.get(key)
            if flow is None:
                return None
            flow.lose(key)
            if not flow.size:
                flow.leave()
        if flow.key.is_limited:
            self._reopen(key[0])
        return flow

    def _return(self, key: Key, flow: Flow, due_ms: int) -> None:
        """Return a launch to its flow."""
        flow.insert(key, due_ms)
        if flow.size == 1:
            flow.enter(self.now_ms)

    def _reopen(self, job: Hashable) -> None:
        """Return launches that wait behind a job's limit to their flows, as many as the limit
        allows."""
        behind = self._behind.get(job)
        if behind is None:
            return
        limit = self.job_limit(job)
        room = limit - self.runs.get(job, 0) if limit else len(behind)
        while behind and room > 0:
            due_ms, key = heappop(behind)
            flow = self.parked.pop(key, None)
            if flow is not None:
                self._return(key, flow, due_ms)
                room -= 1
        if not behind:
            del self._behind[job]

    def flow_of(self, key: Key) -> Flow | None:
        """Return the flow of a waiting launch, None if it does not wait."""
        held = self.held.get(key)
        return held.flow if held is not None else self.parked.get(key) or self.ready.get(key)

    def parked_due(self) -> list[tuple[Key, int]]:
        """Return the launches that wait behind jobs' limits, with when they fell due."""
        behind = chain.from_iterable(self._behind.values())
        return [(key, due_ms) for due_ms, key in behind if key in self.parked]

    def remove(self, key: Key) -> bool:
        """Forget a launch, whether it waits or runs. Returns False if it is unknown."""
        flow = self._withdraw(key)
        if flow is None and key in self.running:
            self.ended([key])
            return True
        if flow is None:
            return False
        flow.share.count(0, -1)
        flow.open -= 1
        if not flow.open:
            self._idle[flow] = None
        return True

    def hold(self, key: Key, due_ms: int, until_ms: int) -> bool:
        """Hold a waiting launch until `until_ms`. Returns False if it does not wait."""
        flow = self._withdraw(key)
        if flow is None:
            return False
        self._hold(key, flow, due_ms, until_ms)
        return True

    # ---- what runs

    def ended(self, keys: Iterable[Key]) -> None:
        """Forget running launches that have ended, and release what waited for their end."""
        counts: dict[FlowKey, int] = {}
        running, runs, behind = self.running, self.runs, self._behind
        waited_for: list[Hashable] = []
        for key in keys:
            flow, job = running.pop(key), key[0]
            counts[flow.key] = counts.get(flow.key, 0) + 1
            runs[job] -= 1
            if not runs[job]:
                del runs[job]
            if job in behind:
                waited_for.append(job)
        self.uncount(counts)
        for job in waited_for:
            self._reopen(job)

    def count(self, flow_key: FlowKey, count: int) -> Flow:
        """Count launches of jobs without limits as running, without their keys; return the flow."""
        flow = self._flow(flow_key)
        flow.open += count - 1
        flow.share.count(count, 0)
        return flow

    def uncount(self, counts: Mapping[FlowKey, int]) -> None:
        """Forget running launches by flow, and release what waited for their room at limits."""
        limiters: dict[Limiter, None] = {}
        for key, count in counts.items():
            flow = self.flows[key]
            flow.share.count(-count, 0)
            limiters.update(dict.fromkeys(flow.share.limiters))
            flow.open -= count
            if not flow.open:
                self._idle[flow] = None
        for limiter in limiters:
            limiter.freed(self.now_ms)

    def tell_apart(self, key: Key, flow_key: FlowKey) -> None:
        """Give a launch that was counted without its key a place of its own among the running."""
        self.running[key] = self.flows[flow_key]
        self.runs[key[0]] += 1

    def begin_unbound(self, flow_key: FlowKey, count: int) -> None:
        """Count launches of a flow that `views.unbound` returned as running; they never waited."""
        flow = self.count(flow_key, count)
        share, need = flow.share, flow.need
        self.streak += count
        need.lacked_since_ms, need.lacks_since_ms = need.lacks_since_ms, 0
        share.serve(need.pool.turns[LIVE].all[share.priority], LIVE, count)

    def put_back(self, key: Key, due_ms: int, not_before_ms: int = 0) -> bool:
        """Return a taken launch to its flow as if it had not been taken, held until `not_before_ms`
        if given. Returns False if it does not run."""
        flow = self.running.pop(key, None)
        if flow is None:
            return False
        job, need = key[0], flow.need
        self.runs[job] -= 1
        if not self.runs[job]:
            del self.runs[job]
        flow.share.count(-1, 1)
        need.lacks_since_ms = need.lacks_since_ms or need.lacked_since_ms
        self.streak = LIVE_STREAK if flow.key.is_late else max(0, self.streak - 1)
        for limiter in flow.share.limiters:
            if limiter.bucket is not None:
                limiter.bucket.take(-1)
                if limiter.timer_ms:
                    limiter.wake(self.now_ms)
        if not_before_ms:
            self._hold(key, flow, due_ms, not_before_ms)
        else:
            self._return(key, flow, due_ms)
        for limiter in flow.share.limiters:
            limiter.freed(self.now_ms)
        self._reopen(job)
        return True

    def put_aside(self, key: Key, due_ms: int) -> bool:
        """Put back a launch that would take reserved slots, and skip all launches with its need
        until the next round. Returns False if it does not run."""
        flow = self.running.get(key)
        if flow is not None and self.put_back(key, due_ms):
            flow.need.is_kept_out = True
            self._close_class(flow)
        return flow is not None

    # ---- what is next

    def begin_round(self) -> None:
        """Begin a round: needs without room, and levels whose free slots were reserved, are looked
        at again."""
        aside, self._aside = self._aside, {}
        for part in aside:
            part.is_aside = False
            if isinstance(part, Level):
                part.refresh()
            else:
                part.is_kept_out = False
                for need_class in part.need_classes.values():
                    need_class.level.put(need_class)
        for need in self._known:
            need.is_plenty = None
        self._known.clear()
        while len(self._idle) > self._idle_max:
            self._forget(self._idle.popitem(last=False)[0])
        self.table.sweep(self.now_ms)

    def _close_class(self, flow: Flow) -> None:
        """Skip all launches with the need of a flow until the next round: no executor has room."""
        need = flow.need
        need.is_aside = True
        self._aside[need] = None
        for need_class in need.need_classes.values():
            need_class.tick = 0
        is_on = 0 <= self.now_ms - need.noted_ms <= GAP_MS
        need.noted_ms = self.now_ms
        if not need.lacks_since_ms or not is_on:
            need.lacks_since_ms = self.now_ms
        # No room is kept for a tenant beyond its share.
        need.starves_since_ms = max(need.lacks_since_ms, flow.front()[0]) if not flow.over else 0

    def take(
        self, now_ms: int, room: Room, late_budget: int = 1, free: Free | None = None, most: int = 1
    ) -> list[Key]:
        """Return up to `most` launches with one need that are next, in the order of service, [] for
        none; they count as running. Several are returned only as far as there is room for them, and
        only if no job's limit and no reserved slot is concerned.

        `room` is not called again before `begin_round` for a need without room. At most
        `late_budget` late launches are returned. Without `free` no slot is reserved.
        """
        if now_ms != self.now_ms or self._holds or self.table.timers:
            self.tick(now_ms)
        flow = self._first(room, free, late_budget)
        if flow is None:
            return []
        need, is_single = flow.need, flow.key.is_limited or self.table.kept or most == 1
        left = 1 if is_single else room(need.need, most)

        def has_room(other: Hashable, count: int) -> int:
            """What was taken is not counted in `room` yet."""
            return left if other is need.need else room(other, count)

        taken: list[Key] = []
        while flow is not None and flow.need is need and not (taken and flow.key.is_limited):
            some = self._take(flow, room, late_budget, left)
            taken += some
            left -= len(some)
            if left <= 0:
                break
            late_budget -= len(some) if flow.key.is_late else 0
            flow = self._first(has_room, free, late_budget)
        return taken

    def _first(self, room: Room, free: Free | None, late_budget: int) -> Flow | None:
        """Return the flow whose launch is next, None for none."""
        self.is_late_open = late_budget > 0
        order: tuple[int, ...] = LIVE_ONLY
        if self.is_late_open:
            order = LIVE_FIRST if self.streak < LIVE_STREAK else LATE_FIRST
        for band in order:
            turns = self._bands[band]
            while turns:
                flow = self._next(next(iter(turns)), room, free)
                if flow is not None:
                    return flow
        return None

    def _next(self, turn: PoolTurn, room: Room, free: Free | None) -> Flow | None:
        """Return the next flow of a pool; if there is none, the pool leaves its band."""
        if turn.limiters and self._is_full(turn):
            return None
        while turn.levels:
            if len(turn.levels) == 1 and not self.table.kept:
                (only,) = turn.levels
                return self._front(only, room)
            best, best_rank, best_level = None, 0, None
            for level in list(turn.levels):
                flow = self._front(level, room)
                if flow is not None:
                    rank = flow.front()[0] * SPREAD + level.priority * TILT
                    if best is None or rank < best_rank:
                        best, best_rank, best_level = flow, rank, level
            if best is None or best_level is None or free is None or not self.table.kept:
                return best
            name = turn.pool.name
            slots = free(self.table.domains.get(name, name))
            if self.table.leaves_reserved(name, best_level.priority, slots):
                return best
            best_level.is_aside = True
            self._aside[best_level] = None
            best_level.refresh()
        return None

    def _is_full(self, part: PoolTurn | Level) -> bool:
        """Return whether a limiter lets nothing begin in a pool or level; then the pool or level
        parks there."""
        for limiter in part.limiters:
            if limiter.room(self.now_ms) <= 0:
                levels = [part] if isinstance(part, Level) else list(part.levels)
                if any([level.front() is not None for level in levels]):
                    limiter.park(part)
                    part.refresh()
                return True
        return False

    def _front(self, level: Level, room: Room) -> Flow | None:
        """Return the next flow of a level that may begin a launch."""
        if level.limiters and self._is_full(level):
            return None
        while (flow := level.front()) is not None:
            if flow.share.own and not flow.enter(self.now_ms):
                continue
            if flow.key.is_limited and not self._is_open(flow):
                continue
            if room(flow.need.need, 1) > 0:
                return flow
            self._close_class(flow)
        return None

    def _is_open(self, flow: Flow) -> bool:
        """Return whether the first launch of a flow may begin by its job's limit; if not, it waits
        behind that limit."""
        due_ms, key = flow.front()
        job = key[0]
        limit = self.job_limit(job)
        is_below = not limit or self.runs.get(job, 0) < limit
        behind = self._behind.get(job, [])
        while behind and behind[0][1] not in self.parked:
            heappop(behind)
        if is_below and not (behind and behind[0][0] < due_ms):
            return True
        flow.pop(1)
        self._park(key, flow, due_ms)
        if is_below:
            self._reopen(job)
        if not flow.size:
            flow.leave()
        return False

    def _take(self, flow: Flow, room: Room, late_budget: int, most: int) -> list[Key]:
        """Take what may begin out of a flow: one launch, or several if nothing binds."""
        share, need, count = flow.share, flow.need, 1
        turn = need.pool.turns[flow.band]
        turn.band.move_to_end(turn)
        if need.is_plenty is not False and flow.size > 1 and most > 1 and not flow.key.is_limited:
            count = self._count(flow, room, min(most, late_budget) if flow.key.is_late else most)
        keys = flow.pop(count)
        running, runs = self.running, self.runs
        for key in keys:
            running[key] = flow
            job = key[0]
            runs[job] = runs.get(job, 0) + 1
        count = len(keys)
        share.running += count
        share.waiting -= count
        for limiter in share.limiters:
            limiter.count(count, -count)
            if limiter.bucket is not None:
                limiter.bucket.take(count)
        self.streak = 0 if flow.key.is_late else self.streak + count
        need.lacked_since_ms, need.lacks_since_ms = need.lacks_since_ms, 0
        share.serve(turn.all[share.priority], flow.band, count)
        if not flow.size:
            flow.leave()
        return keys

    def _count(self, flow: Flow, room: Room, most: int) -> int:
        """Return how many launches of a flow may begin at once: one under contention."""
        need = flow.need
        if need.is_plenty is None:
            name = need.pool.name
            pools = self.domains[self.table.domains.get(name, name)]
            waiting = sum([self.pools[one].ready for one in pools])
            need.is_plenty = room(need.need, waiting) >= waiting and not self.table.kept
            self._known[need] = None
        if not need.is_plenty:
            return 1
        count = min(flow.size, most)
        for limiter in flow.share.limiters:
            count = min(count, limiter.room(self.now_ms))
            if flow.over is None:
                count = min(count, limiter.soft - limiter.running)
        return max(count, 1)

    def spares(self, key: Key, slots: int, free: Free) -> bool:
        """Return whether a taken launch on `slots` executors leaves the slots that are reserved for
        others. `take` has checked only one slot."""
        flow = self.running[key].key
        kept = self.table.kept_from(flow.pool, flow.priority)
        return not kept or free(self.table.domains.get(flow.pool, flow.pool)) - slots >= kept

    # ---- who starves

    def starving(self, now_ms: int) -> dict[Hashable, int]:
        """Return the needs that have waited long for room while other launches began, and since
        when."""
        aside = [one for one in self._aside if isinstance(one, Class) and one.starves_since_ms]
        patient = [one for one in aside if now_ms - one.starves_since_ms >= PATIENCE_MS]
        return {one.need: one.starves_since_ms for one in patient}

    # ---- time

    def tick(self, now_ms: int) -> None:
        """Release what waited for a time that has come; `take` calls it."""
        timers = self.table.timers
        until_ms = UNLIMITED if now_ms < self.now_ms else now_ms  # all, if the clock was set back
        self.now_ms = now_ms
        due = []
        while timers and timers[0][0] <= until_ms:
            due.append(heappop(timers))
        for at_ms, _, limiter in due:
            if limiter.timer_ms == at_ms:
                limiter.wake(now_ms)
        while self._holds and self._holds[0][0] <= now_ms:
            until_ms, _, key = heappop(self._holds)
            held = self.held.get(key)
            if held is None or held.until_ms != until_ms:
                continue
            del self.held[key]
            if held.flow.key.is_limited and key[0] in self._behind:
                self._park(key, held.flow, held.due_ms)
                self._reopen(key[0])
            else:
                self._return(key, held.flow, held.due_ms)

    def next_ms(self) -> int | None:
        """Return when a launch may become runnable by time alone."""
        holds, timers = self._holds, self.table.timers
        while holds and (
            (held := self.held.get(holds[0][2])) is None or held.until_ms != holds[0][0]
        ):
            heappop(holds)
        while timers and not (timers[0][2].timer_ms == timers[0][0] and timers[0][2].parked):
            limiter = heappop(timers)[2]
            if not limiter.parked:
                limiter.timer_ms = 0
        times = [heap[0][0] for heap in (holds, timers) if heap]
        return min([at_ms for at_ms in times if at_ms], default=None)

    # ---- limits

    def set_limits(self, scope: Scope, limits: Limits | None) -> None:
        """Set the limits of `scope`, or clear them with None; running launches are not stopped.

        ValueError for a scope that limits nothing: see `scopes.is_scope`.
        """
        if not is_scope(scope):
            raise ValueError(f"{scope!r} limits nothing; give it a pool, or no priority")
        if limits is None and scope not in self.table.limits:
            return
        before = self.table.limiters.get(scope)
        self.table.put(scope, limits, self.now_ms)
        touched: dict[Limiter, None] = {} if before is None else {before: None}
        shares = self.shares.values()
        for share in [one for one in shares if covers(scope, one.tenant, one.pool, one.priority)]:
            touched.update(dict.fromkeys(share.limiters))
            own = share.own
            for limiter in share.limiters:
                limiter.count(-share.running, -share.waiting)
            share.limiters, share.own, share.weight = (), (), 1
            self._link(share)
            self.table.leave(own, self.now_ms)
            touched.update(dict.fromkeys(share.limiters))
        for pool in self.pools.values():
            for turn in pool.turns.values():
                turn.limiters = self.table.shared(pool.name)
                for level in turn.all.values():
                    level.limiters = self.table.shared(pool.name, level.priority)
        for limiter in touched:
            limiter.wake(self.now_ms)
            limiter.calm(self.now_ms)

    def _link(self, share: Share) -> None:
        """Count a share in all limiters that apply to it."""
        table, pool, priority = self.table, share.pool, share.priority
        if not table.limits:
            return
        share.own = table.enter(share.tenant, pool, priority, self.now_ms)
        share.limiters = table.shared(pool) + table.shared(pool, priority) + share.own
        share.weight = table.weight(share.tenant, pool, priority)
        for limiter in share.limiters:
            limiter.count(share.running, share.waiting)

    def set_domain(self, pool: str, domain: Hashable) -> None:
        """Set the domain whose slots the launches of `pool` share."""
        before = self.table.domains.get(pool, pool)
        self.table.set_domain(pool, domain)
        if pool in self.pools:
            del self.domains[before][pool]
            if not self.domains[before]:
                del self.domains[before]
            self.domains.setdefault(domain, {})[pool] = None

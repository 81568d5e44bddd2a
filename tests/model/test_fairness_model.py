"""The fair queue against one that looks at everything: what may be next, and that it is fair."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cron.scheduler.fair_queue import LIVE_STREAK, FairQueue
from cron.scheduler.flows import FlowKey
from cron.scheduler.views import WaitFor, depths, why
from cron.scopes import Scope
from cron.state.pool import Limits
from tests.drawn import MODEL_EXAMPLES
from tests.model.fairness_naive import ORDER, Item, NaiveFloor, Waiting, rank

TENANTS = ("ann", "bob", "cyd")
POOLS = {"mail": "left", "bill": "left", "scan": "right"}
PRIORITIES = (0, 5, 9)
SCOPES: tuple[Scope, ...] = (
    ("", "", -1), ("", "mail", -1), ("", "bill", -1), ("", "mail", 0), ("", "mail", 5),
    ("", "", 5), ("*", "", -1), ("ann", "", -1), ("*", "mail", -1), ("*", "mail", 5),
    ("ann", "mail", -1), ("ann", "mail", 5), ("bob", "bill", 0),
)  # fmt: skip
RATED: tuple[Scope, ...] = (("", "mail", -1), ("", "", 5), ("", "mail", 5), ("*", "", -1))
NUMBERS = st.integers(0, 1 << 30)


class QueueAgainstNaive(RuleBasedStateMachine):
    """Every start is one that the naive floor allows, and there is one whenever it allows any."""

    def __init__(self) -> None:
        super().__init__()
        self.naive = NaiveFloor()
        self.queue = FairQueue(lambda job: self.naive.job_limits[job], idle_max=2)
        self.number = 0
        self.roomy = 1
        self.rated: frozenset[Scope] = frozenset()
        self.slots: Counter[Hashable] = Counter(left=5, right=5)
        self.is_reserving = False  # without, nobody looks at slots
        self.closed: set[Hashable] = set()
        self.others: dict[Hashable, Counter[Hashable]] = defaultdict(Counter)
        self.heaviest = 1
        self.streak = 0
        for pool, domain in POOLS.items():
            self.queue.set_domain(pool, domain)
            self.naive.domains[pool] = domain

    # ---- what is drawn

    @initialize(
        scopes=st.frozensets(st.sampled_from(RATED), max_size=3),
        rates=st.permutations((300, 999, 2500, 7001)),
    )
    def rated_scopes(self, scopes: frozenset[Scope], rates: list[int]) -> None:
        self.rated = scopes
        for scope, rate in zip(RATED, rates, strict=True):
            if scope in scopes:
                self.limit(scope, Limits(rate_milli=rate))

    def drawn(self, number: int, is_late: bool) -> Item:
        tenant, pool = TENANTS[number % 3], tuple(POOLS)[number // 3 % 3]
        job = f"{tenant}/{number // 9 % 4}"
        self.naive.job_limits.setdefault(job, number // 9 % 4)
        self.number += 1
        return Item(
            key=(job, self.number),
            job=job,
            tenant=tenant,
            pool=pool,
            priority=PRIORITIES[number // 36 % 3],
            place=(pool, number // 108 % 2),
            enqueued_ms=self.naive.now_ms,
            is_late=is_late,
            domain=POOLS[pool],
        )

    def flow(self, item: Item) -> FlowKey:
        is_limited = self.naive.job_limits[item.job] > 0
        return FlowKey(item.tenant, item.pool, item.priority, item.place, item.is_late, is_limited)

    def some(self, among: dict[Hashable, Waiting], number: int) -> Item:
        return list(among.values())[number % len(among)].item

    def forget_turns(self, *items: Item) -> None:
        """Their lines or classes may have left the rings meanwhile."""
        for item in items:
            gone = (("pool", item.pool), self.turn_of(item))
            for watched in list(self.others):
                if watched in gone:
                    del self.others[watched]

    # ---- rules

    @rule(
        numbers=st.lists(NUMBERS, min_size=1, max_size=6), is_late=st.booleans(), wait=st.booleans()
    )
    def add(self, numbers: list[int], is_late: bool, wait: bool) -> None:
        for number in numbers:
            item = self.drawn(number, is_late)
            until_ms = self.naive.now_ms + number % 5000 + 1 if wait else 0
            assert self.queue.add(item.key, self.flow(item), item.enqueued_ms, until_ms)
            assert not self.queue.add(item.key, self.flow(item), item.enqueued_ms)
            self.naive.waiting[item.key] = Waiting(item, self.number, until_ms)

    @rule(number=NUMBERS, count=st.integers(1, 5), is_late=st.booleans())
    def add_alike(self, number: int, count: int, is_late: bool) -> None:
        items = [self.drawn(number, is_late) for _ in range(count)]
        if self.naive.job_limits[items[0].job]:
            return
        keys = [item.key for item in items]
        self.queue.add_alike(keys, self.flow(items[0]), items[0].enqueued_ms)
        for item in items:
            self.naive.waiting[item.key] = Waiting(item, self.number)

    @rule(streak=st.integers(LIVE_STREAK - 2, LIVE_STREAK))
    def many_live_ones_began(self, streak: int) -> None:
        """Else so many seldom do."""
        self.streak = self.queue.streak = streak

    @rule(number=NUMBERS)
    def add_running(self, number: int) -> None:
        item = self.drawn(number, False)
        assert self.queue.add_running(item.key, self.flow(item))
        assert not self.queue.add_running(item.key, self.flow(item))
        self.naive.running[item.key] = Waiting(item, self.number)

    @precondition(lambda self: self.naive.waiting)
    @rule(number=NUMBERS)
    def remove(self, number: int) -> None:
        item = self.some(self.naive.waiting, number)
        assert self.queue.remove(item.key)
        assert not self.queue.remove(item.key)
        del self.naive.waiting[item.key]
        self.forget_turns(item)

    @precondition(lambda self: self.naive.waiting)
    @rule(number=NUMBERS)
    def hold(self, number: int) -> None:
        item = self.some(self.naive.waiting, number)
        until_ms = self.naive.now_ms + number % 3000 + 1
        assert self.queue.hold(item.key, item.enqueued_ms, until_ms)
        self.naive.waiting[item.key].until_ms = until_ms
        self.forget_turns(item)

    @precondition(lambda self: self.naive.waiting)
    @rule(number=NUMBERS)
    def began(self, number: int) -> None:
        item = self.some(self.naive.waiting, number)
        assert self.queue.add_running(item.key, self.flow(item))
        assert item.key not in self.queue
        self.naive.running[item.key] = self.naive.waiting.pop(item.key)
        self.forget_turns(item)

    @precondition(lambda self: self.naive.running)
    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=4))
    def ended(self, numbers: list[int]) -> None:
        for number in numbers:
            if self.naive.running:
                item = self.some(self.naive.running, number)
                self.queue.ended([item.key])
                del self.naive.running[item.key]

    @rule(after_ms=st.sampled_from((1, 50, 700, 10_000, 40_000)))
    def time_goes_on(self, after_ms: int) -> None:
        self.naive.now_ms += after_ms

    @rule(number=NUMBERS, limits=st.tuples(*[st.integers(0, 3)] * 4))
    def set_limits(self, number: int, limits: tuple[int, int, int, int]) -> None:
        scope = SCOPES[number % len(SCOPES)]
        is_rated = scope in self.rated or (("*", "", -1) in self.rated and scope[1] == "")
        if is_rated and scope[0] != "":
            return
        concurrent, burst, weight, reserved = limits
        rate = self.naive.limits[scope].rate_milli if scope in self.rated else 0
        self.limit(scope, Limits(weight, concurrent, concurrent + burst, rate, 0, reserved))

    def limit(self, scope: Scope, limits: Limits) -> None:
        self.heaviest = max(self.heaviest, limits.weight)
        self.others.clear()
        self.queue.tick(self.naive.now_ms)
        self.queue.set_limits(scope, limits)
        self.naive.limits[scope] = limits

    @rule(number=NUMBERS)
    def clear_limits(self, number: int) -> None:
        scope = SCOPES[number % len(SCOPES)]
        if not self.rated or scope not in (*self.rated, ("ann", "", -1)):
            self.queue.set_limits(scope, None)
            self.naive.limits.pop(scope, None)
            self.others.clear()

    @rule(number=NUMBERS, limit=st.integers(0, 3))
    def set_job_limit(self, number: int, limit: int) -> None:
        job = f"{TENANTS[number % 3]}/{number // 3 % 4}"
        if job in self.naive.job_limits:
            self.naive.job_limits[job] = limit
            self.add_anew(job)
            self.others.clear()

    def add_anew(self, job: str) -> None:
        """As a leader does after a job has changed."""
        for one in self.naive.waiting.values():
            item = one.item
            if item.job == job:
                assert self.queue.remove(item.key)
                assert self.queue.add(item.key, self.flow(item), item.enqueued_ms, one.until_ms)

    @rule(closed=st.sets(st.sampled_from([(pool, n) for pool in POOLS for n in (0, 1)])))
    def rooms(self, closed: set[Hashable]) -> None:
        self.closed = closed

    @rule(left=st.integers(0, 6), right=st.integers(0, 6))
    def slots_change(self, left: int, right: int) -> None:
        self.slots = Counter(left=left, right=right)

    # ---- taking

    def has_room(self, place: Hashable, most: int = 1) -> int:
        room = 0 if place in self.closed else min(most, self.roomy)
        assert isinstance(place, tuple)
        return max(0, min(room, self.slots[POOLS[place[0]]])) if self.is_reserving else room

    def is_open(self, place: Hashable) -> bool:
        return self.has_room(place) > 0

    def is_free(self, domain: Hashable) -> int:
        return self.slots[domain]

    @rule(
        count=st.integers(1, 8),
        late=st.integers(0, 5),
        is_reserving=st.booleans(),
        most=st.sampled_from((1, 1, 3, 100)),
        roomy=st.sampled_from((1, 4, 100)),
    )
    def take(self, count: int, late: int, is_reserving: bool, most: int, roomy: int) -> None:
        self.queue.begin_round()
        self.roomy, self.is_reserving = roomy, is_reserving
        free = self.is_free if is_reserving else None
        for _ in range(count):
            taken = self.queue.take(self.naive.now_ms, self.has_room, late, free, most)
            if not taken:
                missed = [one for _, among in self.allowed(late, free) for one in among]
                assert all(map(self.is_held_up, missed)), missed
                break
            assert len(taken) <= most
            items = [self.naive.waiting[key].item for key in taken]
            assert len({item.place for item in items}) == 1
            is_plenty = len(items) > 1 and self.is_plenty(items[0])
            for item in items:
                if is_plenty:
                    found = self.naive.candidates(self.naive.now_ms, self.is_open, free)
                    assert item.key in [one.item.key for among in found.values() for one in among]
                    self.others.clear()
                else:
                    bands = self.allowed(late, free)
                    assert bands, f"{item} may not begin"
                    assert len(items) == 1 or not self.naive.job_limits[item.job]
                    self.judge(item, bands[0][1])
                    self.watch(item, *bands[0])
                late -= item.is_late
                assert late >= 0
                self.begin(item)
            for slots in (1, 2, 4):
                spares = self.naive.spares(item, slots, self.slots[item.domain])
                assert self.queue.spares(item.key, slots, self.is_free) is spares
        else:
            return
        self.look_ahead(free, late > 0)

    def allowed(
        self, late: int, free: Callable[[Hashable], int] | None
    ) -> list[tuple[tuple[bool, bool], list[Waiting]]]:
        """What may be next by band, the band that has its turn first."""
        found = self.naive.candidates(self.naive.now_ms, self.is_open, free)
        bands = [band for band in ORDER if found[band] and (late or not band[0])]
        if self.streak >= LIVE_STREAK and ORDER[1] in bands:
            bands = [ORDER[1]]
        return [(band, found[band]) for band in bands]

    def is_plenty(self, item: Item) -> bool:
        """Whether there is room for all that waits for the same slots: their order is free then."""
        waiting = [one for one in self.naive.waiting.values() if one.item.domain == item.domain]
        ready = [
            one
            for one in waiting
            if one.until_ms <= self.naive.now_ms and not self.naive.job_limits[one.item.job]
        ]
        return self.roomy >= len(ready) and not self.naive.claimed(item.domain)

    def begin(self, item: Item) -> None:
        self.streak = 0 if item.is_late else self.streak + 1
        self.naive.running[item.key] = self.naive.waiting.pop(item.key)
        self.naive.spend(item, 1)
        self.slots[item.domain] -= 1

    def judge(self, item: Item, allowed: list[Waiting]) -> None:
        """It is among what may be next, and no other priority of its pool has to go first."""
        assert item.key in [one.item.key for one in allowed]
        levels: dict[int, list[Item]] = defaultdict(list)
        for one in allowed:
            if one.item.pool == item.pool:
                levels[one.item.priority].append(one.item)
        for priority, level in levels.items():
            if priority != item.priority:
                fronts = [rank(one) for one in level]
                assert rank(item) < max(fronts), f"{priority} goes before {item.key}"

    def watch(self, item: Item, band: tuple[bool, bool], allowed: list[Waiting]) -> None:
        """No tenant that could begin all the time sees another of its queue have more turns than
        the heaviest weight, and no pool sees another have two."""
        if band != (False, False):
            return
        mine = {self.turn_of(one.item) for one in allowed}
        mine |= {("pool", one.item.pool) for one in allowed}
        for watched in list(self.others):
            if watched not in mine:
                del self.others[watched]
        for watched in mine:
            other, most = self.turn_of(item), self.heaviest
            if watched[0] == "pool":
                other, most = ("pool", item.pool), 1
            elif watched[2:] != other[2:]:
                continue
            if watched == other:
                self.others[watched].clear()
            else:
                self.others[watched][other] += 1
                assert self.others[watched][other] <= most, f"{watched} is passed over"

    def turn_of(self, item: Item) -> tuple[Hashable, ...]:
        """Whose turn a launch has: its tenant's, in its queue."""
        return ("tenant", item.tenant, item.pool, item.priority)

    @precondition(lambda self: self.naive.running)
    @rule(number=NUMBERS, wait_ms=st.integers(0, 2000))
    def put_back(self, number: int, wait_ms: int) -> None:
        item = self.some(self.naive.running, number)
        if self.queue.running[item.key].key != self.flow(item):
            return  # its job has changed since; a plan puts back what it took itself
        until_ms = self.naive.now_ms + wait_ms if wait_ms else 0
        self.queue.tick(self.naive.now_ms)
        assert self.queue.put_back(item.key, item.enqueued_ms, until_ms)
        assert not self.queue.put_back(item.key, item.enqueued_ms)
        self.streak = LIVE_STREAK if item.is_late else max(0, self.streak - 1)
        one = self.naive.running.pop(item.key)
        one.until_ms = until_ms
        self.naive.waiting[item.key] = one
        self.naive.spend(item, -1)

    def look_ahead(self, free: object, is_late: bool) -> None:
        """After None, nothing may begin by time alone before `next_ms`."""
        at_ms = self.queue.next_ms()
        until_ms = self.naive.now_ms + 10**7 if at_ms is None else at_ms - 1
        assert until_ms >= self.naive.now_ms
        some = self.is_free if free is not None else None
        allowed = self.naive.candidates(until_ms, self.is_open, some)
        missed = [one for band in ORDER if is_late or not band[0] for one in allowed[band]]
        assert all(map(self.is_held_up, missed)), allowed

    def is_held_up(self, one: Waiting) -> bool:
        """Return whether a launch waits behind its job's limit while another one of the job, which
        needs something else, stands in its flow without room: it is not let by, a known gap."""
        return one.item.key in self.queue.parked and any(
            other.item.job == one.item.job and not self.is_open(other.item.place)
            for other in self.naive.waiting.values()
        )

    # ---- what people see

    @invariant()
    def counts_are_right(self) -> None:
        rows: Counter[tuple[str, int, str, str]] = Counter()
        for name, among in (("waiting", self.naive.waiting), ("running", self.naive.running)):
            for one in among.values():
                rows[one.item.pool, one.item.priority, one.item.tenant, name] += 1
        seen: Counter[tuple[str, int, str, str]] = Counter()
        for depth in depths(self.queue):
            place = (depth.pool, depth.priority, depth.tenant)
            seen[(*place, "waiting")] = depth.waiting
            seen[(*place, "running")] = depth.running
            mine = [
                w.item
                for w in self.naive.waiting.values()
                if (w.item.pool, w.item.priority, w.item.tenant) == place
            ]
            assert depth.oldest_ms == min([one.enqueued_ms for one in mine], default=0)
        assert +seen == rows
        assert set(self.queue.running) == set(self.naive.running)
        assert len(self.queue) == len(self.naive.waiting)
        for scope, limiter in self.queue.table.limiters.items():
            assert limiter.running == self.naive.count(scope, self.naive.running), scope
            assert limiter.waiting == self.naive.count(scope, self.naive.waiting), scope
        sums = {domain: self.naive.claimed(domain) for domain in ("left", "right")}
        assert Counter(self.queue.table.kept) == +Counter(sums)

    @invariant()
    def everything_that_waits_says_why(self) -> None:
        for one in self.naive.waiting.values():
            wait = why(self.queue, one.item.key)
            assert wait is not None
            if one.until_ms > self.naive.now_ms:
                assert (wait.what, wait.until_ms) == (WaitFor.HOLD, one.until_ms)
            elif self.naive.job_is_full(one.item) and wait.what is not WaitFor.HOLD:
                assert wait.what is WaitFor.JOB_LIMIT

    def teardown(self) -> None:
        queue = self.queue
        for key in [*self.naive.waiting, *self.naive.running]:
            assert queue.remove(key)
        queue.tick(self.naive.now_ms + 10**8)
        queue.begin_round()
        assert queue.take(self.naive.now_ms, self.has_room, 1) == []
        assert not any(queue._bands)
        assert len(queue.flows) == len(queue._idle) <= 2
        for flow in list(queue._idle):
            queue._forget(flow)
        left = (queue.flows, queue.shares, queue.pools, queue.classes, queue.runs, queue.domains)
        assert not any(left), left
        assert not queue._aside
        assert not queue._behind
        parts = [(one.scope, one.parked, one.bursting) for one in queue.table.limiters.values()]
        assert not [part for part in parts if part[1] or part[2]]
        mine = {one for one in queue.table.limiters.values() if one.scope[0]}
        assert mine <= set(queue.table.lingering)


TestQueueAgainstNaive = QueueAgainstNaive.TestCase
TestQueueAgainstNaive.settings = settings(
    max_examples=MODEL_EXAMPLES, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)


@pytest.mark.nightly
class TestQueueAgainstNaiveAtLength(TestQueueAgainstNaive):
    settings = settings(TestQueueAgainstNaive.settings, max_examples=150)

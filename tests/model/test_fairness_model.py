"""The pump against a floor that looks at everything: what may be next, and that it is fair."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from launcher.fairness.floor import LIVE_STREAK
from launcher.fairness.item import Item, Limits, Scope, WaitFor
from launcher.fairness.pump import Pump
from tests.model.fairness_naive import ORDER, NaiveFloor, Waiting, rank

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


class PumpAgainstNaive(RuleBasedStateMachine):
    """Every start is one that the naive floor allows, and there is one whenever it allows any."""

    def __init__(self) -> None:
        super().__init__()
        self.pump, self.naive = Pump(), NaiveFloor()
        self.number = 0
        self.rated: frozenset[Scope] = frozenset()
        self.slots: Counter[Hashable] = Counter(left=5, right=5)
        self.closed: set[Hashable] = set()
        self.others: dict[Hashable, Counter[Hashable]] = defaultdict(Counter)
        self.heaviest = 1
        self.streak = 0
        for pool, domain in POOLS.items():
            self.pump.set_domain(pool, domain)
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
        limit = self.naive.job_limits.setdefault(job, number // 9 % 4)
        self.number += 1
        return Item(
            key=f"{job}@{self.number}",
            job=job,
            tenant=tenant,
            pool=pool,
            priority=PRIORITIES[number // 36 % 3],
            place=(pool, number // 108 % 2),
            enqueued_ms=self.naive.now_ms,
            is_late=is_late,
            job_limit=limit,
            domain=POOLS[pool],
        )

    def some(self, among: dict[Hashable, Waiting], number: int) -> Item:
        return list(among.values())[number % len(among)].item

    def forget_turns(self, *items: Item) -> None:
        """Their lines or classes may have left the rings meanwhile."""
        for item in items:
            gone = (
                ("class", item.pool, item.place),
                ("alone", item.tenant, item.domain),
                ("one of", item.pool, item.place),
                ("line", *self.line(item)),
            )
            for watched in list(self.others):
                if watched in gone:
                    del self.others[watched]

    def line(self, item: Item) -> tuple[Hashable, ...]:
        return Waiting(item, 0).line

    # ---- rules

    @rule(
        numbers=st.lists(NUMBERS, min_size=1, max_size=6), is_late=st.booleans(), wait=st.booleans()
    )
    def add(self, numbers: list[int], is_late: bool, wait: bool) -> None:
        for number in numbers:
            item = self.drawn(number, is_late)
            until_ms = self.naive.now_ms + number % 5000 + 1 if wait else 0
            assert self.pump.add(item, until_ms)
            assert not self.pump.add(item)
            self.naive.waiting[item.key] = Waiting(item, self.number, until_ms)

    @rule(streak=st.integers(LIVE_STREAK - 2, LIVE_STREAK))
    def many_live_ones_began(self, streak: int) -> None:
        """Else so many seldom do."""
        self.streak = self.pump._floor.streak = streak

    @rule(number=NUMBERS)
    def add_running(self, number: int) -> None:
        item = self.drawn(number, False)
        assert self.pump.add_running(item)
        assert not self.pump.add_running(item)
        self.naive.running[item.key] = Waiting(item, self.number)

    @precondition(lambda self: self.naive.waiting)
    @rule(number=NUMBERS)
    def remove(self, number: int) -> None:
        item = self.some(self.naive.waiting, number)
        assert self.pump.remove(item.key)
        assert not self.pump.remove(item.key)
        del self.naive.waiting[item.key]
        self.forget_turns(item)

    @precondition(lambda self: self.naive.waiting)
    @rule(number=NUMBERS)
    def hold(self, number: int) -> None:
        item = self.some(self.naive.waiting, number)
        until_ms = self.naive.now_ms + number % 3000 + 1
        assert self.pump.hold(item.key, until_ms)
        self.naive.waiting[item.key].until_ms = until_ms
        self.forget_turns(item)

    @precondition(lambda self: self.naive.waiting)
    @rule(number=NUMBERS)
    def began(self, number: int) -> None:
        item = self.some(self.naive.waiting, number)
        assert self.pump.began(item.key)
        assert not self.pump.began(item.key)
        self.naive.running[item.key] = self.naive.waiting.pop(item.key)
        self.forget_turns(item)

    @precondition(lambda self: self.naive.running)
    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=4))
    def ended(self, numbers: list[int]) -> None:
        for number in numbers:
            if self.naive.running:
                item = self.some(self.naive.running, number)
                assert self.pump.ended(item.key)
                assert not self.pump.ended(item.key)
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
        self.pump.tick(self.naive.now_ms)
        self.pump.set_limits(scope, limits)
        self.naive.limits[scope] = limits

    @rule(number=NUMBERS)
    def clear_limits(self, number: int) -> None:
        scope = SCOPES[number % len(SCOPES)]
        if not self.rated or scope not in (*self.rated, ("ann", "", -1)):
            self.pump.clear_limits(scope)
            self.naive.limits.pop(scope, None)
            self.others.clear()

    @rule(number=NUMBERS, limit=st.integers(0, 3))
    def set_job_limit(self, number: int, limit: int) -> None:
        job = f"{TENANTS[number % 3]}/{number // 3 % 4}"
        if job in self.naive.job_limits:
            self.pump.set_job_limits({job: limit})
            self.naive.job_limits[job] = limit
            self.others.clear()

    @rule(closed=st.sets(st.sampled_from([(pool, n) for pool in POOLS for n in (0, 1)])))
    def rooms(self, closed: set[Hashable]) -> None:
        self.closed = closed

    @rule(left=st.integers(0, 6), right=st.integers(0, 6))
    def slots_change(self, left: int, right: int) -> None:
        self.slots = Counter(left=left, right=right)

    # ---- taking

    def has_room(self, place: Hashable) -> bool:
        return place not in self.closed

    def is_free(self, domain: Hashable) -> int:
        return self.slots[domain]

    @rule(count=st.integers(1, 8), is_late=st.booleans(), is_reserving=st.booleans())
    def take(self, count: int, is_late: bool, is_reserving: bool) -> None:
        self.pump.begin_round()
        free = self.is_free if is_reserving else None
        for _ in range(count):
            allowed = self.naive.candidates(self.naive.now_ms, self.has_room, free)
            item = self.pump.take(self.naive.now_ms, self.has_room, int(is_late), free)
            bands = [band for band in ORDER if allowed[band] and (is_late or not band[0])]
            if self.streak >= LIVE_STREAK and ORDER[1] in bands:
                bands = [ORDER[1]]
            if item is None:
                assert not bands, allowed
                break
            assert bands, f"{item.key} may not begin"
            self.streak = 0 if item.is_late else self.streak + 1
            self.judge(item, allowed[bands[0]])
            self.watch(item, bands[0], allowed[bands[0]])
            self.naive.running[item.key] = self.naive.waiting.pop(item.key)
            self.naive.spend(item, 1)
            for slots in (1, 2, 4):
                spares = self.naive.spares(item, slots, self.slots[item.domain])
                assert self.pump.spares(item, slots, self.is_free) is spares
            self.slots[item.domain] -= 1
        else:
            return
        self.look_ahead(free, is_late)

    def judge(self, item: Item, allowed: list[Waiting]) -> None:
        """It is among what may be next, and no other priority of its class has to go first."""
        assert item.key in [one.item.key for one in allowed]
        lines: dict[int, dict[Hashable, list[Item]]] = defaultdict(lambda: defaultdict(list))
        for one in allowed:
            if (one.item.pool, one.item.place) == (item.pool, item.place):
                lines[one.item.priority][one.line].append(one.item)
        for priority, shelf in lines.items():
            if priority != item.priority:
                fronts = [rank(one) for line in shelf.values() for one in line]
                assert rank(item) < max(fronts), f"{priority} goes before {item.key}"

    def watch(self, item: Item, band: tuple[bool, bool], allowed: list[Waiting]) -> None:
        """Nobody who could begin all the time sees another have two turns."""
        if band != (False, False):
            return
        mine = {("line", *one.line): one.item for one in allowed}
        mine |= {self.turn_of(one.item): one.item for one in allowed}
        mine |= {("one of", one.item.pool, one.item.place): one.item for one in allowed}
        for watched in list(self.others):
            if watched not in mine:
                del self.others[watched]
        for watched, one in mine.items():
            if watched[0] in ("class", "alone"):
                other, most = self.turn_of(item), max(self.heaviest, len(TENANTS))
                if other[0] == "class" == watched[0]:
                    most = len(TENANTS)
            elif watched[0] == "one of":
                other, most = ("one of", item.pool, item.place), 1
                if self.turn_of(item) != self.turn_of(one) or self.turn_of(one)[0] == "class":
                    continue
            else:
                other, most = ("line", *self.line(item)), self.heaviest
                if (one.pool, one.place, one.priority) != (item.pool, item.place, item.priority):
                    continue
            if watched == other:
                self.others[watched].clear()
            else:
                self.others[watched][other] += 1
                assert self.others[watched][other] <= most, f"{watched} is passed over"

    def turn_of(self, item: Item) -> tuple[Hashable, ...]:
        """Whose turns an item has: those of its class, or of its tenant where that is alone."""
        place = self.pump._floor.places[item.pool, item.place]
        if place.sole is None:
            return ("class", item.pool, item.place)
        return ("alone", item.tenant, place.domain)

    @precondition(lambda self: self.naive.running)
    @rule(number=NUMBERS, wait_ms=st.integers(0, 2000))
    def put_back(self, number: int, wait_ms: int) -> None:
        item = self.some(self.naive.running, number)
        until_ms = self.naive.now_ms + wait_ms if wait_ms else 0
        self.pump.tick(self.naive.now_ms)
        assert self.pump.put_back(item, until_ms)
        assert not self.pump.put_back(item)
        self.streak = LIVE_STREAK if item.is_late else max(0, self.streak - 1)
        one = self.naive.running.pop(item.key)
        one.until_ms = until_ms
        self.naive.waiting[item.key] = one
        self.naive.spend(item, -1)

    def look_ahead(self, free: object, is_late: bool) -> None:
        """After None, nothing may begin by time alone before `next_ms`."""
        at_ms = self.pump.next_ms()
        until_ms = self.naive.now_ms + 10**7 if at_ms is None else at_ms - 1
        assert until_ms >= self.naive.now_ms
        some = self.is_free if free is not None else None
        allowed = self.naive.candidates(until_ms, self.has_room, some)
        assert not [band for band in ORDER if allowed[band] and (is_late or not band[0])]

    # ---- what people see

    @invariant()
    def counts_are_right(self) -> None:
        rows: Counter[tuple[str, int, str, str]] = Counter()
        for name, among in (("waiting", self.naive.waiting), ("running", self.naive.running)):
            for one in among.values():
                rows[one.item.pool, one.item.priority, one.item.tenant, name] += 1
        seen: Counter[tuple[str, int, str, str]] = Counter()
        for depth in self.pump.depths():
            place = (depth.pool, depth.priority, depth.tenant)
            seen[(*place, "waiting")] = depth.waiting
            seen[(*place, "running")] = depth.running
            mine = [
                w.item
                for w in self.naive.waiting.values()
                if (w.item.pool, w.item.priority, w.item.tenant) == place
            ]
            assert depth.oldest_ms == min([one.enqueued_ms for one in mine], default=0) or mine
        assert +seen == rows
        assert (len(self.pump), self.pump.running) == (
            len(self.naive.waiting),
            len(self.naive.running),
        )
        for scope, gauge in self.pump._floor.book.gauges.items():
            assert gauge.running == self.naive.count(scope, self.naive.running), scope
            assert gauge.waiting == self.naive.count(scope, self.naive.waiting), scope
        sums = {domain: self.naive.claimed(domain) for domain in ("left", "right")}
        assert Counter(self.pump._floor.book.claims.sums) == +Counter(sums)

    @invariant()
    def everything_that_waits_says_why(self) -> None:
        for one in self.naive.waiting.values():
            why = self.pump.why(one.item.key)
            assert why is not None
            if one.until_ms > self.naive.now_ms:
                assert (why.what, why.until_ms) == (WaitFor.HOLD, one.until_ms)
            elif self.naive.job_is_full(one.item) and why.what is not WaitFor.HOLD:
                assert why.what is WaitFor.JOB_LIMIT

    def teardown(self) -> None:
        for key in [*self.naive.waiting, *self.naive.running]:
            assert self.pump.remove(key)
        floor = self.pump._floor
        self.pump.tick(self.naive.now_ms + 10**8)
        self.pump.begin_round()
        left = (floor.queues, floor.lines, floor.places, floor.jobs, floor.until, floor.aside)
        assert not any(left), left
        assert not any(floor.turns)
        assert not any(gauge.parked or gauge.bursting for gauge in floor.book.gauges.values())
        assert {gauge for gauge in floor.book.gauges.values() if gauge.scope[0]} <= set(
            floor.book.lingering
        )


TestPumpAgainstNaive = PumpAgainstNaive.TestCase
TestPumpAgainstNaive.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

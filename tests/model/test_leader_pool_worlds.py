"""The worlds of the leader's loop, with all that the pool has: who may begin, who must, and where.

Tenants with limits, priorities, gates, tries, concurrency, handlers whose workers come and go,
drains, cpu and memory. After each entry nothing exceeds a limit; after each plan everything that
may begin has begun: so a wake-up that was lost is found at once, and not by a deadline.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import NamedTuple

import msgspec
import pytest

from cron.job import COMMAND, Job, OnLost, Overlap, Retry
from cron.launch_state import ACTIVE, LaunchState
from cron.scheduler.gates import fits
from cron.scheduler.places import Capacity, Place
from cron.scheduler.plan import HELD_REST_MS, View, plan
from cron.scheduler.queues import REFUSED_REST_MS, Queues
from cron.scopes import Scope
from cron.state import commands as c
from cron.state.launch_row import LaunchRow
from cron.state.pool import (
    CloseGate,
    Drain,
    DropDead,
    Gate,
    GateAction,
    LiftGates,
    LimitItem,
    Limits,
    Redrive,
    SetLimits,
)
from cron.state.state import JobRecord, State
from launcher.protocol.names import split_job_name
from launcher.protocol.reports import GroupOffer
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from tests.batches import AttemptItem, begun
from tests.drawn import seeds
from tests.model.naive_limits import most, ran_with, scopes_of
from tests.model.test_state_leader_loop import World
from tests.places import has_room

TENANTS = ("acme", "blue", "core")
HANDLERS = ("h0", "h1", "h2")
GROUPS = (("g", ("h0", "h1")), ("g", HANDLERS), ("k", ("h1",)), ("m", ("h2",)))
PLENTY = 1000


class Open(NamedTuple):
    """What is open at a tick: what runs by the scopes that limit it and by job, and the oldest
    launch of each job."""

    counts: Counter[Scope]
    active: Counter[int]
    oldest: dict[int, c.Key]


class PoolWorld(World):
    """A world with people who set limits, close gates and drain, and workers that come and go."""

    is_calm = False

    def __init__(self, seed: int) -> None:
        self.refused_ms: dict[tuple[c.Key, int], int] = {}
        self.places: dict[int, Place] = {}
        self.seen: Counter[str] = Counter()
        super().__init__(seed)

    def name(self, number: int) -> str:
        return f"{TENANTS[number % 3]}/j{number}"

    def job(self, number: int) -> Job:
        chance = self.chance
        work = WorkSpec(
            ("true",),
            cpu_milli=chance.choice([0, 0, 500]),
            memory_bytes=chance.choice([0, 0, 100]),
            priority=chance.choice([0, 5, 5, 9]),
        )
        if chance.random() < 0.5:
            work = msgspec.structs.replace(work, argv=(), handler=chance.choice(HANDLERS))
        tries = chance.choice([1, 2, 4])
        return msgspec.structs.replace(
            super().job(number),
            work=work,
            overlap=chance.choice([*Overlap, Overlap.ALLOW, Overlap.ALLOW]),
            on_lost=chance.choice(list(OnLost)),
            retry=Retry(tries, chance.choice([500, 5000]), 20_000, fatal_codes=(3,)),
            concurrency=chance.choice([0, 1, 2]),
            collection=chance.choice(["", "night"]),
            where=chance.choice(["", "", "disk=ssd"]),
        )

    # ---- the executors

    def place(self, slots: dict[int, int]) -> None:
        """Executors with chance's slots and workers; those that are drained get nothing."""
        queues, executors = self.indexes.queues, self.machine.state.executors
        for number in list(self.places):
            is_gone = number not in slots or executors[number].drained_by
            if is_gone or self.is_calm or self.chance.random() < 0.1:
                del self.places[number]
        for number, record in executors.items():
            if number in slots and not record.drained_by and number not in self.places:
                self.places[number] = self.offered(number, slots[number])
        for number in [one for one in queues.places.views if one not in self.places]:
            queues.places.drop(number)
            queues.serve(number, ())
        for number, place in self.places.items():
            queues.places.put(place)
            queues.serve(number, self.offers[number])

    @property
    def offers(self) -> dict[int, list[GroupOffer]]:
        return {
            number: [
                GroupOffer(group, capacity.slots, capacity.pools)
                for group, handlers in GROUPS
                for capacity in place.capacities[1:]
                if capacity.pools == handlers
            ]
            for number, place in self.places.items()
        }

    def offered(self, number: int, slots: int) -> Place:
        """An executor with one group of workers, or two that serve different handlers, or none."""
        if self.is_calm:
            capacities = (Capacity(slots), Capacity(slots, HANDLERS))
            return Place(number, {"disk": "ssd"}, capacities)
        chance = self.chance
        groups = chance.choice([(), (GROUPS[0],), (GROUPS[1],), (GROUPS[2], GROUPS[3])])
        workers = [Capacity(chance.randint(1, 3), handlers) for _, handlers in groups]
        labels = {"disk": "ssd" if number % 2 else "hdd"}
        cpu, memory = chance.choice([(0, 0), (1000, 0), (600, 250)])
        return Place(number, labels, (Capacity(slots), *workers), cpu, memory)

    # ---- a turn

    def tick(self, *, slots: dict[int, int], expired: list[int]) -> None:
        chance, state = self.chance, self.machine.state
        dice = chance.random()
        if dice < 0.03:  # its clock is off: only what is lost is said
            commands = plan(View(state, [], expired=expired, queues=Queues(State())), self.now_ms)
            if commands:
                self.append(*commands)
            return
        self.place(slots)
        if dice > 0.7:
            self.turn(expired, chance.choice([0, 2]), rows_max=2)
            return
        # A plan and its entry, until there is nothing more to do: an entry wakes the leader.
        while self.turn(expired, PLENTY, rows_max=PLENTY):
            expired = []
        self.check_nothing_is_left()

    def turn(self, expired: list[int], late_budget: int, *, rows_max: int) -> bool:
        """One turn of the leader; return whether there was anything to do."""
        state, chance = self.machine.state, self.chance
        while not self.indexes.let_go():
            pass
        view = View(
            state,
            self.indexes.due_heap.take(self.now_ms // 1000, limit=chance.choice([3, 100])),
            expired=expired,
            late_budget=late_budget,
            queues=self.indexes.queues,
            rows_max=rows_max,
            reports=self.successes(),
        )
        commands = [*view.reports, *plan(view, self.now_ms)]
        self.indexes.due_heap.put_back(view.postponed)
        if not commands:
            return bool(view.due_jobs)
        if chance.random() < 0.03:
            self.lead()
            self.place({})
            return True
        gates = list(state.gates.values())
        self.append(*commands)
        self.check_begun(commands, gates)
        return True

    def lead(self) -> None:
        super().lead()
        self.refused_ms.clear()

    # ---- what executors say, and people do

    def results(self) -> None:
        super().results()
        for row in self.machine.state.due.values():
            if row.is_refused:
                self.refused_ms.setdefault((row.key, row.attempt), self.now_ms)

    def end_of(self, key: c.Key, attempt: int, cancel: Reason) -> c.Report:
        chance, row = self.chance, self.machine.state.active[key]
        if cancel or chance.random() < 0.5 or self.is_calm:
            return super().end_of(key, attempt, cancel)
        state, reason, code, after_ms = LaunchState.FAILED, Reason.NONE, chance.choice([1, 3]), 0
        if ran_with(self.machine.state, row).work.handler:
            reason = chance.choice([Reason.RAISED, Reason.RETRY, Reason.FATAL, Reason.SNOOZE])
            after_ms = chance.choice([0, 3000]) if reason is not Reason.FATAL else 0
            if reason is Reason.SNOOZE:
                state = LaunchState.CANCELLED
        item = AttemptItem.of(
            key, attempt, state, reason, code, self.now_ms, self.now_ms, retry_after_ms=after_ms
        )
        return c.Report((item,))

    def run(self, steps: int, *, people: bool = False) -> None:
        for _ in range(steps):
            if self.chance.random() < 0.25:
                self.operate()
            super().run(1, people=people)

    def operate(self) -> None:
        """What operators do to the pool."""
        chance, state = self.chance, self.machine.state
        event = chance.randrange(8)
        if event < 2:
            self.append(SetLimits((LimitItem(self.scope(), self.limits()),), "anna"))
        elif event == 2:
            self.append(CloseGate(self.gate()))
        elif event < 5:
            self.append(LiftGates(tuple(list(state.gates)[:1]), "anna"))
        elif event == 5:
            executors = [record.executor for record in state.executors.values()]
            is_over = chance.random() < 0.7
            if executors:
                self.append(Drain(chance.choice(executors), "anna", is_over))
        else:
            keys = tuple(list(state.dead)[:3])
            self.append(Redrive(keys, "anna") if event == 6 else DropDead(keys[:1], "anna"))

    def scope(self) -> Scope:
        chance = self.chance
        tenant = chance.choice(["", "*", *TENANTS])
        pool = chance.choice(["", COMMAND, *HANDLERS])
        priority = chance.choice([-1, 5]) if pool or not tenant else -1
        return (tenant, pool, priority)

    def limits(self) -> Limits | None:
        chance = self.chance
        if chance.random() < 0.4:
            return None
        return Limits(
            weight=chance.choice([0, 3]),
            concurrent=chance.choice([0, 1, 2, 4]),
            burst=chance.choice([0, 3]),
            rate_milli=chance.choice([0, 0, 500, 2000]),
            waiting_max=chance.choice([0, 0, 4]),
            reserved=chance.choice([0, 0, 0, 1]),
            retry_budget=chance.choice([0, 0, 3]),
        )

    def gate(self) -> Gate:
        chance = self.chance
        return Gate(
            0,
            chance.choice(list(GateAction)),
            "",
            "anna",
            0,
            until_ms=chance.choice([0, self.now_ms + 7000]),
            pool=chance.choice(["", "", COMMAND, "h0"]),
            collection=chance.choice(["", "night"]),
            tenant=chance.choice(["", *TENANTS]),
            jobs=chance.choice(["", "*/j1", "acme/*"]),
            priority=chance.choice([-1, -1, 5]),
        )

    # ---- what must hold

    def counts(self) -> Counter[Scope]:
        """What runs, by the scopes that limit it."""
        state, found = self.machine.state, Counter[Scope]()
        for row in state.active.values():
            declared = ran_with(state, row)
            tenant, _ = split_job_name(state.by_number[row.number].name)
            for counted, _ in scopes_of(state, tenant, declared.pool, declared.work.priority):
                found[counted] += 1
        return found

    def check_begun(self, commands: list[c.Command], gates: list[Gate]) -> None:
        """Nothing that began is beyond a limit, behind a gate, before its turn or without room."""
        state, counts = self.machine.state, self.counts()
        begins = [one for one in commands if isinstance(one, c.Begin)]
        for item in chain.from_iterable(map(begun, begins)):
            row = state.active[item.key]  # none is refused: one leader, who sees what is committed
            record = state.by_number[row.number]
            declared = ran_with(state, row)
            tenant, _ = split_job_name(record.name)
            for counted, scope in scopes_of(state, tenant, declared.pool, declared.work.priority):
                limit = most(state.limits[scope], scope)
                assert not limit or counts[counted] <= limit, (counted, limit)
                self.seen["limited"] += bool(limit)
            active = state.active_of(record)
            assert not declared.concurrency or len(active) <= declared.concurrency
            for gate in gates:
                assert not (gate.holds(self.now_ms) and fits(gate, record, declared))
            if declared.overlap is Overlap.QUEUE:
                older = [one for one in state.open_of(record).values() if one.key < row.key]
                assert all(one.state in ACTIVE for one in older)
            self.check_room(row, declared)
            self.seen["begun"] += 1
            self.seen["tried again"] += row.tries > 0
            self.seen["handler"] += bool(declared.work.handler)

    def check_room(self, row: LaunchRow, declared: Job) -> None:
        bench = self.indexes.queues.places.views[row.executor]
        seat = bench.by_pool[declared.pool]
        place = self.places[row.executor]
        assert seat.used <= seat.slots
        assert not declared.where or place.labels["disk"] == "ssd"
        if declared.work.cpu_milli and place.cpu_milli:
            assert bench.cpu_milli <= place.cpu_milli
        if declared.work.memory_bytes and place.memory_bytes:
            assert bench.memory_bytes <= place.memory_bytes

    def check_nothing_is_left(self) -> None:
        """Whatever is due and may begin has begun, since there was budget for all."""
        state = self.machine.state
        if any(limits.reserved for limits in state.limits.values()):
            return
        found = self.open()
        for row in state.due.values():
            record = state.by_number[row.number]
            assert record.job is not None
            reason = self.reason(row, record, record.job, found)
            assert reason, (record.name, row, self.indexes.queues.why(row.key))
            self.seen[reason] += 1

    def open(self) -> Open:
        state, oldest = self.machine.state, dict[int, c.Key]()
        for row in chain(state.due.values(), state.active.values()):
            oldest[row.number] = min(row.key, oldest.get(row.number, row.key))
        return Open(self.counts(), Counter(row.number for row in state.active.values()), oldest)

    def reason(self, row: LaunchRow, record: JobRecord, declared: Job, found: Open) -> str:
        """Why a launch need not have begun; empty if it should have."""
        state, now_ms = self.machine.state, self.now_ms
        if row.not_before_ms > now_ms:
            return "rests"
        if now_ms < self.refused_ms.get((row.key, row.attempt), 0) + REFUSED_REST_MS:
            return "refused"
        if any(
            gate.holds(now_ms) and fits(gate, record, declared) for gate in state.gates.values()
        ):
            return "gate"
        active = found.active[row.number]
        if declared.overlap is not Overlap.ALLOW:
            is_behind = found.oldest[row.number] < row.key
            if active or record.held_until_ms > now_ms:
                return "overlap"
            return (
                "queue"
                if declared.overlap is Overlap.QUEUE and is_behind
                else self.elsewhere(record, declared, found.counts)
            )
        held = sum(count for until_ms, count in record.held.items() if until_ms > now_ms)
        is_in_doubt = record.held_until_ms > now_ms
        if declared.concurrency and (is_in_doubt or active + held >= declared.concurrency):
            return "concurrency"
        wait = self.indexes.queues.why(row.key) if declared.concurrency and held else None
        if wait is not None and 0 < wait.until_ms <= now_ms + HELD_REST_MS:
            return "concurrency"  # one that ran has just ended: it is looked at in a moment
        return self.elsewhere(record, declared, found.counts)

    def elsewhere(self, record: JobRecord, declared: Job, counts: Counter[Scope]) -> str:
        """Which limit or lack of room keeps a launch waiting that its job would let begin."""
        state = self.machine.state
        tenant, _ = split_job_name(record.name)
        for counted, scope in scopes_of(state, tenant, declared.pool, declared.work.priority):
            limits = state.limits[scope]
            if limits.rate_milli:
                return "rate"
            if limits.concurrent and counts[counted] >= most(limits, scope):
                return "limit"
        need = self.indexes.queues.placed(record, declared).wanted.need
        places = self.indexes.queues.places
        return "" if any(has_room(places, number, need) for number in places.views) else "room"

    def settle(self) -> None:
        """No more trouble: no limits, all gates open, all executors serve everything."""
        state = self.machine.state
        self.is_calm = True
        self.append(LiftGates(tuple(state.gates), "anna"))
        self.append(SetLimits(tuple(LimitItem(scope) for scope in state.limits), "anna"))
        self.append(*[Drain(one.executor, "", True) for one in state.executors.values()])
        super().settle()


@pytest.mark.parametrize("seed", seeds(40))
def test_what_may_begin_begins_and_nothing_else(seed: int) -> None:
    world = PoolWorld(seed)
    world.run(150)
    world.check_audit()
    world.settle()
    world.check_audit()
    attempts = Counter((key, attempt) for key, attempt, _ in world.began)
    assert set(attempts.values()) <= {1}


@pytest.mark.parametrize("seed", seeds(40))
def test_it_does_whatever_people_do(seed: int) -> None:
    world = PoolWorld(seed + 1000)
    world.run(120, people=True)
    world.check_audit()
    world.settle()
    world.check_audit()


@pytest.mark.nightly
def test_the_worlds_of_the_pool_see_all_that_can_happen() -> None:
    """A test of the test. It goes on until all was seen: what is rare is in one world of ten."""
    seen: Counter[str] = Counter()
    reasons = {"rests", "gate", "overlap", "queue", "concurrency", "rate", "limit", "room"}
    wanted = reasons | {"begun", "limited", "tried again", "handler", "refused"}
    for seed in range(200):
        world = PoolWorld(seed)
        world.run(150)
        seen.update(world.seen)
        if wanted <= (+seen).keys():
            return
    raise AssertionError(f"never seen: {wanted - (+seen).keys()}")

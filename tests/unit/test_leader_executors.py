"""Executors as the plan sees them: who rests after a refusal, who is let go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import structlog

from cron.leader.executors import REST_MAX_MS, REST_MIN_MS, STORE_MS, Executors
from cron.scheduler.places import Need
from cron.scheduler.queues import Queues
from cron.state.outcome import Verdict
from cron.state.pool import Drain
from launcher.protocol.reports import Accounts, GroupOffer
from tests.unit.state_rig import StateRig, with_job
from tests.unit.test_scheduler_plan import follow


class FakePool:
    """Sessions that are there, leases that are over, and who was sent away."""

    def __init__(self, *ledgers: str) -> None:
        self.there = list(ledgers)
        self.refused: list[str] = []
        self.over: list[tuple[str, str]] = []
        self.storing: set[str] = set()
        self.ahead_ms = self.waiting = 0
        self.offers: tuple[GroupOffer, ...] = ()
        self.knows_secrets = False
        self.accounts: dict[str, Accounts] = {}  # of executors that say it

    @property
    def count(self) -> int:
        return len(self.there)

    def take_touched(self) -> set[str]:
        return set()

    def sessions(self) -> list[Any]:
        return [
            SimpleNamespace(
                executor=ledger.replace("l", "e"),
                ledger=ledger,
                key=(ledger.replace("l", "e"), ledger),
                gets_work=True,
                ahead_ms=self.ahead_ms,
                outputs_waiting=self.waiting,
                offers=self.offers,
                greeting=SimpleNamespace(
                    knows_secrets=self.knows_secrets,
                    accounts=self.accounts.get(ledger),
                ),
            )
            for ledger in self.there
        ]

    @property
    def leases(self) -> Any:
        return SimpleNamespace(expired=lambda _now_mono: self.over)

    def view(self, executor: str) -> Any:
        return next((one for one in self.sessions() if one.executor == executor), None)

    def is_storing(self, executor: str) -> bool:
        return executor in self.storing

    def refuse(self, executor: str, _reason: str) -> None:
        self.refused.append(executor)


class World:
    """A rig, a pool and a clock that a test turns."""

    def __init__(self, *ledgers: str) -> None:
        self.rig: StateRig = with_job()
        self.rig.join("e2", "l2")
        self.pool: Any = FakePool(*ledgers)
        self.now = 1_000_000
        applier: Any = self.rig
        clock: Any = self
        self.executors = Executors(self.pool, applier, clock)
        self.queues = Queues(self.rig.state)

    def mono_ms(self) -> int:
        return self.now

    def slots(self) -> dict[int, int]:
        """Free slots for commands on the executors that may get work."""
        self.executors.place(self.queues)
        benches = self.queues.places.views
        return {number: benches[number].by_pool["command"].slots for number in sorted(benches)}


def test_commands_may_wait_where_slots_come_free_soon_and_workers_have_slots_of_their_own() -> None:
    world = World("l1")
    [slots] = world.slots().values()
    world.pool.offers = (GroupOffer("", slots + 5, ()), GroupOffer("app", 7, ("mail",)))
    world.executors.place(world.queues)
    [view] = world.queues.places.views.values()
    found = {pool: (group.slots, group.limit) for pool, group in view.by_pool.items()}
    assert found == {"command": (slots, slots + 5), "mail": (7, 7)}


def test_who_refused_gets_no_work_for_a_while_and_the_others_do() -> None:
    """A full executor was chosen again for the same launch, fifty times a second."""
    world = World("l1", "l2")
    assert world.slots() == {1: 4, 2: 4}
    world.executors.refused("e1", "l1")
    assert world.slots() == {2: 4}
    world.now += REST_MIN_MS
    assert world.slots() == {1: 4, 2: 4}


def test_who_refuses_again_rests_twice_as_long_up_to_a_bound() -> None:
    world = World("l1")
    rests = []
    for _ in range(8):
        world.executors.refused("e1", "l1")
        began = world.now
        while not world.slots():
            world.now += 100
        rests.append(world.now - began)
    assert rests[:3] == [REST_MIN_MS, 2 * REST_MIN_MS, 4 * REST_MIN_MS]
    assert rests[-1] == REST_MAX_MS


def test_a_refusal_long_after_the_last_one_is_a_first_one() -> None:
    world = World("l1")
    world.executors.refused("e1", "l1")
    world.now += 10 * REST_MIN_MS
    world.executors.refused("e1", "l1")
    world.now += REST_MIN_MS
    assert world.slots() == {1: 4}


def test_the_queues_know_which_clocks_are_ahead_of_the_leaders() -> None:
    world = World("l1", "l2")
    world.pool.ahead_ms = 1_500
    world.slots()
    assert world.queues.places.ahead_ms == {1: 1_500, 2: 1_500}
    world.executors.refused("e2", "l2")
    world.slots()
    assert world.queues.places.ahead_ms == {1: 1_500}, "only of those that may get work"
    world.pool.ahead_ms = -1
    world.slots()
    assert world.queues.places.ahead_ms == {}


def test_many_refusals_at_once_are_one() -> None:
    world = World("l1")
    for _ in range(20):
        world.executors.refused("e1", "l1")
    world.now += REST_MIN_MS
    assert world.slots() == {1: 4}


def test_who_is_joining_is_not_sent_away() -> None:
    """Its entry was on its way when another executor was let go, and it had to come again."""
    world = World("l1", "l2", "l3", "l4")
    world.executors.let_go(frozenset({("e3", "l3")}))
    assert world.pool.refused == ["e4"]


def test_a_drained_executor_stays_until_its_outputs_are_stored() -> None:
    """It left with outputs on a disk that nobody reads any more."""
    world = World("l1", "l2")
    for executor in ("e1", "e2"):
        world.rig.answer(Drain(executor, "ada"))
    world.pool.storing = {"e1"}
    world.executors.place(world.queues)
    assert [one.number for one in world.executors.drained()] == [2]
    world.pool.storing = set()
    assert [one.number for one in world.executors.drained()] == [1, 2]


def test_a_drained_executor_leaves_with_outputs_that_the_store_never_takes() -> None:
    """A store that refused one held up a drain until somebody cancelled it."""
    world = World("l1")
    world.rig.answer(Drain("e1", "ada"))
    world.pool.storing, world.pool.waiting = {"e1"}, 3
    world.executors.place(world.queues)
    assert world.executors.drained() == []
    world.now += STORE_MS - 1
    assert world.executors.drained() == []
    world.pool.waiting = 2
    assert world.executors.drained() == [], "one was stored"
    world.now += STORE_MS - 1
    assert world.executors.drained() == []
    world.now += 1
    (left,) = world.executors.drained()
    assert left.outputs == 2
    with structlog.testing.capture_logs() as lines:
        world.executors.log_lost([left])
    assert [(line["event"], line["executor"], line["count"]) for line in lines] == [
        ("outputs.abandoned", "e1", 2)
    ]


def test_a_drained_executor_whose_lease_is_over_loses_what_it_has_and_no_more() -> None:
    world = World()
    rig, world.pool.over = world.rig, [("e1", "l1"), ("e2", "l2")]
    rig.to(60).account(60)
    assert rig.begin(60) is Verdict.ACCEPTED
    for executor in ("e1", "e2"):
        rig.answer(Drain(executor, "ada"))
    expired = world.executors.expired()
    assert expired == [1], "on 2 nothing is open"
    assert follow(rig, expired=expired) == ["lost 1@60#1"]
    assert world.executors.expired() == []
    rig.answer(Drain("e2", "ada", is_over=True))
    expired = world.executors.expired()
    assert follow(rig, expired=expired) == ["left 2"], "whom nobody wants drained any more"


def test_launches_with_secrets_wait_for_an_executor_that_knows_secrets() -> None:
    """An older release would ignore the field and start the command without them."""
    world = World("l1")
    world.executors.place(world.queues)
    places, need = world.queues.places, Need(has_secrets=True)
    assert places.choose(Need()) is not None
    assert places.choose(need) is None
    world.pool.knows_secrets = True  # it was upgraded, and greets again
    world.now += 1_000
    world.executors.place(world.queues)
    assert places.choose(need) == places.choose(Need())
    world.pool.knows_secrets = False
    world.now += 1_000
    world.executors.place(world.queues)
    assert places.choose(need) is None


def test_no_launch_goes_to_an_executor_that_says_it_refuses_its_user() -> None:
    """It fails each launch at once, so it is always idle, and took half of a healthy cell."""
    world = World("l1", "l2")
    world.pool.accounts = {"l1": Accounts("raftcron"), "l2": Accounts("", ())}
    world.executors.place(world.queues)
    places, need = world.queues.places, Need(has_account=True)
    record = world.rig.state.by_ledger["e1", "l1"]
    sound = record.number
    for _ in range(record.slots):
        assert places.choose(need) == sound
        places.take(sound, need)
    assert places.choose(need) is None, "the sound one is full"
    world.pool.accounts["l2"] = Accounts("root", ())  # it is configured, and greets again
    world.now += 1_000
    world.executors.place(world.queues)
    assert places.choose(need) not in {None, sound}

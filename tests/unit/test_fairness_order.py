"""The order of service: bands, classes, priorities by age, tenants in turn, first in, first out."""

from __future__ import annotations

from collections import Counter

import pytest

from cron.scheduler.flows import AGE_MS
from cron.scopes import EACH_TENANT
from cron.state.pool import Limits
from tests.unit.fairness_rig import Rig, jobs, tenants


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_tenants_take_turns_however_much_one_has_waiting(rig: Rig) -> None:
    rig.add("huge/a", 100)
    rig.add("small/a", 2)
    rig.add("tiny/a", 1)
    assert tenants(rig.take(6)) == ["huge", "small", "tiny", "huge", "small", "huge"]


def test_a_tenant_of_weight_three_has_three_in_a_turn(rig: Rig) -> None:
    rig.pump.set_limits(("ann", "", -1), Limits(weight=3))
    rig.add("ann/a", 20)
    rig.add("bob/a", 20)
    for _ in range(3):
        assert Counter(tenants(rig.take(4))) == {"ann": 3, "bob": 1}


def test_a_weight_in_a_queue_overrides_the_tenants_weight_there(rig: Rig) -> None:
    rig.pump.set_limits(("ann", "", -1), Limits(weight=3))
    rig.pump.set_limits(("ann", "bill", -1), Limits(weight=1))
    rig.pump.set_limits((EACH_TENANT, "mail", 5), Limits(concurrent=99))  # says nothing of weight
    for pool in ("mail", "bill"):
        rig.add("ann/a", 20, pool=pool)
        rig.add("bob/a", 20, pool=pool)
    taken = rig.take(16)
    pools = [(tenants([key])[0], rig.items[key].pool) for key in taken]
    assert Counter(pools)["ann", "mail"] == 6
    assert Counter(pools)["ann", "bill"] == 4


def test_priority_zero_goes_before_nine(rig: Rig) -> None:
    low, high = rig.add("ann/low", priority=9), rig.add("ann/high", priority=0)
    assert rig.take(2) == high + low


def test_after_thirty_seconds_a_launch_counts_as_one_priority_better(rig: Rig) -> None:
    old = rig.add("ann/old", priority=5)
    rig.now_ms += AGE_MS - 1
    younger = rig.add("bob/younger", priority=4)
    assert rig.take(1) == younger
    rig.now_ms += 2
    rig.add("bob/late", priority=4)
    assert rig.take(1) == old


def test_a_flood_of_urgent_launches_does_not_starve_the_least_urgent(rig: Rig) -> None:
    (patient,) = rig.add("ann/patient", priority=9)
    waited_ms = 0
    while True:
        rig.add("bob/urgent", 2, priority=0)
        taken = rig.take(1)
        if patient in taken:
            break
        rig.end(taken)
        rig.now_ms += 1000
        waited_ms += 1000
        assert waited_ms <= 2 * 9 * AGE_MS + 2000
    # The urgent flood has a backlog: half of what came. What came after its 270 s waits behind.
    assert waited_ms >= 9 * AGE_MS


def test_a_class_without_room_stops_no_other_and_is_asked_once_a_round(rig: Rig) -> None:
    rig.add("ann/a", 3, place="full")
    rig.add("ann/b", 3, place="free")
    rig.closed = {"full"}
    assert jobs(rig.take(9)) == ["ann/b"] * 3
    assert rig.asked.count("full") == 1
    rig.closed = set()
    assert rig.pump.take(rig.now_ms, rig.room) is None  # set aside until the next round
    assert jobs(rig.take(9)) == ["ann/a"] * 3


def test_live_launches_go_before_late_ones_of_any_class_and_priority(rig: Rig) -> None:
    late = rig.add("ann/a", priority=0, is_late=True)
    rig.now_ms += 10 * AGE_MS
    live = rig.add("ann/a", priority=9, pool="bill")
    assert rig.take(2) == live + late


# ---- coming and going


def test_nothing_is_kept_of_tenants_and_classes_that_are_gone(rig: Rig) -> None:
    for number in range(300):
        rig.add(f"t{number}/a", place=("class", number), priority=number % 10, job_limit=number % 3)
        rig.add(f"t{number}/a", place=("class", number), priority=number % 10, job_limit=number % 3)
    rig.closed = {("class", 7)}
    rig.end(rig.take(450))
    for key in rig.items:
        rig.pump.remove(key)
    rig.take(0)
    queue = rig.pump.queue
    tables = (queue.flows, queue.shares, queue.pools, queue.classes, queue.runs, queue.ready)
    assert [len(table) for table in tables] == [0] * 6
    assert not queue._aside
    assert not any(queue._bands)


def test_a_busy_tenants_empty_flows_are_forgotten(rig: Rig) -> None:
    running = rig.item("ann/long")
    rig.pump.add_running(running)
    for number in range(200):
        rig.add("ann/a", place=("class", number))
        rig.end(rig.take(1))
    assert len(rig.pump.queue.flows) < 5
    assert len(rig.pump.queue.classes) < 5


def jain(shares: list[int]) -> float:
    """Jain's index: 1 is perfectly fair, 1/n is all for one."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def test_a_huge_tenant_beside_small_ones_gets_its_share_and_no_more(rig: Rig) -> None:
    rig.add("huge/a", 5000)
    for number in range(49):
        rig.add(f"small{number}/a", 20)
    first: Counter[str] = Counter()
    for _ in range(100):  # ten slots, all of which are used again and again
        taken = rig.take(10)
        first.update(tenants(taken))
        rig.end(taken)
    assert sum(first.values()) == 1000, "no slot was idle"
    assert len(first) == 50
    assert jain(list(first.values())) > 0.999


def test_a_small_tenant_that_comes_last_waits_for_one_turn_of_each_other(rig: Rig) -> None:
    for number in range(30):
        rig.add(f"t{number}/a", 100)
    rig.end(rig.take(17))
    (key,) = rig.add("late/a")
    assert rig.take(40).index(key) <= 30


def test_one_in_ten_is_late_where_live_ones_take_every_slot(rig: Rig) -> None:
    """What was redriven waited behind live launches for ever on a pool that never paused."""
    live, late = rig.add("ann/a", 30), rig.add("bob/a", 5, is_late=True)
    begun = [rig.take(1)[0] for _ in range(33)]
    assert [place for place, key in enumerate(begun) if key in late] == [9, 19, 29]
    assert [key for key in begun if key in live] == live
    assert rig.take(9) == late[3:]

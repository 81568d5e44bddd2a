"""The order of service: bands, classes, priorities by age, tenants in turn, first in, first out."""

from __future__ import annotations

from collections import Counter

import pytest

from cron.errors import InvariantViolated
from cron.scheduler.flows import AGE_MS
from cron.scopes import EACH_TENANT
from cron.state.pool import Limits
from tests.unit.fairness_rig import Rig, jobs, tenants


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_tenants_launches_begin_in_the_order_in_which_they_came(rig: Rig) -> None:
    keys = [*rig.add("ann/a", 2), *rig.add("ann/b"), *rig.add("ann/a")]
    assert rig.take(9) == keys


def test_nothing_is_next_where_nothing_waits(rig: Rig) -> None:
    assert rig.take() == []
    assert rig.pump.next_ms() is None


def test_a_priority_that_is_none_is_a_mistake_of_the_caller(rig: Rig) -> None:
    with pytest.raises(InvariantViolated, match="priority 10 is not 0 to 9"):
        rig.add("ann/a", priority=10)


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


def test_a_tenant_that_comes_back_gets_no_more_than_the_others(rig: Rig) -> None:
    rig.add("ann/a", 1)
    rig.add("bob/a", 10)
    assert tenants(rig.take(3)) == ["ann", "bob", "bob"]
    rig.add("ann/a", 10)
    assert Counter(tenants(rig.take(6))) == {"ann": 3, "bob": 3}


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


def test_between_equals_the_better_priority_goes_first(rig: Rig) -> None:
    old = rig.add("ann/old", priority=5, enqueued_ms=rig.now_ms - AGE_MS)
    new = rig.add("bob/new", priority=4)
    assert rig.take(2) == new + old


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


def test_of_one_tenant_the_oldest_goes_first_whatever_it_needs(rig: Rig) -> None:
    for _ in range(2):
        rig.add("ann/a", place="eu")
        rig.now_ms += 1
        rig.add("ann/b", place="us")
        rig.now_ms += 1
    assert jobs(rig.take(4)) == ["ann/a", "ann/b", "ann/a", "ann/b"]


def test_a_class_without_room_stops_no_other_and_is_asked_once_a_round(rig: Rig) -> None:
    rig.add("ann/a", 3, place="full")
    rig.add("ann/b", 3, place="free")
    rig.closed = {"full"}
    assert jobs(rig.take(9)) == ["ann/b"] * 3
    assert rig.asked.count("full") == 1
    rig.closed = set()
    assert rig.pump.take(rig.now_ms, rig.room) is None  # set aside until the next round
    assert jobs(rig.take(9)) == ["ann/a"] * 3


def test_a_late_and_a_live_launch_of_a_class_without_room_ask_once(rig: Rig) -> None:
    rig.add("ann/a", place="full")
    rig.add("ann/a", place="full", is_late=True)
    rig.closed = {"full"}
    assert rig.take(3) == []
    assert rig.asked == ["full"]


def test_live_launches_go_before_late_ones_of_any_class_and_priority(rig: Rig) -> None:
    late = rig.add("ann/a", priority=0, is_late=True)
    rig.now_ms += 10 * AGE_MS
    live = rig.add("ann/a", priority=9, pool="bill")
    assert rig.take(2) == live + late


def test_without_budget_late_launches_wait(rig: Rig) -> None:
    late = rig.add("ann/a", is_late=True)
    assert rig.take(1, late_budget=0) == []
    assert rig.take(1, late_budget=1) == late


# ---- coming and going


def test_adding_ending_and_removing_twice_changes_nothing(rig: Rig) -> None:
    (first, second) = rig.add("ann/a", 2)
    assert not rig.pump.add(rig.items[first])
    assert rig.take(1) == [first]
    assert not rig.pump.add(rig.items[first]), "it runs"
    assert rig.pump.ended(first)
    assert not rig.pump.ended(first)
    assert not rig.pump.ended(second), "it waits"
    assert rig.pump.remove(second)
    assert not rig.pump.remove(second)
    assert (len(rig.pump), rig.pump.running) == (0, 0)


def test_a_launch_can_be_removed_while_it_runs(rig: Rig) -> None:
    rig.pump.set_limits(("ann", "", -1), Limits(concurrent=1))
    keys = rig.add("ann/a", 2)
    assert rig.take(2) == keys[:1]
    assert rig.pump.remove(keys[0])
    assert rig.take(2) == keys[1:]


def test_what_was_removed_from_the_middle_does_not_come_back(rig: Rig) -> None:
    keys = rig.add("ann/a", 300)
    for key in keys[1:-1]:
        rig.pump.remove(key)
    assert rig.take(9) == [keys[0], keys[-1]]


def test_a_launch_that_ended_can_be_added_again_and_goes_last(rig: Rig) -> None:
    keys = rig.add("ann/a", 3)
    assert rig.take(1) == keys[:1]
    rig.end(keys[:1])
    assert rig.pump.add(rig.items[keys[0]])
    assert rig.take(9) == [*keys[1:], keys[0]]


def test_a_launch_that_was_removed_and_added_is_there_once(rig: Rig) -> None:
    keys = rig.add("ann/a", 3)
    rig.pump.remove(keys[1])
    rig.pump.add(rig.items[keys[1]])
    assert rig.take(9) == keys


def test_what_is_put_back_is_in_front_again(rig: Rig) -> None:
    keys = rig.add("ann/a", 4)
    assert rig.take(2) == keys[:2]
    assert rig.pump.put_back(rig.items[keys[1]])
    assert rig.pump.put_back(rig.items[keys[0]])
    assert not rig.pump.put_back(rig.items[keys[0]])
    assert rig.pump.running == 0
    assert rig.take(9) == keys


def test_what_is_put_back_for_later_is_in_front_when_the_time_has_come(rig: Rig) -> None:
    keys = rig.add("ann/a", 3)
    assert rig.take(1) == keys[:1]
    rig.pump.put_back(rig.items[keys[0]], not_before_ms=rig.now_ms + 100)
    assert rig.pump.next_ms() == rig.now_ms + 100
    assert rig.take(1) == keys[1:2]
    rig.now_ms += 100
    assert rig.take(9) == [keys[0], keys[2]]


def test_what_is_held_waits_for_its_time_and_blocks_nobody(rig: Rig) -> None:
    keys = rig.add("ann/a", 3)
    assert rig.pump.hold(keys[0], rig.now_ms + 500)
    assert rig.pump.hold(keys[0], rig.now_ms + 200), "a new time replaces the old"
    assert rig.pump.next_ms() == rig.now_ms + 200
    assert rig.take(9) == keys[1:]
    rig.now_ms += 199
    assert rig.take(9) == []
    rig.now_ms += 1
    assert rig.take(9) == keys[:1]
    assert rig.pump.next_ms() is None
    assert not rig.pump.hold(keys[0], rig.now_ms + 1), "it runs"


def test_a_launch_may_be_held_from_the_start_and_removed_meanwhile(rig: Rig) -> None:
    one, other = rig.item("ann/a"), rig.item("ann/a")
    rig.pump.add(one, not_before_ms=rig.now_ms + 10)
    rig.pump.add(other, not_before_ms=rig.now_ms + 20)
    assert rig.pump.remove(one.key)
    assert rig.pump.next_ms() == rig.now_ms + 20
    rig.now_ms += 20
    assert rig.take(9) == [other.key]


def test_a_waiting_launch_that_began_elsewhere_is_counted_and_not_taken(rig: Rig) -> None:
    rig.pump.set_limits(("ann", "", -1), Limits(concurrent=2))
    keys = rig.add("ann/a", 3)
    assert rig.pump.began(keys[1])
    assert not rig.pump.began(keys[1])
    assert rig.take(9) == keys[:1]
    rig.end([keys[1]])
    assert rig.take(9) == keys[2:]


def test_what_runs_from_the_start_counts_in_every_limit(rig: Rig) -> None:
    rig.pump.set_limits(("", "mail", -1), Limits(concurrent=1))
    running = rig.item("ann/a")
    assert rig.pump.add_running(running)
    assert not rig.pump.add_running(running)
    keys = rig.add("bob/a")
    assert rig.take() == []
    rig.end([running.key])
    assert rig.take() == keys


def test_running_from_the_start_overrides_waiting(rig: Rig) -> None:
    (key,) = rig.add("ann/a")
    assert rig.pump.add_running(rig.items[key])
    assert (len(rig.pump), rig.pump.running) == (0, 1)


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


def test_live_ones_that_began_while_no_late_one_waited_give_it_no_more_than_one(rig: Rig) -> None:
    rig.add("ann/a", 100)
    rig.take(50)
    late = rig.add("bob/a", 5, is_late=True)
    begun = rig.take(10)
    assert [key for key in begun if key in late] == late[:1]


def test_without_budget_no_late_one_begins_however_long_live_ones_do(rig: Rig) -> None:
    rig.add("bob/a", is_late=True)
    live = rig.add("ann/a", 30)
    assert rig.take(40, late_budget=0) == live

"""What a decision costs, in calls, not seconds: nothing that grows with tenants or waiting."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from cron.scheduler.flows import STALE_MIN
from cron.scopes import EACH_TENANT
from cron.state.pool import Limits
from tests.unit.fairness_rig import Item, Rig


def calls(act: Callable[[], object]) -> int:
    """How many functions `act` calls, built-in ones included."""
    count = 0

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


def crowd(tenants: int, each: int) -> Rig:
    """All tenants have `each` waiting, in three priorities, and may run two."""
    rig = Rig()
    rig.pump.set_limits((EACH_TENANT, "", -1), Limits(concurrent=2))
    rig.pump.set_limits(("", "mail", -1), Limits(concurrent=10**6, rate_milli=10**9))
    for number in range(tenants):
        for priority in (0, 5, 9):
            rig.add(f"t{number}/a", each, priority=priority)
    return rig


def take_one(rig: Rig) -> None:
    assert rig.pump.take(rig.now_ms, rig.room) is not None


@pytest.mark.parametrize(("tenants", "each"), [(1000, 1), (10, 300)])
def test_a_start_costs_the_same_with_many_tenants_and_with_many_waiting(
    tenants: int, each: int
) -> None:
    few, many = crowd(5, 2), crowd(tenants, each)
    few.take(3)
    many.take(3)
    assert calls(lambda: take_one(many)) <= calls(lambda: take_one(few)) + 5


def test_an_end_costs_the_same_with_many_tenants() -> None:
    costs = []
    for tenants in (5, 1000):
        rig = crowd(tenants, 2)
        (key,) = rig.take(1)
        costs.append(calls(lambda rig=rig, key=key: rig.end([key])))
    assert costs[1] <= costs[0] + 5


def test_tenants_at_their_limit_are_not_looked_at_again() -> None:
    rig = crowd(500, 2)
    keys = rig.take(1001)
    assert len(keys) == 1000, "two of each tenant"
    assert calls(lambda: rig.pump.take(rig.now_ms, rig.room)) < 10
    rig.end(keys[:1])
    assert calls(lambda: take_one(rig)) < 100


def test_classes_whose_pool_is_at_its_limit_are_not_looked_at_again() -> None:
    rig = Rig()
    rig.pump.set_limits(("", "mail", -1), Limits(concurrent=1))
    for number in range(500):
        rig.add("ann/a", place=("class", number))
    assert len(rig.take(2)) == 1
    assert calls(lambda: rig.pump.take(rig.now_ms, rig.room)) < 10


def test_a_round_over_classes_without_room_asks_each_once() -> None:
    rig = Rig()
    places = [("class", number) for number in range(50)]
    for place in places:
        rig.add("ann/a", 3, place=place)
        rig.add("ann/a", 3, place=place, is_late=True, priority=0)
    rig.closed = set(places)
    rig.take(9)
    assert sorted(rig.asked) == places
    assert calls(lambda: rig.pump.take(rig.now_ms, rig.room)) < 10


def paced(tenants: int) -> Rig:
    """Each tenant has used up its rate, and has more waiting."""
    rig = Rig()
    rig.pump.set_limits((EACH_TENANT, "", -1), Limits(rate_milli=1_000))
    for number in range(tenants):
        rig.add(f"t{number}/a", 3)
    assert len(rig.take(tenants + 1)) == tenants
    return rig


def test_tenants_whose_rate_is_used_up_cost_nothing_until_they_have_a_start_again() -> None:
    rig = paced(500)
    assert calls(lambda: rig.pump.take(rig.now_ms, rig.room)) < 10
    rig.now_ms += 999
    assert calls(lambda: rig.pump.take(rig.now_ms, rig.room)) < 20
    rig.now_ms += 1
    few = paced(5)
    few.now_ms += 1_000
    # All of them come back at this moment, each once; what a start costs beside that is the same.
    assert calls(lambda: rig.take(500)) / 500 <= calls(lambda: few.take(5)) / 5 + 5


def reserving(pools: int) -> Rig:
    """Each pool has reserved a slot of those that all share, and has something waiting."""
    rig = Rig()
    rig.slots = {"left": pools + 20}
    for number in range(pools):
        pool = f"p{number}"
        rig.pump.set_domain(pool, "left")
        rig.pump.set_limits(("", pool, -1), Limits(reserved=1))
        rig.add("ann/a", 3, pool=pool, domain="left")
    rig.take(3, reserves=True)
    return rig


def test_a_start_costs_the_same_with_many_pools_that_have_slots_reserved() -> None:
    few, many = reserving(5), reserving(500)
    costs = [calls(lambda rig=rig: rig.take(1, reserves=True)) for rig in (few, many)]
    assert costs[1] <= costs[0] + 5


def bursting(tenants: int) -> Rig:
    """Each tenant has its share, and may have more while nobody else wants it."""
    rig = Rig()
    rig.pump.set_limits((EACH_TENANT, "", -1), Limits(concurrent=1, burst=9))
    for number in range(tenants):
        rig.add(f"t{number}/a", 5)
    assert len(rig.take(tenants)) == tenants
    rig.take(2)
    return rig


def test_a_start_beyond_a_tenants_share_costs_the_same_with_many_tenants() -> None:
    few, many = bursting(5), bursting(500)
    assert calls(lambda: take_one(many)) <= calls(lambda: take_one(few)) + 5


def test_what_is_put_back_held_or_removed_costs_the_same_with_many_tenants() -> None:
    costs = []
    for tenants in (5, 500):
        rig = crowd(tenants, 3)
        first, second, third = (rig.items[key] for key in rig.take(3))

        def act(rig: Rig = rig, some: tuple[Item, ...] = (first, second, third)) -> None:
            for item in some:
                assert rig.pump.put_back(item)
            assert rig.pump.hold(some[0].key, rig.now_ms + 5)
            assert rig.pump.remove(some[1].key)
            assert rig.pump.began(some[2].key)

        costs.append(calls(act))
    assert costs[1] <= costs[0] + 10


def test_a_limit_costs_the_same_whatever_others_there_are() -> None:
    """A new leader stood still for two seconds over the limits of ten thousand tenants."""
    costs = []
    for others in (10, 1000):
        pump = Rig().pump
        for number in range(others):
            pump.set_limits((f"t{number}", "", -1), Limits(concurrent=2))
        costs.append(calls(partial(pump.set_limits, ("one", "mail", 5), Limits(weight=2))))
    assert costs[1] <= costs[0]


def test_a_flow_of_which_most_is_gone_takes_no_more_room_than_the_rest() -> None:
    rig = Rig()
    keys = rig.add("ann/a", 1000)
    for key in keys[1:-1]:
        rig.pump.hold(key, rig.now_ms + 10)
    (flow,) = rig.pump.queue.flows.values()
    assert flow.entries <= 2 * flow.size + STALE_MIN
    for key in keys[1:-1]:
        rig.pump.remove(key)
    assert len(rig.pump.queue._holds) <= 2 * STALE_MIN
    assert rig.take(9) == [keys[0], keys[-1]]


def test_what_is_held_and_released_again_and_again_keeps_its_place() -> None:
    rig = Rig()
    keys = rig.add("ann/a", 5)
    for _ in range(50):
        for key in reversed(keys[:3]):
            rig.pump.hold(key, rig.now_ms + 1)
        rig.now_ms += 1
        rig.pump.tick(rig.now_ms)
    assert rig.take(9) == keys

"""Dedicated capacity: the last free slots are for whoever has reserved them and uses fewer."""

from __future__ import annotations

from collections import Counter

import pytest

from cron.scheduler.views import WaitFor
from cron.state.pool import Limits
from tests.unit.fairness_rig import Rig, jobs


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.slots = {"left": 4, "right": 4}
    for pool in ("mail", "bill"):
        rig.pump.set_domain(pool, "left")
    rig.pump.set_domain("scan", "right")
    return rig


def test_others_leave_free_what_a_pool_has_reserved_and_does_not_use(rig: Rig) -> None:
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=3))
    rig.add("ann/mail", 9, domain="left")
    assert jobs(rig.take(9, reserves=True)) == ["ann/mail"], "also while nothing of bill waits"
    rig.add("bob/bill", 9, pool="bill", domain="left")
    assert jobs(rig.take(9, reserves=True)) == ["bob/bill"] * 3


def test_a_reservation_that_is_used_takes_nothing_from_others(rig: Rig) -> None:
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=2))
    bills = rig.add("bob/bill", 2, pool="bill", domain="left")
    assert rig.take(9, reserves=True) == bills
    rig.add("ann/mail", 9, domain="left")
    assert len(rig.take(9, reserves=True)) == 2
    rig.end(bills[:1])
    rig.slots["left"] = 1
    assert rig.take(9, reserves=True) == [], "the slot that came free is reserved again"


def test_beyond_its_reservation_a_pool_is_like_the_others(rig: Rig) -> None:
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=1))
    rig.pump.set_limits(("", "mail", -1), Limits(reserved=2))
    rig.add("bob/bill", 9, pool="bill", domain="left")
    assert len(rig.take(9, reserves=True)) == 2, "its own one, and the one nobody has reserved"


def test_a_reservation_holds_in_its_own_domain_only(rig: Rig) -> None:
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=4))
    rig.add("ann/scan", 9, pool="scan", domain="right")
    assert len(rig.take(9, reserves=True)) == 4


def test_a_priority_may_reserve_within_its_pool(rig: Rig) -> None:
    rig.pump.set_limits(("", "mail", 0), Limits(reserved=2))
    rig.add("ann/flood", 9, priority=9, domain="left")
    assert len(rig.take(9, reserves=True)) == 2
    urgent = rig.add("ann/urgent", 3, priority=0, domain="left")
    assert rig.take(9, reserves=True) == urgent[:2]


def test_what_a_queue_reserves_lies_within_what_its_pool_reserves(rig: Rig) -> None:
    rig.pump.set_limits(("", "mail", -1), Limits(reserved=3))
    rig.pump.set_limits(("", "mail", 0), Limits(reserved=2))
    rig.add("bob/bill", 9, pool="bill", domain="left")
    assert len(rig.take(9, reserves=True)) == 1, "three of four slots are reserved, not five"
    rig.add("ann/flood", 9, priority=9, domain="left")
    assert jobs(rig.take(9, reserves=True)) == ["ann/flood"], "two are for priority 0"


def test_more_reserved_than_there_are_slots_still_serves_the_reservations(rig: Rig) -> None:
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=9))
    rig.pump.set_limits(("", "mail", -1), Limits(reserved=9))
    rig.add("ann/mail", 9, domain="left")
    rig.add("bob/bill", 9, pool="bill", domain="left")
    assert Counter(jobs(rig.take(4, reserves=True))) == {"ann/mail": 2, "bob/bill": 2}


def test_what_is_refused_for_a_reservation_is_looked_at_again_in_the_next_round(rig: Rig) -> None:
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=4))
    (key,) = rig.add("ann/mail", domain="left")
    assert rig.take(1, reserves=True) == []
    why = rig.pump.why(key)
    assert why is not None
    assert why.what is WaitFor.RESERVED
    rig.slots["left"] = 5
    assert rig.take(1, reserves=True) == [key]


def test_without_asking_for_free_slots_reservations_are_not_regarded(rig: Rig) -> None:
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=4))
    keys = rig.add("ann/mail", domain="left")
    assert rig.take(1) == keys


def test_clearing_or_lowering_a_reservation_frees_its_slots(rig: Rig) -> None:
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=4))
    rig.add("ann/mail", 9, domain="left")
    assert rig.take(9, reserves=True) == []
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=3))
    assert len(rig.take(9, reserves=True)) == 1
    rig.pump.clear_limits(("", "bill", -1))
    assert len(rig.take(9, reserves=True)) == 3
    assert rig.pump.queue.table.kept == {}


def test_a_pools_first_launch_tells_where_its_slots_are() -> None:
    rig = Rig()
    rig.slots = {"here": 2}
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=2))
    (first,) = rig.add("ann/mail", domain="here")
    assert rig.take(1, reserves=True) == [first], "nobody knows yet where bill would go"
    rig.end([first])
    rig.slots["here"] = 2
    rig.add("bob/bill", pool="bill", domain="here")
    rig.add("ann/mail", 3, domain="here")
    assert jobs(rig.take(9, reserves=True)) == ["bob/bill"]


def test_a_reservation_set_while_launches_wait_knows_where_they_go() -> None:
    rig = Rig()
    rig.slots = {"here": 1}
    rig.add("bob/bill", pool="bill", domain="here", is_late=True)
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=1))
    rig.add("ann/mail", 3, domain="here")
    assert rig.take(9, late_budget=0, reserves=True) == []


def test_a_pool_that_moves_takes_its_reservation_along(rig: Rig) -> None:
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=4))
    rig.add("ann/mail", 9, domain="left")
    rig.pump.set_domain("bill", "right")
    assert len(rig.take(9, reserves=True)) == 4
    rig.add("ann/scan", 9, pool="scan", domain="right")
    assert rig.take(9, reserves=True) == []


def test_a_reservation_holds_also_for_launches_of_a_pool_that_moved_while_others_of_it_ran(
    rig: Rig,
) -> None:
    """What ran kept the place class in the old domain, and all that came later with it."""
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=3))
    rig.add("ann/scan", 1, pool="scan", domain="right")
    assert len(rig.take(9, reserves=True)) == 1
    rig.pump.set_domain("scan", "left")
    rig.add("ann/scan", 9, pool="scan", domain="left")
    assert len(rig.take(9, reserves=True)) == 1


def test_what_is_held_while_its_pool_moves_finds_the_reservations_of_where_it_goes(
    rig: Rig,
) -> None:
    """Workers of a handler joined another group meanwhile."""
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=4))
    scan = rig.item("ann/scan", pool="scan", domain="right")
    assert rig.pump.add(scan, rig.now_ms + 5)
    rig.pump.set_domain("scan", "left")
    rig.now_ms += 5
    assert rig.take(9, reserves=True) == []
    rig.pump.set_domain("scan", "right")
    assert jobs(rig.take(9, reserves=True)) == ["ann/scan"]


@pytest.mark.parametrize(("slots", "spares"), [(1, True), (2, True), (3, False)])
def test_a_launch_that_takes_several_slots_leaves_those_that_are_reserved(
    rig: Rig, slots: int, spares: bool
) -> None:
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=2))
    rig.add("ann/mail", domain="left")
    item = rig.pump.take(rig.now_ms, rig.room, 1, rig.free)
    assert item is not None
    assert rig.pump.spares(item, slots, rig.free) is spares


@pytest.mark.parametrize(("pool", "slots"), [("bill", 3), ("mail", 2)])
def test_several_slots_may_be_those_that_are_reserved_for_itself(
    rig: Rig, pool: str, slots: int
) -> None:
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=2))
    rig.pump.set_limits(("", "mail", 5), Limits(reserved=1))
    rig.add("bob/some", pool=pool, domain="left")
    item = rig.pump.take(rig.now_ms, rig.room, 1, rig.free)
    assert item is not None
    assert rig.pump.spares(item, slots, rig.free)
    assert not rig.pump.spares(item, slots + 1, rig.free)


def test_several_slots_are_not_those_of_another_priority_of_its_pool(rig: Rig) -> None:
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=2))
    rig.pump.set_limits(("", "bill", 0), Limits(reserved=1))
    rig.add("bob/some", pool="bill", domain="left")
    item = rig.pump.take(rig.now_ms, rig.room, 1, rig.free)
    assert item is not None
    assert rig.pump.spares(item, 3, rig.free)
    assert not rig.pump.spares(item, 4, rig.free)


def test_what_takes_too_many_slots_is_left_out_with_all_like_it_until_the_next_round(
    rig: Rig,
) -> None:
    trios = rig.add("ann/trio", 3, place="trio", domain="left")
    others = rig.add("bob/one", 1, place="one", domain="left")
    item = rig.pump.take(rig.now_ms, rig.room, 1, rig.free)
    assert item is not None
    assert item.key == trios[0]
    assert rig.pump.put_aside(item)
    assert not rig.pump.put_aside(item)
    wait = rig.pump.why(trios[0])
    assert wait is not None
    assert wait.what is WaitFor.RESERVED
    taken = [rig.pump.take(rig.now_ms, rig.room, 1, rig.free) for _ in range(2)]
    assert [one and one.key for one in taken] == [*others, None]
    assert rig.take(9, reserves=True) == trios, "a round begins, and they stand as they stood"

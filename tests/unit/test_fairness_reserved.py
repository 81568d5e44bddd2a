"""Dedicated capacity: the last free slots are for whoever has reserved them and uses fewer."""

from __future__ import annotations

from collections import Counter

import pytest

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


def test_clearing_or_lowering_a_reservation_frees_its_slots(rig: Rig) -> None:
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=4))
    rig.add("ann/mail", 9, domain="left")
    assert rig.take(9, reserves=True) == []
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=3))
    assert len(rig.take(9, reserves=True)) == 1
    rig.pump.clear_limits(("", "bill", -1))
    assert len(rig.take(9, reserves=True)) == 3
    assert rig.pump.queue.table.kept == {}


@pytest.mark.parametrize(("slots", "spares"), [(1, True), (2, True), (3, False)])
def test_a_launch_that_takes_several_slots_leaves_those_that_are_reserved(
    rig: Rig, slots: int, spares: bool
) -> None:
    rig.pump.set_limits(("", "bill", -1), Limits(reserved=2))
    rig.add("ann/mail", domain="left")
    item = rig.pump.take(rig.now_ms, rig.room, 1, rig.free)
    assert item is not None
    assert rig.pump.spares(item, slots, rig.free) is spares

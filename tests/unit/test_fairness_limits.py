"""Limits as gauges: who is subject to which, hard and soft ones, and changes while all runs."""

from __future__ import annotations

from collections import Counter

import pytest

from cron.scopes import ANY_PRIORITY, EACH_TENANT, Scope
from cron.state.pool import Limits
from tests.unit.fairness_rig import Rig, jobs, tenants

EACH: Scope = (EACH_TENANT, "", ANY_PRIORITY)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_the_most_specific_limit_of_a_tenant_in_a_queue_wins(rig: Rig) -> None:
    rig.pump.set_limits((EACH_TENANT, "mail", -1), Limits(concurrent=4))
    rig.pump.set_limits((EACH_TENANT, "mail", 0), Limits(concurrent=3))
    rig.pump.set_limits(("ann", "mail", -1), Limits(concurrent=2))
    rig.pump.set_limits(("ann", "mail", 9), Limits(concurrent=1))
    for job in ("ann/a", "bob/a"):
        for priority in (0, 5, 9):
            rig.add(job, 9, priority=priority)
    taken = Counter((tenants([k])[0], rig.items[k].priority) for k in rig.take(99))
    # Ann: one at 9, and two in all that (ann, mail) covers. Bob: three at 0, four in the rest.
    assert taken["ann", 9] == 1
    assert taken["ann", 0] + taken["ann", 5] == 2
    assert taken["bob", 0] == 3
    assert taken["bob", 5] + taken["bob", 9] == 4


def test_a_tenants_own_limit_overrides_that_of_each(rig: Rig) -> None:
    rig.pump.set_limits(EACH, Limits(concurrent=1))
    rig.pump.set_limits(("ann", "", -1), Limits(concurrent=3))
    rig.add("ann/a", 5)
    rig.add("bob/a", 5)
    assert Counter(tenants(rig.take(9))) == {"ann": 3, "bob": 1}


# ---- bursting


def test_a_tenant_bursts_while_nobody_within_limits_is_runnable(rig: Rig) -> None:
    rig.pump.set_limits(EACH, Limits(concurrent=2, burst=4))
    keys = rig.add("ann/a", 9)
    assert rig.take(9) == keys[:4], "alone, up to its burst"
    rig.end(keys[:2])
    rig.add("bob/a", 9)
    assert tenants(rig.take(2)) == ["bob", "bob"], "ann is at her share, bob within his"
    assert Counter(tenants(rig.take(9))) == {"ann": 2, "bob": 2}


def test_a_tenant_that_bursts_waits_also_for_late_launches_within_limits(rig: Rig) -> None:
    rig.pump.set_limits(EACH, Limits(concurrent=1, burst=9))
    rig.add("ann/a", 3)
    late = rig.add("bob/a", is_late=True)
    assert tenants(rig.take(1)) == ["ann"]
    assert rig.take(1) == late
    assert tenants(rig.take(9)) == ["ann", "ann"]


def test_a_tenant_back_within_its_share_is_served_as_such(rig: Rig) -> None:
    rig.pump.set_limits(EACH, Limits(concurrent=2, burst=3))
    keys = rig.add("ann/a", 9)
    assert len(rig.take(9)) == 3
    rig.end(keys[:2])  # one runs: within the share again
    rig.add("bob/a", 9)
    assert Counter(tenants(rig.take(3))) == {"ann": 1, "bob": 2}


def test_one_who_cannot_begin_does_not_keep_others_from_bursting(rig: Rig) -> None:
    rig.pump.set_limits(EACH, Limits(concurrent=1, burst=3))
    rig.add("ann/a", 5)
    rig.add("bob/a", 5, place="full")
    rig.closed = {"full"}
    assert tenants(rig.take(9)) == ["ann", "ann", "ann"]


def test_a_burst_below_the_limit_changes_nothing(rig: Rig) -> None:
    rig.pump.set_limits(EACH, Limits(concurrent=3, burst=1))
    rig.add("ann/a", 5)
    assert len(rig.take(9)) == 3


def test_pools_do_not_burst(rig: Rig) -> None:
    rig.pump.set_limits(("", "mail", -1), Limits(concurrent=1, burst=3))
    rig.add("ann/a", 5)
    assert len(rig.take(9)) == 1


# ---- changes at run time


def test_raising_a_limit_wakes_what_was_parked(rig: Rig) -> None:
    for scope in (EACH, ("", "mail", -1), ("", "mail", 5)):
        rig.pump.set_limits(scope, Limits(concurrent=1))
    keys = rig.add("ann/a", 4)
    assert rig.take(9) == keys[:1]
    for scope in (EACH, ("", "mail", -1), ("", "mail", 5)):
        assert rig.take(9) == []
        rig.pump.set_limits(scope, Limits(concurrent=3))
    assert rig.take(9) == keys[1:3]


def test_clearing_a_limit_wakes_what_was_parked(rig: Rig) -> None:
    for scope in (EACH, ("", "mail", -1), ("", "", 5)):
        rig.pump.set_limits(scope, Limits(concurrent=1))
        keys = rig.add("ann/a", 3)
        assert rig.take(9) == keys[:1]
        rig.pump.clear_limits(scope)
        assert rig.take(9) == keys[1:]
        rig.end(keys)
    assert rig.pump.queue.table.limiters == {}


# ---- how many may wait


# ---- a job's limit


def test_a_flood_of_one_job_is_not_walked_over(rig: Rig) -> None:
    rig.add("ann/flood", 20_000, job_limit=2)
    rig.add("ann/other")
    begun = rig.take(9)
    assert sorted(jobs(begun)) == ["ann/flood", "ann/flood", "ann/other"]
    assert len(rig.pump.queue.parked) == 19_998
    rig.end([key for key in begun if "flood" in key][:1])
    assert len(rig.pump.queue.parked) == 19_997, "one may stand in its flow again"


def test_a_job_with_launches_in_two_queues_is_not_held_up_by_one_without_room(rig: Rig) -> None:
    rig.add("ann/a", 2, place="full", job_limit=1)
    free = rig.add("ann/a", 2, place="free", job_limit=1)
    rig.closed = {"full"}
    assert rig.take(9) == free[:1]

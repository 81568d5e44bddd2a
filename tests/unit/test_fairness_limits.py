"""Limits as gauges: who is subject to which, hard and soft ones, and changes while all runs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from cron.scopes import ANY_PRIORITY, EACH_TENANT, Scope, scope_text
from cron.state.pool import Limits
from tests.unit.fairness_rig import Rig, jobs, tenants

EACH: Scope = (EACH_TENANT, "", ANY_PRIORITY)


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize(
    "scope",
    [
        ("", "", -1),
        ("", "mail", -1),
        ("", "", 5),
        ("", "mail", 5),
        ("ann", "", -1),
        ("*", "", -1),
        ("ann", "mail", -1),
        ("*", "mail", 5),
    ],
)
def test_a_limit_of_any_scope_is_never_exceeded_and_frees_with_an_end(
    rig: Rig, scope: Scope
) -> None:
    rig.pump.set_limits(scope, Limits(concurrent=2))
    keys = rig.add("ann/a", 4)
    assert rig.take(9) == keys[:2]
    assert rig.take(9) == []
    rig.end(keys[:1])
    assert rig.take(9) == keys[2:3]


@pytest.mark.parametrize("scope", [("ann", "", 3), ("", "mail", 10), ("", "", -2)])
def test_a_scope_that_limits_nothing_is_refused(rig: Rig, scope: Scope) -> None:
    with pytest.raises(ValueError, match="limits nothing"):
        rig.pump.set_limits(scope, Limits(concurrent=1))


def test_a_pool_at_its_limit_stops_no_other_pool(rig: Rig) -> None:
    rig.pump.set_limits(("", "mail", -1), Limits(concurrent=1))
    rig.add("ann/mail", 5)
    rig.add("ann/bill", 3, pool="bill")
    assert Counter(jobs(rig.take(9))) == {"ann/mail": 1, "ann/bill": 3}


def test_a_queue_at_its_limit_stops_no_other_priority(rig: Rig) -> None:
    rig.pump.set_limits(("", "mail", 0), Limits(concurrent=1))
    rig.add("ann/urgent", 3, priority=0)
    rig.add("ann/patient", 2, priority=9)
    assert jobs(rig.take(9)) == ["ann/urgent", "ann/patient", "ann/patient"]


def test_a_tenant_at_its_limit_stops_nobody_and_goes_on_when_it_may(rig: Rig) -> None:
    rig.pump.set_limits(EACH, Limits(concurrent=2))
    keys = rig.add("ann/a", 4)
    rig.add("bob/a", 4)
    assert Counter(tenants(rig.take(9))) == {"ann": 2, "bob": 2}
    rig.end(keys[:2])
    assert tenants(rig.take(9)) == ["ann", "ann"]


def test_a_tenants_limit_counts_all_its_queues_and_classes(rig: Rig) -> None:
    rig.pump.set_limits(("ann", "", -1), Limits(concurrent=3))
    for number in range(5):
        rig.add("ann/a", pool=f"p{number}", priority=number, place=("class", number))
    taken = rig.take(9)
    assert len(taken) == 3
    rig.end(taken[:1])
    assert len(rig.take(9)) == 1


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


def test_lowering_a_limit_stops_new_starts_and_nothing_that_runs(rig: Rig) -> None:
    keys = rig.add("ann/a", 6)
    assert rig.take(4) == keys[:4]
    rig.pump.set_limits(("ann", "", -1), Limits(concurrent=2))
    assert rig.pump.running == 4
    rig.end(keys[:2])
    assert rig.take(9) == []
    rig.end(keys[2:3])
    assert rig.take(9) == keys[4:5]


def test_clearing_a_limit_wakes_what_was_parked(rig: Rig) -> None:
    for scope in (EACH, ("", "mail", -1), ("", "", 5)):
        rig.pump.set_limits(scope, Limits(concurrent=1))
        keys = rig.add("ann/a", 3)
        assert rig.take(9) == keys[:1]
        rig.pump.clear_limits(scope)
        assert rig.take(9) == keys[1:]
        rig.end(keys)
    assert rig.pump.queue.table.limiters == {}


def test_clearing_what_is_not_limited_changes_nothing(rig: Rig) -> None:
    keys = rig.add("ann/a")
    rig.pump.clear_limits(EACH)
    assert rig.take(9) == keys


def test_a_more_specific_limit_takes_over_what_already_runs(rig: Rig) -> None:
    rig.pump.set_limits((EACH_TENANT, "mail", -1), Limits(concurrent=4))
    keys = rig.add("ann/a", 6)
    assert rig.take(3) == keys[:3]
    rig.pump.set_limits(("ann", "mail", 5), Limits(concurrent=3))
    assert rig.take(9) == [], "three run already"
    rig.pump.clear_limits(("ann", "mail", 5))
    assert rig.take(9) == keys[3:4], "and four may, of the wider limit"


# ---- how many may wait


def first_full(rig: Rig, tenant: str, pool: str, priority: int) -> str:
    """The first limit of how many may wait that is reached, "" for none."""
    for one in rig.pump.waiting_limits(tenant, pool, priority):
        if one.waiting >= one.most:
            return f"{scope_text(one.scope)}: {one.waiting} wait, limit {one.most}"
    return ""


def test_a_full_queue_says_which_limit_is_reached(rig: Rig) -> None:
    rig.pump.set_limits(("", "mail", 5), Limits(waiting_max=3))
    rig.pump.set_limits((EACH_TENANT, "mail", -1), Limits(waiting_max=2))
    assert first_full(rig, "ann", "mail", 5) == ""
    rig.add("ann/a", 2)
    full = "tenant ann in pool mail: 2 wait, limit 2"
    assert first_full(rig, "ann", "mail", 5) == full
    assert first_full(rig, "ann", "mail", 9) == full, "the limit is for all priorities"
    assert first_full(rig, "bob", "mail", 5) == ""
    rig.add("bob/a")
    assert first_full(rig, "cyd", "mail", 5) == "queue mail/5: 3 wait, limit 3"
    assert first_full(rig, "cyd", "bill", 5) == ""
    rig.take(2)
    assert first_full(rig, "ann", "mail", 5) == "", "what runs does not wait"


def test_what_is_held_or_behind_its_job_waits_too(rig: Rig) -> None:
    rig.pump.set_limits(("", "", -1), Limits(waiting_max=3))
    rig.add("ann/a", 3, job_limit=1)
    rig.pump.hold("ann/a@1", rig.now_ms + 1000)
    assert first_full(rig, "bob", "bill", 0) == "everything: 3 wait, limit 3"


def test_a_limit_set_over_what_waits_counts_it(rig: Rig) -> None:
    rig.add("ann/a", 3)
    rig.pump.set_limits(("ann", "", -1), Limits(waiting_max=3))
    assert first_full(rig, "ann", "bill", 0) == "tenant ann: 3 wait, limit 3"


# ---- a job's limit


def test_a_job_at_its_limit_blocks_neither_its_tenant_nor_its_order(rig: Rig) -> None:
    first = rig.add("ann/slow", 3, job_limit=1)
    other = rig.add("ann/quick", 2)
    assert rig.take(9) == [first[0], *other]
    for before, after in pairwise(first):
        assert rig.take(9) == []
        rig.end([before])
        assert rig.take(9) == [after]


def test_a_flood_of_one_job_is_not_walked_over(rig: Rig) -> None:
    rig.add("ann/flood", 20_000, job_limit=2)
    rig.add("ann/other")
    begun = rig.take(9)
    assert sorted(jobs(begun)) == ["ann/flood", "ann/flood", "ann/other"]
    assert len(rig.pump.queue.parked) == 19_998
    rig.end([key for key in begun if "flood" in key][:1])
    assert len(rig.pump.queue.parked) == 19_997, "one may stand in its flow again"


def test_a_jobs_older_launches_stand_before_other_jobs_of_the_tenant(rig: Rig) -> None:
    first = rig.add("ann/slow", 2, job_limit=1)
    rig.add("ann/quick", 3)
    assert rig.take(1) == first[:1]
    rig.end(first[:1])
    assert rig.take(1) == first[1:]


def test_raising_a_jobs_limit_lets_more_begin_and_lowering_it_fewer(rig: Rig) -> None:
    keys = rig.add("ann/a", 6, job_limit=1)
    assert rig.take(9) == keys[:1]
    rig.pump.set_job_limits({"ann/a": 3})
    assert rig.take(9) == keys[1:3]
    rig.pump.set_job_limits({"ann/a": 2})
    rig.end(keys[:1])
    assert rig.take(9) == []
    rig.pump.set_job_limits({"ann/a": 0})
    assert rig.take(9) == keys[3:]


def test_a_jobs_launches_that_are_put_back_keep_their_order(rig: Rig) -> None:
    keys = rig.add("ann/a", 5, job_limit=2)
    assert rig.take(9) == keys[:2]
    rig.pump.set_job_limits({"ann/a": 1})
    rig.end([keys[1]])
    assert rig.pump.put_back(rig.items[keys[0]])
    assert rig.take(9) == keys[:1]
    rig.end(keys[:1])
    assert rig.take(9) == keys[2:3]


def test_a_jobs_launch_that_is_put_back_goes_before_one_that_took_its_turn(rig: Rig) -> None:
    keys = rig.add("ann/a", 3, job_limit=2)
    assert rig.take(9) == keys[:2]
    rig.end(keys[1:2])  # the third may stand in line now
    rig.pump.set_job_limits({"ann/a": 1})
    rig.pump.put_back(rig.items[keys[0]])
    assert rig.take(9) == keys[:1]


def test_a_job_with_launches_in_two_queues_is_not_held_up_by_one_without_room(rig: Rig) -> None:
    rig.add("ann/a", 2, place="full", job_limit=1)
    free = rig.add("ann/a", 2, place="free", job_limit=1)
    rig.closed = {"full"}
    assert rig.take(9) == free[:1]


def test_a_jobs_launch_that_is_removed_makes_room_for_the_next(rig: Rig) -> None:
    keys = rig.add("ann/a", 3, job_limit=1)
    rig.pump.remove(keys[0])
    rig.pump.hold(keys[1], rig.now_ms + 10)
    assert rig.take(9) == keys[2:]


def test_a_launch_that_was_removed_behind_its_job_holds_up_none_after_the_limit_is_raised(
    rig: Rig,
) -> None:
    keys = rig.add("ann/a", 2, job_limit=1)
    assert rig.take(9) == keys[:1]
    rig.pump.remove(keys[1])
    rig.pump.set_job_limits({"ann/a": 2})
    later = rig.add("ann/a", job_limit=2)
    assert rig.take(9) == later

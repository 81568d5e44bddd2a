"""The order of service where the model says little of it: weights, rooms, floods of one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from itertools import product

import pytest

from cron.scheduler.fair_queue import FairQueue
from cron.scheduler.flows import FlowKey
from cron.scopes import EACH_TENANT
from cron.state.pool import Limits
from tests.unit.fairness_rig import Rig, jobs, tenants


@pytest.fixture
def rig() -> Rig:
    return Rig()


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


def test_a_class_without_room_stops_no_other_and_is_asked_once_a_round(rig: Rig) -> None:
    rig.add("ann/a", 3, place="full")
    rig.add("ann/b", 3, place="free")
    rig.closed = {"full"}
    assert jobs(rig.take(9)) == ["ann/b"] * 3
    assert rig.asked.count("full") == 1
    rig.closed = set()
    assert rig.pump.take(rig.now_ms, rig.room) is None  # set aside until the next round
    assert jobs(rig.take(9)) == ["ann/a"] * 3


@pytest.mark.parametrize("most", [2, 7, 100])
def test_several_taken_at_once_are_those_that_are_taken_one_by_one(most: int) -> None:
    def taken(most: int) -> list[str]:
        queue, found, late = FairQueue(), list[str](), 20
        queue.set_limits(("ann", "", -1), Limits(weight=3))
        queue.set_limits(("bob", "", -1), Limits(concurrent=5))
        queue.set_limits(("cyd", "", -1), Limits(concurrent=3, burst=9))
        for tenant, pool, priority in product(("ann", "bob", "cyd"), ("mail", "bill"), (0, 5)):
            for is_late in (False, True):
                flow = FlowKey(tenant, pool, priority, pool, is_late)
                for number in range(30):
                    key = (tenant, f"{pool}{priority} {number}{' late' * is_late}")
                    assert queue.add(key, flow, 1000 + number)
        queue.begin_round()

        def has_room(_: Hashable, count: int) -> int:
            return min(count, 100 - len(found))

        while some := queue.take(2000, has_room, late, None, most):
            found += [" ".join(key) for key in some]
            late = 20 - sum("late" in name for name in found)
        return found

    assert taken(most) == taken(1)


# ---- coming and going


def test_a_busy_tenants_empty_flows_are_forgotten(rig: Rig) -> None:
    running = rig.item("ann/long")
    rig.pump.add_running(running)
    for number in range(200):
        rig.add("ann/a", place=("class", number))
        rig.end(rig.take(1))
    assert len(rig.pump.queue.flows) < 5
    assert len(rig.pump.queue.classes) < 5


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

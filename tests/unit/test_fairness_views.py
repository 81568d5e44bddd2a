"""What people see of the pump: depths, positions, and why a launch waits."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from cron.scheduler.views import Depth, Wait, WaitFor
from cron.scopes import EACH_TENANT, Scope, scope_text
from cron.state.pool import Limits
from tests.unit.fairness_rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def why(rig: Rig, key: Hashable) -> Wait:
    wait = rig.pump.why(key)
    assert wait is not None
    return wait


def test_depths_are_by_pool_priority_and_tenant(rig: Rig) -> None:
    since = rig.now_ms
    rig.add("bob/a", 2)
    rig.now_ms += 1000
    rig.add("ann/a", pool="bill", priority=0)
    rig.take(2)
    assert rig.pump.depths() == [
        Depth("bill", 0, "ann", 0, 1, 0, None),
        Depth("mail", 5, "bob", 1, 1, since, None),
    ]


def test_the_oldest_of_a_queue_may_be_held_or_behind_its_job(rig: Rig) -> None:
    since = rig.now_ms
    keys = rig.add("ann/a", 1)
    rig.add("bob/a", 2, job_limit=1)
    rig.now_ms += 500
    rig.add("ann/b")
    rig.pump.hold(keys[0], rig.now_ms + 9000)
    rig.pump.set_limits(("ann", "", -1), Limits(concurrent=1))
    rig.pump.add_running(rig.item("ann/c"))
    rig.take(9)
    rows = {row.tenant: row for row in rig.pump.depths()}
    assert rows["ann"] == Depth("mail", 5, "ann", 2, 1, since, ("ann", "", -1))
    assert rows["bob"] == Depth("mail", 5, "bob", 1, 1, since, None)


def test_a_position_counts_what_the_same_tenant_has_before_in_the_queue(rig: Rig) -> None:
    keys = rig.add("ann/a", 3)
    rig.add("bob/a", 5)
    rig.add("ann/a", 5, priority=0)
    assert [rig.pump.position(key) for key in keys] == [0, 1, 2]
    rig.pump.remove(keys[0])
    assert rig.pump.position(keys[2]) == 1
    assert rig.pump.position(keys[0]) is None


def test_what_does_not_wait_waits_for_nothing(rig: Rig) -> None:
    keys = rig.add("ann/a")
    rig.take(1)
    assert rig.pump.why(keys[0]) is None
    assert rig.pump.why("nobody/knows@1") is None


def test_a_launch_waits_for_its_turn(rig: Rig) -> None:
    keys = rig.add("ann/a", 2)
    rig.take(1)
    assert why(rig, keys[1]) == Wait(WaitFor.TURN)


def test_a_held_launch_waits_until_its_time(rig: Rig) -> None:
    (key,) = rig.add("ann/a")
    rig.pump.hold(key, rig.now_ms + 70)
    assert why(rig, key) == Wait(WaitFor.HOLD, until_ms=rig.now_ms + 70)


def test_a_launch_waits_for_its_jobs_limit(rig: Rig) -> None:
    keys = rig.add("ann/a", 3, job_limit=2)
    rig.take(9)
    assert why(rig, keys[2]) == Wait(WaitFor.JOB_LIMIT, limit=2)


@pytest.mark.parametrize(
    ("scope", "counted", "what"),
    [
        (("ann", "", -1), ("ann", "", -1), WaitFor.TENANT_LIMIT),
        ((EACH_TENANT, "", -1), ("ann", "", -1), WaitFor.TENANT_LIMIT),
        ((EACH_TENANT, "mail", 5), ("ann", "mail", 5), WaitFor.TENANT_LIMIT),
        (("", "mail", 5), ("", "mail", 5), WaitFor.QUEUE_LIMIT),
        (("", "mail", -1), ("", "mail", -1), WaitFor.QUEUE_LIMIT),
        (("", "", 5), ("", "", 5), WaitFor.QUEUE_LIMIT),
        (("", "", -1), ("", "", -1), WaitFor.QUEUE_LIMIT),
    ],
)
def test_a_launch_says_which_limit_is_reached(
    rig: Rig, scope: Scope, counted: Scope, what: WaitFor
) -> None:
    rig.pump.set_limits(scope, Limits(concurrent=1))
    keys = rig.add("ann/a", 2)
    rig.take(9)
    assert why(rig, keys[1]) == Wait(what, counted, 1)
    (row,) = rig.pump.depths()
    assert row.blocked_by == counted


def test_a_launch_says_until_when_the_rate_is_used_up(rig: Rig) -> None:
    rig.pump.set_limits(("", "mail", -1), Limits(rate_milli=500))
    keys = rig.add("ann/a", 2)
    rig.take(9)
    assert why(rig, keys[1]) == Wait(WaitFor.RATE, ("", "mail", -1), 500, rig.now_ms + 2000)


def test_a_launch_says_that_its_class_has_no_room(rig: Rig) -> None:
    rig.closed = {"full"}
    (key,) = rig.add("ann/a", place="full")
    rig.take(9)
    assert why(rig, key) == Wait(WaitFor.NO_ROOM)


def test_a_late_launch_says_that_catching_up_has_to_wait(rig: Rig) -> None:
    (key,) = rig.add("ann/a", is_late=True)
    rig.take(9, late_budget=0)
    assert why(rig, key) == Wait(WaitFor.LATE)


def test_a_launch_beyond_its_tenants_share_says_so(rig: Rig) -> None:
    rig.pump.set_limits(("ann", "", -1), Limits(concurrent=1, burst=3))
    keys = rig.add("ann/a", 3)
    rig.take(2)
    assert why(rig, keys[2]) == Wait(WaitFor.TENANT_LIMIT, ("ann", "", -1), 1)


@pytest.mark.parametrize(
    ("scope", "text"),
    [
        (("", "", -1), "everything"),
        (("", "bill", -1), "pool bill"),
        (("", "bill", 5), "queue bill/5"),
        (("", "", 0), "priority 0"),
        (("ann", "", -1), "tenant ann"),
        (("*", "bill", 5), "each tenant in queue bill/5"),
    ],
)
def test_scopes_are_said_in_words(scope: Scope, text: str) -> None:
    assert scope_text(scope) == text

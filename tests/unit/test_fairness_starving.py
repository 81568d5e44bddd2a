"""Needs of which nothing begins for want of room: since when, and for whom nothing is kept."""

from __future__ import annotations

import pytest

from cron.scheduler.fair_queue import GAP_MS, PATIENCE_MS
from cron.state.pool import Limits
from tests.unit.fairness_rig import Rig

STEP_MS = 500


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.closed = {"big"}
    return rig


def wait(rig: Rig, ms: int) -> None:
    """Let time pass in which small launches begin and end all the while."""
    for _ in range(ms // STEP_MS):
        rig.add("b/small", place="small")
        rig.end(rig.take(3))
        rig.now_ms += STEP_MS


def starving(rig: Rig) -> dict[object, int]:
    return dict(rig.pump.queue.starving(rig.now_ms))


def test_a_need_without_room_starves_after_its_patience(rig: Rig) -> None:
    begin_ms = rig.now_ms
    rig.add("a/big", place="big")
    wait(rig, PATIENCE_MS - STEP_MS)
    assert starving(rig) == {}
    wait(rig, 2 * STEP_MS)
    assert starving(rig) == {"big": begin_ms}


def test_a_need_of_which_one_begins_waits_anew(rig: Rig) -> None:
    rig.add("a/big", 2, place="big")
    wait(rig, PATIENCE_MS - STEP_MS)
    rig.closed = set()
    assert len(rig.take(1)) == 1
    rig.closed = {"big"}
    wait(rig, 2 * STEP_MS)
    assert starving(rig) == {}


def test_a_launch_that_is_put_back_has_not_begun(rig: Rig) -> None:
    (key,) = rig.add("a/big", place="big")
    wait(rig, PATIENCE_MS)
    rig.closed = set()
    assert rig.take(1) == [key]
    assert rig.pump.put_back(rig.items[key])
    rig.closed = {"big"}
    wait(rig, STEP_MS)
    assert list(starving(rig)) == ["big"]


def test_a_launch_that_came_late_waits_for_its_own_time(rig: Rig) -> None:
    (old,) = rig.add("a/big", place="big")
    wait(rig, PATIENCE_MS)
    rig.add("a/big", place="big")
    rig.pump.remove(old)
    wait(rig, STEP_MS)
    assert starving(rig) == {}


def test_a_need_that_waits_for_a_limit_meanwhile_does_not_starve(rig: Rig) -> None:
    rig.pump.set_limits(("a", "mail", -1), Limits(concurrent=1))
    rig.add("a/big", place="big")
    wait(rig, PATIENCE_MS - STEP_MS)
    running = rig.item("a/other")
    rig.pump.add_running(running)
    wait(rig, GAP_MS + 2 * STEP_MS)
    rig.end([running.key])
    wait(rig, 2 * STEP_MS)
    assert starving(rig) == {}


def test_nothing_is_kept_for_a_tenant_beyond_its_share(rig: Rig) -> None:
    rig.pump.set_limits(("a", "mail", -1), Limits(concurrent=1, burst=9))
    rig.pump.add_running(rig.item("a/other"))
    rig.add("a/big", place="big")
    wait(rig, PATIENCE_MS + 2 * STEP_MS)
    assert starving(rig) == {}

"""Which place classes starve: passed over for long, for want of room alone."""

from __future__ import annotations

import pytest

from launcher.fairness.item import Limits
from launcher.fairness.starving import LOOK_MS, PATIENCE_MS
from tests.unit.fairness_rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_class_starves_once_nothing_of_it_has_begun_for_long(rig: Rig) -> None:
    begin_ms = rig.now_ms
    rig.closed = {"big"}
    rig.add("a/big", place="big")
    seen = []
    for _ in range(0, PATIENCE_MS + 3 * LOOK_MS, LOOK_MS):
        rig.add("a/small", place="small")
        rig.take(9)
        if rig.pump.starving.since_ms:
            seen.append(rig.now_ms)
        rig.now_ms += LOOK_MS
    assert seen[0] == begin_ms + PATIENCE_MS + LOOK_MS
    assert rig.pump.starving.since_ms == {"big": begin_ms}


def starved(rig: Rig, after_ms: int = PATIENCE_MS, turns: int = 2) -> dict[object, int]:
    """Who starves after another look, `after_ms` later; there is a turn in each second."""
    for _ in range(0, after_ms, 1_000):
        rig.take(9)
        rig.now_ms += 1_000
    for _ in range(turns):
        rig.take(9)
        rig.now_ms += LOOK_MS
    rig.take(9)
    return dict(rig.pump.starving.since_ms)


def test_a_class_of_which_one_begins_now_and_then_does_not(rig: Rig) -> None:
    rig.add("a/big", 3, place="big")
    rig.closed = {"big"}
    rig.take()
    rig.now_ms += PATIENCE_MS - LOOK_MS
    rig.closed = set()
    assert rig.take() == ["a/big@1"]
    rig.closed = {"big"}
    assert starved(rig, 0) == {}
    assert list(starved(rig)) == ["big"]


def test_one_that_came_just_now_to_a_class_that_starved_does_not(rig: Rig) -> None:
    rig.closed = {"big"}
    keys = rig.add("a/big", place="big")
    rig.add("b/big", place="big", priority=9, enqueued_ms=rig.now_ms + PATIENCE_MS)
    rig.take()
    assert list(starved(rig)) == ["big"]
    rig.pump.remove(keys[0])
    assert starved(rig, 0) == {}


def test_what_waits_for_its_limit_as_well_does_not(rig: Rig) -> None:
    rig.pump.set_limits(("a", "mail", -1), Limits(concurrent=1))
    rig.add("a/big", 2, place="big")
    assert rig.take() == ["a/big@1"]
    rig.closed = {"big"}
    rig.take()
    assert starved(rig) == {}
    rig.end(["a/big@1"])
    rig.take()
    assert list(starved(rig)) == ["big"]


def test_who_is_asked_in_every_round_is_looked_at_now_and_then(rig: Rig) -> None:
    rig.closed = {"big"}
    (key,) = rig.add("a/big", place="big")
    rig.take()
    assert list(starved(rig)) == ["big"]
    rig.take()
    rig.pump.remove(key)
    rig.now_ms += LOOK_MS - 1
    for _ in range(3):
        rig.take()
    assert list(rig.pump.starving.since_ms) == ["big"], "it is not time yet"
    rig.now_ms += 1
    for _ in range(3):
        rig.take()
    assert rig.pump.starving.since_ms == {}


@pytest.mark.parametrize("back_ms", [PATIENCE_MS, 10 * PATIENCE_MS])
def test_time_that_was_set_back_does_not_stop_the_looking(rig: Rig, back_ms: int) -> None:
    rig.closed = {"big"}
    rig.add("a/big", place="big", enqueued_ms=0)
    rig.now_ms += 20 * PATIENCE_MS
    rig.take()
    assert list(starved(rig)) == ["big"]
    rig.now_ms -= back_ms
    for _ in range(3):
        rig.take()
    assert rig.pump.starving.since_ms == {}
    assert list(starved(rig)) == ["big"]


def test_what_is_taken_and_put_back_did_not_begin(rig: Rig) -> None:
    """There was room for one of its parts, and never for all."""
    rig.closed = {"big"}
    rig.add("a/big", place="big")
    rig.take()
    for _ in range(3):
        starved(rig, PATIENCE_MS // 3)
        rig.closed = set()
        assert rig.take() == ["a/big@1"]
        assert rig.pump.put_back(rig.items["a/big@1"])
        rig.closed = {"big"}
        rig.take()
    assert list(starved(rig, 0, turns=3)) == ["big"]


def test_what_is_put_aside_for_slots_that_are_reserved_starves_as_well(rig: Rig) -> None:
    rig.add("a/big", place="big")
    for _ in range(PATIENCE_MS // LOOK_MS + 3):
        assert rig.take() == ["a/big@1"]
        assert rig.pump.put_aside(rig.items["a/big@1"])
        rig.now_ms += LOOK_MS
    assert list(rig.pump.starving.since_ms) == ["big"]


def test_what_is_beyond_its_tenants_share_does_not(rig: Rig) -> None:
    """Room was kept for it, and whoever was within its share waited."""
    rig.pump.set_limits(("a", "mail", -1), Limits(concurrent=1, burst=9))
    rig.add("a/big", 2, place="big")
    assert rig.take(1) == ["a/big@1"]
    rig.closed = {"big"}
    assert starved(rig) == {}
    rig.end(["a/big@1"])
    assert list(starved(rig)) == ["big"]


def test_time_behind_a_gate_is_not_waited_for_room(rig: Rig) -> None:
    rig.closed = {"big"}
    rig.add("a/big", place="big")
    rig.take()
    rig.pump.hold("a/big@1", rig.now_ms + 900_000)
    assert starved(rig, 900_000) == {}
    assert starved(rig, PATIENCE_MS - 5_000) == {}
    assert list(starved(rig, 10_000)) == ["big"]

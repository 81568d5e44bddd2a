"""Turns of tenants: who has the next slot where several ask for different things."""

from __future__ import annotations

from collections import Counter

import pytest

from cron.state.pool import Limits
from tests.unit.fairness_rig import Rig, tenants


@pytest.fixture
def rig() -> Rig:
    return Rig()


def share(rig: Rig, rounds: int) -> Counter[str]:
    """Who gets the only slot, so many times; it comes free once in a round."""
    got: Counter[str] = Counter()
    for _ in range(rounds):
        rig.slots["left"] = 1
        (key,) = rig.take(1)
        got[tenants([key])[0]] += 1
        rig.end([key])
    return got


def shared(rig: Rig, job: str, count: int, place: str) -> None:
    rig.add(job, count, place=place, domain="left")


@pytest.mark.parametrize("wishes", [1, 10])
def test_who_asks_for_something_special_has_no_more_turns_for_it(rig: Rig, wishes: int) -> None:
    """A label made a class of its own, which had as many turns as that of all others together; and
    ten labels had ten times as many."""
    for number in range(wishes):
        shared(rig, f"ann/{number}", 60, place=f"zone=z{number}")
    for tenant in ("bob", "cyd", "dan"):
        shared(rig, f"{tenant}/a", 60, place="anywhere")
    assert share(rig, 40) == dict.fromkeys(("ann", "bob", "cyd", "dan"), 10)


def test_a_tenants_weight_counts_for_classes_in_which_it_is_alone(rig: Rig) -> None:
    rig.pump.set_limits(("ann", "", -1), Limits(weight=3))
    for tenant in ("ann", "bob"):
        for number in range(2):
            shared(rig, f"{tenant}/{number}", 40, place=f"{tenant}-{number}")
    assert share(rig, 40) == {"ann": 30, "bob": 10}


def test_a_class_that_somebody_joins_has_turns_for_both_and_is_alone_again(rig: Rig) -> None:
    shared(rig, "ann/a", 90, place="p")
    shared(rig, "bob/a", 90, place="q")
    assert share(rig, 10) == {"ann": 5, "bob": 5}
    shared(rig, "cyd/a", 5, place="p")
    assert share(rig, 15) == {"ann": 5, "bob": 5, "cyd": 5}
    assert share(rig, 10) == {"ann": 5, "bob": 5}


def test_turns_where_slots_are_elsewhere_cost_none(rig: Rig) -> None:
    """Ann's own workers are fast; on the slots that she shares she has her share all the same."""
    shared(rig, "ann/a", 90, place="special")
    shared(rig, "bob/a", 90, place="other")
    rig.add("ann/own", 90, pool="own", place="own", domain="right")
    got: Counter[str] = Counter()
    for _ in range(40):
        rig.slots = {"left": 1, "right": 1}
        keys = rig.take(2, reserves=True)
        got.update(key.split("/")[0] for key in map(str, keys) if rig.items[key].domain == "left")
        rig.end(keys)
    assert got == {"ann": 20, "bob": 20}


def test_a_turn_goes_on_where_room_ran_out_in_its_midst(rig: Rig) -> None:
    """Whoever finds no room is left out for the rest of the round, and comes back to its turn."""
    rig.pump.set_limits(("ann", "", -1), Limits(weight=3))
    for tenant in ("ann", "bob"):
        shared(rig, f"{tenant}/a", 40, place=f"{tenant}s")
    got: Counter[str] = Counter()
    for _ in range(40):
        rig.slots["left"] = 1
        keys = rig.take(9, reserves=True)
        got.update(tenants(keys))
        rig.end(keys)
    assert got == {"ann": 30, "bob": 10}


def test_a_class_in_which_another_comes_and_goes_has_its_turns(rig: Rig) -> None:
    """Each time it went to the end of the ring, and it never began."""
    for number in range(6):
        shared(rig, f"t{number}/a", 60, place=f"p{number}")
    got: Counter[str] = Counter()
    for number in range(60):
        (key,) = rig.add("zed/a", place="p0", domain="left")
        rig.take(0)
        rig.pump.remove(key)
        rig.slots["left"] = 1
        (key,) = rig.take(1)
        got[tenants([key])[0]] += 1
        rig.end([key])
        rig.now_ms += number
    assert got["t0"] >= 9


def test_a_late_one_that_is_taken_and_put_back_has_its_turn_again(rig: Rig) -> None:
    late, live = rig.add("bob/a", 2, is_late=True), rig.add("ann/a", 40)
    begun = rig.take(9)
    assert begun == live[:9]
    for _ in range(3):
        assert rig.take(1) == late[:1]
        rig.pump.put_back(rig.items[late[0]], rig.now_ms + 1)
        rig.now_ms += 2
    assert rig.take(1) == late[:1]

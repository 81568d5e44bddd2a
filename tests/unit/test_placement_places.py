"""Where a launch goes: least loaded first, and what is taken stays counted."""

from __future__ import annotations

import pytest

from cron.errors import InvariantViolated
from cron.scheduler import places as module
from cron.scheduler.places import Capacity, Need, Place, Places
from tests.places import has_room

ANY = Need()


def place(number: int, slots: int = 4, cpu_milli: int = 0, memory: int = 0, **labels: str) -> Place:
    capacities = (Capacity(slots), Capacity(slots, ("mail", "bill")))
    return Place.of(number, f"e{number}", "host", labels, capacities, cpu_milli, memory)


def cell(*all_of_them: Place) -> Places:
    places = Places()
    for one in all_of_them:
        places.put(one)
    return places


def place_all(places: Places, need: Need, count: int) -> list[int]:
    """Place so many launches, one after the other; return where they went."""
    numbers = []
    for _ in range(count):
        number = places.choose(need)
        assert number is not None
        places.take(number, need)
        numbers.append(number)
    return numbers


# ---- whom


def test_labels_decide_and_the_built_in_ones_cannot_be_configured_away() -> None:
    places = cell(place(0, zone="eu"), place(1, zone="us", host="mine", executor="e0"))
    assert places.choose(Need(where="zone=us")) == 1
    assert places.choose(Need(where="executor=e1,host=host")) == 1
    assert places.choose(Need(where="host=mine")) is None


def test_a_where_that_cannot_be_read_fits_nobody_and_stops_nothing() -> None:
    # It was accepted by a version that read more, say.
    places = cell(place(0))
    assert places.choose(Need(where="zone>3")) is None
    assert places.choose_each(Need(where="zone>3"), "") == []
    assert places.choose_each(ANY, "zone>3") == []
    assert not has_room(places, 0, Need(where="zone>3"))


def test_a_launch_waits_where_slots_come_free_soon_only_if_no_slot_is_free_anywhere() -> None:
    soon = Place(0, {}, (Capacity(2, ahead=2),))
    places = cell(soon, Place(1, {}, (Capacity(2),)))
    assert places.may_wait == 2
    assert places.spread(ANY, 9) == {0: 4, 1: 2}
    assert place_all(places, ANY, 6) == [0, 1, 0, 1, 0, 0]
    assert places.choose(ANY) is None
    assert places.free("command") == 0
    places.give(0, ANY)
    assert places.slots(ANY, 9) == 1, "one more may wait"
    assert places.free("command") == 0, "and has no slot"
    places.put(Place(0, {}, (Capacity(2),)))
    assert (places.may_wait, places.choose(ANY)) == (0, None)
    places.put(soon)
    places.drop(0)
    assert places.may_wait == 0


@pytest.mark.parametrize("cpu_milli", [1000, 2000])
def test_a_free_slot_is_taken_before_a_launch_waits_whatever_cpu_has_been_taken_beside_it(
    cpu_milli: int,
) -> None:
    places = cell(Place(0, {}, (Capacity(2, ahead=2),)), place(1, cpu_milli=cpu_milli))
    places.take(1, Need(cpu_milli=cpu_milli))
    places.put(place(1, cpu_milli=1000))  # it came back, and may have less
    places.take(0, ANY, 2)
    assert places.spread(ANY, 3) == {1: 3}
    assert place_all(places, ANY, 5) == [1, 1, 1, 0, 0]


def test_executors_that_are_cordoned_get_nothing() -> None:
    places = cell(place(0), place(1))
    places.cordon(0, is_cordoned=True)
    assert place_all(places, ANY, 2) == [1, 1]
    places.cordon(0, is_cordoned=False)
    assert places.choose(ANY) == 0


# ---- several at once


def test_each_waits_for_one_that_is_too_small_rather_than_leave_it_out() -> None:
    places = cell(place(0, 1, 1000), place(1, 1, 4000))
    assert places.choose_each(Need(cpu_milli=2000), "executor") is None


# ---- who comes and goes


def test_a_new_leader_counts_what_runs_before_the_executor_is_there() -> None:
    places = Places()
    places.take(0, Need("mail"))
    places.put(place(0, slots=1))
    assert places.choose(Need("bill")) is None


def test_numbers_are_bounded() -> None:
    with pytest.raises(InvariantViolated, match="executor number -1 is out of range"):
        Places().put(place(-1))
    with pytest.raises(InvariantViolated, match="is out of range"):
        Places().put(place(module.NUMBER_MAX + 1))


# ---- what it costs


def test_a_choice_does_not_pass_over_the_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    places = cell(*(place(number, slots=2) for number in range(500)))
    passes = []
    real = module.heapify
    monkeypatch.setattr(module, "heapify", lambda heap: passes.append(len(heap)) or real(heap))
    for _ in range(2):
        numbers = place_all(places, ANY, 1000)
        assert places.choose(ANY) is None
        for number in numbers:
            places.give(number, ANY)
    # A turn begins a thousand launches, and another after all have ended: a pass for each.
    assert passes == [500, 500]


def test_the_same_offer_again_changes_nothing() -> None:
    places = cell(place(0))
    view = places.views[0]
    places.put(place(0))
    assert places.views[0] is view


def test_needs_are_forgotten_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FITS_MAX", 4)
    places = cell(place(0), place(1))
    for number in range(20):
        assert places.choose(Need(cpu_milli=number)) == 0
        assert len(places._fits) <= 4

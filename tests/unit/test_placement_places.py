"""Where a launch goes: least loaded first, and what is taken stays counted."""

from __future__ import annotations

import pytest

from cron.errors import InvariantViolated
from cron.scheduler import places as module
from cron.scheduler.places import Capacity, Need, Place, Places, Used

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


def test_the_least_loaded_is_chosen_and_of_equals_the_first() -> None:
    places = cell(place(2), place(0), place(1, slots=8))
    # e1 is twice as large: at a load of a quarter it has two, the others one.
    assert place_all(places, ANY, 8) == [0, 1, 2, 1, 0, 1, 2, 1]


def test_the_fullest_of_slots_cpu_and_memory_is_the_load() -> None:
    places = cell(place(0, 10, 1000, 100), place(1, 10, 1000, 100), place(2, 10, 1000, 100))
    places.take(0, Need(cpu_milli=900))
    places.take(1, Need(memory_bytes=80))
    for _ in range(7):
        places.take(2, ANY)
    assert place_all(places, ANY, 2) == [2, 1]


def test_a_capacity_of_zero_is_not_limited() -> None:
    places = cell(place(0, slots=3))
    heavy = Need(cpu_milli=1 << 40, memory_bytes=1 << 50)
    assert place_all(places, heavy, 3) == [0, 0, 0]
    assert not places.has_room(heavy)


def test_slots_of_one_group_are_not_those_of_commands() -> None:
    places = cell(place(0, slots=1))
    places.take(0, Need("mail"))
    assert not places.has_room(Need("bill"))
    assert places.has_room(ANY)
    assert not places.has_room(Need("unknown"))


def test_what_takes_no_cpu_fits_where_too_much_cpu_is_taken() -> None:
    places = cell(place(0, 9, 1000))
    places.take(0, Need(cpu_milli=5000))
    assert places.choose(ANY) == 0
    assert places.choose(Need(cpu_milli=1)) is None


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
    assert not places.fits(0, Need(where="zone>3"))


def test_who_refused_gets_it_again_only_if_nobody_else_has_room() -> None:
    places = cell(place(0), place(1, slots=1))
    assert places.choose(ANY, avoid=0) == 1
    places.take(1, ANY)
    assert places.choose(ANY, avoid=0) == 0
    assert places.choose(ANY, avoid=7) == 0


def test_executors_that_are_cordoned_get_nothing() -> None:
    places = cell(place(0), place(1))
    places.cordon(0, is_cordoned=True)
    assert place_all(places, ANY, 2) == [1, 1]
    places.cordon(0, is_cordoned=False)
    assert places.choose(ANY) == 0


def test_one_executor_can_be_asked_for() -> None:
    places = cell(place(0, slots=1, zone="eu"))
    assert places.fits(0, Need(where="zone=eu"))
    assert not places.fits(0, Need(where="zone=us"))
    assert not places.fits(1, ANY)
    places.take(0, ANY)
    assert not places.fits(0, ANY)


# ---- several at once


def test_parts_go_to_different_executors_the_least_loaded_first() -> None:
    places = cell(place(0), place(1), place(2))
    places.take(0, ANY)
    assert places.choose_parts(ANY, 2) == [1, 2]
    assert places.choose_parts(ANY, 3) == [1, 2, 0]
    assert places.choose_parts(ANY, 4) is None
    assert places.choose_parts(ANY, 2) == [1, 2]


def test_each_is_all_that_match_or_nobody() -> None:
    places = cell(place(5, 1, role="web"), place(3, role="web", zone="eu"), place(4, role="db"))
    assert places.choose_each(ANY, "role=web") == [3, 5]
    assert places.choose_each(Need(where="zone=eu"), "role=web") == [3]
    assert places.choose_each(ANY, "role=mail") == []
    places.take(5, ANY)
    assert places.choose_each(ANY, "role=web") is None
    assert places.choose_each(Need(where="zone=eu"), "role=web") == [3]


def test_each_waits_for_one_that_is_too_small_rather_than_leave_it_out() -> None:
    places = cell(place(0, 1, 1000), place(1, 1, 4000))
    assert places.choose_each(Need(cpu_milli=2000), "executor") is None


# ---- who comes and goes


def test_what_is_taken_still_counts_when_an_executor_returns() -> None:
    places = cell(place(0, slots=2))
    places.take(0, Need(cpu_milli=700))
    places.drop(0)
    assert not places.has_room(ANY)
    assert places.used(0) == Used({"command": 1}, 700, 0)
    places.put(place(0, slots=1, cpu_milli=1000))
    assert not places.has_room(ANY)
    places.give(0, Need(cpu_milli=700))
    assert places.choose(ANY) == 0
    assert places.used(0) == Used({}, 0, 0)


def test_a_new_leader_counts_what_runs_before_the_executor_is_there() -> None:
    places = Places()
    places.take(0, Need("mail"))
    places.put(place(0, slots=1))
    assert not places.has_room(Need("bill"))


def test_of_one_that_is_away_nothing_is_remembered_once_all_is_given_back() -> None:
    places = cell(place(0))
    places.take(0, ANY)
    places.drop(0)
    places.give(0, ANY)
    assert places._away == {}
    places.drop(0)
    places.drop(1)
    assert places.used(0) == Used({}, 0, 0)


def test_giving_back_what_was_not_taken_is_a_bug() -> None:
    places = cell(place(0))
    with pytest.raises(InvariantViolated, match="executor 0 has nothing of pool command"):
        places.give(0, ANY)
    with pytest.raises(InvariantViolated, match="executor 9 has nothing of pool mail"):
        places.give(9, Need("mail"))
    places.take(0, ANY)
    with pytest.raises(InvariantViolated, match="executor 0 was given back more than was taken"):
        places.give(0, Need(cpu_milli=1))


def test_numbers_are_bounded() -> None:
    with pytest.raises(InvariantViolated, match="executor number -1 is out of range"):
        Places().put(place(-1))
    with pytest.raises(InvariantViolated, match="is out of range"):
        Places().put(place(module.NUMBER_MAX + 1))


# ---- what it costs


def test_a_choice_does_not_pass_over_the_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    places = cell(*(place(number, slots=2) for number in range(500)))
    assert places.has_room(ANY)
    looks = []
    room = module.SlotGroup.has_room
    monkeypatch.setattr(
        module.SlotGroup, "has_room", lambda one, *more: looks.append(1) or room(one, *more)
    )
    numbers = place_all(places, ANY, 1000)
    for number in numbers:
        places.give(number, ANY)
    place_all(places, ANY, 1000)
    # Amortised: each launch costs a handful of looks at executors, whatever their number.
    assert len(looks) < 5 * 3000


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


def test_nothing_grows_with_what_is_given_back() -> None:
    places = cell(place(0), place(1))
    for _ in range(500):
        (number,) = place_all(places, ANY, 1)
        places.give(number, ANY)
    assert len(places.fit(ANY).heap) <= 2 * 2 + module.STALE_MIN + 1
    for _ in range(500):
        places.take(0, ANY)
        places.give(0, ANY)
    assert len(places._freed) <= 2 * 2 + module.STALE_MIN

"""Earmarks: what changes while one lasts, and what they cost."""

from __future__ import annotations

import pytest

from launcher.placement.earmark import MARKED_MAX, TRIED_MAX, UNFIT_MS, Earmarks, Wanted
from launcher.placement.place import Capacity, Need, Place
from tests.unit.test_placement_earmark import BIG, LASTS_MS, SMALL, WIDE, Rig

# ---- what changes meanwhile


def test_an_executor_that_offers_less_than_is_held_there_ends_the_mark() -> None:
    """The launch began on a seat with three of two slots used."""
    rig = Rig()
    rig.fill(leaving=2)
    mark = rig.starve(WIDE)
    assert mark is not None
    assert mark.is_ready
    for number in mark.numbers:
        rig.join(number, slots=2)
    assert not rig.marks.is_ready(WIDE)
    assert rig.marks.take(WIDE) == ()
    assert rig.look(1) is None


@pytest.mark.parametrize("cpu_milli", [3_999, 4_000])
def test_an_executor_with_less_cpu_than_is_held_there_ends_the_mark(cpu_milli: int) -> None:
    rig = Rig(executors=1)
    assert rig.starve(Wanted(BIG)) is not None
    rig.join(1, slots=5, cpu_milli=cpu_milli)
    assert (rig.look(1) is None) == (cpu_milli < 4_000)


def test_where_only_slots_are_short_nobody_is_barred() -> None:
    """An executor with cpu enough got nothing at all, its slots for commands stayed empty."""
    rig = Rig(executors=1)
    groups = (Capacity(4), Capacity(1, ("app.send",)))
    rig.places.put(Place.of(1, "e1", "h", {}, groups, 4_000))
    send = Need("app.send", cpu_milli=500)
    rig.places.take(1, send)
    assert rig.starve(Wanted(send)) is not None
    assert rig.places.has_room(SMALL)
    rig.places.take(1, Need(cpu_milli=3_500))
    rig.look(1)
    assert not rig.places.has_room(SMALL), "now cpu is short as well"
    rig.places.give(1, Need(cpu_milli=3_500))
    rig.look(1)
    assert rig.places.has_room(SMALL)


def test_nothing_is_held_that_may_not_be() -> None:
    rig = Rig()
    allowed: set[int] = {1}
    rig.marks = Earmarks(
        rig.places, lambda number, need: number in allowed and rig.places.hold(number, need)
    )
    mark = rig.starve(WIDE)
    assert mark is not None
    assert mark.held == {1}
    allowed.add(2)
    rig.look(1)
    assert mark.is_ready


# ---- what it costs


def test_between_two_news_only_what_has_come_free_is_looked_at() -> None:
    rig = Rig()
    rig.fill()
    mark = rig.starve(WIDE)
    assert mark is not None
    seen_ms = mark.seen_ms
    rig.places.give(1, SMALL)
    rig.look(1, is_news=False)
    assert mark.held == {1}
    assert mark.seen_ms == seen_ms
    assert rig.look(LASTS_MS, is_news=False) is None


def test_no_mark_on_more_executors_than_a_round_can_look_at() -> None:
    rig = Rig(executors=MARKED_MAX + 1)
    rig.fill()
    assert rig.starve(Wanted(SMALL, each="role=web")) is None
    rig.places.drop(1)
    mark = rig.look(UNFIT_MS)
    assert mark is not None
    assert len(mark.numbers) == MARKED_MAX


def test_of_those_that_fit_nowhere_a_few_are_looked_at_in_one_go_and_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is a pass over all executors; a hundred of them cost half a second in every turn."""
    rig = Rig()
    looked: list[Wanted] = []
    fitting = Earmarks._fitting
    monkeypatch.setattr(
        Earmarks, "_fitting", lambda self, wanted: looked.append(wanted) or fitting(self, wanted)
    )
    for number in range(3 * TRIED_MAX):
        rig.starving[Wanted(Need(cpu_milli=5_000 + number))] = number
    for looks in range(1, 6):
        rig.look(1)
        assert len(looked) == min(looks, 3) * TRIED_MAX
    assert len(set(looked)) == len(looked)
    rig.look(UNFIT_MS)
    assert len(looked) == 4 * TRIED_MAX


def test_what_came_to_nothing_is_forgotten_with_who_starved() -> None:
    rig = Rig()
    rig.fill()
    rig.starve(WIDE)
    assert rig.look(LASTS_MS) is None
    assert not rig.marks.is_idle
    rig.starving = {Wanted(BIG): rig.now_ms}
    rig.look(1)
    assert rig.marks.is_idle


def test_one_that_begins_ends_the_rest_that_its_own_mark_has_caused() -> None:
    rig = Rig()
    rig.fill()
    rig.starve(WIDE)
    rig.starving[Wanted(BIG)] = 0
    assert rig.look(LASTS_MS) is None
    assert not rig.marks.began(Wanted(BIG))
    assert rig.look(1) is None, "it was not its mark"
    assert not rig.marks.began(WIDE), "there is nothing to let go"
    assert rig.look(1) is not None
    assert rig.marks.began(rig.marks.mark.wanted)  # type: ignore[union-attr]

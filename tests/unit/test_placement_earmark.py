"""Earmarks: room that is put by for a launch which needs much, and for how long."""

from __future__ import annotations

import itertools

import pytest

from launcher.placement.earmark import READY_MS, UNSEEN_MS, Earmarks, Mark, Wanted
from launcher.placement.place import Capacity, Need, Place
from launcher.placement.places import Places

SMALL = Need()
BIG = Need(cpu_milli=4_000)
WIDE = Wanted(SMALL, parts=2)
WAITED_MS = 40_000
LASTS_MS = WAITED_MS // 4


class Rig:
    """Executors with four slots and four CPUs each, numbered from 1, and who starves since 0."""

    def __init__(self, executors: int = 2) -> None:
        self.places = Places()
        self.marks = Earmarks(self.places)
        self.starving: dict[Wanted, int] = {}
        self.now_ms = WAITED_MS
        for number in range(1, executors + 1):
            self.join(number)

    def join(self, number: int, slots: int = 4, cpu_milli: int = 4_000, role: str = "web") -> None:
        place = Place.of(number, f"e{number}", "h", {"role": role}, (Capacity(slots),), cpu_milli)
        self.places.put(place)

    def fill(self, need: Need = SMALL, *, leaving: int = 0) -> int:
        """Let small launches take all that is free, but for so many slots; return how many did."""
        count = itertools.count()
        while sum(bench.seats[0].slots for bench in self.places.benches.values()):
            number = self.places.choose(need)
            if number is None or self.free() <= leaving:
                break
            self.places.take(number, need)
            next(count)
        return next(count)

    def free(self) -> int:
        benches = self.places.benches.values()
        return sum(bench.seats[0].slots - bench.seats[0].used for bench in benches)

    def look(self, after_ms: int = 0, *, is_news: bool = True) -> Mark | None:
        self.now_ms += after_ms
        self.marks.look(self.starving if is_news else None, self.now_ms)
        return self.marks.mark

    def starve(self, wanted: Wanted, since_ms: int = 0) -> Mark | None:
        self.starving[wanted] = since_ms
        return self.look()


def test_a_slot_is_held_on_each_executor_as_soon_as_it_is_free() -> None:
    rig = Rig()
    rig.fill()
    mark = rig.starve(WIDE)
    assert mark is not None
    assert (mark.numbers, mark.held) == ((1, 2), set())
    rig.places.give(2, SMALL)
    rig.look(1)
    assert mark.held == {2}
    assert rig.fill() == 0, "small ones must not take what is held"
    assert not rig.marks.is_ready(WIDE)
    rig.places.give(1, SMALL)
    rig.look(1)
    assert rig.marks.is_ready(WIDE)
    assert rig.marks.take(WIDE) == (1, 2)
    assert rig.places.choose_parts(SMALL, 2) is not None, "what was held is free for it"


def test_what_comes_free_beyond_that_is_for_everybody() -> None:
    rig = Rig()
    rig.fill()
    rig.starve(WIDE)
    for _ in range(3):
        rig.places.give(2, SMALL)
    rig.look(1)
    assert rig.fill() == 2


def test_an_executor_that_is_short_of_cpu_gets_nothing_else_until_there_is_enough() -> None:
    rig = Rig()
    third = Need(cpu_milli=1_000)
    rig.fill(third)
    mark = rig.starve(Wanted(BIG))
    assert mark is not None
    assert mark.numbers == (1,)
    for _ in range(3):
        rig.places.give(1, third)
        rig.look(1)
        assert not rig.places.has_room(third)
        assert not rig.places.has_room(SMALL)
        assert not rig.marks.is_ready(Wanted(BIG))
    rig.places.give(1, third)
    rig.look(1)
    assert rig.marks.is_ready(Wanted(BIG))
    assert rig.places.has_room(SMALL), "slots are left"
    assert not rig.places.has_room(third)


def test_the_least_loaded_are_chosen_of_those_that_fit() -> None:
    rig = Rig(executors=3)
    rig.join(4, cpu_milli=3_999)
    rig.join(5, slots=0)
    rig.fill(Need(cpu_milli=1_000))
    rig.places.give(3, Need(cpu_milli=1_000))
    rig.places.give(3, Need(cpu_milli=1_000))
    rig.places.give(2, Need(cpu_milli=1_000))
    mark = rig.starve(Wanted(BIG, parts=2))
    assert mark is not None
    assert mark.numbers == (3, 2)


def test_who_waited_longest_is_first_and_only_one_at_a_time() -> None:
    rig = Rig()
    rig.fill()
    rig.starving[Wanted(BIG)] = 10
    mark = rig.starve(WIDE, since_ms=9)
    assert mark is not None
    assert mark.wanted == WIDE
    assert rig.look(1) is mark


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(SMALL),
        Wanted(SMALL, parts=3),
        Wanted(Need(cpu_milli=4_001)),
        Wanted(SMALL, each="role=db"),
        Wanted(Need("app.send"), parts=2),
        Wanted(Need(where="role in web"), parts=2),
    ],
)
def test_no_mark_for_what_needs_little_or_could_never_begin(wanted: Wanted) -> None:
    rig = Rig()
    rig.fill()
    assert rig.starve(wanted) is None
    assert rig.starve(WIDE, since_ms=5) is not None, "nor does it keep others from theirs"


def test_a_mark_ends_after_a_quarter_of_what_was_waited_and_gives_all_back() -> None:
    rig = Rig()
    rig.fill()
    rig.starve(WIDE)
    rig.places.give(1, SMALL)
    assert rig.look(LASTS_MS - 1) is not None
    assert rig.fill() == 0
    assert rig.look(1) is None
    assert rig.fill() == 1


def test_after_one_that_came_to_nothing_there_is_none_for_twice_as_long() -> None:
    rig = Rig()
    rig.fill()
    rig.starve(WIDE)
    assert rig.look(LASTS_MS) is None
    rig.starving[Wanted(BIG)] = 0  # it was not this one's that failed
    assert rig.look(2 * LASTS_MS - 1) is None
    mark = rig.look(1)
    assert mark is not None
    assert mark.wanted == Wanted(BIG)


def test_the_next_of_the_same_class_comes_when_it_has_waited_twice_as_long_and_lasts_longer() -> (
    None
):
    rig = Rig()
    rig.fill()
    rig.starve(WIDE)
    assert rig.look(LASTS_MS) is None
    assert rig.look(WAITED_MS) is None, "90 s of 100"
    mark = rig.look(LASTS_MS)
    assert mark is not None
    assert mark.until_ms - mark.from_ms == (2 * WAITED_MS + 2 * LASTS_MS) // 4


def test_marks_that_come_to_nothing_cost_others_a_third_at_most() -> None:
    rig = Rig(executors=1)
    rig.fill(Need(cpu_milli=1_000))
    for number in range(20):
        rig.starving[Wanted(BIG, each=f"executor=e1,role!=r{number}")] = 0
    kept, begun, last = 0, 0, None
    for turn in range(36_000):  # an hour
        mark = rig.look(100)
        if mark is not None and mark is not last:
            begun += 1
            assert kept <= turn // 3, f"when mark {begun} begins"
        kept += mark is not None
        last = mark
    assert begun > 5


def test_one_that_begins_lets_the_mark_go_and_nothing_is_remembered() -> None:
    rig = Rig()
    rig.fill()
    rig.starve(WIDE)
    rig.places.give(1, SMALL)
    rig.look(1)
    assert not rig.marks.is_idle
    rig.marks.began(WIDE)
    assert rig.marks.is_idle
    assert rig.fill() == 1


def test_one_for_whom_all_was_held_and_who_does_not_come_has_had_its_mark() -> None:
    rig = Rig()
    rig.fill(leaving=8)
    mark = rig.starve(WIDE)
    assert mark is not None
    assert mark.is_ready
    assert rig.look(READY_MS - 1) is mark
    assert rig.look(1) is None
    assert rig.free() == 8
    assert rig.look(2 * READY_MS) is None, "it was its turn: only after twice the time again"


def test_taken_and_not_begun_is_a_mark_that_came_to_nothing() -> None:
    rig = Rig()
    rig.starve(WIDE)
    assert rig.marks.take(WIDE) == (1, 2)
    assert rig.look(1) is None
    assert rig.look(WAITED_MS - 1) is not None


def test_nobody_else_takes_what_is_ready() -> None:
    rig = Rig()
    rig.starve(WIDE)
    assert rig.marks.take(Wanted(SMALL, parts=3)) == ()
    assert not rig.marks.is_ready(Wanted(SMALL))


def test_a_mark_of_who_starves_no_more_is_let_go() -> None:
    rig = Rig()
    rig.fill()
    rig.starve(WIDE)
    rig.starving.clear()
    assert rig.look(UNSEEN_MS - 1) is not None
    assert rig.look(1) is None


def test_a_mark_on_an_executor_that_leaves_is_let_go_and_what_it_held_too() -> None:
    rig = Rig(executors=3)
    rig.fill()
    rig.starve(WIDE)
    rig.places.give(1, SMALL)
    rig.look(1)
    rig.places.drop(1)
    assert rig.look(1) is None
    assert rig.places.used(1).slots == {"command": 3}


def test_an_executor_that_offers_anew_while_it_is_barred_stays_so() -> None:
    rig = Rig(executors=1)
    rig.fill(Need(cpu_milli=1_000))
    rig.starve(Wanted(BIG))
    rig.join(1, slots=8)
    rig.look(1)
    assert not rig.places.has_room(SMALL)


def test_each_is_marked_as_a_whole_and_anew_when_another_comes() -> None:
    rig = Rig()
    rig.join(3, role="db")
    rig.fill()
    each = Wanted(SMALL, each="role=web")
    mark = rig.starve(each)
    assert mark is not None
    assert sorted(mark.numbers) == [1, 2]
    rig.join(4)
    assert rig.look(1) is None


def test_each_is_not_marked_where_one_is_too_small() -> None:
    rig = Rig()
    rig.join(3, cpu_milli=1_000)
    assert rig.starve(Wanted(BIG, each="role=web")) is None


def test_a_clock_that_is_set_back_ends_a_mark_and_what_was_to_be_waited_for() -> None:
    rig = Rig()
    rig.fill()
    mark = rig.starve(WIDE)
    assert rig.look(-1) is not mark
    assert rig.look(LASTS_MS) is None
    assert rig.look(-LASTS_MS - 1) is None, "it has not waited twice as long"
    rig.starving[Wanted(BIG)] = 0
    assert rig.look(1) is not None, "but others need not wait"

"""Executors that are kept for a launch that needs much, while small ones follow each other."""

from __future__ import annotations

from cron.scheduler.placement import LOOK_MS, RESERVED_MAX, Placement
from cron.scheduler.places import Capacity, Need, Place, Wanted
from tests.places import has_room, used

SMALL = Need(cpu_milli=1_000)
BIG = Need(cpu_milli=4_000)
WIDE = Wanted(Need(), parts=2)
WAITED_MS = 30_000


def place(number: int, slots: int = 4, cpu_milli: int = 4_000, role: str = "web") -> Place:
    return Place.of(number, f"e{number}", "h", {"role": role}, (Capacity(slots),), cpu_milli)


class Rig:
    """Executors with four slots and CPUs, and needs that starve since `WAITED_MS`."""

    def __init__(self, executors: int = 3) -> None:
        self.placement = Placement()
        self.places = self.placement.places
        self.now_ms = 1_000_000
        self.starving: dict[Wanted, int] = {}
        self.reserved: dict[str, int] = {}
        for number in range(executors):
            self.places.put(place(number))

    def starve(self, *needs: Need | Wanted) -> None:
        for later, need in enumerate(needs):
            wanted = need if isinstance(need, Wanted) else Wanted(need)
            self.starving[wanted] = self.now_ms - WAITED_MS + later

    def round(self, after_ms: int = LOOK_MS) -> tuple[int, ...]:
        """Begin a round; return the executors that are reserved."""
        self.now_ms += after_ms
        self.placement.begin_round(self.starving, self.reserved, self.now_ms)
        mark = self.placement.reservation
        return mark.numbers if mark is not None else ()

    def fill(self, number: int, count: int, need: Need = SMALL) -> None:
        for _ in range(count):
            self.places.take(number, need)

    def empty(self, number: int, count: int, need: Need = SMALL) -> None:
        for _ in range(count):
            self.places.give(number, need)


def test_the_executors_that_fit_best_are_cordoned_until_there_is_room() -> None:
    rig = Rig()
    for number, count in ((0, 3), (1, 2), (2, 3)):
        rig.fill(number, count)
    rig.starve(BIG)
    assert rig.round() == (1,)
    assert rig.places.choose(SMALL) == 0, "the one that is reserved gets nothing else"
    rig.empty(1, 1)
    assert rig.round() == (1,)
    assert rig.placement.room(Wanted(BIG), 1) == 0
    rig.empty(1, 1)
    assert rig.round() == (1,)
    assert rig.placement.room(Wanted(BIG), 1) == 1


def test_the_need_that_waited_longest_is_first_and_then_the_next_has_its_turn() -> None:
    rig = Rig()
    for number in range(3):
        rig.fill(number, 1)
    rig.starve(BIG, WIDE)
    rig.placement.begin_round({}, {}, rig.now_ms)
    seen = []
    for _ in range(3 * WAITED_MS // LOOK_MS):
        rig.round()
        mark = rig.placement.reservation
        assert mark is not None
        if mark.wanted not in seen:
            seen.append(mark.wanted)
    assert seen == [Wanted(BIG), WIDE]


def test_an_executor_that_leaves_ends_the_reservation() -> None:
    rig = Rig(2)
    for number in (0, 1):
        rig.fill(number, 4, Need())
    rig.starve(WIDE)
    rig.round()
    rig.empty(0, 1, Need())
    assert rig.round() == (0, 1)
    rig.places.drop(1)
    assert rig.round() == ()
    assert has_room(rig.places, 0, Need()), "what was held is free again"


def test_slots_reserved_by_limits_are_not_held_and_no_executor_is_cordoned() -> None:
    rig = Rig(2)
    for number in (0, 1):
        rig.fill(number, 3, Need())
    rig.reserved = {"command": 2}
    rig.starve(WIDE, BIG)
    assert rig.round() == (0, 1)
    assert used(rig.places, 0) == {"command": 3}
    assert has_room(rig.places, 0, Need())


def test_no_reservation_on_more_executors_than_a_round_can_look_at() -> None:
    rig = Rig(RESERVED_MAX + 1)
    rig.starve(Wanted(Need(), parts=RESERVED_MAX + 1))
    assert rig.round() == ()
    rig.starve(Wanted(Need(), parts=RESERVED_MAX))
    rig.round()
    assert len(rig.round()) == RESERVED_MAX


def test_a_clock_that_is_set_back_ends_a_reservation() -> None:
    rig = Rig(1)
    rig.fill(0, 1)
    rig.starve(BIG)
    assert rig.round() == (0,)
    rig.starving = {}
    assert rig.round(-100_000) == ()
    assert has_room(rig.places, 0, SMALL)

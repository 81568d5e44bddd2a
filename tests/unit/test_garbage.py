"""What is collected, what is frozen, and that no collection looks at many objects."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from cron.garbage import COLLECT_OBJECTS_MAX, MIDDLE_LOOKS, Garbage


class Cycle:
    """An object that only the collector can free, with `parts`."""

    def __init__(self, parts: int = 0) -> None:
        self.myself = self
        self.parts = [[number] for number in range(parts)]


class Process:
    """This process with its collector, and the collections of old objects that it went through."""

    def __init__(self) -> None:
        self.root = Cycle()
        self.garbage = Garbage(lambda: self.root)
        self.generations: list[int] = []

    def note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.generations.append(info["generation"])


@pytest.fixture
def process() -> Iterator[Process]:
    thresholds = gc.get_threshold()
    made = Process()
    made.garbage.begin()
    gc.callbacks.append(made.note)
    yield made
    gc.callbacks.remove(made.note)
    gc.set_threshold(*thresholds)
    gc.freeze()


def make_old() -> None:
    """Let everything that lives become old."""
    gc.collect(1)


def test_an_old_cycle_is_collected(process: Process) -> None:
    cycle = Cycle()
    gone = weakref.ref(cycle)
    make_old()
    del cycle
    assert gone() is not None
    process.garbage.look()
    assert gone() is None


def test_many_old_objects_are_frozen_and_not_looked_at(process: Process) -> None:
    kept = Cycle(COLLECT_OBJECTS_MAX + 1)
    make_old()
    process.generations.clear()
    frozen = gc.get_freeze_count()
    process.garbage.look()
    assert process.generations == []
    assert gc.get_freeze_count() > frozen + COLLECT_OBJECTS_MAX
    process.garbage.look()
    assert process.generations == [0], "there is nothing new that is old"
    del kept.parts[:]


def test_objects_after_many_are_collected_again(process: Process) -> None:
    kept = Cycle(COLLECT_OBJECTS_MAX + 1)
    make_old()
    process.garbage.look()
    test_an_old_cycle_is_collected(process)
    assert len(kept.parts) > COLLECT_OBJECTS_MAX


def test_a_look_is_at_young_objects_only_where_nothing_became_old(process: Process) -> None:
    process.garbage.look()
    assert process.generations == [0]


def test_a_young_cycle_is_collected(process: Process) -> None:
    gone = weakref.ref(Cycle())
    assert gone() is not None
    process.garbage.look()
    assert gone() is None


def test_a_cycle_that_outlived_a_look_is_collected_after_some_more(process: Process) -> None:
    cycle = Cycle()
    process.garbage.look()
    gone = weakref.ref(cycle)
    del cycle
    process.garbage.look()
    assert gone() is not None
    for _ in range(MIDDLE_LOOKS - 2):
        process.garbage.look()
    assert gone() is None
    assert process.generations == [0] * (MIDDLE_LOOKS - 1) + [1]


def test_a_state_that_was_replaced_is_freed_although_it_was_frozen(process: Process) -> None:
    gone = weakref.ref(process.root)
    process.root = Cycle()
    process.garbage.look()
    assert gone() is None
    gone = weakref.ref(process.root)
    process.garbage.look()
    process.root = Cycle()
    process.garbage.look()
    assert gone() is None, "the second one, too"


def test_python_itself_looks_at_no_old_objects(process: Process) -> None:
    kept = [[number] for number in range(700_000)]
    assert process.generations.count(1) > 3
    assert process.generations.count(2) == 0
    assert len(kept) == 700_000

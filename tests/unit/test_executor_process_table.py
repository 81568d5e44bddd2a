"""The table of what runs, which the reaper reads after its spawner was killed."""

from __future__ import annotations

import pytest

from launcher.executor.commands.footprint import Footprint
from launcher.executor.commands.reaper import SPARE_RECORDS, ProcessTable, Seen
from launcher.executor.commands.trees import Target

NAME = f"{'t' * 100}/{'j' * 100}@2026-11-20T15:00:00Z+t1000#1000/1000"


def test_it_has_what_runs_and_what_is_about_to() -> None:
    process_table = ProcessTable(2)
    first = process_table.starting("a/a@2026-11-20T15:00:00Z#1", guarded=False)
    process_table.starting(NAME, guarded=True)
    last = process_table.starting("a/c@2026-11-20T15:00:00Z#1", guarded=True)
    process_table.started(first, 77, 1 << 40)
    process_table.over(last)
    process_table.lease_ms = 1 << 50
    assert process_table.lease_ms == 1 << 50
    assert sorted(process_table.targets()) == [
        Target("a/a@2026-11-20T15:00:00Z#1", 77, 1 << 40),
        Target(NAME),
    ]
    assert process_table.targets(only_guarded=True) == [Target(NAME)]


def test_places_are_used_again_and_there_are_spare_ones() -> None:
    process_table = ProcessTable(1)
    for _ in range(3):
        places = [process_table.starting(NAME, guarded=True) for _ in range(1 + SPARE_RECORDS)]
        with pytest.raises(IndexError):
            process_table.starting(NAME, guarded=True)
        for place in places:
            process_table.over(place)
    assert process_table.targets() == []


def test_a_watched_command_is_seen_and_the_next_one_at_its_place_is_not_taken_for_it() -> None:
    process_table = ProcessTable(1)
    place = process_table.starting(NAME, guarded=False, memory_max=100)
    assert process_table.watched() == {}  # its process is not known yet
    process_table.started(place, 77, 5)
    watched = process_table.watched()
    assert watched == {Target(NAME, 77, 5): (place, 100)}
    process_table.see(place, Target(NAME, 77, 5), Footprint(90, 20), 0)
    process_table.see(place, Target(NAME, 77, 5), Footprint(120, 10), 120)
    process_table.see(place, Target(NAME, 77, 5), Footprint(70, 10), 0)
    assert process_table.over(place) == Seen(memory_peak=120, cpu_ms=20, excess=120)
    assert process_table.watched() == {}

    again = process_table.starting(NAME, guarded=False, memory_max=100)
    process_table.started(again, 78, 5)
    assert again == place
    process_table.see(place, Target(NAME, 77, 5), Footprint(120, 10), 120)  # a look that was slow
    assert process_table.over(again) == Seen()

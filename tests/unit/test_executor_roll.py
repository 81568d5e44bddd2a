"""The table of what runs, which the reaper reads after its spawner was killed."""

from __future__ import annotations

import pytest

from launcher.executor.commands.reaper import SPARE_RECORDS, Roll
from launcher.executor.commands.trees import Target

NAME = f"{'t' * 100}/{'j' * 100}@2026-11-20T15:00:00Z+t1000#1000/1000"


def test_it_has_what_runs_and_what_is_about_to() -> None:
    roll = Roll(2)
    first = roll.starting("a/a@2026-11-20T15:00:00Z#1", guarded=False)
    roll.starting(NAME, guarded=True)
    last = roll.starting("a/c@2026-11-20T15:00:00Z#1", guarded=True)
    roll.started(first, 77, 1 << 40)
    roll.over(last)
    roll.lease_ms = 1 << 50
    assert roll.lease_ms == 1 << 50
    assert sorted(roll.targets()) == [
        Target("a/a@2026-11-20T15:00:00Z#1", 77, 1 << 40),
        Target(NAME),
    ]
    assert roll.targets(only_guarded=True) == [Target(NAME)]


def test_places_are_used_again_and_there_are_spare_ones() -> None:
    roll = Roll(1)
    for _ in range(3):
        places = [roll.starting(NAME, guarded=True) for _ in range(1 + SPARE_RECORDS)]
        with pytest.raises(IndexError):
            roll.starting(NAME, guarded=True)
        for place in places:
            roll.over(place)
    assert roll.targets() == []

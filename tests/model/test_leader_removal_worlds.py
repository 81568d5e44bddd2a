"""Worlds in which jobs are removed, and come back, while much waits of them and leaders die."""

from __future__ import annotations

import pytest

from cron.launch_state import LaunchState
from cron.notes import Note, NoteCode
from cron.scheduler import indexes
from cron.scheduler import plan as planning
from cron.service import catalog
from cron.state import commands as c
from launcher.protocol.status import Reason
from tests.drawn import seeds
from tests.model.test_state_leader_loop import World

PORTION = 3
"""Launches that one entry ends, so that a few dozen take many entries."""


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "REMOVED_MAX", PORTION)
    monkeypatch.setattr(catalog, "REMOVED_MAX", PORTION)
    monkeypatch.setattr(indexes, "LET_GO_AT_ONCE", 2 * PORTION)


def leaving(world: World) -> set[int]:
    """Return the removed jobs of which something waits."""
    state = world.machine.state
    return {key[0] for key in state.due if state.by_number[key[0]].job is None}


def live(world: World) -> list[str]:
    """Return the names of the jobs that are not removed."""
    jobs = world.machine.state.jobs.values()
    return [record.name for record in jobs if record.job is not None]


def pile_up(world: World) -> None:
    """Nothing finds a slot for a while, and people ask for launches all the same: what is due by a
    schedule gets no row before it can begin, so little else waits."""
    for _ in range(10):
        world.now_ms += 1000
        name = world.chance.choice(live(world))
        world.append(c.Trigger(name, f"q{world.index}", "anna"))
        world.tick(slots={}, expired=[])


def remove_some(world: World) -> None:
    names = live(world)
    world.put((), tuple(world.chance.sample(names, world.chance.randint(1, len(names)))))


def bring_back(world: World) -> None:
    back = [world.job(number) for number in range(8) if world.chance.random() < 0.7]
    world.put(tuple(back), ())


def walk(seed: int) -> tuple[World, list[int], list[int]]:
    """The world after it, how many removed jobs had something waiting, each time, and how many
    still had when jobs were brought back."""
    world, waiting, left = World(seed), [], []
    for _ in range(4):
        world.run(10)
        pile_up(world)
        remove_some(world)
        waiting.append(len(leaving(world)))
        for _ in range(world.chance.randint(0, 6)):
            world.tick(slots=world.free_slots(), expired=[])
            world.check_overlap()
            if world.chance.random() < 0.2:
                world.lead()
        left.append(len(leaving(world)))
        bring_back(world)
        world.check_audit()
    return world, waiting, left


@pytest.mark.parametrize("seed", seeds(20))
def test_what_waits_of_removed_jobs_ends_and_nothing_of_it_begins(seed: int) -> None:
    world, _, _ = walk(seed)
    world.settle()
    for _ in range(50):
        world.tick(slots={}, expired=[])
    assert not leaving(world)
    world.check_audit()
    gone = [row for row in world.rows if row.note == Note(NoteCode.REMOVED)]
    assert {(row.state, row.reason) for row in gone} <= {(LaunchState.CANCELLED, Reason.NONE)}


@pytest.mark.nightly
def test_the_worlds_have_much_to_end() -> None:
    """A test of the test: several jobs at once, more launches than a portion, and some are left
    when their job is brought back."""
    worlds = [walk(seed) for seed in range(6)]
    assert sum(count > 1 for _, waiting, _ in worlds for count in waiting) > 6
    assert sum(count > 0 for _, _, left in worlds for count in left) > 3
    rows = [row for world, _, _ in worlds for row in world.rows]
    assert sum(row.note == Note(NoteCode.REMOVED) for row in rows) > 6 * 2 * PORTION

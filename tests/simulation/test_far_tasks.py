"""Tasks that go to disk and come back, under faults: each runs once, and in time.

`SIM_SEED=1000 SIM_SEEDS=500 pytest <this file>` tries others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import pytest

from cron.errors import InvariantViolated
from cron.state import spilling, tasking
from cron.state import tasks as t
from cron.state.context import Context
from cron.state.outcome import Verdict
from cron.state.state import State
from tests.drawn import nightly_but
from tests.simulation.loop import Stuck
from tests.simulation.nemesis import Mood
from tests.simulation.patching import patched
from tests.simulation.test_simulation import expect_sound
from tests.simulation.test_tasks import CRONTAB
from tests.simulation.world import World, simulate

FIRST: Final = int(os.environ.get("SIM_SEED", "0"))
SEEDS: Final = range(FIRST, FIRST + int(os.environ.get("SIM_SEEDS", "40")))
DEPOSED: Final = Mood(8.0, {"depose": 1})
TRIES: Final = 10


def simulate_far_tasks(seed: int, **options: Any) -> World:
    return simulate(seed, has_tasks=True, spills=True, crontab=CRONTAB, chaos_s=90.0, **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_but(SEEDS, SEEDS[:1].__contains__))
def test_tasks_on_disk_run_once_and_in_time(seed: int) -> None:
    world = simulate_far_tasks(seed)
    expect_sound(world)
    state, files = world.judge.machine.state, world.task_files
    assert files is not None
    if seed == 0:  # few programs live in some worlds
        assert state.history.spills, "some went to disk"
        assert files.reads, "and came back"


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_but(SEEDS, SEEDS[:1].__contains__))
def test_tasks_on_disk_outlive_the_loss_of_all_replicas(seed: int) -> None:
    """The snapshot names segments that the store has, and what has run since is not repeated."""
    world = simulate_far_tasks(seed, is_lost=True)
    expect_sound(world)
    state = world.judge.machine.state
    assert not state.is_resolving
    if seed == 0:
        assert state.history.spills


@contextlib.contextmanager
def loads_twice() -> Iterator[None]:
    """State takes a task from disk though it is not there any more."""
    real = spilling._load

    def load(context: Context, item: t.LoadItem) -> Verdict:
        verdict = real(context, item)
        state = context.state
        if verdict in (Verdict.ALREADY, Verdict.UNKNOWN_TASK) and item.task.queue in state.queues:
            state.task_numbers += 1
            again = t.TaskRecord(
                state.task_numbers, *(getattr(item.task, one) for one in _BUT_NUMBER)
            )
            state.queues[again.queue].spilled += 1
            state.tasks.unspill(again)
            context.moved_tasks[again.number] = None
            return Verdict.ACCEPTED
        return verdict

    with patched(spilling, _load=load):
        yield


_BUT_NUMBER: Final = t.TaskRecord.__struct_fields__[1:]


def cancels_nothing_on_disk() -> AbstractContextManager[None]:
    """A cancel of a task on disk answers that the task is cancelled."""
    real = spilling.unknown

    def unknown(state: State, name: str) -> Verdict:
        verdict = real(state, name)
        return Verdict.ACCEPTED if verdict is Verdict.ON_DISK else verdict

    return patched(tasking, unknown=unknown)


MUTANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "loads-twice": loads_twice,
    "cancels-nothing": cancels_nothing_on_disk,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MUTANTS))
def test_a_safeguard_of_tasks_on_disk_that_is_switched_off_is_missed(name: str) -> None:
    for seed in range(TRIES):
        found: list[str] = []
        with MUTANTS[name](), contextlib.suppress(InvariantViolated, KeyError, Stuck):
            found = simulate_far_tasks(seed, mood=DEPOSED).judge.problems
        if any(one[0] in "at" for one in found):
            assert not simulate_far_tasks(seed, mood=DEPOSED).judge.problems
            return
    pytest.fail(f"nobody misses {name}: {TRIES} seeds are green")

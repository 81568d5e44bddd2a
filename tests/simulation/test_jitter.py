"""Jitter and pauses after failures under faults: no leader begins a launch before its time.

`SIM_SEED=1000 SIM_SEEDS=500 pytest <this file>` tries others.
"""

from __future__ import annotations

import contextlib
import os
import random
from contextlib import AbstractContextManager
from typing import Final

import pytest

from cron.errors import InvariantViolated
from cron.job import Job
from cron.scheduler.plan import _Choice
from cron.state.launch_row import LaunchRow
from tests.drawn import FOLLOWED_SEEDS, nightly_but
from tests.simulation.loop import Stuck
from tests.simulation.nemesis import Mood, draw_mood
from tests.simulation.patching import patched
from tests.simulation.test_simulation import expect_sound
from tests.simulation.world import World, simulate

FIRST: Final = int(os.environ.get("SIM_SEED", "0"))
SEEDS: Final = range(FIRST, FIRST + int(os.environ.get("SIM_SEEDS", "40")))
CRONTAB: Final = (
    "#: name=a jitter=8s deadline=40s\n@every 10s run 2\n\n"
    "#: name=b jitter=9s overlap=replace deadline=30s on-lost=retry\n@every 10s run 6\n\n"
    "#: name=c jitter=15s overlap=queue after=a catchup=all deadline=60s\n@every 20s run 3\n\n"
    "#: name=d jitter=4s overlap=forbid retries=1 backoff=1s\n@every 5s run 3 0.3 1\n\n"
    "#: name=e pause-after=2 deadline=20s\n@every 5s run 1 0.6 1\n"
)
DEPOSED: Final = Mood(8.0, {"depose": 1})
TRIES: Final = 10


def simulate_jitter(seed: int, mood: Mood | None = None) -> World:
    """A world whose clocks do not jump: a leader whose clock is an hour ahead for some seconds may
    begin what waits for its jitter, as it would after that hour."""
    if mood is None:
        mood = draw_mood(random.Random(seed))
        mood.weights["set_clock"] = 0
    return simulate(seed, crontab=CRONTAB, chaos_s=90.0, mood=mood)


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_but(SEEDS, SEEDS[:FOLLOWED_SEEDS].__contains__))
def test_launches_keep_to_their_jitter_under_faults(seed: int) -> None:
    world = simulate_jitter(seed)
    expect_sound(world)
    assert world.judge.jittered.begun


def forgets_jitter() -> AbstractContextManager[None]:
    """A leader begins a launch at its instant."""

    def never(_self: _Choice, _launch: LaunchRow, _job: Job) -> bool:
        return False

    return patched(_Choice, _is_early=never)


@pytest.mark.nightly
def test_a_leader_that_forgets_jitter_is_missed() -> None:
    for seed in range(TRIES):
        found: list[str] = []
        with forgets_jitter(), contextlib.suppress(InvariantViolated, KeyError, Stuck):
            found = simulate_jitter(seed, mood=DEPOSED).judge.problems
        if any(one.startswith("j") for one in found):
            assert not simulate_jitter(seed, mood=DEPOSED).judge.problems
            return
    pytest.fail(f"nobody misses jitter: {TRIES} seeds are green")

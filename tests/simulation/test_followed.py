"""Jobs that follow others under faults: no launch begins before what it follows is over, and none
is skipped for what succeeded.

`SIM_SEED=1000 SIM_SEEDS=500 pytest <this file>` tries others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import pytest

from cron.errors import InvariantViolated
from cron.job import Job
from cron.notes import NOT_OVER
from cron.scheduler import plan
from cron.scheduler.predecessors import Predecessor, in_the_way
from cron.state import followed
from cron.state.context import Context
from cron.state.rows import Row
from cron.state.state import State
from tests.drawn import FOLLOWED_SEEDS, nightly_but
from tests.simulation.loop import Stuck
from tests.simulation.nemesis import Mood
from tests.simulation.patching import patched
from tests.simulation.test_simulation import expect_sound
from tests.simulation.world import World, simulate

FIRST: Final = int(os.environ.get("SIM_SEED", "0"))
SEEDS: Final = range(FIRST, FIRST + int(os.environ.get("SIM_SEEDS", "40")))
CRONTAB: Final = (
    "#: name=a retries=1 backoff=1s deadline=40s\n@every 10s run 2 0.4 1\n\n"
    "#: name=b after=a deadline=30s on-lost=retry\n@every 10s run 1\n\n"
    "#: name=c after=b after-any=a overlap=queue deadline=30s\n@every 20s run 3\n\n"
    "#: name=d after=a,c deadline=20s\n@every 15s run 1\n"
)
DEPOSED: Final = Mood(8.0, {"depose": 1})
TRIES: Final = 10


def simulate_followed(seed: int, **options: Any) -> World:
    return simulate(seed, crontab=CRONTAB, chaos_s=90.0, **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_but(SEEDS, SEEDS[:FOLLOWED_SEEDS].__contains__))
def test_a_launch_follows_others_under_faults(seed: int) -> None:
    world = simulate_followed(seed)
    expect_sound(world)
    assert world.judge.followed.begun


def waits_for_none() -> AbstractContextManager[None]:
    """A launch begins although what it follows is not over."""

    def none(state: State, job: Job, scheduled_s: int) -> Predecessor | None:
        found = in_the_way(state, job, scheduled_s)
        return None if found is None or found.state == NOT_OVER else found

    return patched(plan, in_the_way=none)


def is_content_with_any_end() -> AbstractContextManager[None]:
    """A launch begins however that ended which it follows."""

    def none(state: State, job: Job, scheduled_s: int) -> Predecessor | None:
        found = in_the_way(state, job, scheduled_s)
        return found if found is not None and found.state == NOT_OVER else None

    return patched(plan, in_the_way=none)


def knows_only_rows() -> AbstractContextManager[None]:
    """State does not note how launches ended of which it has no object."""

    def note_ends(context: Context) -> None:
        for item in context.ended:
            if isinstance(item, Row) and item.job in context.state.followers:
                followed._note_end(context, item)

    return patched(followed, note_ends=note_ends)


MUTANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "waits": waits_for_none,
    "ends": is_content_with_any_end,
    "columns": knows_only_rows,
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", list(MUTANTS))
def test_a_safeguard_of_followers_that_is_switched_off_is_missed(name: str) -> None:
    for seed in range(TRIES):
        found: list[str] = []
        with MUTANTS[name](), contextlib.suppress(InvariantViolated, KeyError, Stuck):
            found = simulate_followed(seed, mood=DEPOSED).judge.problems
        if any(one.startswith("o") for one in found):
            assert not simulate_followed(seed, mood=DEPOSED).judge.problems
            return
    pytest.fail(f"nobody misses {name}: {TRIES} seeds are green")

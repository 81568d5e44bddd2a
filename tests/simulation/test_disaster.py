"""All replicas are lost and the cell is restored from an older snapshot: nothing that ran is begun
again, every instant has its row, and the cell goes on (rule R13).

`SIM_SEED=1000 SIM_SEEDS=500 pytest <this file>` tries others.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import msgspec
import pytest

from cron.errors import InvariantViolated
from cron.leader import recovery, resolving
from cron.leader.resolving import Resolving
from cron.state.state import State
from tests.drawn import RESTORE_SEEDS, nightly_but
from tests.simulation.disaster import Disaster, draw_again, draw_disaster
from tests.simulation.loop import Stuck
from tests.simulation.nemesis import Mood
from tests.simulation.patching import patched
from tests.simulation.test_simulation import expect_sound
from tests.simulation.world import simulate

FIRST = int(os.environ.get("SIM_SEED", "0"))
PINNED = () if FIRST else (70, 115, 130, 141, 177, 77067, 78010, 78256, 5085)
PINNED_TWICE = () if FIRST else (5007,)
TWICE = (*range(FIRST, FIRST + int(os.environ.get("SIM_SEEDS", "25"))), *PINNED_TWICE)
SEEDS = (*range(FIRST, FIRST + int(os.environ.get("SIM_SEEDS", "50"))), *PINNED)


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_but(SEEDS, SEEDS[:RESTORE_SEEDS].__contains__))
def test_no_promise_is_broken_by_a_restore(seed: int) -> None:
    world = simulate(seed, is_lost=True)
    expect_sound(world)
    state = world.judge.machine.state
    assert state.epoch.generation == 2
    assert not state.is_resolving


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_but(TWICE, TWICE[-RESTORE_SEEDS:].__contains__))
def test_no_promise_is_broken_by_a_second_restore(seed: int) -> None:
    rng = random.Random(f"{seed}/twice")
    disaster = draw_disaster(rng)
    world = simulate(
        seed, is_lost=True, disaster=msgspec.structs.replace(disaster, again=draw_again(rng))
    )
    expect_sound(world)
    state = world.judge.machine.state
    assert state.epoch.generation in (2, 3), "the faults may be over before the second"
    assert not state.is_resolving


@contextlib.contextmanager
def resolves_nothing() -> Iterator[None]:
    """The restored cell goes on at once, as after an ordinary failover."""
    with patched(State, is_resolving=property(lambda self: False)):
        yield


@contextlib.contextmanager
def waits_for_nobody() -> Iterator[None]:
    """It concludes before its executors have told what ran."""
    with (
        patched(Resolving, _waits_for=lambda self, state: []),
        patched(resolving, QUIET_MS=0),
    ):
        yield


@contextlib.contextmanager
def trusts_the_snapshot() -> Iterator[None]:
    """What was due in the snapshot is taken for never begun."""
    with patched(recovery, _doubtful=lambda state: {}):
        yield


QUIET = Mood(10_000.0, {"depose": 1})
LONG = "#: name=long overlap=forbid deadline=60s\n@every 20s run 90\n"
QUEUE = "".join(
    f"#: name=queue{number} overlap=queue deadline=10m\n@every 5s run 8\n\n" for number in range(3)
)
ALL_FORGET = Disaster(40.0, 30.0, 5.0, 1.0, stray=False)
ALL_REMEMBER = Disaster(40.0, 30.0, 5.0, 0.0, stray=False)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "crontab", "disaster"),
    [
        (resolves_nothing, QUEUE, ALL_FORGET),
        (waits_for_nobody, LONG, ALL_REMEMBER),
        (trusts_the_snapshot, QUEUE, ALL_FORGET),
    ],
)
def test_a_safeguard_that_is_switched_off_is_missed(
    mutant: Callable[[], AbstractContextManager[None]], crontab: str, disaster: Disaster
) -> None:
    def problems(seed: int) -> list[str]:
        world = simulate(seed, mood=QUIET, crontab=crontab, disaster=disaster)
        return world.judge.problems

    for seed in range(20):
        with mutant(), contextlib.suppress(InvariantViolated, KeyError, Stuck):
            if any(one[0] in "abcdeh" for one in problems(seed)):
                break
    else:
        pytest.fail("nobody misses it: 20 seeds are green")
    assert not problems(seed)

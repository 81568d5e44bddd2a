"""All replicas are lost and the cell is restored from an older snapshot: nothing that ran is begun
again, every instant has its row, and the cell goes on (rule R13).

`SIM_SEED=1000 SIM_SEEDS=500 pytest <this file>` tries others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from cron.errors import InvariantViolated
from cron.leader import recovery
from cron.leader.resolving import Resolving
from cron.state.state import State
from tests.simulation.loop import Stuck
from tests.simulation.patching import patched
from tests.simulation.test_simulation import expect_sound
from tests.simulation.world import simulate

FIRST = int(os.environ.get("SIM_SEED", "0"))
PINNED = () if FIRST else (130, 141, 177)
SEEDS = (*range(FIRST, FIRST + int(os.environ.get("SIM_SEEDS", "60"))), *PINNED)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_is_broken_by_a_restore(seed: int) -> None:
    world = simulate(seed, is_lost=True)
    expect_sound(world)
    state = world.judge.machine.state
    assert state.epoch.lineage == 2
    assert not state.is_resolving


@contextlib.contextmanager
def resolves_nothing() -> Iterator[None]:
    """The restored cell goes on at once, as after an ordinary failover."""
    with patched(State, is_resolving=property(lambda self: False)):
        yield


@contextlib.contextmanager
def waits_for_nobody() -> Iterator[None]:
    """It concludes before its executors have told what ran."""
    with patched(Resolving, _is_told=lambda self, record: True):
        yield


@contextlib.contextmanager
def trusts_the_snapshot() -> Iterator[None]:
    """What was due in the snapshot is taken for never begun."""
    with patched(recovery, _doubtful=lambda state: {}):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [resolves_nothing, waits_for_nobody, trusts_the_snapshot])
def test_a_safeguard_that_is_switched_off_is_missed(mutant: type) -> None:
    for seed in range(120):
        with mutant(), contextlib.suppress(InvariantViolated, KeyError, Stuck):
            if any(one[0] in "abcdeh" for one in simulate(seed, is_lost=True).judge.problems):
                break
    else:
        pytest.fail("nobody misses it: 120 seeds are green")
    assert not simulate(seed, is_lost=True).judge.problems

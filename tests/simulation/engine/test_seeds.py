"""No order of faults makes the engine break a promise: 200 runs, each named by its seed.

`python -m tests.simulation.engine SEED --trace` repeats one and prints what happened.
"""

from __future__ import annotations

import pytest

from tests.drawn import ENGINE_SEEDS, nightly_but
from tests.simulation.engine.profiles import PROFILES, profile_of
from tests.simulation.engine.runs import simulate

SEEDS = 200
CHUNK = 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", nightly_but(range(0, SEEDS, CHUNK), lambda first: first < ENGINE_SEEDS)
)
def test_no_order_of_faults_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run = simulate(seed)
        assert not run.problems, f"{run}\n" + "\n".join(map(str, run.problems))


def test_seeds_stand_for_all_profiles() -> None:
    assert {profile_of(seed).name for seed in range(SEEDS)} == set(PROFILES)


@pytest.mark.nightly
@pytest.mark.slow
def test_there_is_something_to_go_wrong() -> None:
    """Faults, answers, reads, terms, dumps and replacements do happen."""
    runs = [simulate(seed) for seed in range(2 * len(PROFILES))]
    total = {name: sum(run.counts[name] for run in runs) for name in runs[0].counts}
    assert total["answered"] > 500
    assert total["reads"] > 200
    assert total["terms"] > 3 * len(runs)
    assert total["lives"] > 6 * len(runs)
    assert total["restored"] > 3
    assert total["replaced"] > 0

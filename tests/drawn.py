"""How many of the drawn tests `make test` runs; the others are marked nightly.

`make nightly` runs the others. Together they run all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest

MODEL_SEEDS: Final = 15
"""Of each walk of a model."""
MODEL_EXAMPLES: Final = 15
"""Of each rule-based model."""
LAUNCH_SEEDS: Final = 40
"""Of the launch protocol under faults; those that are pinned have as long as at night."""
RESTORE_SEEDS: Final = 1
"""Of each kind of restore; more of them are nightly."""
TASK_SEEDS: Final = 3
"""Of tasks under faults; one of their restores."""
FOLLOWED_SEEDS: Final = 2
"""Of jobs that follow others under faults."""
OVERLOAD_SEEDS: Final = 1
"""Of each kind of overload."""
ENGINE_SEEDS: Final = 12
"""Of the consensus engine under faults: one of each kind of faults."""
STORY_SEEDS: Final = 1
"""Of each story of the engine."""
LAUNCH_MUTANTS: Final = ("epoch-at-executors", "fence", "known-names", "overlap")
ENGINE_MUTANTS: Final = ("commit-unverified", "votes-in-memory")


def nightly_but(
    cases: Iterable[Any], is_smoke: Callable[[Any], bool], name: Callable[[Any], str] = str
) -> list[Any]:
    """Return the cases as parameters of a test; those that are no smoke are marked nightly."""
    return [
        pytest.param(case, id=name(case), marks=() if is_smoke(case) else pytest.mark.nightly)
        for case in cases
    ]


def story_seeds(count: int) -> list[Any]:
    """Return the seeds 0 to `count` - 1 of a story of the engine as parameters of a test."""
    return nightly_but(range(count), range(STORY_SEEDS).__contains__)


def seeds(count: int) -> list[Any]:
    """Return the seeds 0 to `count` - 1 of a walk of a model as parameters of a test."""
    return nightly_but(range(count), range(MODEL_SEEDS).__contains__)

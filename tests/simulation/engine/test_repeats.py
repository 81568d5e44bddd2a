"""A run is its seed: twice the same, whatever the hash seed of the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.engine.profiles import PROFILES
from tests.simulation.engine.runs import simulate

PROGRAM = """
from tests.simulation.engine.profiles import PROFILES
from tests.simulation.engine.runs import simulate
print(*[simulate(3, name).digest for name in PROFILES])
"""


def digests_with(hash_seed: str) -> list[str]:
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return answer.stdout.split()


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_repeats_under_any_hash_seed() -> None:
    here = [simulate(3, name).digest for name in PROFILES]
    assert here == digests_with("1") == digests_with("2")


@pytest.mark.slow
def test_tracing_changes_nothing_and_another_seed_all() -> None:
    traced = simulate(3, "plain", tracing=True)
    assert traced.digest == simulate(3, "plain").digest != simulate(4, "plain").digest
    assert len(traced.trace) > 100

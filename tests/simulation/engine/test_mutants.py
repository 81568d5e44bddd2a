"""The test of the tests: with one cure switched off, some seed of a few turns red.

The same seed is green with the cure. `python -m tests.simulation.engine SEED --mutant NAME` shows a
run; `--profile` names the faults.
"""

from __future__ import annotations

import msgspec
import pytest

from tests.drawn import ENGINE_MUTANTS, nightly_but
from tests.simulation.engine.mutants import MUTANTS
from tests.simulation.engine.runs import simulate

TRIES = 80


class Gate(msgspec.Struct, frozen=True):
    """A mutant, the faults that bring it to light, what has to be found (one of these kinds), and
    the seed to begin with."""

    mutant: str
    profile: str
    kinds: str
    first: int = 0


GATES = (
    Gate("commit-unverified", "churn", "committed-changed fell", 5),
    Gate("heartbeat-commits", "churn", "committed-changed fell", 1),
    Gate("cut-what-matches", "churn", "committed-cut"),
    Gate("forward-on-refusal", "churn", "next-forward", 14),
    Gate("answers-of-any-term", "churn", "old-answer", 1),
    Gate("votes-in-memory", "power", "vote-forgotten voted-twice"),
    Gate("no-sync", "power", "committed-by-few matched-wrong"),
    Gate("answer-before-sync", "power", "committed-by-few matched-wrong vote-forgotten", 8),
    Gate("leader-unsynced", "power", "committed-by-few"),
    Gate("commit-index-kept", "power", "commit-ahead fell", 56),
    Gate("shorten-before-dump", "power", "cannot-start", 18),
    Gate("torn-tail-kept", "power", "cannot-start", 22),
    Gate("read-back-unchecked", "laggards", "applied-garbage committed-changed states-differ fell"),
    Gate("evicts-unwritten", "laggards", "cannot-start"),
    Gate("cut-places-kept", "laggards", "applied-garbage committed-changed states-differ", 1),
    Gate("dump-unchecked", "snapshots", "restored-garbage states-differ", 13),
    Gate("dump-acknowledged-early", "snapshots", "matched-wrong"),
    Gate("old-connections", "one-way", "two-voices"),
    Gate("no-gate", "replacements", "replaced-heard elected-by-few matched-wrong not-level"),
    Gate("old-disk-let-in", "replacements", "replaced-heard"),
    Gate("quarantine-counts", "replacements", "committed-by-few matched-wrong"),
    Gate("quarantine-votes", "replacements", "elected-by-few"),
    Gate("strangers-vote", "replacements", "quarantined-voted"),
    Gate("grown-uncounted", "growth", "elected-by-few committed-by-few two-leaders"),
    Gate("no-prevote", "one-way", "healthy-deposed", 2),
    Gate("shorter-logs-elected", "churn", "leader-lacks"),
    Gate("lives-mixed", "seeded", "ghost-heard ghost-leads", 1),
    Gate("life-forgotten", "seeded", "ghost-heard not-level", 2),
    Gate("terms-alone", "seeded", "ghost-leads", 38),
    Gate("local-barrier", "churn", "stale-read", 2),
    Gate("local-confirm", "churn", "stale-confirm", 1),
)


def test_every_mutant_has_its_gate() -> None:
    assert sorted(gate.mutant for gate in GATES) == sorted(MUTANTS)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "gate", nightly_but(GATES, lambda gate: gate.mutant in ENGINE_MUTANTS, lambda gate: gate.mutant)
)
def test_a_cure_that_is_switched_off_is_missed(gate: Gate) -> None:
    for seed in range(gate.first, gate.first + TRIES):
        with MUTANTS[gate.mutant]():
            found = simulate(seed, gate.profile).kinds
        if set(found) & set(gate.kinds.split()):
            assert simulate(seed, gate.profile).kinds == []
            return
    pytest.fail(f"nobody misses {gate.mutant}: {TRIES} seeds from {gate.first} on are green")

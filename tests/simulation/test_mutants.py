"""The test of the tests: with one safeguard switched off, some seed of a few turns red.

The same seed is green with the safeguard. `python -m tests.simulation SEED --mutant NAME` shows a
run, with the nemesis of that seed instead of the one that is aimed here.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.errors import InvariantViolated
from cron.state import pool as p
from tests.drawn import LAUNCH_MUTANTS, nightly_but
from tests.simulation.loop import Stuck
from tests.simulation.mutants import MUTANTS
from tests.simulation.nemesis import Mood
from tests.simulation.world import simulate

TRIES = 25
AMBUSH = Mood(2.0, {"ambush": 1})
ENTRENCHED = Mood(60.0, {"entrench": 1})
LONG = "".join(
    f"#: name=long{number} overlap=forbid deadline=60s\n@every 20s run 90\n\n"
    for number in range(3)
)
PARTS = "#: name=trio parts=2 deadline=40s\n@every 10s run 4 0.3 7\n"
FAILING = "#: name=bad retries=2 backoff=2s deadline=40s\n@every 15s run 1 0.9 7\n"
EARNING = f"{FAILING}\n#: name=good\n@every 2s run 0\n"
FEW = "#: name=few concurrency=1 deadline=60s\n@every 5s run 15\n"
TWO = "#: name=two concurrency=2 deadline=60s\n@every 20s run 90\n"
DEPOSED = Mood(8.0, {"depose": 1})
BUSY = "#: name=busy deadline=20s\n@every 1s run 0\n"
FLOOD = (
    "#: name=flood deadline=60s\n@every 1s run 60\n\n#: name=some priority=2\n@every 45s run 1\n"
)
FATAL = "#: name=bad retries=3 backoff=1s deadline=60s fatal-on=78 {}\n@every 15s run 1 0.8 75,78\n"
PUT_OFF = (
    "#: name=later handler=sim.mail deadline=60s retries=3 backoff=1s\n@every 15s "
    '{"run": 1, "fails": 0.8, "how": ["snooze", "retry"], "after": 7000}\n'
)
EACH = "#: name=all each=rack=a deadline=40s\n@every 10s run 4\n"
STAYING = (
    "#: name=stays handler=sim.mail overlap=forbid deadline=60s\n@every 20s "
    '{"run": 90, "fails": 0.0, "how": ["retry"], "after": 0}\n'
)
CROWDED = (
    "#: name=crowd handler=sim.mail deadline=5s\n@every 1s "
    '{"run": 8, "fails": 0.0, "how": ["retry"], "after": 0}\n'
)
SLOW = {("", "command", -1): p.Limits(rate_milli=300)}
KEPT = {("", "command", 2): p.Limits(reserved=2)}
SHORT = {"chaos_s": 60.0}
POOR = {("*", "", -1): p.Limits(retry_budget=1)}


class Gate(msgspec.Struct, frozen=True):
    """A mutant, the faults that bring it to light, where to begin, and what has to be found."""

    mutant: str
    mood: Mood
    letters: str
    first: int = 0
    options: dict[str, Any] = {}


GATES = (
    Gate("epoch-in-machine", Mood(2.0, {"overtake": 1}), "d", 0, SHORT),
    Gate("epoch-at-executors", AMBUSH, "d", 7, SHORT),
    Gate("fence", AMBUSH, "c", 7, SHORT),
    Gate("tombstones", AMBUSH, "c"),
    Gate("known-names", AMBUSH, "a", 30, SHORT),
    Gate("not-after", Mood(2.0, {"stall": 1}), "i", 1),
    Gate("overlap", Mood(8.0, {"break_stream": 1}), "e", 3, SHORT),
    # A leader that does not know that it is none, for longer than a lease.
    Gate("majority", ENTRENCHED, "e", 3, {"append_timeout_ms": 90_000, "crontab": LONG}),
    Gate("durable-rows", AMBUSH, "ac"),
    Gate("self-kill", Mood(15.0, {"part_executor": 1}), "e", 3),
    Gate("guarded-slots", Mood(15.0, {"part_executor": 1}), "m", 0, {"crontab": TWO}),
    Gate("reaper", Mood(20.0, {"crash_executor": 1}), "e", 0, {"crontab": LONG}),
    Gate("part-names", DEPOSED, "ad", 0, {"crontab": PARTS}),
    Gate("other-parts", AMBUSH, "l", 0, {"crontab": PARTS}),
    Gate("worst-part", DEPOSED, "p", 0, {"crontab": PARTS}),
    Gate("tries", DEPOSED, "r", 0, {"crontab": FAILING}),
    Gate("rests", DEPOSED, "r", 0, {"crontab": FAILING}),
    Gate("dead-letters", DEPOSED, "r", 0, {"crontab": FAILING}),
    Gate("running", DEPOSED, "m", 0, {"crontab": FEW}),
    Gate("gates", DEPOSED, "m"),
    Gate("rates", DEPOSED, "s", 0, {"crontab": BUSY, "limits": SLOW}),
    Gate("reservations", DEPOSED, "v", 0, {"crontab": FLOOD, "limits": KEPT}),
    Gate(
        "reserved-parts",
        DEPOSED,
        "v",
        0,
        {"crontab": FLOOD.replace("flood", "flood parts=2"), "limits": KEPT},
    ),
    Gate("budgets", DEPOSED, "r", 0, {"crontab": FAILING, "limits": POOR}),
    Gate("buried", DEPOSED, "r", 0, {"crontab": FAILING, "limits": POOR}),
    Gate("releases", DEPOSED, "r", 0, {"crontab": EARNING, "limits": POOR}),
    Gate("fatal", DEPOSED, "r", 0, {"crontab": FATAL.format("")}),
    Gate("fatal-part", DEPOSED, "r", 0, {"crontab": FATAL.format("parts=2")}),
    Gate("snooze", DEPOSED, "r", 0, {"crontab": PUT_OFF}),
    Gate("retry-after", DEPOSED, "r", 0, {"crontab": PUT_OFF}),
    Gate("drains", DEPOSED, "m"),
    Gate("each", DEPOSED, "p", 0, {"crontab": EACH}),
    Gate("worker-lease", Mood(15.0, {"part_executor": 1}), "e", 0, {"crontab": STAYING}),
    Gate("worker-window", DEPOSED, "i", 0, {"crontab": CROWDED}),
    Gate("connections", DEPOSED, "n", 1),
)


def letters_found(seed: int, gate: Gate, *, is_mutant: bool) -> str:
    """What a seed's judge accuses of, by letter."""
    if not is_mutant:
        problems = simulate(seed, mood=gate.mood, **gate.options).judge.problems
        return "".join(sorted({problem[0] for problem in problems}))
    with MUTANTS[gate.mutant]():
        try:
            problems = simulate(seed, mood=gate.mood, **gate.options).judge.problems
        except (InvariantViolated, KeyError, Stuck):
            return ""  # it fell over before anybody could be blamed
    return "".join(sorted({problem[0] for problem in problems}))


def test_every_mutant_has_its_gate() -> None:
    assert sorted(gate.mutant for gate in GATES) == sorted(MUTANTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "gate", nightly_but(GATES, lambda gate: gate.mutant in LAUNCH_MUTANTS, lambda gate: gate.mutant)
)
def test_a_safeguard_that_is_switched_off_is_missed(gate: Gate) -> None:
    for seed in range(gate.first, gate.first + TRIES):
        found = letters_found(seed, gate, is_mutant=True)
        if any(letter in gate.letters for letter in found):
            assert letters_found(seed, gate, is_mutant=False) == ""
            return
    pytest.fail(f"nobody misses {gate.mutant}: {TRIES} seeds from {gate.first} on are green")

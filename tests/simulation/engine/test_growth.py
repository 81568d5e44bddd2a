"""What a replica keeps in memory does not grow with its history: all that can be reached from its
log, weighed twice in a run whose journal grows on."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from consensus.engine.pending import Pending
from consensus.log import Applied
from tests.simulation.engine.process import Process
from tests.simulation.engine.profiles import PROFILES
from tests.simulation.engine.world import World
from tests.simulation.patching import patched

pytestmark = pytest.mark.slow
BUSY: Final = msgspec.structs.replace(
    PROFILES["plain"],
    gap_s=1e6,
    faults={"mend": 1},
    appends_per_s=60.0,
    burst=8,
    snapshot_entries=300,
    trailing_entries=50,
)
EARLY_S: Final = (8.0, 17.0)
LATE_S: Final = (26.0, 35.0)
LOOK_S: Final = 0.3
OURS: Final = ("consensus.", "pysyncobj", "builtins", "collections", "array", "asyncio")
STOPS: Final = (type, type(sys), type(lambda: None), type(OURS.count))
"""Classes, modules and functions: what they hold is not one replica's."""


def weigh(root: object) -> int:
    """Return how many bytes can be reached from `root` through the engine's own objects."""
    seen: dict[int, object] = {}
    waiting = [root]
    total = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, STOPS):
            continue
        seen[id(one)] = one
        if not type(one).__module__.startswith(OURS):
            continue
        total += sys.getsizeof(one)
        waiting += gc.get_referents(one)
    return total


class Weighed:
    """A run, and the most that each replica weighed early and late in it."""

    def __init__(self) -> None:
        self.world = World(3, BUSY)
        self.early: dict[str, int] = {}
        self.late: dict[str, int] = {}
        self.entries = [0, 0]
        self.world.events.at(EARLY_S[0], self._look)
        self.world.run()

    def _look(self) -> None:
        now_s = self.world.events.now
        for (begin_s, end_s), found, place in ((EARLY_S, self.early, 0), (LATE_S, self.late, 1)):
            if begin_s <= now_s <= end_s:
                self.entries[place] = self.world.canon.last
                for machine in self.world.seated():
                    process = machine.process
                    assert process is not None
                    found[machine.key] = max(found.get(machine.key, 0), self._weigh(process))
        self.world.events.after(LOOK_S, self._look)

    @staticmethod
    def _weigh(process: Process) -> int:
        raft: Any = process.raft
        return weigh([vars(process.log), vars(raft), vars(raft.transport)])

    def growth(self) -> float:
        """Return the late weight to the early one, of the replica that grew most."""
        return max(self.late[name] / self.early[name] for name in self.early)


@pytest.mark.nightly
def test_no_replica_grows_with_its_history() -> None:
    run = Weighed()
    assert run.world.verdict.problems == []
    assert run.entries[1] > 1.8 * run.entries[0] > 1_000
    assert run.growth() < 1.1, (run.early, run.late)


@pytest.mark.nightly
def test_a_leak_would_be_found() -> None:
    kept: Callable[..., None] = Pending.resolve

    def resolve(self: Any, counter: int, applied: Applied) -> None:
        kept(self, counter, applied)
        self._waiting[-counter] = (None, 0)

    with patched(Pending, resolve=resolve):
        assert Weighed().growth() > 1.2

"""One run by its seed: what was found, and what there was to find it in."""

from __future__ import annotations

import gc
from typing import Any

import msgspec

from tests.simulation.engine.profiles import PROFILES, profile_of
from tests.simulation.engine.verdict import Problem
from tests.simulation.engine.world import World


class Run(msgspec.Struct, frozen=True):
    """What became of a seed. `digest` stands for everything that happened."""

    seed: int
    profile: str
    problems: list[Problem]
    digest: str
    trace: list[str]
    counts: dict[str, int]

    @property
    def kinds(self) -> list[str]:
        """The kinds of its problems, each once."""
        return list(dict.fromkeys(problem.kind for problem in self.problems))

    def __str__(self) -> str:
        counts = " ".join(f"{name}={number}" for name, number in self.counts.items())
        return f"seed {self.seed} {self.profile}: {self.digest} {counts}"


def simulate(
    seed: int, profile: str | None = None, *, tracing: bool = False, **changes: Any
) -> Run:
    """Run `seed`, with the profile that it stands for unless one is named; `changes` replace fields
    of the profile."""
    chosen = PROFILES[profile] if profile is not None else profile_of(seed)
    chosen = msgspec.structs.replace(chosen, **changes)
    world = World(seed, chosen, tracing=tracing)
    collecting = gc.isenabled()
    gc.disable()  # a run makes few cycles, and finalizers at chance moments would not repeat
    try:
        world.run()
    finally:
        if collecting:
            gc.enable()
    return Run(
        seed,
        chosen.name,
        world.verdict.problems,
        world.events.digest,
        world.events.trace,
        world.counts(),
    )

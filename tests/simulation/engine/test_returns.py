"""A cell whose replicas all lost power has a leader again soon after they start."""

from __future__ import annotations

import statistics

import msgspec

from tests.simulation.engine.profiles import PROFILES
from tests.simulation.engine.world import FAULTS_S, World

QUIET = msgspec.structs.replace(PROFILES["plain"], gap_s=1e6, faults={"mend": 1})
SEEDS = range(5)
DOWN_S = 3.5
"""Longer than any machine of the simulation takes to start by itself."""
LOOK_S = 0.005


class Story:
    """A world in which all machines lose power once, at a time when its disks are fast."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed, QUIET)
        self.took_s = float("inf")
        self.world.events.at(FAULTS_S + 1, self._cut)
        self.world.run()

    def _cut(self) -> None:
        for machine in self.world.seated():
            machine.wanted = False
        self.world.power_cut(self.world.seated())
        self.world.events.after(DOWN_S, self._start)

    def _start(self) -> None:
        self._since_s = self.world.events.now
        assert not self.world.leaders()
        for machine in self.world.seated():
            machine.wanted = True
            self.world.start(machine)
        self._look()

    def _look(self) -> None:
        if self.world.leaders():
            self.took_s = self.world.events.now - self._since_s
        else:
            self.world.events.after(LOOK_S, self._look)


def test_a_cell_that_lost_power_has_a_leader_within_a_second_of_its_start() -> None:
    """An election timeout of 0.8 to 1.6 s would pass before anybody asks for votes."""
    stories = [Story(seed) for seed in SEEDS]
    assert [story.world.verdict.problems for story in stories] == [[] for _ in SEEDS]
    times_s = [story.took_s for story in stories]
    assert max(times_s) < 1.5, times_s
    assert statistics.median(times_s) < 0.7, times_s

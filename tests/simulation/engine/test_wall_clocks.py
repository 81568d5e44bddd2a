"""A leader whose wall clock is far ahead commits nothing that a majority calls the future."""

from __future__ import annotations

import msgspec
import pytest

from tests.drawn import nightly_but, story_seeds
from tests.simulation.engine.machine import Machine
from tests.simulation.engine.profiles import PROFILES
from tests.simulation.engine.runs import simulate
from tests.simulation.engine.world import World

QUIET = msgspec.structs.replace(PROFILES["plain"], gap_s=1e6, faults={"mend": 1})
AT_S = 5.0
HOUR_S = 3_600.0


class Story:
    """A world in which nothing happens but to wall clocks, at five seconds."""

    def __init__(self, seed: int, *, ahead: bool, slow: int, down: int = 0) -> None:
        self.world = World(seed, QUIET)
        self.leader: Machine | None = None
        self.others: list[Machine] = []
        self._ahead, self._slow, self._down = ahead, slow, down
        self.world.events.at(AT_S, self._set)
        self.world.run()

    def _set(self) -> None:
        world = self.world
        self.leader = world.leaders()[0]
        self.others = [one for one in world.seated() if one is not self.leader]
        self.first = world.clients.begun + 1
        if self._ahead:
            self.leader.wall_s = HOUR_S
        for machine in self.others[: self._slow]:
            machine.wall_s = -HOUR_S
        for machine in self.others[len(self.others) - self._down :]:
            machine.wanted = False
            world.power_cut([machine])

    @property
    def from_the_future(self) -> list[int]:
        """Committed entries whose time is far ahead of the simulation's own."""
        wall_s, where = self.world.clients.wall_s, self.world.canon.where
        return [name for name in where if wall_s[name] > self.world.events.now + HOUR_S / 2]

    @property
    def answered(self) -> int:
        """Appends since then that were answered."""
        return sum(name >= self.first for name in self.world.ledger.acknowledged)

    @property
    def elections(self) -> int:
        """Changes of leader since then."""
        return sum(at_s >= AT_S for at_s, _ in self.world.elections.changes)


@pytest.mark.parametrize("seed", story_seeds(4))
def test_a_leader_an_hour_ahead_gives_way_and_its_entries_are_in_no_log(seed: int) -> None:
    story = Story(seed, ahead=True, slow=0)
    assert story.world.verdict.problems == []
    assert story.from_the_future == []
    assert story.answered > 50
    assert 1 <= story.elections <= 3


@pytest.mark.parametrize("seed", story_seeds(4))
def test_with_a_replica_down_a_leader_an_hour_ahead_gives_way_to_the_only_other(seed: int) -> None:
    """Its log is longer than the other's, whose vote alone would elect it again and again."""
    story = Story(seed, ahead=True, slow=0, down=1)
    assert {problem.kind for problem in story.world.verdict.problems} <= {"not-level"}
    assert story.from_the_future == []
    assert story.answered > 50
    assert 1 <= story.elections <= 3


@pytest.mark.parametrize("seed", story_seeds(4))
def test_one_slow_follower_holds_up_nothing(seed: int) -> None:
    story = Story(seed, ahead=False, slow=1)
    assert story.world.verdict.problems == []
    assert story.answered > 50
    assert story.elections == 0


@pytest.mark.parametrize("seed", story_seeds(4))
def test_of_two_slow_followers_one_leads(seed: int) -> None:
    story = Story(seed, ahead=False, slow=2)
    assert story.world.verdict.problems == []
    assert story.answered > 50
    assert 1 <= story.elections <= 3


@pytest.mark.slow
@pytest.mark.parametrize("first", nightly_but(range(0, 30, 5), lambda first: False))
def test_clocks_that_are_set_all_the_time_break_no_promise(first: int) -> None:
    for seed in range(first, first + 5):
        run = simulate(seed, "clocks")
        assert not run.problems, f"{run}\n" + "\n".join(map(str, run.problems))

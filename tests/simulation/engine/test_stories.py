"""Stories of replacement that chance tells too seldom, each with a fault at its worst moment."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.drawn import story_seeds
from tests.simulation.engine.machine import Machine
from tests.simulation.engine.profiles import PROFILES
from tests.simulation.engine.world import World

QUIET = msgspec.structs.replace(PROFILES["plain"], gap_s=1e6, faults={"mend": 1})


class Story:
    """A world without a nemesis, in which a follower's disk is lost and replaced by the book."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed, QUIET)
        self.has_joined = False
        self.world.events.at(4.0, self.replace)

    def when(self, moment: Callable[[], bool], act: Callable[[], None]) -> None:
        """Wait for a moment."""
        if moment():
            act()
        else:
            self.world.events.after(0.0001, self.when, moment, act)

    def replace(self) -> None:
        """Begin: at four seconds."""
        world = self.world
        self.leader = world.leaders()[0]
        old = next(machine for machine in world.seated() if machine is not self.leader)
        self.lose(old)
        self.replica = old.replica
        self.new = world.add_machine(old.replica, "join")
        world.seats[old.replica] = self.new
        process = self.leader.process
        assert process is not None
        process.spawn(process.log.replace(old.replica, raft=self.new.address, timeout_ms=1_000))
        world.start(self.new)
        self.when(lambda: not self.is_voter(self.leader), self.wait)

    def wait(self) -> None:
        """The old disk is out."""
        self.when(lambda: self.is_voter(self.leader), self.joined)

    def joined(self) -> None:
        """By the leader's log the new disk votes, since this moment."""
        self.has_joined = True

    def lose(self, machine: Machine) -> None:
        """A machine is gone for good."""
        machine.wanted, machine.retired = False, True
        self.world.power_cut([machine])

    def is_voter(self, machine: Machine) -> bool:
        """Whether the new disk votes, by what `machine` has in its log."""
        process = machine.process
        watch = self.world.watches.get(process) if process is not None else None
        member = watch.members().get(self.replica) if watch is not None else None
        return member is not None and member.votes


class LeaderLost(Story):
    """The leader is lost just when the new disk could have heard that it votes."""

    def joined(self) -> None:
        super().joined()
        self.world.fabric.cut.add((self.leader.key, self.new.key))
        self.when(self.world.whole, self.lose_leader)

    def lose_leader(self) -> None:
        assert not self.is_voter(self.new)
        self.lose(self.leader)
        del self.world.seats[self.leader.replica]
        self.world.fabric.cut.clear()


@pytest.mark.slow
@pytest.mark.parametrize("seed", story_seeds(5))
def test_by_the_book_it_takes_part_again(seed: int) -> None:
    story = Story(seed)
    story.world.run()
    assert story.has_joined
    assert story.world.verdict.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", story_seeds(5))
def test_a_leader_may_be_lost_before_the_new_disk_has_heard_that_it_votes(seed: int) -> None:
    """Two of three are left, and one of them does not know yet that it counts."""
    story = LeaderLost(seed)
    story.world.run()
    assert story.has_joined
    assert story.world.verdict.problems == []

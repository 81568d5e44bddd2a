"""A cell of one that becomes one of three or of five, with a fault at the worst moment of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from consensus.engine.envelope import MEMBERS, unseal
from consensus.engine.membership import Change, Join, decode_change
from tests.drawn import nightly_but, story_seeds
from tests.simulation.engine.growing import Growth
from tests.simulation.engine.machine import Machine
from tests.simulation.engine.profiles import PROFILES
from tests.simulation.engine.runs import simulate
from tests.simulation.engine.world import World

QUIET = msgspec.structs.replace(PROFILES["growth"], gap_s=1e6, faults={"mend": 1})
BEGINS_S = 4.0


class Story:
    """A world without a nemesis, in which a cell of one grows by the book."""

    def __init__(self, seed: int, size: int = 3) -> None:
        self.world = World(seed, msgspec.structs.replace(QUIET, grows_to=size))
        self.growth = Growth(self.world, size, is_by_the_book=True)
        self.growth.begin(BEGINS_S)
        self.world.growth = self.growth
        self.world.growth.begin = lambda: None  # type: ignore[method-assign,misc]
        self.happened = False

    def run(self) -> World:
        """Let it happen; return the world after it."""
        self.world.run()
        assert self.world.verdict.problems == []
        assert self.growth.waiting == []
        return self.world

    def when(self, moment: Callable[[], bool], act: Callable[[], None]) -> None:
        """Wait for a moment."""
        if moment():
            self.happened = True
            act()
        else:
            self.world.events.after(0.0001, self.when, moment, act)

    def member(self, at: str, replica: str) -> Any:
        """What the log of the machine `at` has of a replica, None where it runs not or has not."""
        process = self.world.seats[at].process if at in self.world.seats else None
        watch = self.world.watches.get(process) if process is not None else None
        return watch.members().get(replica) if watch is not None else None

    def votes(self, at: str, replica: str) -> bool:
        """Whether a replica votes, by the log of the machine `at`."""
        member = self.member(at, replica)
        return member is not None and member.votes

    def dies_when_it_logs(self, machine: Machine, wanted: Change) -> None:
        """`machine` loses power when it has sent this change, and not synced it."""
        raft = machine.process.raft if machine.process is not None else None
        if raft is None:
            self.world.events.after(0.01, self.dies_when_it_logs, machine, wanted)
            return
        journal: Any = raft.journal
        real = journal.add

        def add(command: bytes, index: int, term: int) -> None:
            real(command, index, term)
            envelope = unseal(command)
            if envelope is None or envelope.kind != MEMBERS:
                return
            if decode_change(envelope.entry) == wanted:
                self.happened = True
                machine.dies_at, machine.dies_in, machine.dies_by_power = "sync", 1, True

        journal.add = add


@pytest.mark.slow
@pytest.mark.parametrize("seed", story_seeds(5))
def test_by_the_book_one_becomes_three(seed: int) -> None:
    world = Story(seed).run()
    assert sorted(world.seats) == ["r1", "r2", "r3"]
    assert len(world.ledger.acknowledged) > 100


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_by_the_book_one_becomes_five(seed: int) -> None:
    world = Story(seed, 5).run()
    assert sorted(world.seats) == ["r1", "r2", "r3", "r4", "r5"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", story_seeds(5))
def test_the_first_dies_before_the_second_has_heard_that_it_votes(seed: int) -> None:
    """By its own log r1 needs r2 from now on, and r2 does not know yet that it counts."""
    story = Story(seed)

    def cut() -> None:
        story.world.fabric.cut.add(("r1", "r2"))
        story.when(lambda: story.votes("r1", "r2"), die)

    def die() -> None:
        assert not story.votes("r2", "r2")
        story.world.power_cut([story.world.seats["r1"]])
        story.world.fabric.cut.clear()
        story.world.events.after(1.0, story.world.start, story.world.seats["r1"])

    def has_all() -> bool:
        """Whether r2 is admitted, so that only its Join is missing."""
        member = story.member("r2", "r2")
        return member is not None and bool(member.token)

    story.when(has_all, cut)
    story.run()
    assert story.happened


@pytest.mark.slow
@pytest.mark.parametrize("seed", story_seeds(5))
@pytest.mark.parametrize("second", ["r2", "r3"])
def test_the_leader_dies_between_sending_a_join_and_its_own_sync(second: str, seed: int) -> None:
    """The other log may have a voter more than that of the leader, which returns without it."""
    story = Story(seed)
    story.world.events.at(
        BEGINS_S + 0.5, lambda: story.dies_when_it_logs(story.world.seats["r1"], Join(second, 1))
    )
    story.run()
    assert story.happened


@pytest.mark.slow
@pytest.mark.parametrize("seed", story_seeds(5))
def test_a_disk_is_lost_twice_before_it_votes(seed: int) -> None:
    story = Story(seed)
    world = story.world
    world.fabric.bytes_per_s = 100e3  # so that it takes a while until it has the state
    lost: list[str] = []

    def is_joining() -> bool:
        member = story.member("r1", "r2")
        token = world.seats["r2"].token if "r2" in world.seats else None
        return member is not None and not member.votes and member.token == token != 0

    def lose() -> None:
        lost.append(world.seats["r2"].key)
        story.growth.lose_new()
        if len(lost) < 2:
            story.when(is_joining, lose)

    story.when(is_joining, lose)
    story.run()
    assert lost == ["r2", "r2.1"]
    assert world.seats["r2"].key == "r2.2"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_cell_that_was_restored_to_one_replica_grows(seed: int) -> None:
    run = simulate(seed, "growth", seeded=True)
    assert not run.problems, f"{run}\n" + "\n".join(map(str, run.problems))
    assert run.counts["grown"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_but(range(30), lambda seed: seed == 0))
def test_no_order_of_faults_breaks_a_promise_on_the_way_to_five(seed: int) -> None:
    run = simulate(seed, "growth", grows_to=5)
    assert not run.problems, f"{run}\n" + "\n".join(map(str, run.problems))
    assert run.counts["grown"] == 4

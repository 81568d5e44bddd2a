"""Heartbeats do not wait behind bulk work: how long a follower hears nothing of its leader, and a
leader nothing of its majority, while much is under way. Clock and wires are the simulation's, the
limits those of a real replica."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from consensus.engine.raft import Raft
from consensus.limits import SEGMENT_BYTES
from consensus.log import Applied
from tests.simulation.engine import seams
from tests.simulation.engine.applier import write_entry
from tests.simulation.engine.machine import Machine
from tests.simulation.engine.process import Process
from tests.simulation.engine.profiles import PROFILES, Profile
from tests.simulation.engine.world import World
from tests.simulation.patching import patched

pytestmark = pytest.mark.slow
QUIET = msgspec.structs.replace(PROFILES["plain"], gap_s=1e6, faults={"mend": 1})
SLOW_BYTES_PER_S = 1_000_000
BEGIN_S = 5.0
LOOK_S = 0.01
HEARTBEAT_S = 0.1


class Silence:
    """A world without faults, and the longest that somebody heard nothing since BEGIN_S."""

    def __init__(self, begin: Callable[[World], None], **changed: object) -> None:
        profile: Profile = msgspec.structs.replace(QUIET, **changed)
        self.world = World(1, profile)
        self.followers_s = 0.0
        self.leader_s = 0.0
        self.world.events.at(BEGIN_S, begin, self.world)
        self.world.events.at(BEGIN_S, self._look)
        with patched(seams, SMALL_LIMITS=(), SEGMENT_BYTES=SEGMENT_BYTES):
            self.world.run()

    def _look(self) -> None:
        for machine in self.world.seated():
            process = machine.process
            if process is not None and process.raft is not None and machine.powered:
                self._hear(machine, process.raft)
        self.world.events.after(LOOK_S, self._look)

    def _hear(self, machine: Machine, raft: Raft) -> None:
        now_s = machine.clock.read(0.0)
        if raft.leads:
            self.leader_s = max(self.leader_s, now_s - (raft.leading.confirmed_s or 0.0))
        elif raft.leader is not None:
            self.followers_s = max(self.followers_s, now_s - raft.elections._leader_s)

    def check(self, most_s: float) -> None:
        """Nobody heard nothing for longer, the same leader leads, and nothing was broken."""
        assert self.world.verdict.problems == []
        assert len(self.world.elections.leaders) == 1
        assert self.followers_s < most_s, self.followers_s
        assert self.leader_s < most_s, self.leader_s


def leader_of(world: World) -> Process:
    process = world.leaders()[0].process
    assert process is not None
    return process


def append(world: World, size: int, count: int = 1) -> None:
    """Append large entries, which a client of the world may have to wait long for."""
    process = leader_of(world)
    for _ in range(count):
        world.clients.begun += 1
        name = world.clients.begun
        began = world.ledger.begin()

        def told(result: object, name: int = name, began: int = began) -> None:
            assert isinstance(result, Applied), result
            world.ledger.appended(name, result.position.index, began, process.state.applied)

        entry = write_entry(name, size)
        process.spawn(process.log.append(entry, timeout_ms=20_000), told)


def test_a_large_entry_on_a_slow_wire_holds_up_no_heartbeat() -> None:
    """Eight megabytes take eight seconds to each follower."""
    story = Silence(lambda world: append(world, 8_000_000), bytes_per_s=SLOW_BYTES_PER_S)
    story.check(most_s=3 * HEARTBEAT_S)


def test_a_backlog_of_entries_on_a_slow_wire_holds_up_no_heartbeat() -> None:
    story = Silence(lambda world: append(world, 60_000, 100), bytes_per_s=SLOW_BYTES_PER_S)
    story.check(most_s=3 * HEARTBEAT_S)


def test_a_leader_is_confirmed_while_a_large_entry_is_on_its_way() -> None:
    """Leases are renewed by it; a barrier would wait for the entry."""
    took_s: list[float] = []

    def begin(world: World) -> None:
        append(world, 8_000_000)
        world.events.after(1.0, ask, world)

    def ask(world: World) -> None:
        process, began_s = leader_of(world), world.events.now

        def told(result: object) -> None:
            assert result is None, result
            took_s.append(world.events.now - began_s)

        process.spawn(process.log.confirm(timeout_ms=5_000), told)

    Silence(begin, bytes_per_s=SLOW_BYTES_PER_S).check(most_s=3 * HEARTBEAT_S)
    assert max(took_s) < 2 * HEARTBEAT_S, took_s


def away(world: World) -> None:
    """A follower is away, comes back with a journal that ends long before, and needs a dump."""
    follower = next(machine for machine in world.seated() if machine not in world.leaders())
    follower.wanted = False
    world.kill(follower)

    def back() -> None:
        follower.wanted = True
        world.start(follower)

    world.events.after(4.0, back)


def test_a_dump_on_a_slow_wire_holds_up_no_heartbeat() -> None:
    story = Silence(
        away,
        bytes_per_s=SLOW_BYTES_PER_S,
        snapshot_entries=40,
        trailing_entries=20,
        state_bytes=2_000_000,
    )
    # The leader's dumps follow each other as fast as one arrives: it keeps the entries behind the
    # one that is on its way.
    assert story.world.restored == 1
    story.check(most_s=3 * HEARTBEAT_S)


def slow_disks(world: World) -> None:
    """Both followers' disks take longer than three heartbeats, and there is always something to
    sync."""
    for machine in world.seated():
        if machine not in world.leaders():
            machine.sync_s = (0.38, 0.4)


def test_an_answer_to_a_heartbeat_waits_for_one_sync_at_most() -> None:
    """One that comes while a disk syncs is heard after it, and answered before the next."""
    story = Silence(slow_disks, appends_per_s=40.0, burst=20)
    story.check(most_s=0.4 + 2 * HEARTBEAT_S)


def all_slow(world: World) -> None:
    """Each sync of each disk takes two heartbeats."""
    for machine in world.seated():
        machine.sync_s = (0.19, 0.2)


def test_slow_disks_of_all_replicas_cost_the_leader_a_few_heartbeats_and_not_its_office() -> None:
    """consensus/DESIGN.md, "Heartbeats": a tick waits for one sync, an answer for one more."""
    story = Silence(all_slow, appends_per_s=40.0, burst=20)
    story.check(most_s=3 * 0.2 + HEARTBEAT_S)

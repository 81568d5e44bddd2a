"""Who breaks things, by chance: links, processes, machines, disks, clocks; and mends them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from consensus.limits import ROOM_BYTES_MIN
from tests.simulation.engine.machine import Machine
from tests.simulation.engine.operator import Replacement, bring_back, put_back, wipe

if TYPE_CHECKING:
    from tests.simulation.engine.world import World

LATENCY_S: Final = (0.0002, 0.003)
SYNC_S: Final = (0.0001, 0.002)
SLOW_SYNC_S: Final = (0.02, 0.25)
FIRST_S: Final = 3.0
MOMENTS: Final = (
    ("", 40),
    ("append", 10),
    ("sync", 10),
    ("create", 2),
    ("rename", 2),
    ("rename", 4),
    ("remove", 4),
    ("sync_names", 3),
)
"""What a process is about to do with its disk when it dies, and at most how many times it may."""


class Nemesis:
    """Does one thing after the other until `until_s`, then mends everything."""

    def __init__(self, world: World, until_s: float) -> None:
        self.world = world
        self.rng = world.rng
        self.until_s = until_s
        self.acts: dict[str, Callable[[Machine], None]] = {
            name: getattr(self, f"_{name}") for name in world.profile.faults
        }

    def begin(self) -> None:
        """Wait a little, then begin."""
        self.world.events.after(FIRST_S, self._go)

    def _go(self) -> None:
        world = self.world
        if world.events.now >= self.until_s:
            self.mend_all()
            return
        faults = world.profile.faults
        name = self.rng.choices(list(faults), list(faults.values()))[0]
        victim = self._choose()
        world.events.note("nemesis", f"{name} {victim.key}")
        self.acts[name](victim)
        gap_s = self.rng.expovariate(1 / world.profile.gap_s)
        world.events.after(min(gap_s, self.until_s - world.events.now), self._go)

    def _choose(self) -> Machine:
        leaders = self.world.leaders()
        if leaders and self.rng.random() < 0.4:
            return self.rng.choice(leaders)
        return self.rng.choice(self.world.seated())

    def mend_all(self) -> None:
        """End all faults."""
        world = self.world
        world.events.note("nemesis", "mends all")
        world.fabric.cut.clear()
        world.fabric.loss, world.fabric.latency_s = 0.0, LATENCY_S
        world.link_fault(world.pairs)
        for machine in world.machines.values():
            world.fault(machine)
            machine.sync_s = SYNC_S
            machine.disk.room = None
            machine.disk.rot = machine.disk.misreads = machine.dies_in = 0
            machine.clock.run_at(1.0)
            machine.wall_s = 0.0
            machine.wanted = machine.wanted or not machine.retired
            if machine.process is not None and machine.process.paused:
                machine.process.resume()
        for machine in world.seated():
            occupant = world.machines[world.fabric.machines[machine.address]]
            if occupant is not machine:
                put_back(world, occupant, machine)
        world.start_all()
        world.mended()

    # --- links

    def _pairs(self, victim: Machine) -> list[tuple[str, str]]:
        others = [key for key in self.world.machines if key != victim.key]
        return [(victim.key, other) for other in others] + [(other, victim.key) for other in others]

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        self.world.fabric.cut.update(pairs)
        self.world.link_fault(pairs)

    def _isolate(self, victim: Machine) -> None:
        self._cut(self._pairs(victim))

    def _one_way(self, victim: Machine) -> None:
        side = self.rng.randrange(2)
        self._cut([pair for pair in self._pairs(victim) if pair[side] == victim.key])

    def _link(self, victim: Machine) -> None:
        other = self.rng.choice([m.key for m in self.world.seated() if m is not victim])
        self._cut([(victim.key, other), (other, victim.key)])

    def _one_link_way(self, victim: Machine) -> None:
        other = self.rng.choice([m.key for m in self.world.seated() if m is not victim])
        self._cut([self.rng.choice([(victim.key, other), (other, victim.key)])])

    def _mend(self, victim: Machine) -> None:
        cut = sorted(self.world.fabric.cut)
        if self.rng.random() < 0.3:
            cut = [pair for pair in cut if self.rng.random() < 0.5]
        self.world.link_fault(cut)
        self.world.fabric.cut.difference_update(cut)

    def _loss(self, victim: Machine) -> None:
        self.world.fabric.loss = self.rng.choice((0.0, 0.0, 0.01, 0.05))
        self.world.link_fault(self.world.pairs)

    def _latency(self, victim: Machine) -> None:
        self.world.fabric.latency_s = self.rng.choice((LATENCY_S, LATENCY_S, (0.01, 0.12)))
        self.world.link_fault(self.world.pairs)

    def _reset(self, victim: Machine) -> None:
        """Something between the machines forgets their connections."""
        self.world.link_fault(self._pairs(victim))
        process = victim.process
        if process is None:
            return
        for connection in list(process.network.connections):
            other = connection.outgoing.target
            if other is not None and self.rng.random() < 0.7:
                connection.broken("reset on the way")
                other.broken("reset on the way")

    # --- processes

    def _kill(self, victim: Machine) -> None:
        self.world.kill(victim)

    def _kill_two(self, victim: Machine) -> None:
        for machine in self._two(victim):
            self.world.kill(machine)

    def _bounce(self, victim: Machine) -> None:
        self.world.kill(victim)
        self.world.start(victim)

    def _two(self, victim: Machine) -> list[Machine]:
        return [victim, self.rng.choice([m for m in self.world.seated() if m is not victim])]

    def _kill_at(self, victim: Machine) -> None:
        self._arm(victim, by_power=False)

    def _arm(self, victim: Machine, *, by_power: bool) -> None:
        victim.dies_at, most = self.rng.choice(MOMENTS)
        victim.dies_in, victim.dies_by_power = self.rng.randint(1, most), by_power

    def _restart(self, victim: Machine) -> None:
        self.world.start_all()

    def _pause(self, victim: Machine) -> None:
        self.world.fault(victim)
        if victim.process is not None:
            victim.process.pause()

    def _resume(self, victim: Machine) -> None:
        for machine in self.world.machines.values():
            if machine.process is not None and machine.process.paused:
                self.world.fault(machine)
                machine.process.resume()

    def _stall_loop(self, victim: Machine) -> None:
        """Its event loop does something long; its other threads go on."""
        self.world.fault(victim)
        if victim.process is not None:
            victim.process.stall_loop(self.rng.uniform(0.1, 3.0))

    def _stall_tick(self, victim: Machine) -> None:
        """Its tick thread gets no processor for a while."""
        self.world.fault(victim)
        if victim.process is not None:
            seconds = self.rng.uniform(0.1, 2.0)
            victim.process.stall_tick(seconds)
            self.world.events.after(seconds, lambda: self.world.fault(victim))

    # --- power

    def _power_one(self, victim: Machine) -> None:
        self.world.power_cut([victim])

    def _power_two(self, victim: Machine) -> None:
        self.world.power_cut(self._two(victim))

    def _power_all(self, victim: Machine) -> None:
        self.world.power_cut(self.world.seated())

    def _relapse(self, victim: Machine) -> None:
        """It loses power, comes back a while later, and loses it again as it catches up."""
        self.world.power_cut([victim])
        self.world.events.after(self.rng.uniform(0.5, 2.0), self._come_back, victim)

    def _come_back(self, victim: Machine) -> None:
        self.world.start(victim)
        if not self.world.is_calm:
            victim.dies_at, victim.dies_by_power = self.rng.choice(("append", "sync")), True
            victim.dies_in = self.rng.randint(1, 6)

    def _power_at(self, victim: Machine) -> None:
        self._arm(victim, by_power=True)

    # --- disks and clocks

    def _full(self, victim: Machine) -> None:
        just_no_dump = ROOM_BYTES_MIN + self.rng.randrange(20_000)
        victim.disk.room = self.rng.choice((0, self.rng.randrange(20_000), just_no_dump))
        self.world.fault(victim)

    def _room(self, victim: Machine) -> None:
        for machine in self.world.machines.values():
            machine.disk.room = None

    def _sync_error(self, victim: Machine) -> None:
        victim.disk.fail_sync(self.rng.randint(1, 10), errno.EIO)
        self.world.fault(victim)

    def _slow_disk(self, victim: Machine) -> None:
        victim.sync_s = SLOW_SYNC_S
        self.world.fault(victim)

    def _fast_disk(self, victim: Machine) -> None:
        for machine in self.world.machines.values():
            if machine.sync_s != SYNC_S:
                self.world.fault(machine)
            machine.sync_s = SYNC_S

    def _rot(self, victim: Machine) -> None:
        victim.disk.rot = self.rng.randint(1, 3)

    def _misread(self, victim: Machine) -> None:
        victim.disk.misreads = self.rng.randint(1, 3)
        self.world.fault(victim)

    def _rate(self, victim: Machine) -> None:
        victim.clock.run_at(self.rng.choice((0.9, 0.95, 1.0, 1.05, 1.1)))

    def _wall(self, victim: Machine) -> None:
        """Somebody sets its wall clock, mostly right."""
        self.world.fault(victim)
        victim.wall_s = self.rng.choice((0.0, 0.0, 0.0, -3_600.0, -100.0, 100.0, 3_600.0))

    # --- what people do

    def _transfer(self, victim: Machine) -> None:
        self.world.transfer(victim)

    def _snapshot(self, victim: Machine) -> None:
        process = victim.process
        if process is not None and not process.paused and process.raft is not None:
            process.spawn(process.log.snapshot())

    def _stop(self, victim: Machine) -> None:
        self.world.stop(victim)

    def _replace(self, victim: Machine) -> None:
        if self.world.whole() and not victim.retired:
            Replacement(self.world, victim).begin()

    def _lose_new(self, victim: Machine) -> None:
        if self.world.growth is not None:
            self.world.growth.lose_new()

    def _zombie(self, victim: Machine) -> None:
        for machine in self.world.machines.values():
            if machine.retired and not machine.alive:
                bring_back(self.world, machine)
                return

    def _haunt(self, victim: Machine) -> None:
        self.world.ghosts.haunt()

    def _wipe(self, victim: Machine) -> None:
        if self.world.whole():
            wipe(self.world, victim)

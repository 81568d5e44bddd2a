"""What operators do about a lost disk: the right thing, and the wrong one first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.engine.machine import Machine, SimDisk

if TYPE_CHECKING:
    from tests.simulation.engine.world import World

RETRY_S = 0.7
TIMEOUT_MS = 2_000
ADMISSION_S = 4.0
"""How long trouble waits for the moment when a new disk reads that it is admitted."""


class Replacement:
    """`raftcron replica replace` until the members say that it is done, and a new machine that
    joins, before or after that. The old one is lost, or goes on until it is told; or it only gets
    another disk, and keeps its address."""

    def __init__(self, world: World, old: Machine) -> None:
        self.world = world
        self.old = old
        self.replica = old.replica
        self.done = False
        self._before: int | None = None

    def begin(self) -> None:
        """Begin."""
        world = self.world
        world.replacing.append(self)
        self.old.retired = True
        is_swap = world.rng.random() < 0.4
        if is_swap or world.rng.random() < 0.4:
            self.old.wanted = False
            world.power_cut([self.old])
        self.new = world.add_machine(self.replica, "join", self.old.address if is_swap else "")
        world.seats[self.replica] = self.new
        self.new.wanted = False
        world.events.after(world.rng.uniform(0.0, 4.0), self._boot)
        self._try()

    def _boot(self) -> None:
        world = self.world
        self.new.wanted = True
        world.start(self.new)
        if world.rng.random() < 0.5:
            self._await_admission(world.events.now + ADMISSION_S)
        elif world.rng.random() < 0.6:
            world.events.after(world.rng.uniform(0.05, 0.6), self._starve)

    def _await_admission(self, until_s: float) -> None:
        world, process = self.world, self.new.process
        watch = world.watches.get(process) if process is not None else None
        if watch is not None and watch.is_admitted:
            self._starve()
        elif world.events.now < until_s:
            world.events.after(0.0005, self._await_admission, until_s)

    def _starve(self) -> None:
        """Who leads does not reach the new disk any more, and dies before it has everything."""
        world = self.world
        if world.is_calm:
            return
        pairs = [(machine.key, self.new.key) for machine in world.leaders()]
        world.fabric.cut.update(pairs)
        world.link_fault(pairs)
        world.events.after(world.rng.choice((0.0, world.rng.random())), self._kill_leaders)

    def _kill_leaders(self) -> None:
        if not self.world.is_calm:
            for machine in self.world.leaders():
                self.world.kill(machine)

    def _try(self) -> None:
        world = self.world
        if self.done or world.events.now > world.ends_s:
            return
        for machine in world.leaders():
            process = machine.process
            if process is None:
                continue
            view = process.log.members.get(self.replica)
            if view is None:
                continue
            if self._before is None:
                self._before = view.incarnation
            if view.incarnation > self._before:
                self.done = True
                world.replacing.remove(self)
                world.replaced += 1
                world.addresses[self.replica] = self.new.address
                world.events.note("operator", f"{self.replica} is replaced")
                return
            if machine is self.old:
                world.transfer(machine)  # who leads cannot be replaced
                continue
            if view.incarnation == self._before:
                replace: Any = process.log.replace(
                    self.replica, raft=self._moved_to, timeout_ms=TIMEOUT_MS
                )
                process.spawn(replace, self._told)
                break
        world.events.after(RETRY_S, self._try)

    @property
    def _moved_to(self) -> str:
        return "" if self.new.address == self.old.address else self.new.address

    def _told(self, result: Any) -> None:
        self.world.events.note("operator", f"replace {self.replica}: {result!r:.120}")


def wipe(world: World, machine: Machine) -> None:
    """The disk of `machine` is lost, and an empty one starts as if the cell were new: nothing that
    it says may count. After a while somebody notices, and replaces it."""
    world.kill(machine)
    machine.disk = SimDisk(machine.key)
    machine.start = "bootstrap"
    machine.token = None
    machine.wiped = True
    world.start(machine)
    replacement = Replacement(world, machine)
    world.replacing.append(replacement)
    world.events.after(world.rng.uniform(1.0, 5.0), _notice, world, replacement)


def _notice(world: World, replacement: Replacement) -> None:
    world.replacing.remove(replacement)
    replacement.begin()


def bring_back(world: World, old: Machine) -> None:
    """A disk that was replaced is started again; if another one is in its machine by now, that is
    taken out, until somebody notices."""
    occupant = world.machines[world.fabric.machines[old.address]]
    if occupant is not old:
        occupant.wanted = False
        world.power_cut([occupant])
        world.fabric.machines[old.address] = old.key
        world.events.after(world.rng.uniform(1.0, 4.0), put_back, world, old, occupant)
    old.wanted = True
    world.start(old)


def put_back(world: World, old: Machine, occupant: Machine) -> None:
    """Have the right disk in the machine again."""
    if world.fabric.machines[old.address] == old.key:
        old.wanted = False
        world.power_cut([old])
        world.fabric.machines[old.address] = occupant.key
        occupant.wanted = not occupant.retired
        world.start(occupant)

"""A cell that begins with a state, and disks of other lives that turn up in the place of its own.

None of these disks may ever lead, and none that knows a life of its own may be heard by one that
knows the cell's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from consensus.engine.envelope import ENTRY, MEMBERS, Origin, seal
from consensus.engine.membership import Found, change_members, encode_change, encode_members
from consensus.engine.network.wire import Hello
from consensus.engine.seeding import seed_disk
from consensus.engine.storage.dump import IN_FORCE, write_dump
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.segments import Identity
from consensus.leadership import Position
from tests.fakes.memory_disk import MemoryDisk
from tests.simulation.engine.agreement import Canon
from tests.simulation.engine.applier import DigestState, write_entry
from tests.simulation.engine.machine import Machine
from tests.simulation.engine.verdict import Verdict

if TYPE_CHECKING:
    from tests.simulation.engine.watch import Watch
    from tests.simulation.engine.world import World

Kind = Literal["founded", "dumped", "unfounded", "rival"]
KINDS: Final[tuple[Kind, ...]] = ("founded", "dumped", "unfounded", "rival")
TERMS: Final = (1, 7, 7, 60)
"""Of what is on a ghost's disk: the restored cell begins in term 7."""
SEEDED_TERM: Final = 7
INDEXES: Final = (90, 10**12, 3 * 10**12)
NAMES_FROM: Final = 1_000_000_000
"""What ghosts have written; no client of ours uses these names."""


class Ghosts:
    """The disks of other lives of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kinds: dict[str, Kind] = {}
        self.seeded = ""
        self.position = Position()

    def begin(self) -> None:
        """Seed one machine, and let a ghost be in the place of another one at first, perhaps."""
        world, rng = self.world, self.world.rng
        self.seeded = rng.choice(sorted(world.seats))
        self.position = Position(SEEDED_TERM, rng.choice(INDEXES))
        state = self._state(self.position.index)
        world.canon.begin(self.position.index, state.digest)
        machine = world.seats[self.seeded]
        self._seed(machine.disk, machine.replica, self.position, state)
        for replica in sorted(world.seats):
            seat = world.seats[replica]
            ghost = world.add_machine(replica, "resume", seat.address)
            world.fabric.machines[seat.address] = seat.key
            ghost.wanted, ghost.retired = False, True
            self.kinds[ghost.key] = kind = rng.choice(KINDS)
            self._make(ghost, kind)
            if replica != self.seeded and rng.random() < 0.4:
                self._enter(ghost, rng.uniform(2.0, 5.0))

    # --- what is on the disks

    def _state(self, index: int) -> DigestState:
        world = self.world
        state = DigestState("seed", world.verdict, world.canon, world.profile.state_bytes)
        state.digest, state.index = world.rng.randbytes(8), index
        return state

    def _seed(self, disk: MemoryDisk, replica: str, at: Position, state: DigestState) -> None:
        identity = Identity("simulated", replica, self._token(), joins=False)
        seed_disk(disk, identity, at, state.take())

    def _make(self, ghost: Machine, kind: Kind) -> None:
        rng = self.world.rng
        # An unfounded one of an older term could be taken for an empty one, and rightly.
        term = max(TERMS) if kind == "unfounded" else rng.choice(TERMS)
        if kind == "rival":
            index = rng.choice((*INDEXES, self.position.index + rng.randrange(-5, 20)))
            self._seed(ghost.disk, ghost.replica, Position(term, index), self._state(index))
            return
        identity = Identity("simulated", ghost.replica, self._token(), joins=False)
        journal = FileJournal.create(ghost.disk, identity)
        journal.add(b"\x01", 2, term)
        if kind != "unfounded":
            self._live(ghost.disk, journal, term, is_dumped=kind == "dumped")
        journal.setCurrentTerm(term, ghost.replica)
        journal._destroy()
        ghost.disk.settle_names()

    def _live(self, disk: MemoryDisk, journal: FileJournal, term: int, *, is_dumped: bool) -> None:
        """It was a member of a cell for a while."""
        identity, rng = journal.identity, self.world.rng
        tokens = {name: self._token() for name in sorted(self.world.seats)}
        found = Found(sorted((tokens | {identity.replica: identity.token}).items()))
        origin = Origin(identity.replica, 1, 1)
        journal.add(seal(MEMBERS, origin, encode_change(found)), 3, term)
        last = rng.choice((5, 30, 120))
        for index in range(4, last):
            entry = write_entry(NAMES_FROM + rng.randrange(10**9), 8)
            journal.add(seal(ENTRY, origin, entry), index, term)
        journal.sync()
        if is_dumped:
            members = encode_members(change_members({}, found))
            state = self._state(last - 1)
            write_dump(disk, IN_FORCE, Position(term, last - 1), members, state.take())

    def _token(self) -> int:
        return self.world.rng.randrange(1, 2**60)

    def canon_of(self, machine: Machine) -> Canon:
        """Return what the states on `machine` must agree with: a ghost's with nothing."""
        if machine.key in self.kinds:
            return Canon(Verdict(), lambda _: None)
        return self.world.canon

    # --- their coming and going

    def haunt(self) -> None:
        """One that is not about takes the place of a disk of the cell, for a while."""
        world = self.world
        away = [world.machines[key] for key in self.kinds if not world.machines[key].alive]
        if away:
            self._enter(world.rng.choice(away), world.rng.uniform(1.0, 4.0))

    def _enter(self, ghost: Machine, stay_s: float) -> None:
        world = self.world
        seat = world.seats[ghost.replica]
        if world.fabric.machines[seat.address] != seat.key or seat.retired:
            return
        if ghost.replica == self.seeded and world.canon.last == self.position.index:
            return  # with two empty disks, ours away, it could found a cell of its own, rightly
        ghost.address = seat.address
        seat.wanted = False
        world.power_cut([seat])
        world.fabric.machines[ghost.address] = ghost.key
        ghost.wanted = True
        world.events.note("operator", f"{ghost.key}, {self.kinds[ghost.key]}, is in its place")
        world.start(ghost)
        world.events.after(stay_s, self.lay, ghost)

    def lay(self, ghost: Machine) -> None:
        """Take it out again."""
        world = self.world
        if not ghost.wanted:
            return
        ghost.wanted = False
        world.power_cut([ghost])
        seat = world.seats[ghost.replica]
        if world.fabric.machines[ghost.address] == ghost.key and seat.address == ghost.address:
            world.fabric.machines[ghost.address] = seat.key
            seat.wanted = not seat.retired
            world.start(seat)

    def warned(self, machine: Machine, *, is_member: bool) -> bool:
        """Whether `machine`, which was told that another disk stands for its id, was told so by a
        ghost, before it was a member: then somebody looks, and starts it again."""
        if not self.world.profile.seeded or machine.retired or is_member:
            return False
        machine.wanted = True
        self.world.events.after(self.world.rng.uniform(0.5, 2.0), self.world.start, machine)
        return True

    # --- what must never be

    def leads(self, watch: Watch) -> None:
        """`watch` sees its Raft begin to lead."""
        if watch.machine.key in self.kinds:
            kind = self.kinds[watch.machine.key]
            self.world.verdict.accuse("ghost-leads", f"{watch.machine.key}, {kind}")

    def heard(self, watch: Watch, caller: Hello) -> None:
        """A message of who said `caller` reached a Raft."""
        for key, kind in self.kinds.items():
            if self.world.machines[key].token != caller.token or key == watch.machine.key:
                continue
            is_ours = watch.machine.key not in self.kinds
            if is_ours and kind != "unfounded" and watch.raft.compaction.dump is not None:
                self.world.verdict.accuse("ghost-heard", f"{watch.machine.key} hears {key}, {kind}")

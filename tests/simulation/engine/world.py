"""The world of one run: three machines or more, their wires, their clients, their checkers."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from typing import Final

from consensus.config import EngineConfig
from consensus.engine.raft import Raft
from consensus.errors import DiskFull, LogDamaged, NoData, Replaced
from tests.fakes.memory_disk import MemoryDisk
from tests.simulation.engine.agreement import Canon, Durability
from tests.simulation.engine.applier import read_name
from tests.simulation.engine.clients import Clients
from tests.simulation.engine.events import Events
from tests.simulation.engine.ghosts import Ghosts
from tests.simulation.engine.growing import Growth
from tests.simulation.engine.machine import Machine, StartMode
from tests.simulation.engine.nemesis import Nemesis
from tests.simulation.engine.network import Fabric
from tests.simulation.engine.operator import Replacement
from tests.simulation.engine.process import Process
from tests.simulation.engine.profiles import Profile
from tests.simulation.engine.promises import Calm, Ledger
from tests.simulation.engine.seams import member_state
from tests.simulation.engine.verdict import Elections, Health, Verdict
from tests.simulation.engine.watch import Watch, look_at_logs

IDS: Final = ("r1", "r2", "r3")
FAULTS_S: Final = 24.0
CALM_S: Final = 14.0
ASIDE_S: Final = (0.005, 0.005, 0.005, 0.05, 0.05, 0.05, 0.3, 2.0)
"""How long another thread may take."""
SETTLE_S: Final = 7.0
"""How long after the last fault leadership may still change."""
ANSWERS_LEAST: Final = 10
AHEAD_S_MAX: Final = 60.0
"""How far ahead of a replica's wall clock an entry may be for it to be acknowledged."""


class World:
    """One run."""

    def __init__(self, seed: int, profile: Profile, *, tracing: bool = False) -> None:
        self.seed = seed
        self.profile = profile
        self.rng = random.Random(f"{profile.name} {seed}")
        self.events = Events(tracing=tracing)
        self.fabric = Fabric(self.events, self.rng)
        self.fabric.bytes_per_s = profile.bytes_per_s
        self.verdict = Verdict(lambda: self.events.now)
        self.canon = Canon(self.verdict, Watch.name_of)
        self.elections = Elections(self.verdict)
        self.health = Health(self.verdict)
        self.durability = Durability(self.verdict)
        self.ledger = Ledger(self.verdict, self.canon)
        self.current: Process | None = None
        self.watches: dict[Process, Watch] = {}
        self.machines: dict[str, Machine] = {}
        self.seats: dict[str, Machine] = {}
        self.ids: dict[int, str] = {}
        self.addresses: dict[str, str] = {}
        self.replacing: list[Replacement] = []
        self.link_ok_since: dict[tuple[str, str], float] = {}
        self.ends_s = FAULTS_S + CALM_S
        self.growth = Growth(self, profile.grows_to) if profile.grows_to else None
        for replica in IDS[:1] if profile.grows_to else IDS:
            self.seats[replica] = self.add_machine(replica, "bootstrap")
            self.addresses[replica] = self.seats[replica].address
        self.ghosts = Ghosts(self)
        self.clients = Clients(self)
        self.nemesis = Nemesis(self, FAULTS_S)
        self.restored = 0
        self.replaced = 0
        self._changes_at_rest = 0
        self._answers_at_rest = 0

    # --- the run

    def run(self) -> None:
        """Let it all happen, and judge."""
        with member_state(self):
            if self.profile.seeded:
                self.ghosts.begin()
            for machine in self.seated():
                self.events.after(self.rng.random() * 0.5, self.start, machine)
            self.clients.begin()
            self.nemesis.begin()
            if self.growth is not None:
                self.growth.begin()
            self.events.after(1.0, self._look)
            self.events.run(self.ends_s, lambda: bool(self.verdict.problems))
            if not self.verdict.problems:
                self._judge()
            for machine in self.machines.values():
                if machine.process is not None:
                    machine.process.end(power=True)

    def _look(self) -> None:
        look_at_logs(self)
        for watch in self.watches.values():
            watch.look_at_voices()
        self.events.after(1.0, self._look)

    def mended(self) -> None:
        """The last fault is over."""
        self.events.after(SETTLE_S, self._rest)

    def _rest(self) -> None:
        self._changes_at_rest = len(self.elections.changes)
        self._answers_at_rest = len(self.ledger.acknowledged)

    def _judge(self) -> None:
        calm = Calm(self.verdict, self.canon)
        calm.leader([machine.key for machine in self.leaders() if not machine.retired])
        calm.level(
            {
                machine.key: machine.process.log.applied.index if machine.process else -1
                for machine in self.seats.values()
            }
        )
        calm.gone([machine.key for machine in self.machines.values() if machine.outlives])
        calm.replaced([replacement.replica for replacement in self.replacing])
        calm.grown(self.growth.waiting if self.growth is not None else [])
        calm.progress(len(self.ledger.acknowledged) - self._answers_at_rest, ANSWERS_LEAST)
        calm.rest(len(self.elections.changes) - self._changes_at_rest, 0)
        self.ledger.finish()

    # --- machines

    def add_machine(self, replica: str, start: StartMode, address: str = "") -> Machine:
        """Return a new machine for `replica`, with an empty disk; at `address` it takes the place
        of the one that was there."""
        number = sum(machine.replica == replica for machine in self.machines.values())
        key = replica if not number else f"{replica}.{number}"
        address = address or f"127.0.0.{len(self.machines) + 1}:7000"
        machine = Machine(self.events, self.rng, key, address, start)
        self.machines[key] = machine
        self.fabric.machines[machine.address] = key
        return machine

    def seated(self) -> list[Machine]:
        """The machines whose disks stand for the ids."""
        return list(self.seats.values())

    @property
    def is_calm(self) -> bool:
        """Whether the last fault is over."""
        return self.events.now >= FAULTS_S

    def leaders(self) -> list[Machine]:
        """The machines whose replicas believe that they lead."""
        return [
            machine
            for machine in self.machines.values()
            if machine.process is not None
            and not machine.process.paused
            and machine.process.log.leadership.leads
        ]

    def whole(self) -> bool:
        """Whether all disks vote, so that one more may be lost."""
        if self.replacing:
            return False
        for machine in self.leaders():
            process = machine.process
            if process is not None and not machine.retired:
                members = process.log.members.values()
                return bool(members) and all(view.member_state == "votes" for view in members)
        return False

    def config_of(self, machine: Machine) -> EngineConfig:
        """Return what the operator wrote for it."""
        profile = self.profile
        peers = self.addresses | {machine.replica: machine.address}
        return EngineConfig(
            replica=machine.replica,
            peers=peers,
            data=machine.key,
            cell="simulated",
            start=machine.start,
            election_min_ms=profile.election_ms[0],
            election_max_ms=profile.election_ms[1],
            heartbeat_ms=profile.heartbeat_ms,
            snapshot_entries=profile.snapshot_entries,
            trailing_entries=profile.trailing_entries,
        )

    def start(self, machine: Machine) -> None:
        """Start a process, if its supervisor should and none runs."""
        if machine.process is not None or not machine.wanted or self.events.now > self.ends_s:
            return
        if self.fabric.machines[machine.address] != machine.key:
            return  # another disk is in the machine
        self.fabric.off.discard(machine.key)
        machine.lives += 1
        self.fault(machine)
        self.events.note(machine.key, f"life {machine.lives}")
        machine.process = Process(self, machine, self.config_of(machine))
        machine.process.start()

    def start_all(self) -> None:
        """Start what is down and wanted."""
        for machine in self.machines.values():
            self.start(machine)

    def kill(self, machine: Machine) -> None:
        """kill -9. Its supervisor starts it again soon, or somebody does later."""
        self._end(machine, power=False)

    def power_cut(self, machines: list[Machine]) -> None:
        """At one instant."""
        for machine in machines:
            self._end(machine, power=True)

    def _end(self, machine: Machine, *, power: bool) -> None:
        process = machine.process
        machine.dies_in = 0
        self.fault(machine)
        self.health.gone(machine.key)
        if process is not None:
            self.events.note(machine.key, "loses power" if power else "is killed")
            self.watches.pop(process, None)
            process.end(power=power)
        if power:
            self.fabric.off.add(machine.key)
            machine.disk.power_cut(self.rng)
        elif process is not None:
            machine.disk.crash()
        if self.rng.random() < 0.5 or self.is_calm:
            self.events.after(self.rng.uniform(0.2, 3.0), self.start, machine)

    def ended(self, process: Process, error: BaseException) -> None:
        """The process could not start, or go on."""
        machine = process.machine
        if process.over:
            return
        self.events.note(machine.key, f"ends: {error!r:.200}")
        watch = self.watches.pop(process, None)
        process.end(power=False)
        machine.disk.crash()
        self.fault(machine)
        self.health.gone(machine.key)
        if isinstance(error, Replaced):
            machine.wanted = False
            is_member = watch is None or watch.is_admitted
            if self.ghosts.warned(machine, is_member=is_member):
                return
            if not machine.retired and not machine.wiped:
                self.verdict.accuse("wrongly-replaced", f"{machine.key}: {error}")
        elif isinstance(error, DiskFull | OSError) or machine.disk.has_misread:
            machine.disk.has_misread = False
            if not isinstance(error, DiskFull | OSError | LogDamaged):
                self.verdict.accuse("fell", f"{machine.key}: {error!r}")
            self.events.after(self.rng.uniform(0.5, 2.0), self.start, machine)
        else:
            kind = "cannot-start" if isinstance(error, LogDamaged | NoData) else "fell"
            self.verdict.accuse(kind, f"{machine.key}: {error!r}")

    def dies_at(self, machine: Machine, act: str) -> bool:
        """Whether a process dies before this change of its disk."""
        if not machine.dies_in or machine.dies_at not in ("", act):
            return False
        machine.dies_in -= 1
        if machine.dies_in:
            return False
        if machine.dies_by_power:
            self.events.after(0.0, self._end_by_power, machine, machine.lives)
        return True

    def _end_by_power(self, machine: Machine, life: int) -> None:
        if machine.lives == life:
            self._end(machine, power=True)

    def transfer(self, machine: Machine) -> None:
        """Ask for a transfer of leadership."""
        self.health.forget()
        process = machine.process
        if process is not None and not process.paused and process.raft is not None:
            process.spawn(process.log.transfer())

    def stop(self, machine: Machine) -> None:
        """Stop it in an orderly way; it is started again."""
        self.health.forget()
        process = machine.process
        if process is None or process.paused or process.raft is None:
            return
        self.fault(machine)

        def told(result: object) -> None:
            if isinstance(result, BaseException):
                self.verdict.accuse("fell", f"{machine.key} while stopping: {result!r}")
            self.watches.pop(process, None)
            process.end(power=False)
            machine.disk.crash()
            self.events.after(self.rng.uniform(0.1, 1.0), self.start, machine)

        process.spawn(process.log.stop(), told)

    # --- what processes ask for

    @contextlib.contextmanager
    def inside(self, process: Process | None) -> Iterator[None]:
        """Whose clock is read, whose disk is opened, in the meantime."""
        before, self.current = self.current, process
        try:
            yield
        finally:
            self.current = before

    def mono(self) -> float:
        """The clock of whose code runs."""
        process = self.current
        if process is None:
            return self.events.now
        return process.machine.clock.read(process.lag_s)

    def disk(self, place: str) -> MemoryDisk:
        """The disk at `place`."""
        return self.machines[place].disk

    def draw_aside_s(self) -> float:
        """How long another thread takes."""
        most_s = ASIDE_S[0] if self.is_calm else self.rng.choice(ASIDE_S)
        return 0.001 + self.rng.random() * most_s

    def may_acknowledge(self, machine: Machine, entry: bytes) -> bool:
        """Whether the wall clock of `machine` says that the entry is not from the future."""
        wall_s = self.events.now + machine.wall_s
        return self.clients.wall_s.get(read_name(entry) or 0, 0.0) - wall_s <= AHEAD_S_MAX

    # --- what is seen

    def watch(self, process: Process, raft: Raft) -> None:
        """A Raft begins to tick."""
        self.watches[process] = Watch(self, process, raft)

    def ticked(self, process: Process, raft: Raft) -> None:
        """A Raft has ticked."""
        watch = self.watches.get(process)
        if watch is not None:
            watch.look()

    def fault(self, machine: Machine) -> None:
        """Something is done to `machine`."""
        machine.ok_since = self.events.now

    def link_fault(self, pairs: list[tuple[str, str]]) -> None:
        """Something is done to the ways between these machines."""
        for pair in pairs:
            self.link_ok_since[pair] = self.events.now

    def well_since(self, voters: list[int]) -> dict[str, float | None]:
        """Since when each machine could have led: well, and heard by a majority both ways, of the
        disks `voters`."""
        found: dict[str, float | None] = {}
        others = len(voters) // 2
        seats = [machine for machine in self.seated() if machine.token in voters]
        for machine in self.machines.values():
            times = sorted(
                max(machine.ok_since, other.ok_since, *(self._link_since(machine, other)))
                for other in seats
                if other is not machine and self._is_well(other) and self._linked(machine, other)
            )
            able = self._is_well(machine) and machine in seats and 0 < others <= len(times)
            found[machine.key] = times[others - 1] if able else None
        return found

    def _is_well(self, machine: Machine) -> bool:
        slow = machine.sync_s[1] > 0.01 or machine.disk.room is not None
        is_on_time = machine.clock.rate == 1.0 and not machine.wall_s
        return machine.awake and not slow and is_on_time

    def _linked(self, one: Machine, other: Machine) -> bool:
        cut = self.fabric.cut
        fabric = self.fabric
        slow = fabric.loss > 0 or fabric.latency_s[1] > 0.01
        return not {(one.key, other.key), (other.key, one.key)} & cut and not slow

    def _link_since(self, one: Machine, other: Machine) -> tuple[float, float]:
        a, b = (one.key, other.key), (other.key, one.key)
        return self.link_ok_since.get(a, 0.0), self.link_ok_since.get(b, 0.0)

    def counts(self) -> dict[str, int]:
        """Figures of the run."""
        return {
            "seconds": int(self.events.now),
            "events": self.events.count,
            "asked": self.clients.begun,
            "answered": len(self.ledger.acknowledged),
            "unknown": self.clients.unknown,
            "reads": self.ledger.reads,
            "confirms": self.ledger.confirms,
            "committed": self.canon.last,
            "terms": max(self.elections.leaders, default=0),
            "lives": sum(machine.lives for machine in self.machines.values()),
            "restored": self.restored,
            "replaced": self.replaced,
            "grown": self.growth.grown if self.growth is not None else 0,
        }

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """All ways between machines."""
        return list(itertools.permutations(self.machines, 2))

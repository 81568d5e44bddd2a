"""Clients: they append and read where they believe the leader to be, and remember the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consensus.errors import ConsensusError, NotLeader, OutcomeUnknown, QueueFull, Stopped
from consensus.log import Applied
from tests.simulation.engine.applier import write_entry

if TYPE_CHECKING:
    from tests.simulation.engine.process import Process
    from tests.simulation.engine.world import World


QUIET_S = 2.0
"""In the end nobody asks, so that all can be level."""


class Clients:
    """Everybody who uses the cell. An entry is named by a number."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.begun = 0
        self.unknown = 0
        self.wall_s: dict[int, float] = {}  # of each entry: what its leader's clock said

    def begin(self) -> None:
        """Work from now on."""
        self.world.events.after(
            self.world.rng.expovariate(self.world.profile.appends_per_s), self._next
        )

    def _next(self) -> None:
        world = self.world
        process = self._choose()
        if process is not None:
            if world.rng.random() < 0.3:
                self._read(process)
                self._confirm(process)
            else:
                for _ in range(world.rng.choice((1, 1, 1, world.profile.burst))):
                    self._append(process)
        if world.events.now < world.ends_s - QUIET_S:
            self.begin()

    def _choose(self) -> Process | None:
        world = self.world
        leaders = world.leaders()
        if leaders and world.rng.random() < 0.95:
            return world.rng.choice(leaders).process
        up = [m.process for m in world.machines.values() if m.process and m.process.raft]
        return world.rng.choice(up) if up else None

    def _append(self, process: Process) -> None:
        world = self.world
        self.begun += 1
        name, began = self.begun, world.ledger.begin()
        self.wall_s[name] = world.events.now + process.machine.wall_s
        entry = write_entry(name, world.rng.choice(world.profile.sizes))

        def told(result: Applied | BaseException) -> None:
            if isinstance(result, Applied):
                position = result.position
                world.events.note(process.machine.key, f"answers {name} at {position.index}")
                world.ledger.appended(name, position.index, began, process.state.applied)
            elif isinstance(result, NotLeader | QueueFull | Stopped):
                world.canon.refuse(name)
            elif isinstance(result, OutcomeUnknown):
                self.unknown += 1
            else:
                world.verdict.accuse("fell", f"append at {process}: {result!r}")

        process.spawn(process.log.append(entry, timeout_ms=world.rng.choice((300, 3_000))), told)

    def _confirm(self, process: Process) -> None:
        world = self.world
        newest = max(world.elections.leaders, default=0)

        async def confirm() -> int:
            term = process.log.leadership.term  # it may have changed while the loop stood still
            await process.log.confirm(timeout_ms=2_000)
            return term

        def told(result: int | BaseException) -> None:
            if isinstance(result, int):
                world.events.note(process.machine.key, f"is confirmed in term {result}")
                world.ledger.confirmed(process.machine.key, result, newest)
            elif not isinstance(result, ConsensusError):
                world.verdict.accuse("fell", f"confirm at {process}: {result!r}")

        process.spawn(confirm(), told)

    def _read(self, process: Process) -> None:
        world = self.world
        began = world.ledger.begin()

        async def read() -> tuple[int, bytes]:
            await process.log.barrier(timeout_ms=2_000)
            return process.state.index, process.state.digest

        def told(result: tuple[int, bytes] | BaseException) -> None:
            if isinstance(result, tuple):
                world.events.note(process.machine.key, f"reads at {result[0]}")
                world.ledger.read(process.machine.key, result[0], began, result[1])
            elif not isinstance(result, ConsensusError):
                world.verdict.accuse("fell", f"barrier at {process}: {result!r}")

        process.spawn(read(), told)

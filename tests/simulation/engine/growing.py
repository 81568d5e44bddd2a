"""How operators make a cell of one larger: `peers`, a restart, then one new replica at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.simulation.engine.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.engine.process import Process
    from tests.simulation.engine.world import World

RETRY_S: Final = 0.7
TIMEOUT_MS: Final = 2_000
BEGINS_S: Final = (0.5, 2.5)
"""Before the first fault: it may hit a replica that is not there yet."""


class Growth:
    """`raftcron cell grow` for one id after the other, until the members say that it is done. A new
    machine is started before or after that, and may lose its disk before it votes.
    """

    def __init__(self, world: World, size: int, *, is_by_the_book: bool = False) -> None:
        self.world = world
        self.waiting = [f"r{number}" for number in range(2, size + 1)]
        self.grown = 0
        self._is_by_the_book = is_by_the_book
        self._lost: set[str] = set()

    def begin(self, at_s: float | None = None) -> None:
        """Write the new replicas into all configurations, soon or `at_s`."""
        rng = self.world.rng
        self.world.events.at(rng.uniform(*BEGINS_S) if at_s is None else at_s, self._write_peers)

    def _write_peers(self) -> None:
        world = self.world
        if not world.whole():  # the cell of one is not founded yet
            world.events.after(0.1, self._write_peers)
            return
        for replica in self.waiting:
            machine = world.add_machine(replica, "join")
            machine.wanted = False
            world.seats[replica], world.addresses[replica] = machine, machine.address
        for machine in world.seated():
            if machine.process is not None:
                world.kill(machine)
                world.start(machine)
        self._prepare()

    def _prepare(self) -> None:
        world = self.world
        if self.waiting:
            late_s = 0.0 if self._is_by_the_book else world.rng.uniform(0.0, 3.0)
            world.events.after(late_s, self._boot, world.seats[self.waiting[0]])
            world.events.after(0.1 if self._is_by_the_book else world.rng.random() * 2, self._try)

    def _boot(self, machine: Machine) -> None:
        machine.wanted = True
        self.world.start(machine)

    def _try(self) -> None:
        world = self.world
        if not self.waiting or world.events.now > world.ends_s:
            return
        replica = self.waiting[0]
        for process in [machine.process for machine in world.leaders()]:
            view = process.log.members.get(replica) if process is not None else None
            if process is None or not process.log.members:
                continue
            if view is None:
                self._ask(process, process.log.add(replica, timeout_ms=TIMEOUT_MS))
            elif view.member_state == "votes":
                world.events.note("operator", f"the cell has {replica}")
                self.waiting.pop(0)
                self.grown += 1
                self._prepare()
                return
            elif view.member_state == "open" or self._is_admitted(process, replica):
                self._lost.discard(replica)
            elif replica in self._lost:
                self._ask(process, process.log.replace(replica, timeout_ms=TIMEOUT_MS))
        world.events.after(RETRY_S, self._try)

    def _is_admitted(self, process: Process, replica: str) -> bool:
        """Whether the leader has the disk that is there now, not the one that was lost."""
        member = self.world.watches[process].members().get(replica)
        return member is not None and member.token == self.world.seats[replica].token

    def _ask(self, process: Process, call: Any) -> None:
        process.spawn(
            call, lambda result: self.world.events.note("operator", f"grow: {result!r:.120}")
        )

    def lose_new(self) -> None:
        """The disk of the replica that is to join is lost, and an empty one takes its place, unless
        a log has it as a voter: from then on the cell may need it.
        """
        world = self.world
        if not self.waiting or not world.leaders() or world.is_calm:
            return
        replica = self.waiting[0]
        logs = [watch.members().get(replica) for watch in world.watches.values()]
        if len(logs) < len(world.seats) - len(self.waiting) or any(
            member is not None and member.votes for member in logs
        ):
            return
        world.events.note("operator", f"{replica} loses its disk")
        self._lost.add(replica)
        old = world.seats[replica]
        old.retired, old.wanted, was_wanted = True, False, old.wanted
        world.power_cut([old])
        world.seats[replica] = machine = world.add_machine(replica, "join", old.address)
        machine.wanted = was_wanted
        world.events.after(0.2, world.start, machine)

"""The disks of a majority are put back to an older copy: the cell forgets what it agreed to.

The executors forget nothing. In the log that goes on from the copy, indexes come again, and rows of
theirs mean other launches. The witness saw on the hosts which attempts ever started: a row of the
second life that says that an attempt ran, and that he never saw, has the end of another one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from consensus.leadership import Position
from cron.launch_state import LaunchState
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Outcome
from cron.state.rows import RowKind
from launcher.protocol.names import AttemptName, LaunchName
from tests.simulation import world as worlds
from tests.simulation.loop import SimLoop
from tests.simulation.nemesis import Mood
from tests.simulation.patching import patched
from tests.simulation.replicas import IDS, SimCell
from tests.simulation.world import World

CRONTAB = "".join(
    f"#: name=job{number} deadline=60s\n@every {period}s run {run}\n"
    for number, (period, run) in enumerate([(2, 1), (3, 1), (3, 4), (5, 2), (7, 9)])
)
LIFE_S = 60.0
"""How long the second life is watched."""
STOPS_S = 20.0
"""All executors have connected by then."""
_RAN = (LaunchState.SUCCEEDED, LaunchState.FAILED)


class RolledBackWorld(World):
    """A world whose replicas begin again from a copy. `mixed` are the launches of the second life
    with the end of another one; `knows` are the executors that were ordered more than the copy has,
    and `late` what was started in the second life when all of them had connected."""

    def __init__(self, seed: int, *, loop: SimLoop) -> None:
        super().__init__(
            seed, loop=loop, crontab=CRONTAB, mood=Mood(10_000.0, {"depose": 1}), chaos_s=0.0
        )
        self.mixed: list[str] = []
        self.late: list[str] = []
        self.knows: list[str] = []
        self._seen: set[str] = set()
        self._began_again_s = 0.0
        self._real_start = self.judge.start
        self.judge.start = self._start  # type: ignore[method-assign]

    def _start(self, name: str, executor: str, ledger: str) -> None:
        self._seen.add(name)
        if self._began_again_s and self.loop.time() > self._began_again_s + STOPS_S:
            self.late.append(name)
        self._real_start(name, executor, ledger)

    async def run(self) -> None:
        """One life, a copy, more of that life, and the second life."""
        rng = self._chance("rollback")
        self.tasks.append(self.loop.create_task(self.cell.hold_elections()))
        for replica in self.replicas.values():
            await replica.start()
        for host in self.hosts.values():
            host.start()
        await self._apply_first()
        await asyncio.sleep(rng.uniform(5.0, 15.0))
        state = self.judge.machine.state
        image, position = encode_state(state), Position(state.term, state.index)
        self.tell(f"copy at {position.index}")
        await asyncio.sleep(rng.uniform(2.0, 20.0))
        for replica in self.replicas.values():
            replica.crash(rng)
        await asyncio.sleep(rng.choice((0.5, 5.0, 40.0)))
        self.knows = [
            name for name, host in self.hosts.items() if host.ledger.ordered.index > position.index
        ]
        await self._begin_again(image, position, ahead=rng.choice((0, 0, 1, 9)))
        await asyncio.sleep(LIFE_S)
        await self._end(self.tasks)

    async def _begin_again(self, image: bytes, position: Position, ahead: int) -> None:
        """Start all replicas from the copy; terms come again where nobody has voted since."""
        self.judge.restored(decode_state([image]))
        cell = SimCell(self._chance("again"), self.judge.committed, begin=position.index)
        self.cell._committed_hook = lambda position, entry: None
        self.cell.elect = lambda replica: None  # type: ignore[method-assign]
        cell.term = position.term + ahead
        for name in IDS:
            cell.dumps[name] = (position, image)
        self.cell, self._began_again_s = cell, self.loop.time()
        self.tell(f"all begin again from the copy, in term {cell.term}")
        for replica in self.replicas.values():
            replica.move(cell)
            await replica.start()
        self.tasks.append(self.loop.create_task(cell.hold_elections()))

    def _applied(self, replica: str, index: int, applier: Any, outcome: Outcome) -> None:
        super()._applied(replica, index, applier, outcome)
        if not self._began_again_s:
            return
        for row in outcome.rows:
            launch = LaunchName(row.job, row.scheduled_s, row.trigger)
            name = str(AttemptName(launch, row.attempt)) if row.attempt else ""
            has_run = row.kind is not RowKind.RANGE and row.state in _RAN
            if has_run and name not in self._seen and name not in self.mixed:
                self.mixed.append(name)
                self.tell(f"WRONG {name} never ran, and is {row.state.label}")

    @property
    def stopped(self) -> bool:
        """Whether no replica acts as a leader."""
        return all(replica.leader.epoch is None for replica in self.replicas.values())


def roll_back(seed: int) -> RolledBackWorld:
    """Return the world of `seed` after its second life."""
    with patched(worlds, World=RolledBackWorld):
        world: Any = worlds.simulate(seed)
    return world

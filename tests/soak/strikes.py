"""What one round of a soak does to a cell under load; every choice comes from the seed."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from consensus.engine.storage.dump import TAKEN
from consensus.engine.storage.incoming import INCOMING
from consensus.engine.storage.segments import TEMPORARY
from consensus.errors import ConsensusError
from tests.cluster.engine_disks import Mounts, why_no_mounts, why_no_power_cuts
from tests.cluster.engine_power import PoweredCell
from tests.cluster.engine_processes import FaultCell, Load
from tests.conformance.cells import IDS, leader_of

_RESTART_S = 30.0


class Strike:
    """One kind of fault: the cell it needs, and how it strikes it."""

    kind: ClassVar[str] = ""

    def __init__(self, directory: Path, mounts: Mounts, seed: int) -> None:
        self.chance = random.Random(seed)
        self.directory = directory
        self.mounts = mounts
        self.unfinished = 0
        """How many replicas were found that died while a dump or a segment was written."""

    @classmethod
    def why_not(cls, directory: Path) -> str:
        """Why this machine cannot do it; "" if it can."""
        return ""

    def settings(self) -> dict[str, int]:
        """Dumps all the time, so that what happens, happens while one is written."""
        entries = self.chance.choice((30, 80, 200, 600))
        return {"snapshot_entries": entries, "trailing_entries": self.chance.choice((5, 50, 200))}

    async def make(self) -> FaultCell:
        """Return a cell that runs."""
        cell = FaultCell(self.directory, **self.settings())
        await cell.start()
        return cell

    async def strike(self, cell: FaultCell, load: Load) -> str:
        """Break something and mend it; return what it was."""
        return await self.leave_behind(cell, load) + await self.hit(cell)

    async def hit(self, cell: FaultCell) -> str:
        """Break something now, whatever else is broken, and mend it; return what it was."""
        raise NotImplementedError

    async def leave_behind(self, cell: FaultCell, load: Load) -> str:
        """Now and then, have a replica need a dump, and return while it is on its way to it."""
        if self.chance.random() > 0.3:
            return ""
        name = self.chance.choice(IDS)
        await cell.kill(name)
        await load.progress(self.chance.randrange(300, 1_000))
        await cell.restart(name)
        await self.pause(0, 0.5)
        return f"{name} behind; "

    def look(self, cell: FaultCell, names: list[str]) -> None:
        """Look at what dead replicas left."""
        for name in names:
            data = Path(cell.nodes[name].config.data)
            self.unfinished += any((data / one).exists() for one in (TAKEN, INCOMING, TEMPORARY))

    def some(self, *counts: int) -> list[str]:
        """Some replicas, as many as one of `counts`."""
        return sorted(self.chance.sample(IDS, self.chance.choice(counts)))

    async def pause(self, least_s: float, most_s: float) -> None:
        """Let a while pass that nobody could foresee."""
        await asyncio.sleep(self.chance.uniform(least_s, most_s))


class Kill(Strike):
    """kill -9 of one, two or three replicas, at once or one after the other; some of them again
    while they start."""

    kind = "kill"

    async def hit(self, cell: FaultCell) -> str:
        """Kill some now."""
        victims = self.some(1, 1, 2, 3, 3)
        is_staggered = self.chance.random() < 0.3
        for name in victims:
            if is_staggered:
                await self.pause(0, 0.3)
            cell.nodes[name].signal(9)
        await asyncio.gather(*(cell.kill(name) for name in victims))
        self.look(cell, victims)
        if self.chance.random() < 0.3:
            await self.pause(0, 1.5)
        again = [name for name in victims if self.chance.random() < 0.25]
        for name in again:
            await self._kill_while_it_starts(cell, name)
        await asyncio.gather(*(cell.restart(name) for name in victims))
        return ",".join(victims) + (f", while starting {','.join(again)}" if again else "")

    async def _kill_while_it_starts(self, cell: FaultCell, name: str) -> None:
        starting = asyncio.create_task(cell.restart(name))
        await self.pause(0.05, 0.6)
        await cell.kill(name)
        with suppress(ConsensusError, asyncio.CancelledError):
            async with asyncio.timeout(_RESTART_S):
                await starting


class Power(Strike):
    """The power of all three disks, or of fewer, is cut at one instant."""

    kind = "power"

    @classmethod
    def why_not(cls, directory: Path) -> str:
        return why_no_power_cuts(directory)

    async def make(self) -> FaultCell:
        cell = PoweredCell(self.directory, self.mounts, **self.settings())
        await cell.start()
        return cell

    async def hit(self, cell: FaultCell) -> str:
        """Cut the power of some now."""
        assert isinstance(cell, PoweredCell)
        victims = self.some(3, 3, 3, 2, 1)
        await cell.cut_power(victims)
        if self.chance.random() < 0.3:
            await self.pause(0, 1.0)
        await cell.find(victims)
        self.look(cell, victims)
        await asyncio.gather(*(cell.restart(name) for name in victims))
        return ",".join(victims)


class Stop(Strike):
    """SIGSTOP of one or more replicas for up to a few seconds."""

    kind = "stop"

    async def strike(self, cell: FaultCell, load: Load) -> str:
        leader = await leader_of(cell)
        return await self.hit(cell, leader if self.chance.random() < 0.4 else "")

    async def hit(self, cell: FaultCell, leader: str = "") -> str:
        """Stop some for a while, the leader among them if it is named."""
        victims = self.some(1, 1, 1, 2, 3)
        if leader:
            victims = sorted({*victims[1:], leader})
        for name in victims:
            await cell.pause(name)
        await self.pause(0.1, 4.0)
        self.chance.shuffle(victims)
        for name in victims:
            await cell.resume(name)
            await self.pause(0, 0.5)
        return ",".join(sorted(victims))


class Partition(Strike):
    """Ways between replicas are cut, one way or both, held, slowed and spoilt, several times."""

    kind = "partition"

    async def make(self) -> FaultCell:
        cell = FaultCell(self.directory, **self.settings())
        await cell.connect_by_proxies()
        await cell.start()
        return cell

    async def strike(self, cell: FaultCell, load: Load) -> str:
        net = cell.proxies
        assert net is not None
        done = []
        for _ in range(self.chance.choice((1, 2, 4))):
            flow = self.chance.choice(("lose", "lose", "hold"))
            name = self.chance.choice(IDS)
            what = self.chance.choice(("isolate", "mute", "deafen", "random", "spoil", "reset"))
            if what == "isolate":
                net.isolate(name, flow)
            elif what == "mute":
                net.cut(net.mute(name), flow)
            elif what == "deafen":
                net.cut(net.deafen(name), flow)
            elif what == "random":
                net.cut([pair for pair in net.pairs if self.chance.random() < 0.4], flow)
            elif what == "spoil":
                for pair in net.pairs:
                    net.way(*pair).flips = self.chance.choice((0, 0, 1, 5))
                    net.way(*pair).delay_s = self.chance.choice((0.0, 0.0, 0.01, 0.2))
            else:
                net.reset()
            await self.pause(0.1, 2.5)
            done.append(f"{what} {name} {flow}" if what in ("isolate", "mute", "deafen") else what)
            if self.chance.random() < 0.6:
                net.heal()
                await self.pause(0, 0.5)
        net.heal()
        return ", ".join(done)


class Mix(Power):
    """All at once: kills, power cuts and stops while the network is disturbed."""

    kind = "mix"

    def __init__(self, directory: Path, mounts: Mounts, seed: int) -> None:
        super().__init__(directory, mounts, seed)
        self._parts = [kind(directory, mounts, seed) for kind in (Kill, Power, Stop)]
        self._network = Partition(directory, mounts, seed)
        for part in (*self._parts, self._network):
            part.chance = self.chance

    async def make(self) -> FaultCell:
        cell = PoweredCell(self.directory, self.mounts, **self.settings())
        await cell.connect_by_proxies()
        await cell.start()
        return cell

    async def strike(self, cell: FaultCell, load: Load) -> str:
        network = asyncio.create_task(self._network.strike(cell, load))
        done = []
        try:
            for _ in range(self.chance.choice((1, 2, 3))):
                await self.pause(0, 1.0)
                part = self.chance.choice(self._parts)
                done.append(f"{part.kind} {await part.hit(cell)}")
        finally:
            done.append(await network)
        self.unfinished = sum(part.unfinished for part in self._parts)
        return "; ".join(done)


class Full(Strike):
    """The disks of one, two or three replicas run full, down to a few bytes of room; who stopped is
    started when there is room."""

    kind = "full"

    @classmethod
    def why_not(cls, directory: Path) -> str:
        return why_no_mounts(directory)

    async def make(self) -> FaultCell:
        cell = FaultCell(self.directory, **self.settings())
        for name in IDS:
            cell.place(name, self.mounts.small(name, "96m") / "replica")
        await cell.start()
        return cell

    async def strike(self, cell: FaultCell, load: Load) -> str:
        victims = self.some(1, 1, 2, 3)
        for name in victims:
            fill(filler_of(cell, name), self.chance.choice((0, 0, 1, 4_096, 100_000)))
        ended = await self._end(cell, victims)
        for name in victims:
            filler_of(cell, name).unlink()
        await asyncio.gather(*(cell.restart(name) for name in ended))
        return f"{','.join(victims)}, stopped {','.join(ended) or 'none'}"

    async def _end(self, cell: FaultCell, victims: list[str]) -> list[str]:
        """Wait a while; return who has ended, for want of room and nothing else."""
        running = [asyncio.create_task(cell.nodes[name].reap()) for name in victims]
        await asyncio.wait(running, timeout=3.0)
        ended = [name for name, task in zip(victims, running, strict=True) if task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for name in ended:
            last = cell.log_of(name).splitlines()[-1:]
            assert last[0].startswith("failed: DiskFull("), f"{name} ended otherwise: {last}"
        return ended


def filler_of(cell: FaultCell, name: str) -> Path:
    """What takes the room on a replica's disk."""
    return Path(cell.nodes[name].config.data).parent / "filler"


def fill(path: Path, leave_bytes: int) -> None:
    """Leave so much room, less than a page, on the disk of `path`."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    os.write(file, b"\0" * size)
        os.ftruncate(file, max(0, os.fstat(file).st_size - leave_bytes))
    finally:
        os.close(file)


STRIKES: dict[str, type[Strike]] = {
    one.kind: one for one in (Kill, Power, Stop, Partition, Full, Mix)
}

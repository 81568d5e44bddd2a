"""Three engine processes that a test breaks, with clients that append to them all the while."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from consensus.errors import ConsensusError, NotLeader, OutcomeUnknown, Stopped
from consensus.leadership import Leadership
from tests.cluster.engine_proxy import Proxies
from tests.cluster.engine_receipts import Entry, Receipts, Verdict, judge, read_receipts
from tests.conformance.cells import IDS, ProcessDriver, eventually, leader_of

SETTLED_S = 60.0
"""What a cell may take to be whole again on the busiest machine."""
_AGAIN_S = 0.02
_TIMEOUT_MS = 2_000


class FaultCell(ProcessDriver):
    """A cell whose directories, addresses and environments a test decides on.

    An empty directory is a new cell's only once: after the first start a replica that finds one
    refuses to start, as a replica that lost its disk should. Journals have small segments.
    """

    def __init__(self, directory: Path, **settings: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory, **settings)
        self.directory = directory
        self.proxies: Proxies | None = None
        for name, node in self.nodes.items():
            node.log = directory / f"{name}.log"
            node.module = "tests.cluster.engine_small"

    def place(self, name: str, data: Path) -> None:
        """Keep a replica's files in `data`."""
        self._configure(name, data=str(data))

    def _configure(self, name: str, **changes: Any) -> None:
        node = self.nodes[name]
        node.config = msgspec.structs.replace(node.config, **changes)

    async def connect_by_proxies(self) -> Proxies:
        """From the next start on, let all that replicas say to each other pass by proxies."""
        real = self.nodes[IDS[0]].config.peers
        self.proxies = Proxies(real)
        await self.proxies.start()
        for name in IDS:
            self._configure(name, peers=self.proxies.seen_by(name))
        return self.proxies

    async def start(self) -> None:
        await super().start()
        for name in IDS:
            self._configure(name, start="resume")

    async def close(self) -> None:
        await super().close()
        if self.proxies is not None:
            await self.proxies.close()

    async def read(self, name: str, timeout_ms: int) -> int:
        """How many entries a replica has applied, behind a barrier: a linearizable read."""
        return int(await self.nodes[name].ask("read", timeout_ms=timeout_ms))

    def log_of(self, name: str) -> str:
        """What a replica wrote to stderr in all its lives."""
        path = self.directory / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def segments_of(self, name: str) -> list[str]:
        """The segments of a replica's journal that are there now."""
        data = Path(self.nodes[name].config.data)
        return sorted(path.name for path in data.glob("wal-*"))

    def pid_of(self, name: str) -> int:
        process = self.nodes[name].process
        assert process is not None
        return process.pid

    async def ended(self, name: str) -> int:
        """Wait until a replica has ended by itself; return its exit code."""
        async with asyncio.timeout(SETTLED_S):
            return await self.nodes[name].reap()

    async def believed(self, name: str, within_s: float = 2.0) -> Leadership:
        """What a replica believes; nothing if it does not answer."""
        try:
            async with asyncio.timeout(within_s):
                return await self.belief(name)
        except TimeoutError:
            return Leadership()

    async def watch(self, seconds: float, among: Collection[str] = IDS) -> set[tuple[int, str]]:
        """Look at some replicas for a while; return each (term, leader) that was seen to lead."""
        clock = asyncio.get_running_loop()
        until, seen = clock.time() + seconds, set()
        while clock.time() < until:
            for name in among:
                belief = await self.believed(name)
                if belief.leads:
                    seen.add((belief.term, name))
            await asyncio.sleep(_AGAIN_S)
        return seen


class Load:
    """Clients that append numbered entries at whoever leads, one after the other each; and one that
    reads, at all replicas in turn, whatever they believe."""

    def __init__(self, cell: FaultCell, clients: int = 6, seed: int = 1, name: str = "c") -> None:
        self.receipts = Receipts(cell.directory / "receipts")
        self.acknowledged = 0
        self.reads = 0
        self.stale: list[str] = []
        self._last_place = 0
        self.answered_at: list[float] = []
        self._cell = cell
        self._names = [f"{name}{number}" for number in range(clients)]
        self._chance = random.Random(seed)
        self._numbers: dict[str, int] = {}
        self._running: list[asyncio.Task[None]] = []
        self._is_paused = False
        self.target = IDS[0]

    def start(self) -> None:
        """Let the clients append, until `pause`."""
        self._is_paused = False
        self._running = [asyncio.create_task(self._run(name)) for name in self._names]
        self._running += [asyncio.create_task(self._read(name)) for name in IDS]

    async def pause(self) -> None:
        """Return when nothing is under way any more."""
        self._is_paused = True
        running, self._running = self._running, []
        await asyncio.gather(*running)

    async def close(self) -> None:
        """End for good."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self.receipts.close()

    async def progress(self, count: int, within_s: float = SETTLED_S) -> None:
        """Return when `count` more entries are acknowledged."""
        goal = self.acknowledged + count

        async def enough() -> bool:
            for task in self._running:
                if task.done():
                    task.result()
            return self.acknowledged >= goal

        await eventually(enough, f"{count} more acknowledged entries", within_s)

    def gap_s(self, since: float) -> float:
        """The longest time without any answer after an instant of the loop's clock."""
        times = [since, *(at for at in self.answered_at if at > since)]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)

    async def _run(self, client: str) -> None:
        while not self._is_paused:
            if await self.append(client) is None:
                await asyncio.sleep(_AGAIN_S)

    async def _read(self, name: str) -> None:
        while not self._is_paused:
            least = self._last_place
            try:
                async with asyncio.timeout(_TIMEOUT_MS / 1000 + 0.5):
                    count = await self._cell.read(name, _TIMEOUT_MS)
            except (ConsensusError, TimeoutError):
                pass
            else:
                self.reads += 1
                if count < least:
                    self.stale.append(f"{name} read {count} after {least} were acknowledged")
            await asyncio.sleep(_AGAIN_S)

    async def append(self, client: str) -> int | None:
        """Append the client's next entry; return its place in the log if it is acknowledged."""
        number = self._numbers[client] = self._numbers.get(client, 0) + 1
        entry = Entry(client, number, self._chance.choice((20, 100, 300, 1_500)))
        self.receipts.write(entry, "sent")
        target = self.target
        try:
            async with asyncio.timeout(_TIMEOUT_MS / 1000 + 0.5):
                done = await self._cell.append(target, entry.content, timeout_ms=_TIMEOUT_MS)
        except NotLeader as refusal:
            self.receipts.write(entry, "refused")
            self._turn(target, refusal.leader)
        except Stopped:
            self.receipts.write(entry, "refused")
            self._turn(target)
        except (ConsensusError, TimeoutError):
            self._turn(target)
        else:
            self.receipts.write(entry, str(done.outcome))
            self.acknowledged += 1
            self._last_place = max(self._last_place, int(done.outcome))
            self.answered_at.append(asyncio.get_running_loop().time())
            return int(done.outcome)
        return None

    def _turn(self, target: str, leader: str | None = None) -> None:
        if self.target == target:
            self.target = leader or IDS[(IDS.index(target) + 1) % len(IDS)]


async def settle(cell: FaultCell, load: Load, names: tuple[str, ...] = IDS) -> Verdict:
    """Let the clients rest and the replicas become equal, and return the verdict."""
    await load.pause()

    async def marked() -> bool:
        leader = await leader_of(cell, names, SETTLED_S)
        load.target = leader
        return await load.append("mark") is not None

    await eventually(marked, "an entry behind all others", SETTLED_S)
    least = load.acknowledged

    async def equal() -> bool:
        digests = [await digest_of(cell, name) for name in names]
        return len(set(digests)) == 1 and digests[0][0] > 0

    try:
        await eventually(equal, "all replicas equal", SETTLED_S)
    except AssertionError:
        return await _unequal(cell, load, names)
    verdict = judge(read_receipts(load.receipts.path), await cell.entries(names[0]))
    verdict.stale = load.stale
    assert verdict.acknowledged == least
    return verdict


async def _unequal(cell: FaultCell, load: Load, names: tuple[str, ...]) -> Verdict:
    """The verdict on the shortest log of several, which differ."""
    logs = {name: await cell.entries(name) for name in names}
    shortest = min(logs, key=lambda name: len(logs[name]))
    verdict = judge(read_receipts(load.receipts.path), logs[shortest])
    verdict.unequal = [f"{name} has {len(log)}" for name, log in logs.items()]
    return verdict


async def digest_of(cell: FaultCell, name: str) -> tuple[int, str]:
    """How many entries a replica has applied, and their digest; (0, name) if it does not answer."""
    try:
        count, digest = await cell.nodes[name].ask("digest")
    except (Stopped, OutcomeUnknown):
        return 0, name
    return int(count), str(digest)

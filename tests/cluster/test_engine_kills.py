"""kill -9 again and again, under load and with frequent dumps: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from consensus.errors import ConsensusError, NotLeader
from tests.conformance.cells import IDS, ProcessDriver, eventually, leader_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


class Client:
    """Appends numbered entries at whoever leads, and writes down what was acknowledged."""

    def __init__(self, cell: ProcessDriver, name: str) -> None:
        self.acknowledged: list[bytes] = []
        self.unknown: set[bytes] = set()
        self.done = False
        self._cell = cell
        self._name = name

    async def run(self) -> None:
        number, target = 0, IDS[0]
        while not self.done:
            entry = b"%s-%d-" % (self._name.encode(), number) + b"." * 300
            number += 1
            try:
                await self._cell.append(target, entry, timeout_ms=3_000)
            except NotLeader as refusal:
                target = refusal.leader or IDS[number % 3]
                await asyncio.sleep(0.02)
            except ConsensusError:
                self.unknown.add(entry)
                target = IDS[number % 3]
                await asyncio.sleep(0.02)
            else:
                self.acknowledged.append(entry)


def judge(clients: list[Client], ledgers: list[list[bytes]]) -> None:
    """Every acknowledged entry once, in its client's order; nothing that nobody sent; all equal."""
    assert ledgers[0] == ledgers[1] == ledgers[2]
    counts = Counter(ledgers[0])
    assert max(counts.values()) == 1
    places = {entry: place for place, entry in enumerate(ledgers[0])}
    for client in clients:
        missing = [entry[:20] for entry in client.acknowledged if entry not in places]
        assert not missing
        order = [places[entry] for entry in client.acknowledged]
        assert order == sorted(order)
    sent = {entry for c in clients for entry in (*c.acknowledged, *c.unknown)}
    assert set(ledgers[0]) <= sent


@pytest.mark.timeout(180)
async def test_ten_rounds_of_kill_9_lose_nothing_acknowledged(tmp_path: Path) -> None:
    # dumps every 300 entries: most kills fall near one (the moment stock PySyncObj loses data at)
    cell = ProcessDriver(tmp_path, snapshot_entries=300, trailing_entries=50)
    await cell.start()
    clients = [Client(cell, f"c{number}") for number in range(6)]
    running = [asyncio.create_task(client.run()) for client in clients]
    for round_ in range(10):
        leader = await leader_of(cell)
        goal = sum(len(client.acknowledged) for client in clients) + 150 + 37 * round_

        async def enough(goal: int = goal) -> bool:
            return sum(len(client.acknowledged) for client in clients) >= goal

        await eventually(enough, f"progress in round {round_}")
        follower = next(name for name in IDS if name != leader)
        victims = [[leader], [follower], list(IDS), [leader, follower]][round_ % 4]
        await asyncio.gather(*(cell.kill(name) for name in victims))
        await asyncio.gather(*(cell.restart(name) for name in victims))
    leader = await leader_of(cell)
    for client in clients:
        client.done = True
    await asyncio.gather(*running)
    await cell.append(leader, b"last")
    clients[0].unknown.add(b"last")
    dumped = [await cell.restored(name) for name in IDS]
    assert any(dumped), "no kill fell behind a dump"

    async def equal() -> bool:
        ledgers = [await cell.entries(name) for name in IDS]
        return ledgers[0] == ledgers[1] == ledgers[2] and ledgers[0][-1:] == [b"last"]

    await eventually(equal, "all replicas equal")
    judge(clients, [await cell.entries(name) for name in IDS])
    await cell.close()


@pytest.mark.timeout(120)
async def test_leaders_that_are_stopped_for_seconds_lose_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    cell = ProcessDriver(tmp_path, snapshot_entries=500)
    await cell.start()
    clients = [Client(cell, f"c{number}") for number in range(4)]
    running = [asyncio.create_task(client.run()) for client in clients]
    for _ in range(3):
        leader = await leader_of(cell)
        await cell.pause(leader)
        rest = tuple(name for name in IDS if name != leader)
        successor = await leader_of(cell, rest)
        assert successor != leader
        await cell.append(successor, b"while %d slept" % (await cell.belief(successor)).term)
        clients[0].unknown |= {
            entry for entry in await cell.entries(successor) if entry.startswith(b"while")
        }
        await cell.resume(leader)

        async def follows(leader: str = leader) -> bool:
            return not (await cell.belief(leader)).leads

        await eventually(follows, f"{leader} follows after it woke")
    leader = await leader_of(cell)
    for client in clients:
        client.done = True
    await asyncio.gather(*running)
    leader = await leader_of(cell)
    await cell.append(leader, b"last")
    clients[0].unknown.add(b"last")

    async def equal() -> bool:
        ledgers = [await cell.entries(name) for name in IDS]
        return ledgers[0] == ledgers[1] == ledgers[2] and ledgers[0][-1:] == [b"last"]

    await eventually(equal, "all replicas equal")
    judge(clients, [await cell.entries(name) for name in IDS])
    await cell.close()

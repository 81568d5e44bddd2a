"""A disk without room stops its replica cleanly, and it goes on where it was once there is some."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from consensus.errors import ConsensusError
from tests.cluster.engine_disks import Mounts, why_no_mounts
from tests.cluster.engine_processes import FaultCell, Load, settle
from tests.conformance.cells import IDS, leader_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(120)]

SIZE = "48m"


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    if reason := why_no_mounts(tmp_path / "trial"):
        pytest.skip(reason)
    mounts = Mounts(tmp_path / "mounts")
    yield mounts
    mounts.close()


@pytest.fixture
async def cell(tmp_path: Path, mounts: Mounts) -> AsyncIterator[FaultCell]:
    cell = FaultCell(tmp_path / "cell", snapshot_entries=400, trailing_entries=50)
    for name in IDS:
        cell.place(name, mounts.small(name, SIZE) / "replica")
    await cell.start()
    yield cell
    await cell.close()


@pytest.fixture
async def load(cell: FaultCell) -> AsyncIterator[Load]:
    load = Load(cell)
    load.start()
    yield load
    await load.close()


def filler(cell: FaultCell, name: str) -> Path:
    return Path(cell.nodes[name].config.data).parent / "filler"


def fill(cell: FaultCell, name: str) -> None:
    """Leave no byte on a replica's disk."""
    file = os.open(filler(cell, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    os.write(file, b"\0" * size)
            except OSError:
                continue
    finally:
        os.close(file)


async def stopped_for_room(cell: FaultCell, name: str) -> None:
    """Fill a replica's disk and wait until it says why it ends."""
    fill(cell, name)
    assert await cell.ended(name) == 3, cell.log_of(name)
    assert cell.log_of(name).splitlines()[-1].startswith("failed: DiskFull("), cell.log_of(name)


@pytest.mark.parametrize("whose", ["leader", "follower"])
async def test_a_full_disk_stops_its_replica_and_nobody_else(
    cell: FaultCell, load: Load, whose: str
) -> None:
    leader = await leader_of(cell)
    victim = leader if whose == "leader" else next(name for name in IDS if name != leader)
    await load.progress(200)
    await stopped_for_room(cell, victim)
    await load.progress(300)
    with pytest.raises(ConsensusError):
        await cell.restart(victim)
    assert await cell.ended(victim) == 3
    assert "failed: DiskFull(" in cell.log_of(victim).splitlines()[-1], "refused while it is full"
    filler(cell, victim).unlink()
    await cell.restart(victim)
    await load.progress(100)
    verdict = await settle(cell, load)
    assert verdict.problems == []


async def test_three_full_disks_stop_the_cell_and_lose_nothing(cell: FaultCell, load: Load) -> None:
    await leader_of(cell)
    await load.progress(200)
    for name in IDS:
        fill(cell, name)
    # Two at most end by themselves: the last one finds nobody who would have it write anything.
    running = {asyncio.create_task(cell.nodes[name].reap()) for name in IDS}
    async with asyncio.timeout(60):
        while len(running) > 1:
            _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for name in IDS:
        filler(cell, name).unlink()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await asyncio.gather(*(cell.kill(name) for name in IDS))
    await asyncio.gather(*(cell.restart(name) for name in IDS))
    verdict = await settle(cell, load)
    assert verdict.problems == []

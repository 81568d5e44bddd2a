"""A sync that fails: the replica stops at once, since nobody knows what its disk holds."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.engine_disks import Syncs
from tests.cluster.engine_processes import FaultCell, Load, settle
from tests.conformance.cells import IDS, leader_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def syncs(tmp_path: Path) -> Syncs:
    return Syncs(tmp_path)


@pytest.fixture
async def cell(tmp_path: Path, syncs: Syncs) -> AsyncIterator[FaultCell]:
    cell = FaultCell(tmp_path / "cell", snapshot_entries=400, trailing_entries=50)
    for name in IDS:
        syncs.let(name, "true")
        cell.nodes[name].environment = syncs.environment(name)
    await cell.start()
    yield cell
    await cell.close()


@pytest.fixture
async def load(cell: FaultCell) -> AsyncIterator[Load]:
    load = Load(cell)
    load.start()
    yield load
    await load.close()


@pytest.mark.parametrize("whose", ["leader", "follower"])
async def test_one_failed_sync_ends_the_replica_though_the_next_would_succeed(
    cell: FaultCell, load: Load, syncs: Syncs, whose: str
) -> None:
    # Linux marks pages that could not be written as clean: a second fsync says yes and lies.
    leader = await leader_of(cell)
    victim = leader if whose == "leader" else next(name for name in IDS if name != leader)
    await load.progress(200)
    syncs.let(victim, "fail")
    assert await cell.ended(victim) == 3, cell.log_of(victim)
    last = cell.log_of(victim).splitlines()[-1]
    assert last.startswith("failed: "), last
    assert f"({errno.EIO}," in last or "Input/output error" in last
    await load.progress(300)
    syncs.let(victim, "true")
    await cell.restart(victim)
    await load.progress(100)
    verdict = await settle(cell, load)
    assert verdict.problems == []

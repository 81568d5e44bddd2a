"""The power of all three machines fails at one instant: what was acknowledged is on their disks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from consensus.errors import ConsensusError
from tests.cluster.engine_disks import Mounts, Syncs, why_no_power_cuts
from tests.cluster.engine_power import PoweredCell
from tests.cluster.engine_processes import Load, settle
from tests.cluster.engine_receipts import judge, read_receipts
from tests.conformance.cells import IDS, leader_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    if reason := why_no_power_cuts(tmp_path):
        pytest.skip(reason)
    mounts = Mounts(tmp_path / "mounts")
    yield mounts
    mounts.close()


@pytest.fixture
async def cell(tmp_path: Path, mounts: Mounts) -> AsyncIterator[PoweredCell]:
    cell = PoweredCell(tmp_path / "cell", mounts, snapshot_entries=400, trailing_entries=50)
    yield cell
    await cell.close()


@pytest.fixture
async def load(cell: PoweredCell) -> AsyncIterator[Load]:
    load = Load(cell)
    yield load
    await load.close()


async def test_three_power_cuts_of_all_replicas_lose_nothing_acknowledged(
    cell: PoweredCell, load: Load
) -> None:
    await cell.start()
    load.start()
    for round_ in range(3):
        await leader_of(cell)
        await load.progress(300 + 170 * round_)
        await cell.cut_power(IDS)
        await cell.switch_on(IDS)
    verdict = await settle(cell, load)
    assert verdict.problems == []
    assert any([await cell.restored(name) for name in IDS]), "no dump was in force at a cut"


async def test_the_power_of_the_leader_alone_is_cut(cell: PoweredCell, load: Load) -> None:
    await cell.start()
    load.start()
    leader = await leader_of(cell)
    await load.progress(300)
    await cell.cut_power([leader])
    await load.progress(300)
    await cell.switch_on([leader])
    verdict = await settle(cell, load)
    assert verdict.problems == []


async def test_a_power_cut_finds_whoever_only_says_that_it_synced(
    cell: PoweredCell, load: Load, tmp_path: Path
) -> None:
    # The test of the tests above: with the same cut, but syncs that are not done, entries are gone.
    syncs = Syncs(tmp_path)
    for name in IDS:
        syncs.let(name, "true")
        cell.nodes[name].environment = syncs.environment(name)
    await cell.start()
    load.start()
    await leader_of(cell)
    await load.progress(50)
    for name in IDS:
        syncs.let(name, "lie")
    await load.progress(400)
    await cell.cut_power(IDS)
    await load.pause()
    for name in IDS:
        syncs.let(name, "true")
    assert await lost(cell, load)


async def lost(cell: PoweredCell, load: Load) -> bool:
    """Whether acknowledged entries are missing after a cut, or replicas cannot be started."""
    try:
        await cell.switch_on(IDS)
        async with asyncio.timeout(20):
            leader = await leader_of(cell)
            await cell.barrier(leader)
    except (ConsensusError, AssertionError, TimeoutError):
        return True
    verdict = judge(read_receipts(load.receipts.path), await cell.entries(leader))
    return len(verdict.missing) > 0

"""Wall clocks jump by an hour: the engine knows only the clock that cannot."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.engine_disks import Clocks
from tests.cluster.engine_processes import FaultCell, Load, settle
from tests.conformance.cells import IDS, eventually, leader_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(120)]

HOUR_S = 3_600


@pytest.fixture
def clocks(tmp_path: Path) -> Clocks:
    return Clocks(tmp_path)


@pytest.fixture
async def cell(tmp_path: Path, clocks: Clocks) -> AsyncIterator[FaultCell]:
    # Far from the noise of a busy machine: an election here has one cause only.
    cell = FaultCell(tmp_path / "cell", election_min_ms=2_000, election_max_ms=4_000)
    for name in IDS:
        clocks.move(name, 0)
        cell.nodes[name].environment = clocks.environment(name)
    await cell.start()
    yield cell
    await cell.close()


@pytest.fixture
async def load(cell: FaultCell) -> AsyncIterator[Load]:
    load = Load(cell)
    load.start()
    yield load
    await load.close()


async def test_clocks_that_jump_by_an_hour_cost_no_election_and_no_entry(
    cell: FaultCell, load: Load, clocks: Clocks
) -> None:
    leader = await leader_of(cell)
    follower = next(name for name in IDS if name != leader)
    term = (await cell.belief(leader)).term
    for name in (leader, follower):
        for jump_s in (HOUR_S, -HOUR_S, 0):
            clocks.move(name, jump_s)
            await jumped(cell, name, jump_s)
            assert await cell.watch(1.0) == {(term, leader)}, f"{name} by {jump_s} s"
            await load.progress(100)
    assert await cell.watch(3.0) == {(term, leader)}
    verdict = await settle(cell, load)
    assert verdict.problems == []


async def jumped(cell: FaultCell, name: str, by_s: int) -> None:
    """Wait until a replica's wall clock is so many seconds off this process's."""

    async def off() -> bool:
        wall_s = float(await cell.nodes[name].ask("wall"))
        return abs(wall_s - time.time() - by_s) < 60

    await eventually(off, f"the clock of {name} is {by_s} s off")

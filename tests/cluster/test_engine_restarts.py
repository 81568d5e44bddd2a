"""Planned restarts: whoever leads hands over first, so that they cost no election timeout."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.cluster.engine_processes import FaultCell, Load, settle
from tests.conformance.cells import IDS, leader_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(180)]

ELECTION_MIN_MS = 8_000
"""So long that a busy machine does not take as long by itself."""


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[FaultCell]:
    cell = FaultCell(
        tmp_path, election_min_ms=ELECTION_MIN_MS, election_max_ms=12_000, snapshot_entries=500
    )
    await cell.start()
    yield cell
    await cell.close()


@pytest.fixture
async def load(cell: FaultCell) -> AsyncIterator[Load]:
    load = Load(cell)
    load.start()
    yield load
    await load.close()


async def test_restarting_each_replica_in_turn_never_stops_the_appends(
    cell: FaultCell, load: Load, record_property: Callable[[str, object], None]
) -> None:
    await leader_of(cell)
    await load.progress(200)
    began = asyncio.get_running_loop().time()
    moved = 0
    for _ in range(4):
        leader = await leader_of(cell)
        # the leader each time: the worst order there is
        cell.nodes[leader].signal(signal.SIGTERM)
        assert await cell.ended(leader) == 0, cell.log_of(leader)
        successor = await leader_of(cell, tuple(name for name in IDS if name != leader))
        moved += successor != leader
        await load.progress(100)
        await cell.restart(leader)
        assert await leader_of(cell) == successor, "who comes back disturbs nobody"
        await load.progress(50)
    assert moved == 4
    gap_s = load.gap_s(began)
    record_property("longest_gap_s", gap_s)
    print(f"longest time without an answer over four planned restarts: {gap_s:.2f} s")
    assert gap_s < ELECTION_MIN_MS / 1000, "an election timeout was waited for"
    verdict = await settle(cell, load)
    assert verdict.problems == []

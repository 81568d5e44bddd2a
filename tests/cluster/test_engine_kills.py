"""kill -9 again and again, under load and with frequent dumps: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.engine_processes import FaultCell, Load, settle
from tests.conformance.cells import IDS, leader_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(180)]


# Far from the noise of a busy machine: leadership is lost for the reason that a test gives.
CALM = {"election_min_ms": 1_500, "election_max_ms": 3_000, "heartbeat_ms": 100}


@pytest.fixture
async def cell(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[FaultCell]:
    # dumps every 300 entries: most kills fall near one (the moment stock PySyncObj loses data at)
    times = getattr(request, "param", {})
    cell = FaultCell(tmp_path, snapshot_entries=300, trailing_entries=50, **times)
    await cell.start()
    yield cell
    await cell.close()


@pytest.fixture
async def load(cell: FaultCell) -> AsyncIterator[Load]:
    load = Load(cell)
    load.start()
    yield load
    await load.close()


async def test_ten_rounds_of_kill_9_lose_nothing_acknowledged(cell: FaultCell, load: Load) -> None:
    for round_ in range(10):
        leader = await leader_of(cell)
        await load.progress(150 + 37 * round_)
        follower = next(name for name in IDS if name != leader)
        victims = [[leader], [follower], list(IDS), [leader, follower]][round_ % 4]
        await asyncio.gather(*(cell.kill(name) for name in victims))
        await asyncio.gather(*(cell.restart(name) for name in victims))
    verdict = await settle(cell, load)
    assert verdict.problems == []
    assert any([await cell.restored(name) for name in IDS]), "no kill fell behind a dump"
    oldest = [cell.segments_of(name)[0] for name in IDS]
    assert min(oldest) > "wal-" + "0" * 19 + "5", f"no journal was compacted: {oldest}"


async def test_leaders_that_are_stopped_for_seconds_lose_nothing_acknowledged(
    cell: FaultCell, load: Load
) -> None:
    for _ in range(3):
        leader = await leader_of(cell)
        await load.progress(100)
        term = (await cell.belief(leader)).term
        await cell.pause(leader)
        rest = tuple(name for name in IDS if name != leader)
        successor = await leader_of(cell, rest)
        await load.progress(100)
        assert successor != leader
        await cell.resume(leader)
        final = await leader_of(cell)
        assert (await cell.belief(final)).term > term, "who slept follows when it wakes"
    verdict = await settle(cell, load)
    assert verdict.problems == []


@pytest.mark.parametrize("cell", [CALM], indirect=True, ids=["calm"])
async def test_a_stopped_follower_costs_nothing_and_two_stop_everything(
    cell: FaultCell, load: Load
) -> None:
    leader = await leader_of(cell)
    one, other = (name for name in IDS if name != leader)
    await load.progress(50)
    await cell.pause(one)
    await load.progress(400)
    assert await leader_of(cell, (leader, other)) == leader, "a sleeping follower costs no election"
    await cell.pause(other)
    alone = await cell.watch(5.0, [leader])
    before = load.acknowledged
    assert (await cell.believed(leader)).leads is False, "a leader without a majority steps down"
    assert len(alone) <= 1
    await cell.watch(1.0, [leader])
    assert load.acknowledged == before, "acknowledged without a majority"
    await cell.resume(one)
    await load.progress(100)
    await cell.resume(other)
    verdict = await settle(cell, load)
    assert verdict.problems == []

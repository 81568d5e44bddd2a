"""A cell goes from one version to the next, replica by replica, with an invented next version."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from consensus.errors import ConsensusError
from tests.cluster.engine_processes import FaultCell, Load, settle
from tests.conformance.cells import IDS, eventually, leader_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(120)]

PRESENT, NEXT = "tests.cluster.engine_small", "tests.cluster.engine_next"


@pytest.fixture
async def cell(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[FaultCell]:
    entries = getattr(request, "param", 400)
    cell = FaultCell(tmp_path, snapshot_entries=entries, trailing_entries=50)
    await cell.start()
    yield cell
    await cell.close()


@pytest.fixture
async def load(cell: FaultCell) -> AsyncIterator[Load]:
    load = Load(cell)
    load.start()
    yield load
    await load.close()


async def leave(cell: FaultCell, name: str) -> None:
    cell.nodes[name].signal(signal.SIGTERM)
    assert await cell.ended(name) == 0, cell.log_of(name)


async def become(cell: FaultCell, name: str, version: str) -> None:
    """Restart a replica as another version."""
    await leave(cell, name)
    cell.nodes[name].module = version
    await cell.restart(name)
    await leader_of(cell)


def segments_of(cell: FaultCell, name: str) -> set[str]:
    """The names of a replica's segments; those that the present version began are among them."""
    return {path.name for path in Path(cell.nodes[name].config.data).rglob("wal-*")}


async def lead(cell: FaultCell, name: str) -> None:
    """Have a replica lead."""

    async def leads() -> bool:
        leader = await leader_of(cell)
        if leader != name:
            await cell.transfer(leader, name)
        return leader == name

    await eventually(leads, f"{name} leads", 60.0)


async def test_a_cell_is_upgraded_under_load_and_each_version_leads_the_other(
    cell: FaultCell, load: Load
) -> None:
    await leader_of(cell)
    await load.progress(200)
    old, new = list(IDS), []
    while old:
        name = old.pop()
        await become(cell, name, NEXT)
        new.append(name)
        await load.progress(150)
        for leader in (*old[:1], *new[:1]):
            await lead(cell, leader)
            await load.progress(150)
        if old:
            # only one of each version is left: they need each other
            third = next(one for one in IDS if one not in (old[0], new[0]))
            await leave(cell, third)
            await load.progress(150)
            await cell.restart(third)
    verdict = await settle(cell, load)
    assert verdict.problems == []


# without a dump, which would bring the old replica past the entry
@pytest.mark.parametrize("cell", [1_000_000], indirect=True, ids=["no dumps"])
async def test_an_entry_of_the_next_version_stops_an_old_replica_until_it_is_upgraded(
    cell: FaultCell, load: Load
) -> None:
    *new, old = IDS
    for name in new:
        await become(cell, name, NEXT)
    await lead(cell, new[0])
    await load.progress(200)
    note = b"a note that version N cannot know"
    await load.pause()
    await cell.nodes[new[0]].ask("note", entry=note.hex(), timeout_ms=5_000)
    assert await cell.ended(old) == 3
    assert_upgrade_is_asked_for(cell, old, "kind 200")
    load.start()
    await load.progress(100)
    with suppress(ConsensusError):  # it may start, and meet the entry a moment later
        await cell.restart(old)
    assert await cell.ended(old) == 3
    assert_upgrade_is_asked_for(cell, old, "kind 200")
    cell.nodes[old].module = NEXT
    await cell.restart(old)
    verdict = await settle(cell, load)
    assert verdict.strangers == [note[:20].decode()], "the note is there once; no client knows it"
    assert (verdict.missing, verdict.duplicates, verdict.unequal) == ([], [], [])


async def test_files_of_the_next_version_are_refused_whole_and_kept(
    cell: FaultCell, load: Load
) -> None:
    leader = await leader_of(cell)
    name = next(one for one in IDS if one != leader)
    before = segments_of(cell, name)
    await become(cell, name, NEXT)

    async def has_begun_one() -> bool:
        return bool(segments_of(cell, name) - before)

    await load.progress(600)
    await eventually(has_begun_one, f"a segment of the next version on {name}", 60.0)
    await leave(cell, name)
    cell.nodes[name].module = PRESENT
    with pytest.raises(ConsensusError):
        await cell.restart(name)
    assert_upgrade_is_asked_for(cell, name, "format")
    await cell.ended(name)
    cell.nodes[name].module = NEXT
    await cell.restart(name)
    verdict = await settle(cell, load)
    assert verdict.problems == []


def assert_upgrade_is_asked_for(cell: FaultCell, name: str, what: str) -> None:
    last = cell.log_of(name).splitlines()[-1]
    assert last.startswith("failed: UnknownFormat("), last
    assert what in last
    assert "upgrade this replica" in last

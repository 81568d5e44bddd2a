"""A cell that begins with a state: the seeded replica and two empty ones found it together."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from consensus.engine.seeding import seed
from consensus.leadership import Position
from tests.conformance.cells import IDS, ProcessDriver, eventually, leader_of

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.nightly]

FAR = Position(7, 2 * 10**12)
OLD = [b"one", b"two"]


def state() -> list[bytes]:
    positions = [Position(7, FAR.index - 1), FAR]
    return [msgspec.msgpack.encode((OLD, positions))]


@pytest.mark.parametrize("seeded", IDS)
async def test_a_seeded_cell_comes_up_and_goes_on(tmp_path: Path, seeded: str) -> None:
    cell = ProcessDriver(tmp_path)
    seed(tmp_path / seeded, "default", seeded, FAR, state())
    await cell.start()
    try:
        leader = await leader_of(cell)
        assert leader == seeded, "the others have nothing"
        applied = await cell.append(leader, b"three")
        assert applied.position.index > FAR.index
        assert applied.position.term > FAR.term
        for name in IDS:
            await _holds(cell, name, [*OLD, b"three"])
        follower = next(name for name in IDS if name != leader)
        await cell.snapshot(leader)
        await cell.kill(follower)
        await cell.append(leader, b"four")
        await cell.restart(follower)
        await _holds(cell, follower, [*OLD, b"three", b"four"])
        await cell.kill(leader)
        heir = await leader_of(cell, tuple(name for name in IDS if name != leader))
        await cell.append(heir, b"five")
        await cell.restart(leader)
        await _holds(cell, leader, [*OLD, b"three", b"four", b"five"])
    finally:
        await cell.close()


async def _holds(cell: ProcessDriver, name: str, entries: list[bytes]) -> None:
    async def holds() -> bool:
        return await cell.entries(name) == entries

    await eventually(holds, f"{name} has {entries}")


async def test_a_disk_of_the_life_before_keeps_the_new_one_out(tmp_path: Path) -> None:
    """Who restores a cell that is still there, in part, learns of it before anything happens."""
    cell = ProcessDriver(tmp_path)
    await cell.start()
    try:
        leader = await leader_of(cell)
        await cell.append(leader, b"old")
        lost = [name for name in IDS if name != leader]
        for name in lost:
            await cell.kill(name)
        target = tmp_path / "new"
        seed(target, "default", lost[0], FAR, state())
        node = cell.nodes[lost[0]]
        node.config = msgspec.structs.replace(node.config, data=str(target))
        node.log = tmp_path / "log"
        await cell.restart(lost[0])

        async def ended() -> bool:
            return node.process is None or node.process.returncode is not None

        await eventually(ended, "the seeded replica ends")
        assert "known with another disk" in node.log.read_text()
    finally:
        await cell.close()


async def test_two_that_were_seeded_wait_until_one_is_emptied(tmp_path: Path) -> None:
    """Raft would let the longer log win, and the other one believe that it has the same."""
    cell = ProcessDriver(tmp_path)
    seed(tmp_path / "r1", "default", "r1", FAR, state())
    wrong = Position(FAR.term + 1, FAR.index // 2)
    seed(tmp_path / "r2", "default", "r2", wrong, [msgspec.msgpack.encode(([b"wrong"], [wrong]))])
    for name in ("r1", "r2"):
        cell.nodes[name].log = tmp_path / f"{name}.log"
    await cell.start()
    try:

        async def said() -> bool:
            logs = [(tmp_path / f"{name}.log").read_text() for name in ("r1", "r2")]
            return all("another life of this cell" in log for log in logs)

        await eventually(said, "both say that the other one is of another life")
        assert not any([(await cell.belief(name)).leads for name in IDS])
        assert await cell.entries("r1") == OLD
        assert await cell.entries("r2") == [b"wrong"], "nothing was overwritten"
        await cell.kill("r2")
        shutil.rmtree(tmp_path / "r2")
        await cell.restart("r2")
        leader = await leader_of(cell)
        await cell.append(leader, b"three")
        for name in IDS:
            await _holds(cell, name, [*OLD, b"three"])
    finally:
        await cell.close()

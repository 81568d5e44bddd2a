"""The snapshot writer and snapshots: what is in them, which one is written, which stay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.storage import snapshot_writer as keeping
from snapshots.disk import read_snapshot, verify_snapshot
from tests.states import is_imaging
from tests.unit.disk_rig import CELL, Disk, Gated, life, more, until


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    made = Disk(tmp_path / "r1", life(1)).start()
    made.apply()
    yield made
    made.stop()


async def shoot(disk: Disk) -> int:
    """Apply a SnapshotAt and wait until its file is told; return its index."""
    disk.log.append(c.SnapshotAt())
    disk.apply()
    index = disk.log.state.index
    await until(lambda: disk.told and disk.told[-1].header.index == index)
    return index


async def test_a_snapshot_is_the_state_at_its_position_the_same_on_every_replica(
    disk: Disk, tmp_path: Path
) -> None:
    other = Disk(tmp_path / "r2", disk.log).start()
    more(disk.log, 2)
    index = await shoot(disk)
    expected = encode_state(disk.log.state)
    more(disk.log, 2)
    for one in (disk, other):
        one.apply()
    await until(lambda: other.told)
    other.stop()
    (file,) = disk.writer.snapshots()
    assert disk.told == [file]
    header = file.header
    assert (header.cell, header.generation, header.term, header.index) == (CELL, 1, 1, index)
    _, pieces = read_snapshot(file.path, CELL)
    content = b"".join(pieces)
    assert content == expected
    state = decode_state([content])
    assert (state.index, state.digest, state.at_ms) == (index, header.digest, header.taken_ms)
    assert other.files("snapshots") == disk.files("snapshots")
    assert not is_imaging(disk.applier.state)


async def test_the_newest_stay_and_older_ones_go(disk: Disk) -> None:
    indexes = [await shoot(disk) for _ in range(5)]
    kept = indexes[:1:-1]
    assert [file.header.index for file in disk.writer.snapshots()] == kept
    assert len(disk.files("snapshots")) == 3
    disk.stop()
    again = Disk(disk.data, disk.log, snapshots_kept=1).start()
    await until(lambda: len(again.writer.snapshots()) == 3)
    assert [file.header.index for file in again.writer.snapshots()] == kept
    again.apply()
    newest = await shoot(again)
    again.stop()
    assert [file.header.index for file in again.writer.snapshots()] == [newest]
    assert len(again.files("snapshots")) == 1


async def test_of_those_that_wait_for_one_under_way_only_the_newest_is_taken(disk: Disk) -> None:
    disk.log.append(c.SnapshotAt())
    slow = Gated.of(disk.log, 1)
    disk.writer.snapshot(disk.log.state, slow)
    await asyncio.to_thread(slow.waits[0].wait, 10)
    waiting = []
    for _ in range(2):
        disk.log.append(c.SnapshotAt())
        waiting.append(Gated.of(disk.log, 0))
        disk.writer.snapshot(disk.log.state, waiting[-1])
    assert [image.is_open for image in waiting] == [False, True]
    slow.gates[0].set()
    await until(lambda: len(disk.told) == 2)
    index = disk.log.state.index
    assert [file.header.index for file in disk.told] == [index - 2, index]
    assert not slow.is_open
    assert not waiting[1].is_open


async def test_segments_do_not_wait_for_a_snapshot(disk: Disk) -> None:
    await asyncio.to_thread(disk.writer.wait_durable)
    disk.log.append(c.SnapshotAt())
    slow = Gated.of(disk.log, 2)
    disk.writer.snapshot(disk.log.state, slow)
    await asyncio.to_thread(slow.waits[0].wait, 10)
    before = len(disk.files())
    more(disk.log, 2)
    disk.log.append(c.Seal(2))
    disk.applied += 1
    disk.apply()
    slow.gates[0].set()
    await asyncio.to_thread(disk.writer.wait_durable)
    assert len(disk.files()) == before + 1
    assert not disk.told
    slow.gates[1].set()
    await until(lambda: disk.told)


async def test_a_stop_ends_a_snapshot_under_way_and_leaves_nothing(disk: Disk) -> None:
    disk.log.append(c.SnapshotAt())
    slow, waiting = Gated.of(disk.log, 1), Gated.of(disk.log, 0)
    disk.writer.snapshot(disk.log.state, slow)
    await asyncio.to_thread(slow.waits[0].wait, 10)
    disk.log.append(c.SnapshotAt())
    disk.writer.snapshot(disk.log.state, waiting)
    stopping = asyncio.create_task(asyncio.to_thread(disk.writer.stop))
    await until(lambda: disk.writer._is_stopping)
    slow.gates[0].set()
    await stopping
    assert disk.files("snapshots") == {}
    assert not slow.is_open
    assert not waiting.is_open


@pytest.mark.parametrize("damage", ["cut", "flip", "other cell"])
async def test_a_damaged_snapshot_is_set_aside_and_told_and_the_next_older_one_stays(
    disk: Disk, damage: str
) -> None:
    older, newest = await shoot(disk), await shoot(disk)
    disk.stop()
    path = disk.told[-1].path
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-1])
    elif damage == "flip":
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    else:
        keeping.disk.write_snapshot(
            path.parent,
            keeping.SnapshotHeader("cell-2", 1, 1, newest, b"x" * 16, 0),
            [b"x"],
        )
    again = Disk(disk.data, disk.log, snapshots_kept=1)
    with structlog.testing.capture_logs() as logs:
        again.start()
        await until(again.writer.snapshots)
    assert [file.header.index for file in again.writer.snapshots()] == [older]
    assert "snapshot.damaged" in [line["event"] for line in logs]
    assert path.with_name(path.name + ".damaged").exists()
    assert not path.exists()
    again.apply()
    latest = await shoot(again)
    again.stop()
    assert verify_snapshot(again.told[-1].path, CELL).header.index == latest

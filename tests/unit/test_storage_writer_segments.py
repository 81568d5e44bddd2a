"""The snapshot writer and segments: what it writes, what it waits for, and a disk that refuses."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from cron.errors import Unavailable
from cron.state import commands as c
from cron.state.archive import Stream
from cron.state.tail import Tail
from cron.storage import snapshot_writer as keeping
from cron.storage.folders import name_of
from cron.storage.snapshot_writer import SnapshotWriter
from snapshots.errors import SnapshotCorrupt, SnapshotMissing
from snapshots.segments import open_segment
from tests.unit.disk_rig import CELL, Disk, life, records, until


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    made = Disk(tmp_path / "r1", life(2)).start()
    yield made
    made.stop()


async def test_what_is_sealed_is_a_file_of_the_same_bytes_on_every_replica(
    disk: Disk, tmp_path: Path
) -> None:
    other = Disk(tmp_path / "r2", disk.log).start()
    for one in (disk, other):
        one.apply()
        await asyncio.to_thread(one.writer.wait_durable)
    other.stop()
    files = disk.files()
    assert sorted(files) == [
        "0001-0000000001-failures.seg", "0001-0000000001-runs.seg",
        "0001-0000000002-failures.seg", "0001-0000000002-runs.seg",
    ]  # fmt: skip
    assert other.files() == files
    for record in records(disk.log):
        path = disk.writer.segment_path(name_of(record))
        assert path is not None
        header, content = open_segment(path, CELL).header, disk.writer.read(record)
        assert (header.from_index, header.to_index) == (record.from_index, record.to_index)
        assert header.stream == Stream(record.stream).label
        assert len(Tail.of(content).all_rows()) == header.rows == record.rows
    assert disk.writer.missing() == []
    assert disk.writer.segment_path("0001-0000000009-runs.seg") is None


async def test_what_finds_no_room_in_memory_is_owed_until_it_is_fetched(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Disk(tmp_path / "r2", disk.log).start()
    other.apply()
    await asyncio.to_thread(other.writer.wait_durable)
    other.stop()
    monkeypatch.setattr(keeping, "PENDING_BYTES_MAX", 0)
    monkeypatch.setattr(keeping, "DURABLE_S", 0.02)
    disk.apply()
    assert {name_of(one) for one in disk.writer.missing()} == other.files().keys()
    assert [one.number for one in disk.writer.missing()] == [2, 2, 1, 1]
    with pytest.raises(OSError, match="history cannot be kept"):
        await asyncio.to_thread(disk.writer.wait_durable)
    monkeypatch.setattr(keeping, "DURABLE_S", 30.0)
    for record in disk.writer.missing():
        shutil.copy(other.data / "segments" / name_of(record), disk.writer.folders.incoming)
        disk.writer.admit(record)
    await asyncio.to_thread(disk.writer.wait_durable)
    assert disk.writer.missing() == []
    assert disk.files() == other.files()


async def test_what_retention_takes_leaves_the_disk_and_what_is_to_come_stays(disk: Disk) -> None:
    disk.apply()
    await asyncio.to_thread(disk.writer.wait_durable)
    folder = disk.writer.folders.segments
    ahead = "0001-0000000003-runs.seg"  # of a Seal that the log has yet to bring again
    (folder / ahead).write_bytes(b"x")
    (folder / "notes.txt").write_text("of a person")
    (folder / "0001-0000000001-runs.seg.damaged").write_bytes(b"x")
    disk.log.append(c.BackedUp("file:///s", tuple(one.key for one in records(disk.log))))
    disk.log.append(c.Retire(local=((1, 2, Stream.RUNS),), gone=((1, 1, Stream.RUNS),)))
    disk.apply()
    await until(lambda: len(disk.files()) == 4)
    assert sorted(disk.files()) == [
        "0001-0000000001-failures.seg", "0001-0000000002-failures.seg", ahead, "notes.txt",
    ]  # fmt: skip
    assert disk.writer.segment_path("0001-0000000002-runs.seg") is None
    assert disk.writer.missing() == []
    assert not disk.writer.wants(next(one for one in records(disk.log) if not one.is_local))


async def test_a_dump_does_not_wait_for_what_was_retired(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "PENDING_BYTES_MAX", 0)
    disk.apply()
    disk.log.append(c.Retire(gone=tuple(one.key for one in records(disk.log))))
    disk.apply()
    await asyncio.to_thread(disk.writer.wait_durable)
    assert disk.files() == {}


@pytest.mark.parametrize("spoil", ["cut", "flip", "other", "gone"])
async def test_a_damaged_segment_is_set_aside_and_missing(disk: Disk, spoil: str) -> None:
    disk.apply()
    await asyncio.to_thread(disk.writer.wait_durable)
    record, other, *_ = records(disk.log)
    path = disk.writer.folders.segments / name_of(record)
    content = bytearray(path.read_bytes())
    if spoil == "cut":
        path.write_bytes(content[:-7])
    elif spoil == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif spoil == "other":
        shutil.copy(path.with_name(name_of(other)), path)
    else:
        path.unlink()
    with pytest.raises(SnapshotMissing if spoil == "gone" else SnapshotCorrupt):
        disk.writer.read(record)
    assert disk.writer.missing() == [record]
    assert disk.writer.segment_path(name_of(record)) is None
    assert path.with_name(path.name + ".damaged").exists() == (spoil != "gone")


async def test_a_segment_of_another_life_is_not_admitted(disk: Disk, tmp_path: Path) -> None:
    """Same name, whole, and other rows: the catalog's digest decides."""
    stranger = Disk(tmp_path / "r9", life(2, rows=5)).start()
    stranger.apply()
    await asyncio.to_thread(stranger.writer.wait_durable)
    stranger.stop()
    disk.apply()
    await asyncio.to_thread(disk.writer.wait_durable)
    record = records(disk.log)[0]
    incoming = disk.writer.folders.incoming / name_of(record)
    shutil.copy(stranger.data / "segments" / name_of(record), incoming)
    with pytest.raises(SnapshotCorrupt, match=r"catalog|holds more than"):
        disk.writer.admit(record)
    assert not incoming.exists()
    assert disk.writer.read(record)


async def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="file"):
        SnapshotWriter(tmp_path / "file", CELL).start()


async def test_a_stopped_keeper_says_that_it_owes(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "PENDING_BYTES_MAX", 0)
    disk.apply()
    disk.writer.stop()
    disk.writer.stop()
    with pytest.raises(OSError, match="history"):
        disk.writer.wait_durable()


async def test_segments_whose_files_are_gone_are_told_in_one_error(disk: Disk) -> None:
    disk.apply()
    await asyncio.to_thread(disk.writer.wait_durable)
    known = records(disk.log)
    for path in disk.data.rglob("*.seg"):
        path.unlink()
    with structlog.testing.capture_logs() as logs, pytest.raises(SnapshotMissing):
        disk.writer.read(known[0])
    assert [line["event"] for line in logs] == ["segments.missing"]
    assert logs[0]["segments"] == len(known)
    assert len(disk.writer.missing()) == len(known)

"""Entries whose content is on the disk only: what they cost, how they come back, and damage."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from consensus.engine.network.wire import Append
from consensus.engine.storage.disk import DirectoryDisk
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.records import Entry
from consensus.errors import LogDamaged
from tests.fakes.memory_disk import MemoryDisk, MemoryFile
from tests.unit.raft_rig import FOUND, R2, Rig
from tests.unit.storage_rig import IDENTITY, created, opened, segments, whole

CACHE = 2_000
ENTRIES = 10_000
PIECE = 1_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consensus.engine.storage.entries.ENTRY_CACHE_BYTES", CACHE)
    monkeypatch.setattr("consensus.engine.sender.BATCH_BYTES", PIECE)
    monkeypatch.setattr("consensus.engine.raft.READ_BACK_BYTES", PIECE)


def content(index: int) -> bytes:
    return b"%d " % index * (1 + index % 40)


def filled(journal: FileJournal, upto: int, *, together: int = 1) -> FileJournal:
    """Append entries of different sizes, `together` of them in each frame."""
    for index in range(journal.log.last + 1, upto + 1):
        journal.add(content(index), index, 3)
        if index % together == 0:
            journal.sync()
    journal.sync()
    return journal


def expected(first: int, upto: int) -> list[Entry]:
    return [(content(index), index, 3) for index in range(first, upto + 1)]


# --- what comes back


@pytest.mark.parametrize("together", [1, 7])
@pytest.mark.parametrize("segment_bytes", [300, 2**20])
def test_all_entries_come_back_from_the_disk_in_every_piece(
    together: int, segment_bytes: int
) -> None:
    disk = MemoryDisk()
    written = filled(created(disk, segment_bytes=segment_bytes), 120, together=together)
    for journal in (written, opened(disk, segment_bytes=segment_bytes)):
        assert 2 < journal.log.cached_from <= 120, "the newest are in memory, and no others"
        assert whole(journal)[1:] == expected(2, 120)
        for first in range(2, 121):
            assert journal.log.read(first, 120, 1) == expected(first, first)
            assert journal.log.read(first, min(first + 9, 120), 2**20) == expected(
                first, min(first + 9, 120)
            )


# --- what it costs


def test_entries_on_the_disk_cost_next_to_no_memory(tmp_path: Path) -> None:
    disk = DirectoryDisk(tmp_path)
    journal = FileJournal.create(disk, IDENTITY)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for first in range(2, ENTRIES + 2, 500):
            for index in range(first, first + 500):
                journal.add(b"%500d" % index, index, 3)
            journal.sync()
        written = tracemalloc.get_traced_memory()[0] - before
        found = FileJournal.open(disk, "r1", "default")
        tracemalloc.reset_peak()
        read = tracemalloc.get_traced_memory()[0] - before - written
    finally:
        tracemalloc.stop()
        disk.close()
    # 5 MB of entries: 16 bytes for each, an eighth as much again in the arrays, and the cache.
    assert written < ENTRIES * 18 + CACHE + 50_000
    assert read < ENTRIES * 18 + CACHE + 150_000
    assert whole(found)[-1] == (b"%500d" % (ENTRIES + 1), ENTRIES + 1, 3)


def test_the_last_entry_stays_in_memory_however_large_it_is() -> None:
    journal = created(MemoryDisk())
    journal.add(b"x" * 5 * CACHE, 2, 3)
    journal.add(b"y" * 5 * CACHE, 3, 3)
    journal.sync()
    assert journal.log.cached_from == 3


# --- damage


def damaged(disk: MemoryDisk, found: bytes) -> None:
    """Let one byte of `found` be another one on the disk."""
    for name in segments(disk):
        stored = bytearray(disk.content(name))
        at = stored.find(found)
        if at >= 0:
            stored[at + len(found) // 2] ^= 1
            disk.put(name, bytes(stored))
            return
    raise AssertionError("not on the disk")


def test_an_entry_that_was_damaged_since_it_was_written_is_never_returned() -> None:
    disk = MemoryDisk("here")
    journal = filled(created(disk, segment_bytes=1000), 100)
    damaged(disk, content(30))
    assert journal.log.read(20, 29, 2**20) == expected(20, 29)
    assert journal.log.read(31, 100, 2**20) == expected(31, 100)
    with pytest.raises(LogDamaged, match=r"here/wal-0+\d: entry 30 at byte \d+ is not what"):
        journal.log.read(20, 100, 2**20)


def test_a_segment_that_is_gone_or_shorter_is_damage() -> None:
    for step, said in (("remove", "missing"), ("cut", "ends before")):
        disk = MemoryDisk()
        journal = filled(created(disk, segment_bytes=1000), 100)
        name = segments(disk)[0]
        if step == "remove":
            disk.remove(name)
        else:
            disk.put(name, disk.content(name)[:500])
        with pytest.raises(LogDamaged, match=said):
            journal.log.read(2, 100, 2**20)
        assert journal.log.read(100, 100, 2**20) == expected(100, 100)


def test_a_disk_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(file: MemoryFile, offset: int, count: int) -> bytes:
        raise OSError(errno.EIO, "input/output error")

    journal = filled(created(MemoryDisk("here")), 100)
    monkeypatch.setattr(MemoryFile, "read", read)
    with pytest.raises(LogDamaged, match=r"here/wal-0+1: cannot be read back"):
        journal.log.read(2, 100, 2**20)


# --- a replica that sends and applies them


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    log = [(b"\x01", 0), (FOUND, 1), *((b"\x01" + content(index), 1) for index in range(3, 203))]
    rig = Rig(monkeypatch, log)
    yield rig
    rig.close()


def test_a_damaged_entry_is_not_applied_and_stops_the_replica(rig: Rig) -> None:
    last = rig.journal.log.last
    rig.journal.sync()
    damaged(rig.disk, b"\x01" + content(38))

    def tick_on() -> None:
        rig.hear(R2, Append(2, last, last, 1, 1, []))
        for _ in range(200):
            rig.raft.doTick(0.0)

    with pytest.raises(LogDamaged, match="entry 38 "):
        tick_on()
    assert 2 < max(index for index, _ in rig.handed()) < 38

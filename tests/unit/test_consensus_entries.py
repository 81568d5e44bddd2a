"""Entries whose content is on the disk only: what they cost, how they come back, and damage."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from consensus.engine.handover import Committed
from consensus.engine.network.wire import Answer, Append
from consensus.engine.storage.disk import DirectoryDisk
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.records import Entry
from consensus.errors import LogDamaged
from tests.fakes.memory_disk import MemoryDisk, MemoryFile
from tests.unit.raft_rig import FOUND, R2, R3, Rig
from tests.unit.storage_rig import IDENTITY, created, forget, opened, segments, whole

CACHE = 2_000
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


def test_a_piece_ends_with_the_entry_that_reaches_its_size() -> None:
    journal = filled(created(MemoryDisk()), 120)
    piece = journal.log.read(2, 120, PIECE)
    sizes = [len(command) + 64 for command, _, _ in piece]
    assert sum(sizes[:-1]) < PIECE <= sum(sizes)


def test_what_is_not_on_the_disk_yet_stays_in_memory() -> None:
    disk = MemoryDisk()
    journal = created(disk)
    for index in range(2, 60):
        journal.add(content(index), index, 3)
    assert disk.content(segments(disk)[0]).find(content(59)) == -1
    assert whole(journal)[1:] == expected(2, 59)
    journal.sync()
    assert journal.log.cached_from > 2
    assert whole(journal)[1:] == expected(2, 59)


def test_an_entry_that_took_the_place_of_one_that_was_cut_comes_back() -> None:
    disk = MemoryDisk()
    journal = filled(created(disk, segment_bytes=300), 100)
    journal.cut_from(40)
    for index in range(40, 100):
        journal.add(b"new %d" % index * 9, index, 4)
        journal.cut_from(index)  # in the same frame
        journal.add(b"newest %d" % index * 9, index, 5)
    journal.sync()
    wanted = expected(2, 39) + [(b"newest %d" % index * 9, index, 5) for index in range(40, 100)]
    assert journal.log.cached_from > 50
    assert whole(journal)[1:] == wanted
    assert whole(opened(disk, segment_bytes=300))[1:] == wanted


def test_entries_are_read_on_behind_what_a_dump_let_go() -> None:
    disk = MemoryDisk()
    journal = filled(created(disk, segment_bytes=300), 100)
    before = segments(disk)
    assert journal.log.read(30, 40, 2**20) == expected(30, 40)
    forget(journal, 35)
    assert segments(disk)[0] > before[0]
    assert whole(journal) == [(b"\x01", 35, 3), *expected(36, 100)]
    filled(journal, 150)
    assert journal.log.read(36, 150, 2**20) == expected(36, 150)
    assert [index for _, index, _ in journal[:]] == list(range(35, 151))


def test_the_entries_that_a_reader_asks_for_stay_in_memory() -> None:
    disk = MemoryDisk()
    journal = FileJournal.create(disk, IDENTITY, keeps=lambda command: command[:1] == b"!")
    for index in range(2, 100):
        journal.add(b"!%d" % index if index % 30 == 0 else content(index), index, 3)
    journal.sync()
    again = FileJournal.open(disk, "r1", "default", keeps=lambda command: command[:1] == b"!")
    for log in (journal.log, again.log):
        assert log.kept == [(b"!30", 30, 3), (b"!60", 60, 3), (b"!90", 90, 3)]
    journal.cut_from(90)
    journal.forget_before(30)
    assert journal.log.kept == [(b"!60", 60, 3)]


# --- what it costs


def test_entries_on_the_disk_cost_next_to_no_memory(tmp_path: Path) -> None:
    disk = DirectoryDisk(tmp_path)
    journal = FileJournal.create(disk, IDENTITY)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for first in range(2, 20_002, 500):
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
    # 10 MB of entries: 16 bytes for each, an eighth as much again in the arrays, and the cache.
    assert written < 20_000 * 18 + CACHE + 50_000
    assert read < 20_000 * 18 + CACHE + 150_000
    assert whole(found)[-1] == (b"%500d" % 20_001, 20_001, 3)


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


def appends_to_r3(rig: Rig) -> list[Append]:
    return [m for m in rig.sent_to(R3) if isinstance(m, Append)]


def lead_a_laggard(rig: Rig) -> int:
    """Lead; r3 says that it has nothing. Return the term."""
    rig.lead()
    term = rig.raft.term
    rig.hear(R2, Answer(term, rig.journal.log.last + 1, True, rig.now_ms()))
    while rig.raft.applied < rig.journal.log.last:
        rig.raft.doTick(0.0)
    rig.hear(R3, Answer(term, 2, False, rig.now_ms()))
    return term


def test_a_follower_that_lags_is_sent_old_entries_in_bounded_pieces(rig: Rig) -> None:
    term = lead_a_laggard(rig)
    probe = appends_to_r3(rig)[-1]
    sent = list(probe.entries)
    rig.hear(R3, Answer(term, sent[-1][1] + 1, True, rig.now_ms()))
    rounds = 0
    while sent[-1][1] < rig.journal.log.last:
        messages = appends_to_r3(rig)
        old = [m for m in messages if m.entries and m.entries[0][1] < rig.journal.log.cached_from]
        assert len(old) <= 1, "one piece for each tick: what peers say is heard in between"
        for message in messages:
            sent += message.entries
            assert sum(len(e[0]) + 64 for e in message.entries[:-1]) < PIECE or message not in old
        assert rig.raft.is_busy() or sent[-1][1] >= rig.journal.log.cached_from - 1
        rig.transport.sent.clear()
        rig.raft.doTick(0.0)
        rounds += 1
    assert [index for _, index, _ in sent] == list(range(2, rig.journal.log.last + 1))
    assert sent == whole(rig.journal)[1:]
    assert rounds > 10
    assert not rig.raft.is_busy()


def test_a_heartbeat_leaves_between_the_pieces(rig: Rig) -> None:
    term = lead_a_laggard(rig)
    rig.hear(R3, Answer(term, 5, True, rig.now_ms()))
    rig.now += 0.2
    rig.transport.sent.clear()
    rig.raft.doTick(0.0)
    beats = [m for m in rig.sent_to(R2) if isinstance(m, Append) and not m.entries]
    assert beats
    assert rig.raft.is_busy(), "r3 is not level yet"


def test_a_link_that_breaks_ends_the_reading(rig: Rig) -> None:
    term = lead_a_laggard(rig)
    rig.hear(R3, Answer(term, 5, True, rig.now_ms()))
    assert rig.raft.is_busy()
    rig.transport._onNodeDisconnected(R3)
    rig.raft.doTick(0.0)
    assert not rig.raft.is_busy()


def test_a_damaged_entry_is_not_sent_and_stops_the_leader(rig: Rig) -> None:
    term = lead_a_laggard(rig)
    damaged(rig.disk, b"\x01" + content(38))
    sent: list[int] = []

    def tick_on() -> None:
        rig.hear(R3, Answer(term, 20, True, rig.now_ms()))
        for _ in range(100):
            sent.extend(index for m in appends_to_r3(rig) for _, index, _ in m.entries)
            rig.transport.sent.clear()
            rig.raft.doTick(0.0)

    with pytest.raises(LogDamaged, match="entry 38 "):
        tick_on()
    assert 20 in sent
    assert 38 not in sent


def test_a_restart_applies_old_entries_in_bounded_pieces(rig: Rig) -> None:
    last = rig.journal.log.last
    rig.hear(R2, Append(2, last, last, 1, 1, []))
    for _ in range(200):
        if not rig.raft.is_busy():
            break
        rig.raft.doTick(0.0)
    pieces = [event.entries for event in rig.handover.events if isinstance(event, Committed)]
    assert [entry for piece in pieces for entry in piece] == whole(rig.journal)[1:]
    assert all(sum(len(e[0]) + 64 for e in piece[:-1]) < PIECE for piece in pieces)
    assert len(pieces) > 10


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

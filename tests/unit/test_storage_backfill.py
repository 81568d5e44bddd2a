"""Completing a history: segments from elsewhere, rows into the index, what is told meanwhile."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cron.errors import Unavailable
from cron.history.order import Query
from cron.state import commands as c
from cron.state.archive import SegmentRecord, Stream
from cron.storage.folders import name_of
from cron.storage.history_backfill import PeerSource, StoreSource
from snapshots.backup_store import BackupStore
from snapshots.errors import SnapshotMissing, StoreAway
from tests.fakes.memory_store import MemoryStore
from tests.unit.disk_rig import CELL, Disk, life, more, records, rows_of


class Neighbour:
    """A source that copies from another replica's folder, as `spoil` has it."""

    def __init__(self, other: Disk) -> None:
        self.other = other
        self.asked: list[str] = []
        self.spoil: Callable[[bytes], bytes] = bytes

    async def fetch(self, record: SegmentRecord, folder: Path) -> bool:
        name = name_of(record)
        self.asked.append(name)
        path = self.other.writer.segment_path(name)
        if path is None:
            return False
        (folder / name).write_bytes(self.spoil(path.read_bytes()))
        return True


class Away:
    """A source that cannot be asked."""

    async def fetch(self, record: SegmentRecord, folder: Path) -> bool:
        raise StoreAway("memory:", "it does not answer")


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[Disk]:
    made = Disk(tmp_path / "r1", life(4)).start()
    more(made.log, 2)
    made.apply()
    await made.settle()
    yield made
    made.stop()


@pytest.fixture
async def empty(source: Disk, tmp_path: Path) -> AsyncIterator[Disk]:
    """A replica with nothing but the dump of another."""
    made = Disk(tmp_path / "r2", source.log).start()
    made.restore(source)
    yield made
    made.stop()


async def all_rows(disk: Disk) -> list[object]:
    return list(await disk.row_store.newest(Query(limit=10_000)))


async def test_an_empty_replica_gets_all_segments_and_all_rows(empty: Disk, source: Disk) -> None:
    neighbour = Neighbour(source)
    empty.backfill.sources = [Away(), neighbour]
    assert len(empty.writer.missing()) == 8
    await empty.backfill.look()
    assert empty.files() == source.files()
    assert await all_rows(empty) == rows_of(source.log) == await all_rows(source)
    assert empty.row_store.gaps() == []
    assert neighbour.asked[0].startswith("0001-0000000004")
    assert empty.backfill.progress == ""
    await empty.backfill.look()
    assert len(neighbour.asked) == 8


async def test_what_cannot_be_had_does_not_keep_the_rest_from_being_filled(
    empty: Disk, source: Disk
) -> None:
    lost = records(source.log)[2]
    path = source.writer.segment_path(name_of(lost))
    assert path is not None
    path.unlink()
    with pytest.raises(SnapshotMissing):
        source.writer.read(lost)
    empty.backfill.sources = [Neighbour(source), Away()]
    with pytest.raises(SnapshotMissing, match="does not answer; 1 segments"):
        await empty.backfill.look()
    assert len(await all_rows(empty)) == len(source.log.rows) - lost.rows
    (gap,) = empty.row_store.gaps()
    assert (gap.from_index, gap.to_index) == (lost.from_index, lost.to_index)
    more_source = Disk(source.data.with_name("r3"), source.log).start()
    more_source.apply()
    await asyncio.to_thread(more_source.writer.wait_durable)
    empty.backfill.sources.append(Neighbour(more_source))
    await empty.backfill.look()
    more_source.stop()
    assert empty.row_store.gaps() == []
    assert await all_rows(empty) == rows_of(source.log)


@pytest.mark.parametrize(
    "spoil", [lambda b: b[:-1], lambda b: b"", lambda b: b[:80] + b"x" + b[81:]]
)
async def test_a_peer_that_lies_is_not_believed_and_the_next_is_asked(
    empty: Disk, source: Disk, spoil: Callable[[bytes], bytes]
) -> None:
    liar = Neighbour(source)
    liar.spoil = spoil
    empty.backfill.sources = [liar, Neighbour(source)]
    await empty.backfill.look()
    assert len(liar.asked) == 8
    assert empty.files() == source.files()
    assert list(empty.writer.folders.incoming.iterdir()) == []


async def test_a_damaged_segment_is_fetched_anew_when_it_is_needed(
    source: Disk, tmp_path: Path
) -> None:
    other = Disk(tmp_path / "r2", source.log).start()
    other.apply()
    await other.settle()
    path = other.writer.segment_path(name_of(records(source.log)[0]))
    assert path is not None
    path.write_bytes(path.read_bytes()[:-150])
    other.stop()
    again = Disk(other.data, source.log).start()
    again.backfill.sources = [Neighbour(source)]
    again.restore(source)
    with pytest.raises(Unavailable, match=path.name):
        await all_rows(again)
    filling = asyncio.create_task(again.backfill.run())
    async with asyncio.timeout(60):
        while again.row_store.gaps() or again.writer.missing():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    filling.cancel()
    assert await all_rows(again) == rows_of(source.log)
    again.stop()
    assert set(again.files()) - set(source.files()) == {path.name + ".damaged"}
    assert again.files()[path.name] == source.files()[path.name]


async def test_a_segment_whose_file_is_gone_is_missing_and_fetched_anew(
    source: Disk, tmp_path: Path
) -> None:
    other = Disk(tmp_path / "r2", source.log).start()
    other.apply()
    await other.settle()
    path = other.writer.segment_path(name_of(records(source.log)[0]))
    assert path is not None
    path.unlink()
    with pytest.raises(Unavailable, match=path.name):
        await all_rows(other)
    assert len(other.writer.missing()) == len(other.row_store.gaps()) == 1
    assert len(await all_rows(other)) == len(source.log.rows) - records(source.log)[0].rows
    other.backfill.sources = [Neighbour(source)]
    await other.backfill.look()
    assert await all_rows(other) == rows_of(source.log)
    assert other.row_store.gaps() == []
    other.stop()


async def test_damage_that_shows_in_a_question_is_fetched_anew(
    source: Disk, tmp_path: Path
) -> None:
    other = Disk(tmp_path / "r2", source.log).start()
    other.apply()
    await other.settle()
    path = other.writer.segment_path(name_of(records(source.log)[0]))
    assert path is not None
    whole = bytearray(path.read_bytes())
    whole[-100] ^= 1  # in the last of its blocks
    path.write_bytes(whole)
    with pytest.raises(Unavailable, match=path.name):
        await all_rows(other)
    assert len(other.writer.missing()) == len(other.row_store.gaps()) == 1
    assert len(await all_rows(other)) == len(source.log.rows) - records(source.log)[0].rows
    other.backfill.sources = [Neighbour(source)]
    await other.backfill.look()
    assert await all_rows(other) == rows_of(source.log)
    assert other.row_store.gaps() == []
    other.stop()


async def test_rows_of_retired_segments_leave_the_index_and_never_come_back(source: Disk) -> None:
    log = source.log
    log.append(c.BackedUp("file:///s", tuple(one.key for one in records(log))))
    log.append(c.Retire(local=((1, 2, Stream.RUNS),), gone=((1, 1, Stream.RUNS),)))
    first, _, second, *_ = records(life(4))
    source.apply()
    await source.backfill.look()
    left = [
        row
        for row in rows_of(log)
        if row.state.name == "FAILED" or row.ended_index > second.to_index
    ]
    assert await all_rows(source) == left
    (gap,) = source.row_store.gaps()
    assert gap.to_index > first.to_index
    source.stop()
    again = Disk(source.data, log).start()
    again.restore(source)
    await again.backfill.look()
    assert await all_rows(again) == left
    again.stop()


async def test_what_is_fetched_stays_after_a_kill_and_the_rest_goes_on(
    empty: Disk, source: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.backfill.sources = [Neighbour(source)]
    told: list[str] = []
    admit = empty.writer.admit

    def admitted(record: SegmentRecord) -> None:
        told.append(empty.backfill.progress)
        if len(told) == 4:
            raise OSError(5, "the disk is gone")
        admit(record)

    monkeypatch.setattr(empty.writer, "admit", admitted)
    with pytest.raises(OSError, match="gone"):
        await empty.backfill.look()
    assert told == [f"fetches history: {number} of 8 segments" for number in range(1, 5)]
    empty.stop()
    again = Disk(empty.data, source.log).start()
    neighbour = Neighbour(source)
    again.backfill.sources = [neighbour]
    again.restore(source)
    await again.backfill.look()
    assert len(neighbour.asked) == 5
    assert await all_rows(again) == rows_of(source.log)
    again.stop()


class Gate:
    """The other replicas, as the door to them is: addresses to folders, pieces by offset."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders = folders
        self.pieces = 0

    async def segment(
        self, address: str, name: str, offset: int, limit: int, timeout_ms: int
    ) -> tuple[bytes, int]:
        assert 0 < limit <= 1 << 20
        assert timeout_ms > 0
        self.pieces += 1
        content = (self.folders[address] / name).read_bytes()
        return content[offset : offset + min(limit, 50)], len(content)


async def test_segments_come_from_a_peer_in_pieces(empty: Disk, source: Disk) -> None:
    gate = Gate({"r1:1": source.data / "segments"})
    empty.backfill.sources = [PeerSource(gate, lambda: ["r1:1"])]
    await empty.backfill.look()
    assert gate.pieces > 16
    assert empty.files() == source.files()


async def test_segments_come_from_the_store_where_no_peer_has_them(
    empty: Disk, source: Disk
) -> None:
    backup_store = BackupStore(MemoryStore(), CELL)
    for path in sorted((source.data / "segments").glob("*.seg")):
        backup_store.put_segment(path)
    empty.backfill.sources = [PeerSource(Gate({}), list), StoreSource(backup_store)]
    await empty.backfill.look()
    assert empty.files() == source.files()
    assert await all_rows(empty) == rows_of(source.log)


async def test_a_store_that_lacks_it_too_is_told(empty: Disk) -> None:
    empty.backfill.sources = [StoreSource(BackupStore(MemoryStore(), CELL))]
    with pytest.raises(SnapshotMissing, match="8 segments"):
        await empty.backfill.look()
    assert empty.backfill.progress.startswith("fetches history: 8 of 8")
    shutil.rmtree(empty.writer.folders.incoming)

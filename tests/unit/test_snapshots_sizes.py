"""What comes out of a store or from a peer takes no more room than it may, whatever it is."""

from __future__ import annotations

import hashlib
import random
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from cron.state.archive import History, SegmentRecord
from cron.state.tail import content_digest
from cron.storage.folders import Folders, name_of
from snapshots import backup_store, layout, zstd
from snapshots import format as form
from snapshots.backup_store import BackupStore
from snapshots.errors import SnapshotCorrupt
from snapshots.format import SegmentHeader
from snapshots.segments import verify_segment, write_segment
from tests.fakes.memory_store import MemoryStore
from tests.unit.backup_store_rig import (
    back_up,
    manifest_of,
    read_segment,
    segment_file,
    snapshot_file,
)
from tests.unit.test_state_chunks import chunk

BOMB = 64 << 20
"""Bytes that a few kilobytes unpack to."""


def bomb(folder: Path) -> Path:
    content = bytes(BOMB)
    digest = hashlib.blake2b(content, digest_size=16).digest()
    header = SegmentHeader("prod", 1, 1, "runs", 10, 20, 1, digest)
    path = write_segment(folder, header, [content]).path
    assert path.stat().st_size < BOMB // 1000
    return path


def test_a_segment_that_unpacks_to_more_than_it_may_is_refused_on_the_way(tmp_path: Path) -> None:
    path = bomb(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(SnapshotCorrupt, match="more than 100 bytes"):
            verify_segment(path, "prod", 100)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert len(read_segment(path, "prod")[1]) == BOMB
    assert verify_segment(path, "prod", 2 * BOMB).content_bytes > BOMB


def test_what_is_admitted_has_the_size_that_the_catalog_says(tmp_path: Path) -> None:
    folders = Folders(tmp_path, "prod")
    folders.open()
    record = SegmentRecord(1, 1, 0, 10, 20, 1, 4, content_digest(b"rows"), 0, 0, 0)
    bomb(folders.incoming)
    tracemalloc.start()
    try:
        with pytest.raises(SnapshotCorrupt, match=r"more than 6\d+ bytes"):
            folders.admit(record)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert not (folders.incoming / name_of(record)).exists()


def test_a_segment_whose_rows_have_nothing_in_common_is_admitted(tmp_path: Path) -> None:
    rng = random.Random(4)

    def some() -> int:
        return rng.choice((-1, 1)) * rng.randrange(2**61)

    history = History()
    for index in range(1, 1501):
        history.append(
            chunk(
                2, ended_index=index, number=0, exit_code=some(), ended_at_ms=some(),
                begun_index=some(), begun_at_ms=some(), executor=f"e{index}", revisions=some(),
                jobs=f"{index}/0\n{index}/1", scheduled_s=some(), triggers=some(),
                attempts=some(), local_mins=some(), launched_index=some(), launched_at_ms=some(),
                started_ms=some(), finished_ms=some(), output_bytes=some(), ledger="",
                cpu_ms=some(), memory_peak_bytes=some(),
            )
        )  # fmt: skip
    folders = Folders(tmp_path, "prod")
    folders.open()
    (sealed,) = history.seal(1, 1500, 0)
    folders.write(sealed)
    name = name_of(sealed.record)
    (folders.segments / name).rename(folders.incoming / name)
    folders.admit(sealed.record)
    assert folders.read(sealed.record) == sealed.tail.whole()


@pytest.mark.parametrize("more", [-1, 1, 1 << 20])
def test_a_snapshot_of_another_size_is_not_even_fetched(tmp_path: Path, more: int) -> None:
    store = MemoryStore()
    cell = BackupStore(store, "prod")
    back_up(cell, tmp_path, 100, [])
    (manifest,), _ = cell.manifests()
    name = layout.snapshot_object("prod", 1, 3, 100)
    whole = store.objects[name]
    store.objects[name] = whole[:more] if more < 0 else whole + bytes(more)
    store.calls.clear()
    folder = tmp_path / "target"
    folder.mkdir()
    with pytest.raises(SnapshotCorrupt, match=f"{len(whole) + more} bytes"):
        cell.fetch_snapshot(manifest, folder)
    assert ("get", name) not in store.calls
    assert list(folder.iterdir()) == []


def test_a_segment_larger_than_any_is_not_even_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    cell = BackupStore(store, "prod")
    path = segment_file(tmp_path, 1)
    cell.put_segment(path)
    name = layout.segment_object("prod", path.name)
    store.objects[name] += b"x"
    monkeypatch.setattr(backup_store, "SEGMENT_FILE_BYTES_MAX", path.stat().st_size)
    store.calls.clear()
    path.unlink()
    with pytest.raises(SnapshotCorrupt, match="larger than any"):
        cell.fetch_segment(path.name, tmp_path)
    assert ("get", name) not in store.calls


def test_the_largest_segment_is_within_what_is_fetched() -> None:
    frames = -(-backup_store.SEGMENT_BYTES_MAX // zstd.FRAME_BYTES)
    packed = frames * (form.LENGTH.size + zstd.FRAME_STORED_BYTES_MAX)
    most = form.LEAD.size + form.HEADER_BYTES_MAX + packed + form.TAIL_BYTES
    assert most <= backup_store.SEGMENT_FILE_BYTES_MAX


def test_a_snapshot_that_rots_before_it_is_stored_is_not_stored(tmp_path: Path) -> None:
    store = MemoryStore()
    cell = BackupStore(store, "prod")
    file = snapshot_file(tmp_path, 100)
    content = bytearray(file.path.read_bytes())
    content[-1] ^= 1
    file.path.write_bytes(content)
    with pytest.raises(SnapshotCorrupt):
        cell.put_snapshot(file, manifest_of(file, []))
    assert store.objects == {}
    moved = msgspec.structs.replace(snapshot_file(tmp_path, 100), checksum=bytes(32))
    manifest = msgspec.structs.replace(manifest_of(moved, []), checksum=bytes(32).hex())
    with pytest.raises(SnapshotCorrupt, match="another"):
        cell.put_snapshot(moved, manifest)
    assert store.objects == {}

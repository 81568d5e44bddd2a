"""What a cell keeps in a store that cuts, forgets, or has what others wrote."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from snapshots import disk, layout
from snapshots.backup_store import BackupStore
from snapshots.errors import (
    InvariantViolated,
    ObjectDamaged,
    SegmentClash,
    SnapshotCorrupt,
    SnapshotMissing,
)
from tests.fakes.memory_store import MemoryStore
from tests.unit.backup_store_rig import back_up, manifest_of, segment_file, snapshot_file


def cut(store: MemoryStore, part: str, times: int) -> None:
    """Let the next `times` transfers of objects with `part` in their name be cut."""
    left = times

    def hook(operation: str, name: str) -> None:
        nonlocal left
        if operation == "get" and part in name and left:
            left -= 1
            raise ObjectDamaged(store.url, name, "its transfer was cut")

    store.hook = hook


def test_a_manifest_that_cannot_be_transferred_does_not_hide_the_others(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    back_up(backup_store, tmp_path, 100, [])
    back_up(backup_store, tmp_path, 200, [])
    cut(store, f"{200:016x}.json", 99)
    manifests, skipped = backup_store.manifests()
    assert [one.index for one in manifests] == [100]
    assert [type(one) for one in skipped] == [SnapshotCorrupt]
    cut(store, f"{200:016x}.json", 1)
    assert [one.index for one in backup_store.manifests()[0]] == [200, 100], "once is the network"


@pytest.mark.parametrize("times", [1, 2])
def test_a_transfer_that_is_cut_again_is_damage(tmp_path: Path, times: int) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    path = segment_file(tmp_path, 1)
    back_up(backup_store, tmp_path, 100, [path])
    (manifest,), _ = backup_store.manifests()
    target = tmp_path / "target"
    target.mkdir()
    fetches = (
        (".snap", lambda: backup_store.fetch_snapshot(manifest, target)),
        (".seg", lambda: backup_store.fetch_segment(path.name, target)),
    )
    for part, fetch in fetches:
        cut(store, part, times)
        if times == 1:
            assert fetch().path.exists()
            continue
        with pytest.raises(SnapshotCorrupt, match="cut"):
            fetch()
    assert len(list(target.iterdir())) == (2 if times == 1 else 0)


def test_a_fetch_whose_disk_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup_store = BackupStore(MemoryStore(), "prod")
    path = segment_file(tmp_path, 1)
    backup_store.put_segment(path)
    target = tmp_path / "target"
    target.mkdir()

    def fail(_: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(disk, "sync_directory", fail)
    with pytest.raises(OSError, match="no space"):
        backup_store.fetch_segment(path.name, target)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("name", ["../outside", "a/b.seg", "readme.txt", "", "x" * 300])
def test_what_is_no_name_of_a_segment_is_not_looked_for(tmp_path: Path, name: str) -> None:
    store = MemoryStore()
    with pytest.raises(SnapshotMissing):
        BackupStore(store, "prod").fetch_segment(name, tmp_path)
    assert store.calls == []


# --- what is put


def test_where_conditions_are_not_honoured_nothing_is_overwritten_all_the_same(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    store.conditions = False
    backup_store = BackupStore(store, "prod")
    path = segment_file(tmp_path, 1)
    assert backup_store.put_segment(path)
    other = tmp_path / "other"
    other.mkdir()
    same_size = segment_file(other, 1, b"swor")
    assert same_size.stat().st_size == path.stat().st_size
    for clashing in (same_size, segment_file(other, 1, b"many other rows")):
        with pytest.raises(SegmentClash) as clash:
            backup_store.put_segment(clashing)
        assert path.name in str(clash.value)
        assert "prefix" in clash.value.hint
    assert not backup_store.put_segment(path)
    assert store.objects[layout.segment_object("prod", path.name)] == path.read_bytes()


def test_a_segment_that_is_stored_is_not_sent_again(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    path = segment_file(tmp_path, 1)
    backup_store.put_segment(path)
    store.calls.clear()
    assert not backup_store.put_segment(path)
    assert "put" not in {operation for operation, _ in store.calls}


@pytest.mark.parametrize("same", [True, False])
def test_large_segments_are_compared_without_holding_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    monkeypatch.setattr("snapshots.backup_store.COMPARED_BYTES_MAX", 10)
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    path = segment_file(tmp_path, 1)
    backup_store.put_segment(path)
    name = layout.segment_object("prod", path.name)
    if same:
        assert not backup_store.put_segment(path)
    else:
        store.objects[name] = store.objects[name][::-1]
        with pytest.raises(SegmentClash):
            backup_store.put_segment(path)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_segment_that_was_lost_on_the_disk_is_not_stored_for_ever(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    path = segment_file(tmp_path, 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40] + b"\0" + whole[-39:])
    with pytest.raises(SnapshotCorrupt):
        backup_store.put_segment(path)
    assert store.objects == {}
    with pytest.raises(SnapshotMissing):
        backup_store.put_segment(tmp_path / layout.segment_name(1, 9, "runs"))


def test_a_segment_that_another_stores_meanwhile_is_compared(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    path = segment_file(tmp_path, 1)
    name = layout.segment_object("prod", path.name)

    def hook(operation: str, _: str) -> None:
        if operation == "put":
            store.objects[name] = b"of another"

    store.hook = hook
    with pytest.raises(SegmentClash):
        backup_store.put_segment(path)
    assert store.objects[name] == b"of another"


def test_a_manifest_says_what_its_snapshot_is(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    file = snapshot_file(tmp_path, 100)
    for wrong in ({"index": 101}, {"term": 4}, {"generation": 2}, {"cell": "x"}, {"checksum": ""}):
        manifest = msgspec.structs.replace(manifest_of(file, []), **wrong)
        with pytest.raises(InvariantViolated):
            backup_store.put_snapshot(file, manifest)
    assert store.objects == {}


def test_a_snapshot_that_was_cut_in_the_store_gets_no_manifest(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    file = snapshot_file(tmp_path, 100)

    def hook(operation: str, name: str) -> None:
        if operation == "head":
            store.objects[name] = store.objects[name][:-1]

    store.hook = hook
    with pytest.raises(SnapshotCorrupt, match="bytes were stored"):
        backup_store.put_snapshot(file, manifest_of(file, []))
    assert backup_store.manifests() == ([], [])

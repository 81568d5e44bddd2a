"""What a cell keeps in a store: in an order in which every step may be the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshots import layout
from snapshots.backup_store import BackupStore
from snapshots.disk import read_snapshot
from snapshots.errors import (
    SegmentClash,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotMissing,
)
from snapshots.retention import (
    GRACE_MS,
    SnapshotPolicy,
)
from tests.fakes.memory_store import MemoryStore
from tests.unit.backup_store_rig import Crash, back_up, check, crash_at, segment_file


def test_a_backup_comes_back(tmp_path: Path) -> None:
    backup_store = BackupStore(MemoryStore(), "prod")
    segments = [segment_file(tmp_path, number) for number in (1, 2)]
    back_up(backup_store, tmp_path, 100, segments)
    (manifest,), skipped = backup_store.manifests()
    assert not skipped
    target = tmp_path / "target"
    target.mkdir()
    file = backup_store.fetch_snapshot(manifest, target)
    assert b"".join(read_snapshot(file.path, "prod")[1]) == b"state at 100"
    assert backup_store.fetch_segment(segments[0].name, target).path == target / segments[0].name
    assert (target / segments[0].name).read_bytes() == segments[0].read_bytes()


def test_a_segment_is_stored_once_and_never_overwritten(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    path = segment_file(tmp_path, 1)
    assert backup_store.put_segment(path)
    assert not backup_store.put_segment(path)
    other = tmp_path / "other"
    other.mkdir()
    clashing = segment_file(other, 1, b"other rows")
    with pytest.raises(SegmentClash):
        backup_store.put_segment(clashing)
    assert store.objects[layout.segment_object("prod", path.name)] == path.read_bytes()


def test_damage_in_the_store_is_found_and_told(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    path = segment_file(tmp_path, 1)
    back_up(backup_store, tmp_path, 100, [path])
    back_up(backup_store, tmp_path, 200, [])
    (newest, older), _ = backup_store.manifests()
    name = layout.snapshot_object("prod", 1, 3, 200)
    store.objects[name] = store.objects[name][:-5]
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(SnapshotCorrupt):
        backup_store.fetch_snapshot(newest, target)
    assert list(target.iterdir()) == []
    backup_store.fetch_snapshot(older, target)
    store.objects[layout.segment_object("prod", path.name)] = b"\0" * 100
    with pytest.raises(SnapshotError):
        backup_store.fetch_segment(path.name, target)
    store.objects[layout.manifest_object("prod", 1, 3, 200)] = b"{"
    manifests, skipped = backup_store.manifests()
    assert [one.index for one in manifests] == [100]
    assert len(skipped) == 1


def test_a_snapshot_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    back_up(backup_store, tmp_path, 100, [])
    back_up(backup_store, tmp_path, 200, [])
    swapped = store.objects[layout.snapshot_object("prod", 1, 3, 100)]
    store.objects[layout.snapshot_object("prod", 1, 3, 200)] = swapped
    (newest, _), _ = backup_store.manifests()
    with pytest.raises(SnapshotCorrupt, match="manifest"):
        backup_store.fetch_snapshot(newest, tmp_path)


def test_what_is_not_there_is_missing(tmp_path: Path) -> None:
    backup_store = BackupStore(MemoryStore(), "prod")
    with pytest.raises(SnapshotMissing):
        backup_store.fetch_segment("0001-0000000001-runs.seg", tmp_path)


def test_other_cells_and_other_objects_are_left_alone(tmp_path: Path) -> None:
    store = MemoryStore()
    back_up(BackupStore(store, "prod"), tmp_path, 100, [])
    other = BackupStore(store, "prod2")
    assert other.manifests() == ([], [])
    assert other.newest_generation() == 0
    store.objects["cells/prod/snapshots/readme.txt"] = b"hello"
    store.objects["cells/prod/segments/readme.txt"] = b"hello"
    backup_store = BackupStore(store, "prod")
    backup_store.prune(SnapshotPolicy(1, 0), 10**15, ())
    assert store.objects["cells/prod/segments/readme.txt"] == b"hello"


def test_a_backup_may_die_at_every_step(tmp_path: Path) -> None:
    for step in range(100):
        store = MemoryStore()
        backup_store = BackupStore(store, "prod")
        segments = [segment_file(tmp_path, number) for number in (1, 2)]
        back_up(backup_store, tmp_path, 100, segments[:1])
        crash_at(store, step)
        try:
            back_up(backup_store, tmp_path, 200, segments)
        except Crash:
            assert check(backup_store, tmp_path) in (1, 2)
            back_up(backup_store, tmp_path, 200, segments)  # the next leader
            assert check(backup_store, tmp_path) == 2
        else:
            assert step > 5, "hardly anything was tried"
            return
    pytest.fail("it never ends")


def snapshots_in(store: MemoryStore) -> int:
    return sum(name.endswith(".snap") for name in store.objects)


def test_a_pruning_may_die_at_every_step(tmp_path: Path) -> None:
    for step in range(100):
        store = MemoryStore()
        backup_store = BackupStore(store, "prod")
        segments = [segment_file(tmp_path, number) for number in (1, 2, 3)]
        for number in (1, 2, 3):
            back_up(backup_store, tmp_path, number * 100, segments[number - 1 :])
        now_ms = 10 * GRACE_MS
        crash_at(store, step)
        try:
            pruned = backup_store.prune(SnapshotPolicy(newest=1, daily=0), now_ms, ())
        except Crash:
            assert check(backup_store, tmp_path) >= 1
            backup_store.prune(SnapshotPolicy(newest=1, daily=0), now_ms, ())
            assert check(backup_store, tmp_path) == 1
            assert snapshots_in(store) == 1
        else:
            assert step > 5
            store.hook = lambda operation, name: None
            assert pruned.segments == [segments[0].name, segments[1].name]
            assert backup_store.segments().keys() == {segments[2].name}
            assert snapshots_in(store) == 1
            return
    pytest.fail("it never ends")


def test_nothing_is_pruned_that_a_damaged_manifest_might_name(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    segments = [segment_file(tmp_path, number) for number in (1, 2)]
    back_up(backup_store, tmp_path, 100, segments[:1])
    back_up(backup_store, tmp_path, 200, segments[1:])
    store.objects[layout.manifest_object("prod", 1, 3, 100)] = b"\0"
    assert backup_store.prune(SnapshotPolicy(1, 0), 10**15, ()).segments == []
    assert len(backup_store.segments()) == 2


def test_a_snapshot_that_is_not_whole_takes_no_place_of_one_that_is(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    segments = [segment_file(tmp_path, number) for number in (1, 2)]
    back_up(backup_store, tmp_path, 100, segments[:1])
    back_up(backup_store, tmp_path, 200, segments[1:])
    name = layout.snapshot_object("prod", 1, 3, 200)
    store.objects[name] = store.objects[name][:-5]
    assert backup_store.prune(SnapshotPolicy(1, 0), 10**15, ()).snapshots == []
    del store.objects[name]
    assert backup_store.prune(SnapshotPolicy(1, 0), 10**15, ()).snapshots == []
    older = backup_store.manifests()[0][-1]
    assert backup_store.fetch_snapshot(older, tmp_path).header.index == 100
    assert len(backup_store.segments()) == 2
    back_up(backup_store, tmp_path, 300, [])
    backup_store.prune(SnapshotPolicy(1, 0), 10**15, ())
    assert [one.index for one in backup_store.manifests()[0]] == [300], (
        "the broken one goes with its age"
    )


def test_manifests_go_before_snapshots_and_these_before_segments(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    segments = [segment_file(tmp_path, number) for number in (1, 2, 3)]
    for number in (1, 2, 3):
        back_up(backup_store, tmp_path, number * 100, segments[number - 1 : number])
    store.calls.clear()
    backup_store.prune(SnapshotPolicy(1, 0), 10 * GRACE_MS, ())
    kinds = [Path(name).suffix for operation, name in store.calls if operation == "delete"]
    assert kinds == [".json"] * 2 + [".snap"] * 2 + [".seg"] * 2

"""What people and other programs leave between a cell's objects is not ours, and harms nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from snapshots import layout
from snapshots.backup_store import BackupStore
from snapshots.directory import SWEEP_PUTS, DirectoryStore
from snapshots.retention import SnapshotPolicy
from tests.fakes.memory_store import MemoryStore
from tests.unit.backup_store_rig import back_up, check, generation, segment_file

DAY_MS = 86_400_000
STRAY = ("notes on this.txt", "0001.json~", "#draft#", "Kopie (2).json", "ünïcode", ".DS_Store")
FOLDERS = ("snapshots", "segments", "lineages")


def cell_in(root: Path, folder: Path) -> BackupStore:
    """A cell with a marker and a snapshot, in a directory."""
    backup_store = BackupStore(DirectoryStore(root), "prod")
    folder.mkdir()
    backup_store.claim_generation(generation(1))
    back_up(backup_store, folder, 100, [segment_file(folder, 1)])
    return backup_store


@pytest.mark.parametrize("name", STRAY)
def test_a_file_that_a_person_left_in_the_store_is_not_an_object(tmp_path: Path, name: str) -> None:
    backup_store = cell_in(tmp_path / "store", tmp_path / "data")
    listed = [entry.name for entry in backup_store.store.list("cells/")]
    for folder in FOLDERS:
        (tmp_path / "store/cells/prod" / folder / name).write_text("left here")
    (tmp_path / "store" / name).write_text("left here")
    (tmp_path / "store/cells/prod/segments/a folder").mkdir()
    (tmp_path / "store/cells/prod/segments/a folder/x").write_text("left here")
    ours = [entry.name for entry in backup_store.store.list("cells/") if name not in entry.name]
    assert ours == listed
    assert check(backup_store, tmp_path / "data") == 1
    assert backup_store.newest_generation() == 1
    backup_store.prune(SnapshotPolicy(1, 0), 10 * DAY_MS, ())
    assert (tmp_path / "store/cells/prod/snapshots" / name).exists(), "it is not ours to delete"


def test_what_a_killed_upload_left_goes_after_a_day_and_what_is_under_way_stays(
    tmp_path: Path,
) -> None:
    store = DirectoryStore(tmp_path)
    store.put("a/b", b"x")
    old, young = tmp_path / "a/.tmp-0123", tmp_path / "a/.tmp-4567"
    for path, age_s in ((old, 2 * 86_400), (young, 3_600)):
        path.write_bytes(b"half of a snapshot")
        at_s = path.stat().st_mtime - age_s
        os.utime(path, (at_s, at_s))
    for number in range(SWEEP_PUTS):
        assert store.put(f"a/{number}", b"x", if_absent=True)
    assert not old.exists()
    assert young.exists(), "another leader may be writing it"
    again = DirectoryStore(tmp_path)
    os.utime(young, (1, 1))
    again.put("a/b", b"y")
    assert not young.exists(), "who begins looks at once"
    assert store.get("a/b", 9) == b"y"


def copied(root: Path) -> None:
    """A person copies the three folders of a cell, each into itself, as a backup of the backup."""
    for folder in FOLDERS:
        place = root / "cells/prod" / folder
        shutil.copytree(place, root / "aside" / folder)
        shutil.copytree(root / "aside" / folder, place / "old")
    shutil.rmtree(root / "aside")


def test_a_copy_of_a_manifest_in_a_folder_below_is_no_second_snapshot(tmp_path: Path) -> None:
    backup_store = cell_in(tmp_path / "store", tmp_path / "data")
    copied(tmp_path / "store")
    manifests, skipped = backup_store.manifests()
    assert ([one.index for one in manifests], skipped) == ([100], [])
    back_up(backup_store, tmp_path / "data", 200, [])
    backup_store.prune(SnapshotPolicy(2, 0), 10 * DAY_MS, ())
    assert [one.index for one in backup_store.manifests()[0]] == [200, 100], "copies take no places"
    backup_store.store.delete([layout.snapshot_object("prod", 1, 3, 100)])
    back_up(backup_store, tmp_path / "data", 300, [])
    backup_store.prune(SnapshotPolicy(1, 0), 10 * DAY_MS, ())
    assert [one.index for one in backup_store.manifests()[0]] == [300]


def test_a_copy_of_a_marker_in_a_folder_below_ends_no_life(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    backup_store.claim_generation(generation(1))
    store.objects["cells/prod/lineages/of the test cell/0007.json"] = b"{}"
    store.objects["cells/prod/lineages/old/0008.json"] = b"{}"
    assert backup_store.newest_generation() == 1
    assert [one.generation for one in backup_store.generations()] == [1]


def test_a_name_that_is_no_objects_name_is_not_asked_for(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    back_up(backup_store, tmp_path, 100, [])
    name = layout.manifest_object("prod", 1, 3, 100).rpartition("/")[2]
    store.objects[f"cells/prod/snapshots/of last year/{name}"] = b"{}"
    assert check(backup_store, tmp_path) == 1

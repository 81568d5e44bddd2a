"""One object that a store cannot or may not give hides no other."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshots import layout
from snapshots.backup_store import BackupStore
from snapshots.directory import DirectoryStore
from snapshots.errors import ObjectDamaged, SnapshotCorrupt, SnapshotError, StoreAway, StoreRefused
from tests.fakes.memory_store import MemoryStore
from tests.unit.backup_store_rig import back_up, segment_file

LOST = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)


def directory(tmp_path: Path) -> BackupStore:
    """Two snapshots in a directory; the newer is at 200."""
    backup_store = BackupStore(DirectoryStore(tmp_path / "store"), "prod")
    data = tmp_path / "data"
    data.mkdir()
    for index in (100, 200):
        back_up(backup_store, data, index, [segment_file(data, index)])
    return backup_store


def lose(monkeypatch: pytest.MonkeyPatch, part: str, number: int) -> None:
    """Let reading files with `part` in their name fail, as over a bad sector."""
    opened: Callable[..., Any] = Path.open

    class Bad:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __enter__(self) -> Bad:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def read(self, *_: int) -> bytes:
            raise OSError(number, os.strerror(number))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    def open_bad(path: Path, mode: str = "r", *args: Any, **named: Any) -> Any:
        file = opened(path, mode, *args, **named)
        return Bad(file) if part in path.name and "r" in mode and "store" in path.parts else file

    def read_bytes(path: Path) -> bytes:
        with path.open("rb") as file:
            return bytes(file.read())

    monkeypatch.setattr(Path, "open", open_bad)
    monkeypatch.setattr(Path, "read_bytes", read_bytes)


@pytest.mark.parametrize("number", LOST)
def test_a_manifest_on_a_bad_sector_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    backup_store = directory(tmp_path)
    lose(monkeypatch, f"{200:016x}.json", number)
    manifests, skipped = backup_store.manifests()
    assert [one.index for one in manifests] == [100]
    assert [type(one) for one in skipped] == [SnapshotCorrupt]


@pytest.mark.parametrize("number", LOST)
def test_a_snapshot_on_a_bad_sector_is_damaged_and_not_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    backup_store = directory(tmp_path)
    (newest, _), _ = backup_store.manifests()
    folder = tmp_path / "fetched"
    folder.mkdir()
    lose(monkeypatch, f"{200:016x}.snap", number)
    with pytest.raises(SnapshotCorrupt, match="cannot be read"):
        backup_store.fetch_snapshot(newest, folder)
    assert list(folder.iterdir()) == []


def test_a_disk_that_takes_nothing_is_not_a_damaged_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup_store = directory(tmp_path)
    (newest, _), _ = backup_store.manifests()
    real = os.fsync

    def fail(descriptor: int) -> None:
        if "fetched" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "the disk of this replica")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    folder = tmp_path / "fetched"
    folder.mkdir()
    with pytest.raises(OSError, match="the disk of this replica"):
        backup_store.fetch_snapshot(newest, folder)
    assert list(folder.iterdir()) == []


def test_a_store_that_cannot_be_read_for_another_reason_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup_store = directory(tmp_path)
    lose(monkeypatch, ".json", errno.ESTALE)
    with pytest.raises(StoreAway):
        backup_store.manifests()


def test_an_object_in_the_place_of_which_a_folder_stands_is_not_one(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    (tmp_path / "a/b").mkdir(parents=True)
    with pytest.raises((ObjectDamaged, StoreRefused)):
        store.get("a/b", 10)
    assert list(store.list("a")) == []


def test_an_object_that_may_not_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    for index in (100, 200):
        back_up(backup_store, tmp_path, index, [])
    moved = layout.manifest_object("prod", 1, 3, 200)

    def hook(operation: str, name: str) -> None:
        if (operation, name) == ("get", moved):  # a lifecycle rule has put it on a tape
            raise StoreRefused(store.url, "InvalidObjectState: it is archived")

    store.hook = hook
    manifests, skipped = backup_store.manifests()
    assert [one.index for one in manifests] == [100]
    (told,) = skipped
    assert isinstance(told, SnapshotError)
    assert "archived" in str(told)
    assert told.hint


@pytest.mark.parametrize("refused", ["get", "head"])
def test_a_snapshot_that_may_not_be_read_is_passed_over_like_a_damaged_one(
    tmp_path: Path, refused: str
) -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    back_up(backup_store, tmp_path, 100, [])
    (manifest,), _ = backup_store.manifests()

    def hook(operation: str, name: str) -> None:
        if operation == refused and name.endswith(".snap"):
            raise StoreRefused(store.url, "InvalidObjectState: it is archived")

    store.hook = hook
    with pytest.raises(SnapshotError, match="archived"):
        backup_store.fetch_snapshot(manifest, tmp_path)

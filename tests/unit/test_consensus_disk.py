"""The real disk: one process per directory, and the same journal and dumps upon it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from consensus.engine.loading import load
from consensus.engine.storage.disk import DirectoryDisk, Disk
from consensus.engine.storage.dump import check_dump, read_pieces, write_dump
from consensus.errors import DataInUse
from consensus.leadership import Position
from tests.unit.storage_rig import CONFIG, fill, forget, whole


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DirectoryDisk]:
    made = DirectoryDisk(tmp_path / "r1")
    yield made
    made.close()


def test_a_directory_is_made_and_held(disk: DirectoryDisk, tmp_path: Path) -> None:
    assert disk.place == str(tmp_path / "r1")
    with pytest.raises(DataInUse):
        DirectoryDisk(tmp_path / "r1")
    other = DirectoryDisk(tmp_path / "r2")
    other.close()
    DirectoryDisk(tmp_path / "r2").close()


def test_the_lock_is_no_name(disk: DirectoryDisk) -> None:
    assert disk.names() == []


def test_what_is_appended_is_read_back(disk: DirectoryDisk) -> None:
    file = disk.create("a")
    file.append(b"one ")
    file.append(memoryview(b"two"))
    file.sync()
    assert (file.size, file.read(4, 99), file.read(99, 1)) == (7, b"two", b"")
    file.cut(3)
    file.append(b"!")
    file.close()
    again = disk.open("a")
    assert again.read(0, 99) == b"one!"
    again.append(b"?")
    assert again.read(0, 99) == b"one!?"
    again.close()


def test_a_file_is_its_owners_alone(disk: DirectoryDisk, tmp_path: Path) -> None:
    disk.create("a").close()
    assert stat.S_IMODE(os.stat(tmp_path / "r1" / "a").st_mode) == 0o600


def test_names_change_as_they_are_told(disk: DirectoryDisk) -> None:
    disk.create("b").close()
    disk.create("a").close()
    assert disk.names() == ["a", "b"]
    disk.rename("a", "c")
    disk.remove("b")
    disk.remove("b")
    disk.sync_names()
    assert disk.names() == ["c"]
    with pytest.raises(FileNotFoundError):
        disk.open("a")


def test_an_old_file_of_the_same_name_loses_its_content(disk: DirectoryDisk) -> None:
    file = disk.create("a")
    file.append(b"old")
    file.close()
    again = disk.create("a")
    assert again.size == 0
    again.close()


def test_there_is_some_room(disk: DirectoryDisk) -> None:
    assert disk.room_bytes() > 0


def test_a_write_that_the_kernel_takes_in_parts_is_whole(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, view, at: real(fd, view[:3], at))
    file = disk.create("a")
    file.append(b"0123456789")
    assert file.read(0, 99) == b"0123456789"
    file.close()


def test_a_journal_and_a_dump_live_on_it(disk: DirectoryDisk) -> None:
    behind: Disk = disk
    journal = load(behind, CONFIG, lambda: 9, segment_bytes=1000).journal
    journal.setCurrentTerm(3, "r2")
    fill(journal, 200)
    write_dump(behind, "dump", Position(3, 150), b"members", [b"state", b" of all"])
    forget(journal, 140)
    journal._destroy()
    again = load(behind, CONFIG, lambda: 9, segment_bytes=1000)
    assert again.dump == check_dump(behind, "dump")
    assert b"".join(read_pieces(behind, again.dump)) == b"state of all"
    assert whole(again.journal)[-1] == (b"entry 200", 200, 3)
    assert 100 < again.journal[0][1] <= 140
    assert (again.journal.vote, again.journal.identity.token) == ("r2", 9)
    again.journal._destroy()


def test_a_new_directory_is_durable_in_the_ones_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a power cut soon after the first start took the whole directory, and with it the votes
    synced: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    DirectoryDisk(tmp_path / "a" / "b").close()
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    DirectoryDisk(tmp_path / "a" / "b").close()
    assert len(synced) == 2, "it was there already"

"""Snapshots on a disk: what a crash at each step leaves, and which file is believed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshots import disk
from snapshots.disk import (
    list_snapshots,
    parse_snapshot_name,
    read_newest,
    read_snapshot,
    remove_unfinished,
    snapshot_name,
    write_atomically,
    write_snapshot,
)
from snapshots.errors import SnapshotCorrupt, SnapshotForeign, SnapshotMissing
from snapshots.format import Snapshot, encode

OLD, NEW = b"old" * 1000, b"new content" * 1000


def made(term: int, index: int, cell: str = "cell-1") -> Snapshot:
    return Snapshot(cell, term, index, bytes(16), f"state at {term}/{index}".encode())


class Crashed(BaseException):
    """The process is gone: nothing after this line happens, no clean-up either."""


class Disk:
    """Counts the calls that change the disk; fails or dies at a chosen one."""

    NAMES = ("open", "write", "fsync", "replace")

    def __init__(self, patch: pytest.MonkeyPatch, error: BaseException | None, at: int) -> None:
        self.calls: list[str] = []
        self.error = error
        self.at = at
        for name in self.NAMES:
            patch.setattr(disk.os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(self.calls) == self.at and self.error is not None:
                if name == "write":  # half of it arrives
                    real(args[0], args[1][: len(args[1]) // 2])
                raise self.error
            self.calls.append(name)
            return real(*args, **kwargs)

        return call


def test_the_content_is_durable_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Disk(monkeypatch, None, -1)
    write_atomically(tmp_path / "a", NEW)
    assert trace.calls == ["open", "write", "fsync", "replace", "open", "fsync"]


@pytest.mark.parametrize("step", range(6))
def test_a_crash_at_any_step_leaves_the_old_or_the_new_content_whole(
    tmp_path: Path, step: int
) -> None:
    path = tmp_path / "a"
    path.write_bytes(OLD)
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, Crashed(), step)
        with pytest.raises(Crashed):
            write_atomically(path, NEW)
    assert path.read_bytes() == (OLD if step <= 3 else NEW)
    remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    write_atomically(path, NEW)
    assert path.read_bytes() == NEW


@pytest.mark.parametrize("step", range(6))
def test_a_disk_that_refuses_leaves_nothing_half_written(tmp_path: Path, step: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(OLD)
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, OSError("no space left"), step)
        with pytest.raises(OSError, match="no space left"):
            write_atomically(path, NEW)
    assert path.read_bytes() == (OLD if step <= 3 else NEW)
    assert list(tmp_path.iterdir()) == [path]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(disk.os, "write", lambda file, view: real(file, view[:100]))
    write_atomically(tmp_path / "a", NEW)
    assert (tmp_path / "a").read_bytes() == NEW


def test_an_unfinished_file_of_an_earlier_crash_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.unfinished").write_bytes(b"z" * 100_000)
    write_atomically(tmp_path / "a", NEW)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == NEW


def test_names_sort_as_positions_do() -> None:
    positions = [(0, 0), (1, 2**63), (2, 1), (2, 10), (16, 3), (2**64 - 1, 2**64 - 1)]
    names = [snapshot_name(*position) for position in positions]
    assert names == sorted(names)
    assert [parse_snapshot_name(name) for name in names] == positions
    assert names[3] == "0000000000000002-000000000000000a.snap"


@pytest.mark.parametrize(
    "name",
    ["", "2-a.snap", snapshot_name(1, 2).upper(), snapshot_name(1, 2) + ".unfinished", "a.snap"],
)
def test_other_names_are_no_snapshots(name: str) -> None:
    assert parse_snapshot_name(name) is None


def test_a_snapshot_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, made(2, 10))
    assert path.name == snapshot_name(2, 10)
    assert read_snapshot(path, "cell-1") == made(2, 10)


def test_the_newest_snapshot_that_verifies_wins_and_the_others_are_named(tmp_path: Path) -> None:
    for position in ((1, 5), (2, 7), (2, 10), (3, 11), (3, 12)):
        write_snapshot(tmp_path, made(*position))
    torn = tmp_path / snapshot_name(3, 12)
    torn.write_bytes(torn.read_bytes()[:-1])
    (tmp_path / snapshot_name(3, 11)).write_bytes(b"")
    (tmp_path / snapshot_name(2, 10)).write_bytes(encode(made(2, 9)))
    (tmp_path / "notes.txt").write_text("mine")
    found, skipped = read_newest(tmp_path, "cell-1")
    assert found == made(2, 7)
    assert [(type(error), error.name) for error in skipped] == [
        (SnapshotCorrupt, snapshot_name(3, 12)),
        (SnapshotCorrupt, snapshot_name(3, 11)),
        (SnapshotCorrupt, snapshot_name(2, 10)),
    ]


def test_an_empty_directory_has_no_newest(tmp_path: Path) -> None:
    assert read_newest(tmp_path, "cell-1") == (None, [])
    assert list_snapshots(tmp_path) == []


def test_a_snapshot_of_another_cell_is_not_used(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, made(2, 10, cell="cell-2"))
    with pytest.raises(SnapshotForeign, match="of cell 'cell-2', not 'cell-1'"):
        read_snapshot(path, "cell-1")
    found, skipped = read_newest(tmp_path, "cell-1")
    assert found is None
    assert len(skipped) == 1


def test_a_snapshot_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SnapshotMissing):
        read_snapshot(tmp_path / snapshot_name(1, 1), "cell-1")

"""Snapshots as files of one directory: written so that a crash leaves the old or the new, whole.

Names are `{term:016x}-{index:016x}.snap`, so that lexical order is log order. A directory has one
writer.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from snapshots.errors import (
    SnapshotCorrupt,
    SnapshotError,
    SnapshotForeign,
    SnapshotMissing,
)
from snapshots.format import Snapshot, decode, encode

_NAME: Final = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})\.snap")
_UNFINISHED: Final = ".unfinished"


def snapshot_name(term: int, index: int) -> str:
    """Return the file name of the snapshot at a position."""
    return f"{term:016x}-{index:016x}.snap"


def parse_snapshot_name(name: str) -> tuple[int, int] | None:
    """Return (term, index) of a snapshot's file name, None if it is none."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1], 16), int(match[2], 16))


def write_atomically(path: Path, content: bytes) -> None:
    """Make `content` the content of `path`, durably, before returning.

    At every moment, also after a crash or power loss, `path` has its old content (or is not there)
    or all of the new one.

    Raises:
        OSError: the disk refused; `path` is as it was, but if only the last sync of the directory
            failed it may have either content. Not to be retried on the same unfinished file: what
            a failed fsync left in memory is unknown.
    """
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        _write_durably(unfinished, content)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable.

    Raises:
        OSError: the disk refused.
    """
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def write_snapshot(directory: Path, snapshot: Snapshot) -> Path:
    """Keep `snapshot` durably in `directory`, which exists; return its path.

    Raises:
        OSError: the disk refused; no snapshot was harmed.
    """
    path = directory / snapshot_name(snapshot.term, snapshot.index)
    write_atomically(path, encode(snapshot))
    return path


def read_snapshot(path: Path, cell: str) -> Snapshot:
    """Return the snapshot at `path`, verified: all of its bytes, its position and its cell.

    Raises:
        SnapshotMissing, SnapshotCorrupt, SnapshotUnsupported, SnapshotForeign: it cannot be used.
        OSError: the disk refused.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise SnapshotMissing(path.name, "there is no such snapshot") from error
    snapshot = decode(content, path.name)
    if parse_snapshot_name(path.name) != (snapshot.term, snapshot.index):
        inside = snapshot_name(snapshot.term, snapshot.index)
        raise SnapshotCorrupt(path.name, f"its content belongs to {inside}")
    if snapshot.cell != cell:
        raise SnapshotForeign(path.name, f"it is of cell {snapshot.cell!r}, not {cell!r}")
    return snapshot


def list_snapshots(directory: Path) -> list[Path]:
    """Return the snapshots in `directory`, newest position first; nothing is verified."""
    found = [path for path in directory.iterdir() if parse_snapshot_name(path.name)]
    return sorted(found, key=lambda path: path.name, reverse=True)


def read_newest(directory: Path, cell: str) -> tuple[Snapshot | None, list[SnapshotError]]:
    """Return the newest snapshot that verifies, None if none does, and why newer ones do not.

    Raises:
        OSError: the disk refused.
    """
    skipped: list[SnapshotError] = []
    for path in list_snapshots(directory):
        try:
            return read_snapshot(path, cell), skipped
        except SnapshotError as error:
            skipped.append(error)
    return None, skipped


def remove_unfinished(directory: Path) -> list[Path]:
    """Remove what crashes left half written in `directory`; return what was removed."""
    found = sorted(directory.glob(f"*{_UNFINISHED}"))
    for path in found:
        path.unlink(missing_ok=True)
    return found


def _write_durably(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    opened = os.open(path, flags, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(opened, view) :]
        os.fsync(opened)
    finally:
        os.close(opened)

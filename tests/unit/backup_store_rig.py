"""Snapshots, segments and manifests for tests of what is kept in a store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from snapshots.backup_store import BackupStore
from snapshots.disk import SnapshotFile, list_snapshots, verify_snapshot, write_snapshot
from snapshots.errors import SnapshotError
from snapshots.format import SegmentHeader, SnapshotHeader
from snapshots.manifest import Generation, Manifest, SegmentName
from snapshots.retention import (
    DAY_MS,
)
from snapshots.segments import open_segment, verify_segment, write_segment
from tests.fakes.memory_store import MemoryStore


class Crash(BaseException):
    """The process is killed here."""


def newest_snapshot(folder: Path, cell: str) -> tuple[SnapshotFile | None, list[SnapshotError]]:
    """Return the newest snapshot that verifies, and why newer ones do not."""
    skipped: list[SnapshotError] = []
    for path in list_snapshots(folder):
        try:
            return verify_snapshot(path, cell), skipped
        except SnapshotError as error:
            skipped.append(error)
    return None, skipped


def segment_file(folder: Path, number: int, content: bytes = b"rows") -> Path:
    digest = hashlib.blake2b(content, digest_size=16).digest()
    header = SegmentHeader("prod", 1, number, "runs", number * 10, number * 10 + 10, 1, digest)
    return write_segment(folder, header, [content]).path


def read_segment(path: Path, cell: str) -> tuple[SegmentHeader, bytes]:
    """The header and the content of a segment, verified, and read section by section."""
    verify_segment(path, cell)
    sections = open_segment(path, cell)
    return sections.header, b"".join(map(sections.read, range(len(sections))))


def snapshot_file(folder: Path, index: int) -> SnapshotFile:
    header = SnapshotHeader("prod", 1, 3, index, bytes(16), index * 1000)
    return write_snapshot(folder, header, [b"state at %d" % index])


def manifest_of(file: SnapshotFile, segments: list[Path], generation: int = 1) -> Manifest:
    return Manifest(
        cell="prod", generation=generation, term=3, index=file.header.index,
        taken_ms=file.header.taken_ms, state_digest=file.header.digest.hex(),
        file_bytes=file.file_bytes, checksum=file.checksum.hex(),
        content_bytes=file.content_bytes,
        segments=[SegmentName(path.name, 1, 0, 0, 1, "") for path in segments],
    )  # fmt: skip


def back_up(backup_store: BackupStore, folder: Path, index: int, segments: list[Path]) -> None:
    """What a leader does."""
    for path in segments:
        backup_store.put_segment(path)
    file = snapshot_file(folder, index)
    backup_store.put_snapshot(file, manifest_of(file, segments))


def check(backup_store: BackupStore, folder: Path) -> int:
    """Everything that is listed can be restored; return how much that is."""
    manifests, skipped = backup_store.manifests()
    assert not skipped
    stored = backup_store.segments()
    for manifest in manifests:
        backup_store.fetch_snapshot(manifest, folder)
        assert {segment.name for segment in manifest.segments} <= stored.keys()
    return len(manifests)


def crash_at(store: MemoryStore, step: int) -> Callable[[], int]:
    """Let the process die before its operation number `step`; returns how many there were."""
    done = 0

    def hook(operation: str, name: str) -> None:
        nonlocal done
        if done == step:
            store.hook = lambda operation, name: None
            raise Crash(f"{operation} {name}")
        done += 1

    store.hook = hook
    return lambda: done


def generation(number: int = 2, claim: str = "a") -> Generation:
    return Generation(cell="prod", generation=number, id=claim, by="ada", host="h1")


def manifest_at(index: int, day: int = 0, names: tuple[str, ...] = (), life: int = 1) -> Manifest:
    return Manifest(
        cell="prod", generation=life, term=1, index=index, taken_ms=day * DAY_MS + index,
        state_digest="", file_bytes=0, checksum="", content_bytes=0,
        segments=[SegmentName(name, 0, 0, 0, 0, "") for name in names],
    )  # fmt: skip

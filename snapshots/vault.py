"""What one cell keeps in object storage: segments, snapshots, lineages; written so that any step
may be the last, and read so that nothing is believed unverified.

Order is the safety: a snapshot's segments are there before it, its manifest comes after it; what is
deleted goes the other way round.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import msgspec

from snapshots import layout
from snapshots.disk import (
    UNFINISHED,
    SegmentFile,
    SnapshotFile,
    sync_directory,
    verify_segment,
    verify_snapshot,
)
from snapshots.errors import (
    LineageTaken,
    NotConditional,
    ObjectMissing,
    SegmentClash,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotMissing,
    invariant,
)
from snapshots.manifest import (
    LINEAGE_BYTES_MAX,
    MANIFEST_BYTES_MAX,
    Lineage,
    Manifest,
    decode_lineage,
    decode_manifest,
    encode,
)
from snapshots.retention import (
    GRACE_MS,
    SnapshotPolicy,
    StoredSegment,
    segments_to_delete,
    snapshots_to_delete,
)
from snapshots.store import ObjectEntry, ObjectStore, Tell

COMPARED_BYTES_MAX: Final = 256 << 20
OUTPUT_BYTES_MAX: Final = 256 << 20


class Pruned(msgspec.Struct, frozen=True):
    """What a pruning has deleted: names of snapshots and of segments."""

    snapshots: list[str] = []
    segments: list[str] = []


class Vault:
    """The objects of `cell` in `store`. Blocks; keeps nothing, so any thread may use it."""

    def __init__(self, store: ObjectStore, cell: str) -> None:
        self.store = store
        self.cell = cell

    # --- segments

    def put_segment(self, path: Path) -> bool:
        """Store a segment's file that was verified; return False if it was there already.

        Raises:
            SegmentClash: other bytes are stored under its name.
        """
        name = layout.segment_object(self.cell, path.name)
        if self.store.put_file(name, path, if_absent=True):
            return True
        stored = self.store.get(name, COMPARED_BYTES_MAX)
        if hashlib.sha256(stored).digest() != _digest_of(path):
            raise SegmentClash(path.name, f"{self.store.url} has another segment under this name")
        return False

    def segments(self) -> dict[str, ObjectEntry]:
        """Return the stored segments by the names of their files."""
        prefix = layout.segments_prefix(self.cell)
        return {entry.name[len(prefix) :]: entry for entry in self.store.list(prefix)}

    def fetch_segment(
        self, name: str, directory: Path, progress: Tell | None = None
    ) -> SegmentFile:
        """Fetch a segment into `directory`, verified, durably under its name.

        Raises:
            SnapshotMissing, SnapshotCorrupt, SnapshotForeign, SnapshotUnsupported: see there.
        """
        object_name = layout.segment_object(self.cell, name)
        with self._fetched(object_name, directory / name, progress) as unfinished:
            file = verify_segment(unfinished, self.cell)
            header = file.header
            inside = layout.segment_name(header.lineage, header.number, header.stream)
            if inside != name:
                raise SnapshotCorrupt(name, f"its content belongs to {inside}")
        return msgspec.structs.replace(file, path=directory / name)

    # --- snapshots

    def put_snapshot(
        self, file: SnapshotFile, manifest: Manifest, progress: Tell | None = None
    ) -> None:
        """Store a snapshot whose segments are stored, then its manifest; may be repeated.

        Raises:
            SnapshotCorrupt: what is stored under its name is not it.
        """
        invariant(manifest.checksum == file.checksum.hex(), "a manifest of another snapshot")
        at = (self.cell, manifest.lineage, manifest.term, manifest.index)
        name = layout.snapshot_object(*at)
        self.store.put_file(name, file.path, progress=progress)
        found = self.store.head(name)
        if found is None or found.size != file.file_bytes:
            size = found.size if found is not None else 0
            raise SnapshotCorrupt(name, f"{size} of {file.file_bytes} bytes were stored")
        self.store.put(layout.manifest_object(*at), encode(manifest))

    def manifests(self) -> tuple[list[Manifest], list[SnapshotError]]:
        """Return the snapshots that exist, newest first, and why others cannot be read."""
        found: list[Manifest] = []
        skipped: list[SnapshotError] = []
        for entry in self.store.list(layout.snapshots_prefix(self.cell)):
            position = layout.parse_manifest_object(entry.name)
            if position is None:
                continue
            try:
                manifest = self._manifest(entry.name)
                if (manifest.lineage, manifest.term, manifest.index) != position:
                    raise SnapshotCorrupt(entry.name, "it is the manifest of another snapshot")
                found.append(manifest)
            except ObjectMissing:
                continue  # pruned between the listing and now
            except SnapshotError as error:
                skipped.append(error)
        found.sort(key=lambda one: one.position, reverse=True)
        return found, skipped

    def _manifest(self, name: str) -> Manifest:
        return decode_manifest(self.store.get(name, MANIFEST_BYTES_MAX), name, self.cell)

    def fetch_snapshot(
        self, manifest: Manifest, directory: Path, progress: Tell | None = None
    ) -> SnapshotFile:
        """Fetch a snapshot into `directory`, verified against its manifest and by itself.

        Raises:
            SnapshotMissing, SnapshotCorrupt, SnapshotForeign, SnapshotUnsupported: see there.
        """
        at = (manifest.lineage, manifest.term, manifest.index)
        path = directory / layout.snapshot_name(manifest.term, manifest.index)
        name = layout.snapshot_object(self.cell, *at)
        with self._fetched(name, path, progress) as unfinished:
            file = verify_snapshot(unfinished, self.cell)
            header = file.header
            inside = (header.lineage, header.term, header.index)
            if inside != at or file.checksum.hex() != manifest.checksum:
                raise SnapshotCorrupt(name, "it is not the snapshot of its manifest")
        return msgspec.structs.replace(file, path=path)

    @contextlib.contextmanager
    def _fetched(self, name: str, path: Path, progress: Tell | None) -> Iterator[Path]:
        """Fetch an object beside its place; what is verified inside gets the place."""
        unfinished = path.with_name(path.name + UNFINISHED)
        try:
            self.store.get_file(name, unfinished, progress=progress)
            yield unfinished
            os.replace(unfinished, path)
        except ObjectMissing as error:
            raise SnapshotMissing(path.name, f"{self.store.url} does not have it") from error
        finally:
            unfinished.unlink(missing_ok=True)
        sync_directory(path.parent)

    # --- lineages

    def lineages(self) -> list[Lineage]:
        """Return all markers that can be read, oldest first."""
        return [
            self._lineage(entry.name)
            for entry in self.store.list(layout.lineages_prefix(self.cell))
            if layout.parse_lineage_object(entry.name) is not None
        ]

    def _lineage(self, name: str) -> Lineage:
        return decode_lineage(self.store.get(name, LINEAGE_BYTES_MAX), name, self.cell)

    def newest_lineage(self) -> int:
        """Return the highest lineage that anybody has begun, 0 if nobody has: by the names alone,
        so that a damaged marker counts as well."""
        numbers = (
            layout.parse_lineage_object(entry.name)
            for entry in self.store.list(layout.lineages_prefix(self.cell))
        )
        return max((number for number in numbers if number is not None), default=0)

    def claim_lineage(self, lineage: Lineage, *, unconditional: bool = False) -> None:
        """Begin a lineage: for whoever is first, and for them again.

        Raises:
            LineageTaken: somebody else was first.
            NotConditional: the store cannot tell who is; `unconditional` takes that risk.
        """
        name = layout.lineage_object(self.cell, lineage.lineage)
        is_safe = self.store.conditional()
        if not is_safe and not unconditional:
            raise NotConditional(name, f"{self.store.url} does not honour conditional writes")
        is_there = not is_safe and self.store.head(name) is not None
        if is_there or not self.store.put(name, encode(lineage), if_absent=is_safe):
            self._check_ours(name, lineage)

    def _check_ours(self, name: str, lineage: Lineage) -> None:
        found = self._lineage(name)
        if found.id != lineage.id:
            who = f"by {found.by or 'somebody'} on {found.host or 'some machine'}"
            raise LineageTaken(name, f"lineage {found.lineage} was begun {who}", found)

    # --- retention

    def prune(self, policy: SnapshotPolicy, now_ms: int, wanted: Collection[str]) -> Pruned:
        """Delete what nobody needs: manifests first, then their snapshots, then segments.

        `wanted` are the names of the segments in the cell's catalog. Where a manifest cannot be
        read nobody knows what it names: then no segment is deleted.
        """
        manifests, skipped = self.manifests()
        old = snapshots_to_delete(manifests, policy)
        at = [(self.cell, one.lineage, one.term, one.index) for one in old]
        self.store.delete([layout.manifest_object(*one) for one in at])
        self.store.delete([layout.snapshot_object(*one) for one in at])
        names = [layout.snapshot_object(*one).rpartition("/")[2] for one in at]
        if skipped:
            return Pruned(names)
        gone = {one.position for one in old}
        kept = [one for one in manifests if one.position not in gone]
        self._delete_orphans(kept, now_ms)
        stored = [StoredSegment(name, entry.modified_ms) for name, entry in self.segments().items()]
        segments = segments_to_delete(stored, kept, wanted, now_ms)
        self.store.delete([layout.segment_object(self.cell, name) for name in segments])
        return Pruned(names, segments)

    def _delete_orphans(self, kept: Collection[Manifest], now_ms: int) -> None:
        """Delete snapshots whose manifest never came, or went before them."""
        named = {(one.lineage, one.term, one.index) for one in kept}
        orphans = [
            entry.name
            for entry in self.store.list(layout.snapshots_prefix(self.cell))
            if (at := layout.parse_snapshot_object(entry.name)) is not None
            and at not in named
            and entry.modified_ms < now_ms - GRACE_MS
        ]
        self.store.delete(orphans)

    # --- output

    def put_output(self, launch: str, attempt: int, content: bytes) -> None:
        """Store what an attempt wrote."""
        self.store.put(layout.output_object(self.cell, launch, attempt), content)

    def get_output(self, launch: str, attempt: int) -> bytes | None:
        """Return what an attempt wrote, None if it is not stored."""
        try:
            name = layout.output_object(self.cell, launch, attempt)
            return self.store.get(name, OUTPUT_BYTES_MAX)
        except ObjectMissing:
            return None


def _digest_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()

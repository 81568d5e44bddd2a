"""What a leader puts into object storage, step by step.

A crash after each step is safe: the next leader continues from what the log and the store say. All
calls block, and run in a thread of their own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec
import structlog

from cron.errors import InvariantViolated
from cron.failpoints import hit
from cron.state.archive import SegmentRecord
from cron.state.image import decode_outline
from cron.storage.folders import name_of, read_content
from cron.storage.snapshot_writer import SnapshotWriter
from snapshots.backup_store import BackupStore, Pruned
from snapshots.disk import SnapshotFile, read_snapshot
from snapshots.errors import GenerationTaken, SegmentClash, SnapshotCorrupt, SnapshotError
from snapshots.layout import cell_prefix
from snapshots.manifest import Generation, Manifest, SegmentName
from snapshots.retention import SnapshotPolicy

_log = structlog.get_logger()


class PlaceTaken(SnapshotError):
    """What object storage has under this cell's name is another cell's."""

    code = "place_taken"
    hint = "give this cell another prefix in the store, or another cell name"


class Outline(msgspec.Struct, frozen=True):
    """The contents of a snapshot on the disk: all segments of its catalog by name, and the number
    of its jobs.
    """

    file: SnapshotFile
    segments: dict[str, SegmentRecord]
    jobs: int


def outline_of(file: SnapshotFile) -> Outline:
    """Return what is in a snapshot, read from its file: a leader may have begun after it was taken.

    Raises:
        SnapshotError, OSError: the disk has lost it, or nobody can read what was written.
    """
    _, pieces = read_snapshot(file.path, file.header.cell)
    try:
        state, jobs = decode_outline(pieces)
    except InvariantViolated as error:
        raise SnapshotCorrupt(file.path.name, str(error)) from error
    records = {name_of(one): one for one in state.history.segments.values()}
    return Outline(file, records, jobs)


class Uploads(msgspec.Struct, frozen=True):
    """The calls of one replica to the store of its cell.

    `url` is the store's URL as the log knows it; `draw` returns a new random identity. `replica`,
    `release` and `host` say who uploads.
    """

    backup_store: BackupStore
    url: str
    policy: SnapshotPolicy
    draw: Callable[[], str]
    replica: str
    release: str
    host: str = ""

    def claim(self, generation: int, identity: str) -> int:
        """Make sure that the store knows this generation of the cell as `identity`, if one is
        given; return the newest generation that it knows.

        A store without conditional writes gets the marker all the same: only the leaders of one
        cell race for it, and they write the same.

        Raises:
            PlaceTaken: another cell writes here under this name.
            SnapshotUntrusted: somebody who is no replica of this cell has begun a generation here.
        """
        store = self.backup_store
        newest = store.newest_generation()
        if newest > generation:
            return store.begun_above(generation)
        if not identity:
            return newest
        marker = Generation(
            cell=store.cell, generation=generation, id=identity, by=self.replica, host=self.host
        )
        try:
            store.claim_generation(marker, unconditional=True)
        except GenerationTaken as error:
            place = cell_prefix(store.cell).rstrip("/")
            raise PlaceTaken(place, f"it belongs to another cell in {store.store.url}") from error
        return max(newest, generation)

    def put_segment(self, local: SnapshotWriter, record: SegmentRecord, path: Path) -> None:
        """Store a segment's file. A damaged one leaves this disk, and comes again from a peer.

        Raises:
            SegmentClash: other bytes are there under its name. SnapshotError, StoreError, OSError:
                it cannot be stored now.
        """
        try:
            self.backup_store.put_segment(path)
        except SegmentClash:
            raise
        except SnapshotError:
            local.read(record)  # raises if it is ours that is damaged
            raise
        hit("segment-stored")

    def is_stored(self, record: SegmentRecord) -> bool:
        """Return whether the store has a segment that no disk here has, whole; False, too, without
        room to read it: nothing that matters more waits for that.

        Raises:
            StoreError: the store does not answer now.
        """
        try:
            with tempfile.TemporaryDirectory(prefix="raftcron-") as folder:
                path = self.backup_store.fetch_segment(name_of(record), Path(folder)).path
                read_content(path, self.backup_store.cell, record)
        except (SnapshotError, OSError) as error:
            _log.warning("segment.distrusted", segment=name_of(record), error=str(error))
            return False
        return True

    def put_snapshot(
        self, outline: Outline, catalog: Mapping[str, bool], progress: Callable[[int], None]
    ) -> None:
        """Store a snapshot whose segments are stored, and its manifest last.

        `catalog` says which segments the cell has, and whether they are stored: only those are
        named. A segment that was retired after the snapshot was taken is named while the store
        still has it, because State in the snapshot names it, too.

        Raises:
            SnapshotError, StoreError, OSError: it is not, or not whole, and does not exist there.
        """
        kept = {name for name in outline.segments if catalog.get(name, False)}
        if retired := outline.segments.keys() - catalog.keys():
            kept |= retired & self.backup_store.segments().keys()
        names = [named(one) for name, one in outline.segments.items() if name in kept]
        file, header = outline.file, outline.file.header
        manifest = Manifest(
            cell=header.cell,
            generation=header.generation,
            term=header.term,
            index=header.index,
            taken_ms=header.taken_ms,
            state_digest=header.digest.hex(),
            file_bytes=file.file_bytes,
            checksum=file.checksum.hex(),
            content_bytes=file.content_bytes,
            replica=self.replica,
            release=self.release,
            segments=names,
            jobs=outline.jobs,
        )
        self.backup_store.put_snapshot(file, manifest, progress)
        hit("snapshot-stored")

    def prune(self, now_ms: int, catalog: Collection[str], generation: int) -> Pruned:
        """Delete what nobody needs any more; nothing once a later generation was begun."""
        pruned = self.backup_store.prune(self.policy, now_ms, catalog, generation)
        hit("store-pruned")
        return pruned


def named(record: SegmentRecord) -> SegmentName:
    """Return how a manifest names a segment."""
    return SegmentName(
        name_of(record),
        record.rows,
        record.from_index,
        record.to_index,
        record.size,
        record.digest.hex(),
    )

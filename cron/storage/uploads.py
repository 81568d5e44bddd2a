"""What a leader puts into object storage, step by step; each may be the last, and the next leader
goes on from what the log and the store say. Blocks: for a thread of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import structlog

from cron.errors import InvariantViolated
from cron.failpoints import hit
from cron.state.archive import SegmentRecord
from cron.state.image import decode_outline
from cron.storage.segments import LocalStore, name_of, read_content
from snapshots.backup_store import BackupStore, Pruned
from snapshots.disk import SnapshotFile, read_snapshot
from snapshots.errors import GenerationTaken, SegmentClash, SnapshotCorrupt, SnapshotError
from snapshots.layout import cell_prefix
from snapshots.manifest import Generation, Manifest, SegmentName
from snapshots.retention import SnapshotPolicy

_log = structlog.get_logger()
Tell = Callable[[int], None]


class PlaceTaken(SnapshotError):
    """What object storage has under this cell's name is another cell's."""

    code = "place_taken"
    hint = "give this cell another prefix in the store, or another cell name"


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


class About(msgspec.Struct, frozen=True):
    """Who uploads."""

    replica: str
    release: str
    host: str = ""


class Outline(msgspec.Struct, frozen=True):
    """What a snapshot on the disk says of itself: all segments of its catalog, and how many jobs it
    has."""

    file: SnapshotFile
    segments: dict[str, SegmentRecord]
    jobs: int


def outline_of(file: SnapshotFile) -> Outline:
    """Return what is in a snapshot, read from its file: a leader may have begun after it was taken.

    Raises:
        SnapshotError, OSError: the disk has lost it, or it was written as nobody can read it.
    """
    _, pieces = read_snapshot(file.path, file.header.cell)
    try:
        state, jobs = decode_outline(pieces)
    except InvariantViolated as error:
        raise SnapshotCorrupt(file.path.name, str(error)) from error
    records = {name_of(one): one for one in state.history.segments.values()}
    return Outline(file, records, jobs)


def put_segment(
    backup_store: BackupStore, local: LocalStore, record: SegmentRecord, path: Path
) -> None:
    """Store a segment's file. One that is damaged leaves this disk, and comes again from a peer.

    Raises:
        SegmentClash: other bytes are there under its name. SnapshotError, StoreError, OSError: it
            cannot be stored now.
    """
    try:
        backup_store.put_segment(path)
    except SegmentClash:
        raise
    except SnapshotError:
        local.read(record)  # raises if it is ours that is damaged
        raise
    hit("segment-stored")


def is_stored(backup_store: BackupStore, record: SegmentRecord) -> bool:
    """Return whether the store has a segment that no disk here has, whole; False, too, where there
    is no room to read it: nothing that matters more waits for that.

    Raises:
        StoreError: the store does not answer now.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="raftcron-") as folder:
            path = backup_store.fetch_segment(name_of(record), Path(folder)).path
            read_content(path, backup_store.cell, record)
    except (SnapshotError, OSError) as error:
        _log.warning("segment.distrusted", segment=name_of(record), error=str(error))
        return False
    return True


def put_snapshot(
    backup_store: BackupStore,
    outline: Outline,
    catalog: Mapping[str, bool],
    about: About,
    tell: Tell,
) -> None:
    """Store a snapshot whose segments are stored, and its manifest last.

    `catalog` says which segments the cell has, and whether they are stored: only those are named.
    What retention has let go of since the snapshot was taken is named while the store still has it:
    State in the snapshot names it, too.

    Raises:
        SnapshotError, StoreError, OSError: it is not, or not whole, and does not exist there.
    """
    kept = {name for name in outline.segments if catalog.get(name, False)}
    let_go = outline.segments.keys() - catalog.keys()
    if let_go:
        kept |= let_go & backup_store.segments().keys()
    names = [named(record) for name, record in outline.segments.items() if name in kept]
    backup_store.put_snapshot(outline.file, _manifest(outline, names, about), tell)
    hit("snapshot-stored")


def _manifest(outline: Outline, names: list[SegmentName], about: About) -> Manifest:
    file, header = outline.file, outline.file.header
    return Manifest(
        cell=header.cell,
        generation=header.generation,
        term=header.term,
        index=header.index,
        taken_ms=header.taken_ms,
        state_digest=header.digest.hex(),
        file_bytes=file.file_bytes,
        checksum=file.checksum.hex(),
        content_bytes=file.content_bytes,
        replica=about.replica,
        release=about.release,
        segments=names,
        jobs=outline.jobs,
    )


def claim(backup_store: BackupStore, generation: int, identity: str, about: About) -> int:
    """Make sure that this life of the cell is known to the store as `identity`, if one is given;
    return the newest life that is.

    A store that does not honour conditions takes the marker all the same: nobody races for it but
    the leaders of one cell, who write the same.

    Raises:
        PlaceTaken: another cell writes here under this name.
    """
    newest = backup_store.newest_generation()
    if newest > generation or not identity:
        return newest
    marker = Generation(
        cell=backup_store.cell,
        generation=generation,
        id=identity,
        by=about.replica,
        host=about.host,
    )
    try:
        backup_store.claim_generation(marker, unconditional=True)
    except GenerationTaken as error:
        place = cell_prefix(backup_store.cell).rstrip("/")
        text = f"it belongs to another cell in {backup_store.store.url}"
        raise PlaceTaken(place, text) from error
    return max(newest, generation)


def prune(
    backup_store: BackupStore,
    policy: SnapshotPolicy,
    now_ms: int,
    catalog: Iterable[SegmentRecord],
    generation: int,
) -> Pruned:
    """Delete what nobody needs any more; nothing once a later life of the cell was begun."""
    wanted = frozenset(name_of(record) for record in catalog)
    pruned = backup_store.prune(policy, now_ms, wanted, generation)
    hit("store-pruned")
    return pruned

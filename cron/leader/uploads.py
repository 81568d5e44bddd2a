"""What a leader puts into object storage, step by step; each may be the last, and the next leader
goes on from what the log and the store say. Blocks: for a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from cron.state.archive import SegmentRecord, Stream
from cron.state.image import decode_outline
from snapshots.disk import SnapshotFile, read_snapshot
from snapshots.layout import segment_name
from snapshots.manifest import Lineage, Manifest, SegmentName
from snapshots.retention import SnapshotPolicy
from snapshots.vault import Pruned, Vault

Tell = Callable[[int], None]


class Shelf(Protocol):
    """What this replica keeps on its own disk."""

    def segment_path(self, name: str) -> Path | None:
        """Return where a segment is, durably, None if it is not here."""

    def snapshots(self) -> list[SnapshotFile]:
        """Return the snapshots that are here, verified, newest first."""


def name_of(record: SegmentRecord) -> str:
    """Return the name of a segment's file."""
    return segment_name(record.lineage, record.number, Stream(record.stream).label)


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


def describe(
    file: SnapshotFile, wanted: Collection[str], about: About
) -> tuple[Manifest, list[SegmentRecord]]:
    """Return the manifest of a snapshot on the disk, and the segments that it names.

    `wanted` are the names that the cell still has in its catalog: what retention has let go of
    since then belongs to no snapshot any more.
    """
    _, pieces = read_snapshot(file.path, file.header.cell)
    state, jobs = decode_outline(pieces)
    records = [one for one in state.history.segments.values() if name_of(one) in wanted]
    header = file.header
    manifest = Manifest(
        cell=header.cell,
        lineage=header.lineage,
        term=header.term,
        index=header.index,
        taken_ms=header.taken_ms,
        state_digest=header.digest.hex(),
        file_bytes=file.file_bytes,
        checksum=file.checksum.hex(),
        content_bytes=file.content_bytes,
        replica=about.replica,
        release=about.release,
        segments=[named(one) for one in records],
        jobs=jobs,
    )
    return manifest, records


def upload_snapshot(
    vault: Vault, file: SnapshotFile, wanted: Collection[str], about: About, tell: Tell
) -> None:
    """Store a snapshot whose segments are stored, and its manifest."""
    manifest, _ = describe(file, wanted, about)
    vault.put_snapshot(file, manifest, tell)


def claim(vault: Vault, lineage: int, identity: str, about: About) -> int:
    """Make sure that this life of the cell is known to the store; return the newest that is.

    A store that does not honour conditions takes the marker all the same: nobody races for it but
    the leaders of one cell, who write the same.

    Raises:
        LineageTaken: another cell writes here under this name.
    """
    newest = vault.newest_lineage()
    if newest <= lineage:
        marker = Lineage(
            cell=vault.cell, lineage=lineage, id=identity, by=about.replica, host=about.host
        )
        vault.claim_lineage(marker, unconditional=True)
        newest = max(newest, lineage)
    return newest


def prune(
    vault: Vault, policy: SnapshotPolicy, now_ms: int, catalog: Iterable[SegmentRecord]
) -> Pruned:
    """Delete what nobody needs any more."""
    return vault.prune(policy, now_ms, frozenset(name_of(record) for record in catalog))

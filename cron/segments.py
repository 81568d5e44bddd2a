"""Segments as files: their names, and what one replica has of them on its disk."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from cron.state.archive import SegmentRecord, Stream
from snapshots.disk import SnapshotFile
from snapshots.layout import segment_name


def name_of(record: SegmentRecord) -> str:
    """Return the name of a segment's file."""
    return segment_name(record.lineage, record.number, Stream(record.stream).label)


class Shelf(Protocol):
    """What this replica keeps on its own disk."""

    def segment_path(self, name: str) -> Path | None:
        """Return where a segment is, durably, None if it is not here."""

    def read(self, record: SegmentRecord) -> bytes:
        """Return the content of a segment; one that is damaged is missing from then on, and is
        fetched again. Raises SnapshotError, OSError."""

    def snapshots(self) -> list[SnapshotFile]:
        """Return the snapshots that are here, verified, newest first."""

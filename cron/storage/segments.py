"""Segments as files: their names and headers, how they are opened, and what one replica has."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from cron.history.segment import Segment, check_sections
from cron.state.archive import SegmentRecord, Stream
from cron.state.tail import RowsDamaged
from snapshots.disk import SnapshotFile
from snapshots.errors import SnapshotCorrupt
from snapshots.format import SegmentHeader
from snapshots.layout import segment_name
from snapshots.segments import open_segment, verify_segment

BESIDE_BYTES: Final = 512
"""What a segment has beside each row, at most: a record of 23 integers of 8 bytes; the name of its
job once more (201), and how many rows of it follow (5); a place in a list (20) and in the order of
the log (4); its item (4), and a share of the index (12)."""
BESIDE_BYTES_MIN: Final = 1 << 16
"""And beside all of them."""


def name_of(record: SegmentRecord) -> str:
    """Return the name of a segment's file."""
    return segment_name(record.generation, record.number, Stream(record.stream).label)


def header_of(cell: str, record: SegmentRecord) -> SegmentHeader:
    """Return the header that a segment's file has on every replica of a cell."""
    return SegmentHeader(
        cell,
        record.generation,
        record.number,
        Stream(record.stream).label,
        record.from_index,
        record.to_index,
        record.rows,
        record.digest,
    )


def open_rows(path: Path, cell: str, record: SegmentRecord) -> Segment:
    """Return the segment at `path`, of which only the beginning is read.

    Raises:
        SnapshotError: it is not here, damaged, or another one than the catalog names.
        OSError: the disk refuses.
    """
    sections = open_segment(path, cell)
    _check_header(path, cell, record, sections.header)
    try:
        return Segment(record, sections)
    except RowsDamaged as error:
        raise SnapshotCorrupt(path.name, str(error)) from error


def _check_header(path: Path, cell: str, record: SegmentRecord, header: SegmentHeader) -> None:
    if header != header_of(cell, record):
        raise SnapshotCorrupt(path.name, "it is not the segment that the catalog names")


def read_content(path: Path, cell: str, record: SegmentRecord) -> bytes:
    """Return the rows of the segment at `path` in log order, all of it verified.

    Raises:
        as `open_rows`.
    """
    verify_segment(path, cell, record.size + record.rows * BESIDE_BYTES + BESIDE_BYTES_MIN)
    sections = open_segment(path, cell)
    _check_header(path, cell, record, sections.header)
    try:
        return check_sections(record, sections)
    except RowsDamaged as error:
        raise SnapshotCorrupt(path.name, str(error)) from error


class LocalStore(Protocol):
    """What this replica keeps on its own disk."""

    def segment_path(self, name: str) -> Path | None:
        """Return where a segment is, durably, None if it is not here."""

    def read(self, record: SegmentRecord) -> bytes:
        """Return the rows of a segment in log order; one that is damaged is missing from then on,
        and is fetched again. Raises SnapshotError, OSError."""

    def snapshots(self) -> list[SnapshotFile]:
        """Return the snapshots that are here, verified, newest first."""

"""The folders of a replica's snapshots and segments, and the files in them.

All calls block, and any thread may make them. Nothing is remembered here: the files count.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import structlog

from cron.errors import ConfigError
from cron.history.segment import Segment, check_sections, sections_of
from cron.history.task_segment import TaskSegment, task_sections
from cron.state.archive import Sealed, SegmentRecord, Stream
from cron.state.spilled import SpilledRows
from cron.state.tail import RowsDamaged, Tail
from snapshots import disk
from snapshots.disk import SnapshotFile
from snapshots.errors import SnapshotCorrupt, SnapshotError
from snapshots.format import SegmentHeader
from snapshots.layout import parse_segment_name, segment_name
from snapshots.segments import Sections, list_segments, open_segment, verify_segment, write_segment

_log = structlog.get_logger()

FOLDERS: Final = ("segments", "snapshots")
DAMAGED: Final = ".damaged"
OLDER_FORMATS: Final = ("history.sqlite",)
"""Files in a replica's folder that belong to formats that this release does not read."""

BESIDE_BYTES: Final = 512
"""The largest overhead of a row in a segment: a record of 23 integers of 8 bytes; the name of its
job (201), and how many rows of it follow (5); a place in a list (20) and in the order of the log
(4); its item (4), and a share of the index (12)."""
BESIDE_BYTES_MIN: Final = 1 << 16
"""The overhead of a segment beside its rows."""


def check_format(data: Path) -> None:
    """Refuse a replica's folder that has another format of history.

    Raises:
        ConfigError: it is one.
    """
    for name in OLDER_FORMATS:
        if (data / name).exists():
            raise ConfigError(
                f"{data}: an older release wrote it, in a format that is not read any more: there "
                f"is {name}",
                "use the release that wrote it; or begin a new cell in an empty folder",
            )


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
        OSError: the disk failed.
    """
    sections = _open(path, cell, record)
    try:
        return Segment(record, sections)
    except RowsDamaged as error:
        raise SnapshotCorrupt(path.name, str(error)) from error


def open_tasks(path: Path, cell: str, record: SegmentRecord) -> TaskSegment:
    """Return the segment of tasks at `path`; as `open_rows`."""
    sections = _open(path, cell, record)
    try:
        return TaskSegment(record, sections)
    except RowsDamaged as error:
        raise SnapshotCorrupt(path.name, str(error)) from error


def read_content(path: Path, cell: str, record: SegmentRecord) -> bytes:
    """Return the rows of the segment at `path` in log order, all of it verified.

    Raises:
        as `open_rows`.
    """
    verify_segment(path, cell, record.size + record.rows * BESIDE_BYTES + BESIDE_BYTES_MIN)
    sections = _open(path, cell, record)
    try:
        if record.is_history:
            return check_sections(record, sections)
        return TaskSegment(record, sections).content()
    except RowsDamaged as error:
        raise SnapshotCorrupt(path.name, str(error)) from error


def content_of(record: SegmentRecord, content: bytes) -> Tail | SpilledRows:
    """Return the rows of a segment from their bytes in log order. Raises RowsDamaged."""
    return Tail.of(content) if record.is_history else SpilledRows.of(content)


def _open(path: Path, cell: str, record: SegmentRecord) -> Sections:
    sections = open_segment(path, cell)
    if sections.header != header_of(cell, record):
        raise SnapshotCorrupt(path.name, "it is not the segment that the catalog names")
    return sections


class Folders:
    """The folders below `data` in which a replica of `cell` keeps segments and snapshots."""

    def __init__(self, data: Path, cell: str) -> None:
        self.cell = cell
        self.segments = data / "segments"
        self.snapshots = data / "snapshots"
        self.incoming = self.segments / "incoming"

    def open(self) -> set[str]:
        """Create the folders, remove unfinished files; return the names of the segments here.

        Raises:
            OSError: the disk failed.
        """
        shutil.rmtree(self.incoming, ignore_errors=True)
        for folder in (self.segments, self.snapshots, self.incoming):
            folder.mkdir(parents=True, exist_ok=True)
            disk.remove_unfinished(folder)
        disk.sync_directory(self.segments.parent)
        return {path.name for path in list_segments(self.segments) if path.stat().st_size}

    def listed(self) -> set[str]:
        """Return the names of all segments here, written or fetched."""
        return {path.name for path in list_segments(self.segments)}

    def write(self, sealed: Sealed) -> None:
        """Write a segment durably and verify it; an existing one stays.

        Raises:
            OSError, SnapshotError: the write failed; existing files are unchanged.
        """
        header, rows = header_of(self.cell, sealed.record), sealed.tail
        sections = sections_of(rows) if isinstance(rows, Tail) else task_sections(rows)
        write_segment(self.segments, header, sections)

    def read(self, record: SegmentRecord) -> bytes:
        """Return the rows of a segment in log order, verified by the catalog's digest.

        Raises:
            SnapshotError: it is not here, damaged, or another one.
            OSError: the disk failed.
        """
        return read_content(self.segments / name_of(record), self.cell, record)

    def admit(self, record: SegmentRecord) -> None:
        """Move a fetched segment into place if it is the one in the catalog; otherwise remove it.

        Raises:
            SnapshotError: it is not.
            OSError: the disk failed.
        """
        path = self.incoming / name_of(record)
        try:
            read_content(path, self.cell, record)
        except SnapshotError:
            path.unlink(missing_ok=True)
            raise
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
        os.replace(path, self.segments / path.name)
        disk.sync_directory(self.segments)

    def set_aside(self, path: Path) -> None:
        """Rename a damaged file, so that a person can examine it; keep one of each name."""
        try:
            os.replace(path, path.with_name(path.name + DAMAGED))
        except FileNotFoundError:
            return
        disk.sync_directory(path.parent)

    def remove_segments(self, names: Collection[str]) -> None:
        """Remove segments; missing ones are no error.

        Raises:
            OSError: the disk failed; some may be removed.
        """
        for name in names:
            for path in (self.segments / name, self.segments / (name + DAMAGED)):
                path.unlink(missing_ok=True)
        disk.sync_directory(self.segments)

    def retired(self, wanted: Collection[str], newest: Mapping[str, int]) -> list[str]:
        """Return the names of the segments here that are not wanted, up to the `newest` number of
        each stream: the log entries of newer ones may not have been applied again yet.
        """
        names = [path.name for path in list_segments(self.segments)]
        parsed = {name: parse_segment_name(name) for name in names}
        return [
            name
            for name, parts in parsed.items()
            if parts is not None and parts[1] <= newest[parts[2]] and name not in wanted
        ]

    def verified_snapshots(self) -> Iterator[SnapshotFile]:
        """Yield the valid snapshots, newest first; log damaged ones and set them aside.

        Raises:
            OSError: the disk failed.
        """
        for path in disk.list_snapshots(self.snapshots):
            try:
                yield disk.verify_snapshot(path, self.cell)
            except SnapshotError as error:
                _log.error("snapshot.damaged", snapshot=path.name, error=str(error))
                self.set_aside(path)

    def remove_snapshots(self, files: Iterable[SnapshotFile]) -> None:
        """Remove snapshots; log those that cannot be removed, and try them another time."""
        for file in files:
            try:
                file.path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("snapshot.stays", snapshot=file.path.name, error=str(error))

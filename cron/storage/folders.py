"""The folders of a replica's snapshots and segments, and what may be done to the files in them.

Blocks; for any thread. Nothing here is remembered: the files are what counts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

import structlog

from cron.errors import ConfigError
from cron.history.segment import Segment, sections_of
from cron.state.archive import Sealed, SegmentRecord
from cron.storage.segments import header_of, name_of, open_rows, read_content
from snapshots import disk
from snapshots.disk import SnapshotFile
from snapshots.errors import SnapshotError
from snapshots.layout import parse_segment_name
from snapshots.segments import list_segments, write_segment

_log = structlog.get_logger()

FOLDERS: Final = ("segments", "snapshots")
DAMAGED: Final = ".damaged"
OLDER_FORMATS: Final = ("history.sqlite",)
"""Files in a replica's folder that tell of formats that this release does not read."""


def check_format(data: Path) -> None:
    """Refuse a replica's folder that another format of history has left.

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


class Folders:
    """Where a replica of `cell` keeps segments and snapshots, below `data`."""

    def __init__(self, data: Path, cell: str) -> None:
        self.cell = cell
        self.segments = data / "segments"
        self.snapshots = data / "snapshots"
        self.incoming = self.segments / "incoming"

    def open(self) -> set[str]:
        """Make the folders, remove what a crash left half done; return the segments that are here.

        Raises:
            OSError: the disk refuses.
        """
        shutil.rmtree(self.incoming, ignore_errors=True)
        for folder in (self.segments, self.snapshots, self.incoming):
            folder.mkdir(parents=True, exist_ok=True)
            disk.remove_unfinished(folder)
        disk.sync_directory(self.segments.parent)
        return {path.name for path in list_segments(self.segments) if path.stat().st_size}

    def listed(self) -> set[str]:
        """Return the names of all segments that are files here, written or fetched."""
        return {path.name for path in list_segments(self.segments)}

    def write(self, sealed: Sealed) -> None:
        """Keep a segment, durably and verified; one that is here already stays.

        Raises:
            OSError, SnapshotError: the disk refuses; nothing was harmed.
        """
        header = header_of(self.cell, sealed.record)
        write_segment(self.segments, header, sections_of(sealed.tail))

    def open_rows(self, record: SegmentRecord) -> Segment:
        """Return a segment, of which only the beginning is read.

        Raises:
            SnapshotError: it is not here, damaged, or another one.
            OSError: the disk refuses.
        """
        return open_rows(self.segments / name_of(record), self.cell, record)

    def read(self, record: SegmentRecord) -> bytes:
        """Return the rows of a segment in log order, verified by what the catalog says of them.

        Raises:
            SnapshotError: it is not here, damaged, or another one.
            OSError: the disk refuses.
        """
        return read_content(self.segments / name_of(record), self.cell, record)

    def admit(self, record: SegmentRecord) -> None:
        """Keep a segment that was fetched, if it is what the catalog says; else it is removed.

        Raises:
            SnapshotError: it is not.
            OSError: the disk refuses.
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
        """Take a damaged file out of the way, for a person to look at: one of each name is kept."""
        try:
            os.replace(path, path.with_name(path.name + DAMAGED))
        except FileNotFoundError:
            return
        disk.sync_directory(path.parent)

    def remove_segments(self, names: Collection[str]) -> None:
        """Remove segments; missing ones are no error.

        Raises:
            OSError: the disk refuses; some may be gone.
        """
        for name in names:
            for path in (self.segments / name, self.segments / (name + DAMAGED)):
                path.unlink(missing_ok=True)
        disk.sync_directory(self.segments)

    def retired(self, wanted: Collection[str], seals: int) -> list[str]:
        """Return the segments on the disk, up to the Seal of number `seals`, that are not wanted:
        newer ones may be of log entries that have not been applied again yet."""
        names = [path.name for path in list_segments(self.segments)]
        parsed = {name: parse_segment_name(name) for name in names}
        return [
            name
            for name, parts in parsed.items()
            if parts is not None and parts[1] <= seals and name not in wanted
        ]

    def verified_snapshots(self) -> Iterator[SnapshotFile]:
        """Yield the snapshots that are whole, newest first; damaged ones are set aside and told.

        Raises:
            OSError: the disk refuses.
        """
        for path in disk.list_snapshots(self.snapshots):
            try:
                yield disk.verify_snapshot(path, self.cell)
            except SnapshotError as error:
                _log.error("snapshot.damaged", snapshot=path.name, error=str(error))
                self.set_aside(path)

    def remove_snapshots(self, files: Iterable[SnapshotFile]) -> None:
        """Remove snapshots; those that the disk does not let go are told, and go another time."""
        for file in files:
            try:
                file.path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("snapshot.stays", snapshot=file.path.name, error=str(error))

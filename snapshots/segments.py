"""Segments as files in one directory, with sections that can be read separately.

A segment is written, synced, renamed and read back like a snapshot (`disk.py`). The writer divides
the content into sections; each section has frames and a checksum of its own. The first frame is a
table of the sections' lengths. So a reader of one section reads and verifies only the beginning of
the file and that section. The whole file is verified when it is written or fetched.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

from snapshots import disk, zstd
from snapshots import format as form
from snapshots.disk import VerifiedFile
from snapshots.errors import SnapshotCorrupt, SnapshotError, SnapshotForeign
from snapshots.format import SegmentHeader
from snapshots.layout import parse_segment_name, segment_name

SEGMENT_BYTES_MAX: Final = 1 << 30
SECTIONS_MAX: Final = 1 << 17
"""Far above the number of sections of any segment, so the table fits into one frame."""
_FIRST_READ_BYTES: Final = 1 << 14


SegmentFile = VerifiedFile[SegmentHeader]


class Sections:
    """The sections of a segment's file. The file is not held open."""

    def __init__(self, path: Path, header: SegmentHeader, begin: int, sizes: Sequence[int]) -> None:
        self.path = path
        self.header = header
        self._offsets = [*accumulate(sizes, initial=begin)]

    def __len__(self) -> int:
        """Return the number of sections."""
        return len(self._offsets) - 1

    def read(self, number: int) -> bytes:
        """Return the content of a section.

        Raises:
            SnapshotMissing: the file is gone. SnapshotCorrupt: the section is damaged.
            OSError: the read failed.
        """
        begin, end = self._offsets[number : number + 2]
        with disk.opened(self.path) as file:
            stored = os.pread(file.fileno(), end - begin, begin)
        if len(stored) != end - begin:
            raise SnapshotCorrupt(self.path.name, "its end is missing")
        return b"".join(_unpacked(stored, self.path.name))


def open_segment(path: Path, cell: str) -> Sections:
    """Return the sections of the segment at `path`; reads only the beginning of the file.

    Raises:
        SnapshotMissing, SnapshotCorrupt, SnapshotUnsupported, SnapshotForeign: it cannot be used.
        OSError: the read failed.
    """
    name = path.name
    with disk.opened(path) as file:
        start = os.pread(file.fileno(), _FIRST_READ_BYTES, 0)
        at = form.LEAD.size + form.header_bytes(start, form.SEGMENT_MAGIC, name)
        header = form.decode_header(start, start[form.LEAD.size : at], SegmentHeader, name)
        if len(start) < at + form.LENGTH.size:
            raise SnapshotCorrupt(name, "its end is missing")
        (size,) = form.LENGTH.unpack_from(start, at)
        end = at + form.LENGTH.size + size
        if size > zstd.FRAME_STORED_BYTES_MAX:
            raise SnapshotCorrupt(name, f"a frame of {size} bytes is larger than any")
        if end > len(start):
            start = os.pread(file.fileno(), end, 0)
        file_bytes = os.fstat(file.fileno()).st_size
    _check_place(path, header, cell)
    table = b"".join(_unpacked(start[at:end], name))
    count, rest = divmod(len(table), form.LENGTH.size)
    sizes = struct.unpack_from(f">{count}I", table)
    if rest:
        raise SnapshotCorrupt(name, "its table of sections is not one")
    if end + sum(sizes) > file_bytes:
        raise SnapshotCorrupt(name, "its end is missing")
    return Sections(path, header, end, sizes)


def _unpacked(stored: bytes, name: str) -> Iterator[bytes]:
    """Yield the content of the frames in `stored`."""
    at = 0
    while at < len(stored):
        end = at + form.LENGTH.size
        if end <= len(stored):
            end += form.LENGTH.unpack_from(stored, at)[0]
        if end > len(stored):
            raise SnapshotCorrupt(name, "a frame is cut off")
        try:
            yield zstd.decompress(stored[at + form.LENGTH.size : end])
        except zstd.FrameDamaged as error:
            raise SnapshotCorrupt(name, str(error)) from error
        at = end


def write_segment(directory: Path, header: SegmentHeader, sections: Sequence[bytes]) -> SegmentFile:
    """Write a segment durably to `directory`; keep an existing file if it is the same.

    Raises:
        OSError: the write failed; existing files are unchanged.
        SnapshotCorrupt: the content is too large; or the file reads back differently, and was
            removed.
    """
    path = directory / segment_name(header.generation, header.number, header.stream)
    if sum(map(len, sections)) > SEGMENT_BYTES_MAX or len(sections) > SECTIONS_MAX:
        raise SnapshotCorrupt(path.name, f"it holds more than {SEGMENT_BYTES_MAX} bytes")
    with contextlib.suppress(SnapshotError):
        known = verify_segment(path, header.cell)
        if known.header == header:
            # An earlier writer may have died before it synced the directory.
            disk.sync_directory(directory)
            return known
    return disk.write_file(path, form.SEGMENT_MAGIC, header, _packed(sections), verify_segment)


def _packed(sections: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the frames of a segment: the table, then the frames of each section."""
    packed = [
        [(block, zstd.compress_checked(block)) for block in zstd.blocks((section,))]
        for section in sections
    ]
    sizes = [sum(form.LENGTH.size + len(frame) for _, frame in frames) for frames in packed]
    table = struct.pack(f">{len(sizes)}I", *sizes)
    yield table, zstd.compress_checked(table)
    for frames in packed:
        yield from frames


def verify_segment(path: Path, cell: str, content_max: int = SEGMENT_BYTES_MAX) -> SegmentFile:
    """Verify the segment at `path`, of at most `content_max` bytes; return its description.

    Raises:
        SnapshotMissing, SnapshotCorrupt, SnapshotUnsupported, SnapshotForeign: it cannot be used.
        OSError: the read failed.
    """
    file = disk.read_file(path, form.SEGMENT_MAGIC, SegmentHeader, content_max)
    _check_place(path, file.header, cell)
    return file


def _check_place(path: Path, header: SegmentHeader, cell: str) -> None:
    if header.cell != cell:
        raise SnapshotForeign(path.name, f"it is of cell {header.cell!r}, not {cell!r}")
    inside = (header.generation, header.number, header.stream)
    named = parse_segment_name(path.name)
    if named is not None and named != inside:
        raise SnapshotCorrupt(path.name, f"its content belongs to {segment_name(*inside)}")


def list_segments(directory: Path) -> list[Path]:
    """Return the segments in `directory`, oldest first; nothing is verified."""
    return sorted(path for path in disk.files_in(directory) if parse_segment_name(path.name))

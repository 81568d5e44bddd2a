"""A segment of the journal: a header that identifies its replica, then frames.

Layout: `magic 8 | format u32 | length u32 | header | crc32 u32`, the same in all future formats, so
that a newer format is not mistaken for damage; then frames `mark 4 | length u32 | sequence u64 |
crc32 u32 | records`. One sync writes one frame. A checksum covers the replica's token, the
segment's number, and the frame's sequence and length. So bytes inside an entry are never mistaken
for a frame of this journal, unless they are a copy of one, whose sequence is then older.

A segment is renamed to its final name only when its header and first frame are on the disk, and the
next segment is created only when all its frames are. So damage anywhere but in the last frame of
the last segment is not a torn write.
"""

from __future__ import annotations

import struct
import zlib
from typing import Annotated, Final

import msgspec

from consensus.engine.storage.disk import Disk, File
from consensus.errors import LogDamaged, UnknownFormat

MAGIC: Final = b"RCSEGMNT"
FORMAT: Final = 1
MARK: Final = b"\xf5RCf"
TEMPORARY: Final = "wal.new"
_PREFIX: Final = "wal-"
_DIGITS: Final = 20
_LEAD: Final = struct.Struct("<8sII")
_FRAME: Final = struct.Struct("<4sIQI")
FRAME_BYTES: Final = _FRAME.size
_SEED: Final = struct.Struct("<QQ")
_PLACE: Final = struct.Struct("<QI")
_HEADER_BYTES_MAX: Final = 4096

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """The owner of a journal: the cell, the id, the token drawn when this disk was first used, and
    whether the disk was created to replace a lost one.
    """

    cell: str
    replica: str
    token: Number
    joins: bool


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The header of a segment; `sequence` is that of its first frame."""

    number: Number
    sequence: Number
    identity: Identity


class Contents(msgspec.Struct, frozen=True):
    """The contents of a segment: places and records of its frames, and the end of the good ones."""

    name: str
    header: Header
    frames: list[tuple[int, memoryview]]
    end: int
    size: int


class Segment:
    """The segment that is being written."""

    def __init__(self, file: File, header: Header) -> None:
        self.file = file
        self.number = header.number
        self._seed = _seed(header)

    def append(self, sequence: int, records: bytes) -> None:
        """Write one frame and sync it."""
        checksum = _checksum(self._seed, sequence, records)
        self.file.append(_FRAME.pack(MARK, len(records), sequence, checksum) + records)
        self.file.sync()


def segment_name(number: int) -> str:
    """Return the name of the segment `number`."""
    return f"{_PREFIX}{number:0{_DIGITS}}"


def segment_numbers(names: list[str]) -> list[int]:
    """Return the numbers of the segments among `names`, in order."""
    return sorted(
        int(name[len(_PREFIX) :])
        for name in names
        if name.startswith(_PREFIX)
        and len(name) == len(_PREFIX) + _DIGITS
        and name[len(_PREFIX) :].isascii()
        and name[len(_PREFIX) :].isdigit()
    )


def write_segment(disk: Disk, header: Header, records: bytes) -> Segment:
    """Create a segment with `records` as its first frame, durably under its final name."""
    body = msgspec.msgpack.encode(header)
    lead = _LEAD.pack(MAGIC, FORMAT, len(body)) + body
    file = disk.create(TEMPORARY)
    file.append(lead + zlib.crc32(lead).to_bytes(4, "little"))
    segment = Segment(file, header)
    segment.append(header.sequence, records)
    disk.rename(TEMPORARY, segment_name(header.number))
    disk.sync_names()
    return segment


def read_segment(disk: Disk, number: int, *, is_last: bool) -> Contents:
    """Return the contents of a segment; only the last one may end with a torn frame.

    Raises:
        LogDamaged: it is damaged.
        UnknownFormat: a newer version wrote it.
    """
    name = segment_name(number)
    place = f"{disk.place}/{name}"
    file = disk.open(name)
    try:
        content = file.read(0, file.size)
    finally:
        file.close()
    header, offset = _read_header(content, place)
    if header.number != number:
        raise LogDamaged(place, f"says that it is segment {header.number}; it was renamed")
    frames, end = _read_frames(content, offset, header)
    if not frames:
        raise LogDamaged(place, f"its first frame, at byte {offset}, is damaged")
    if end < len(content):
        if not is_last:
            raise LogDamaged(place, f"frame at byte {end} is damaged, and a later segment exists")
        _check_tail(content, end, header, header.sequence + len(frames), place)
    return Contents(name, header, frames, end, len(content))


def _read_header(content: bytes, place: str) -> tuple[Header, int]:
    if len(content) < _LEAD.size:
        raise LogDamaged(place, f"a header needs more than the {len(content)} bytes that are there")
    magic, version, length = _LEAD.unpack_from(content)
    end = _LEAD.size + length
    if magic != MAGIC or length > _HEADER_BYTES_MAX or len(content) < end + 4:
        raise LogDamaged(place, "does not begin with the header of a journal's segment")
    if zlib.crc32(content[:end]).to_bytes(4, "little") != content[end : end + 4]:
        raise LogDamaged(place, "its header fails its checksum")
    if version > FORMAT:
        raise UnknownFormat(f"{place}: format {version} is newer than {FORMAT}, the newest known")
    try:
        header = msgspec.msgpack.decode(content[_LEAD.size : end], type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogDamaged(place, f"its header cannot be read: {error}") from error
    return header, end + 4


def _read_frames(
    content: bytes, offset: int, header: Header
) -> tuple[list[tuple[int, memoryview]], int]:
    view, seed = memoryview(content), _seed(header)
    sequence = header.sequence
    frames: list[tuple[int, memoryview]] = []
    while True:
        records = _frame_at(view, offset, seed, sequence, sequence)
        if records is None:
            return frames, offset
        frames.append((offset, records))
        offset += _FRAME.size + len(records)
        sequence += 1


def _frame_at(view: memoryview, offset: int, seed: int, least: int, most: int) -> memoryview | None:
    if offset + _FRAME.size > len(view):
        return None
    mark, length, sequence, checksum = _FRAME.unpack_from(view, offset)
    end = offset + _FRAME.size + length
    if mark != MARK or end > len(view) or not least <= sequence <= most:
        return None
    records = view[offset + _FRAME.size : end]
    return records if _checksum(seed, sequence, records) == checksum else None


def _check_tail(content: bytes, bad: int, header: Header, sequence: int, place: str) -> None:
    # At most one write was in progress, so nothing follows a torn frame.
    view, seed, most = memoryview(content), _seed(header), sequence + len(content)
    offset = content.find(MARK, bad + 1)
    while offset != -1:
        if _frame_at(view, offset, seed, sequence, most) is not None:
            raise LogDamaged(
                place, f"frame at byte {bad} is damaged, with a good one behind it at {offset}"
            )
        offset = content.find(MARK, offset + 1)


def _seed(header: Header) -> int:
    return zlib.crc32(_SEED.pack(header.identity.token, header.number))


def _checksum(seed: int, sequence: int, records: bytes | memoryview) -> int:
    return zlib.crc32(records, zlib.crc32(_PLACE.pack(sequence, len(records)), seed))

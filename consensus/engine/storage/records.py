"""The records in a journal's frame: encoding, and decoding with every length checked.

`E index u64 term u64 length u32 command` is an entry, `T index u64` a truncation from that index
on, `V term u64 length u32 vote` the hard state, `B index u64 term u64` a base: a dump covers
everything up to it. `S index u64 term u64` appears only in a segment's first frame: the last entry
before the segment. Any other kind was written by a newer version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, Literal

from consensus.errors import UnknownFormat

Entry = tuple[bytes, int, int]
"""Command, index, term: the engine's order."""

Record = (
    tuple[Literal["entry"], bytes, int, int, int]
    | tuple[Literal["vote"], str, int]
    | tuple[Literal["cut"], int]
    | tuple[Literal["base", "start"], int, int]
)

_ENTRY: Final = struct.Struct("<cQQI")
ENTRY_HEAD_BYTES: Final = _ENTRY.size
_CUT: Final = struct.Struct("<cQ")
_VOTE: Final = struct.Struct("<cQI")
_POINT: Final = struct.Struct("<cQQ")


class BadRecord(Exception):
    """A frame with a correct checksum has an invalid record; the message has its position."""


def pack_entry(command: bytes, index: int, term: int) -> bytes:
    """Return an entry's record without the command, which follows it."""
    return _ENTRY.pack(b"E", index, term, len(command))


def pack_cut(index: int) -> bytes:
    """Return the record of a truncation from `index` on."""
    return _CUT.pack(b"T", index)


def pack_vote(term: int, vote: str | None) -> bytes:
    """Return the record of the newest term and the vote in it."""
    name = (vote or "").encode()
    return _VOTE.pack(b"V", term, len(name)) + name


def pack_begin(index: int, term: int) -> bytes:
    """Return the record of a base: the log restarts behind (index, term)."""
    return _POINT.pack(b"B", index, term)


def pack_start(index: int, term: int) -> bytes:
    """Return the record of the entry that a segment continues."""
    return _POINT.pack(b"S", index, term)


def read_records(records: memoryview) -> Iterator[Record]:
    """Decode the records of one frame.

    Raises:
        BadRecord: a record is invalid.
        UnknownFormat: one is of a kind that this version does not know.
    """
    offset = 0
    while offset < len(records):
        try:
            record, offset = _record_at(records, offset)
        except (struct.error, UnicodeDecodeError) as error:
            raise BadRecord(f"record at byte {offset} of the frame: {error}") from error
        yield record


def _record_at(records: memoryview, offset: int) -> tuple[Record, int]:
    kind = records[offset]
    if kind == 0x45:
        _, index, term, length = _ENTRY.unpack_from(records, offset)
        offset += _ENTRY.size
        command = _bytes_at(records, offset, length)
        return ("entry", command, index, term, offset), offset + length
    if kind == 0x56:
        _, term, length = _VOTE.unpack_from(records, offset)
        offset += _VOTE.size
        name = _bytes_at(records, offset, length).decode()
        return ("vote", name, term), offset + length
    if kind == 0x54:
        _, index = _CUT.unpack_from(records, offset)
        return ("cut", index), offset + _CUT.size
    if kind in (0x42, 0x53):
        _, index, term = _POINT.unpack_from(records, offset)
        return ("base" if kind == 0x42 else "start", index, term), offset + _POINT.size
    raise UnknownFormat(f"a record of kind {bytes([kind])!r} in the journal is not known here")


def _bytes_at(records: memoryview, offset: int, length: int) -> bytes:
    if offset + length > len(records):
        raise struct.error(f"{length} bytes from {offset} on are over the frame's {len(records)}")
    return bytes(records[offset : offset + length])

"""The dump: the Applier's state at one position, in one file with a digest.

Layout: `magic 8 | format u32 | length u32 | header | crc32 u32 | state | size u64 | digest 32 |
crc32 u32`. The header is a msgpack array of term, index, the cell's members at that position and
its life; the size is that of the state; the digest is the SHA-256 of everything before the size. A
dump is written in pieces under a temporary name, synced and renamed; it is used only after its
digest was verified. A damaged dump stops the replica: with an empty state instead it could be
elected.
"""

from __future__ import annotations

import errno
import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import msgspec

from consensus.engine.storage.disk import Disk, File
from consensus.errors import LogDamaged, UnknownFormat
from consensus.leadership import Position
from consensus.limits import (
    DUMP_BYTES_MAX,
    DUMP_PIECE_BYTES,
    DUMP_SYNC_BYTES,
    ROOM_BYTES_MIN,
)

IN_FORCE: Final = "dump"
TAKEN: Final = "dump.taken"
"""The name of this replica's own dump before it is installed."""

MAGIC: Final = b"RCDUMPED"
FORMAT: Final = 1
_LEAD: Final = struct.Struct("<8sII")
_END: Final = struct.Struct("<Q32s")
_CRC_BYTES: Final = 4
_TRAILER_BYTES: Final = _END.size + _CRC_BYTES
_HEADER_BYTES_MAX: Final = 64 * 1024
FILE_BYTES_MAX: Final = (
    DUMP_BYTES_MAX + _LEAD.size + _HEADER_BYTES_MAX + _CRC_BYTES + _TRAILER_BYTES
)
"""The largest file of a dump."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Header(msgspec.Struct, frozen=True, array_like=True):
    term: _Number
    index: _Number
    members: bytes
    life: _Number = 0


class Dump(msgspec.Struct, frozen=True):
    """A dump's file: the position of the last entry in it, the members there, the size of its state
    in bytes, and the digest that identifies the file. `life` names the state with which the cell
    began, 0 for an empty one; every dump of a cell has the same.
    """

    name: str
    position: Position
    members: bytes
    size: int
    digest: bytes
    life: int = 0


class _Writer:
    """Appends pieces and computes the digest; syncs periodically."""

    def __init__(self, disk: Disk, file: File) -> None:
        self.digest = hashlib.sha256()
        self._disk = disk
        self._file = file
        self._buffer = bytearray()
        self._unsynced = 0

    def put(self, content: bytes) -> None:
        view = memoryview(content)
        for start in range(0, len(view), DUMP_PIECE_BYTES):
            self._buffer += view[start : start + DUMP_PIECE_BYTES]
            if len(self._buffer) >= DUMP_PIECE_BYTES:
                self.flush()

    def flush(self) -> None:
        if self._disk.room_bytes() < ROOM_BYTES_MIN:
            raise OSError(errno.ENOSPC, "too little room: what is left is the journal's")
        content, self._buffer = bytes(self._buffer), bytearray()
        self.digest.update(content)
        self._file.append(content)
        self._unsynced += len(content)
        if self._unsynced >= DUMP_SYNC_BYTES:
            self._file.sync()
            self._unsynced = 0


def write_dump(
    disk: Disk,
    name: str,
    position: Position,
    members: bytes,
    pieces: Iterable[bytes],
    *,
    life: int = 0,
) -> Dump:
    """Write a dump to `name` and sync it; the caller renames it to install it.

    Raises:
        OSError: nothing was written: no space (ENOSPC), the state is over DUMP_BYTES_MAX (EFBIG),
            or the disk failed. Errors of `pieces` pass.
    """
    file = disk.create(name)
    try:
        header = msgspec.msgpack.encode(_Header(position.term, position.index, members, life))
        if len(header) > _HEADER_BYTES_MAX:
            raise OSError(errno.EFBIG, f"a dump's header of {len(header)} bytes is too big", name)
        lead = _LEAD.pack(MAGIC, FORMAT, len(header)) + header
        writer, size = _Writer(disk, file), 0
        writer.put(lead + _crc(lead))
        for piece in pieces:
            size += len(piece)
            if size > DUMP_BYTES_MAX:
                raise OSError(errno.EFBIG, f"the state is over {DUMP_BYTES_MAX} bytes", name)
            writer.put(piece)
        writer.flush()
        digest = writer.digest.digest()
        end = _END.pack(size, digest)
        file.append(end + _crc(end))
        file.sync()
    except BaseException:
        file.close()
        disk.remove(name)
        raise
    file.close()
    return Dump(name, position, members, size, digest, life)


def check_dump(disk: Disk, name: str) -> Dump:
    """Verify a whole dump, in pieces, and return its description.

    Raises:
        LogDamaged: it is damaged or incomplete.
        UnknownFormat: a newer version wrote it.
    """
    file = disk.open(name)
    try:
        dump, start = _describe(file, name, f"{disk.place}/{name}")
        digest = hashlib.sha256()
        for piece in _pieces(file, 0, start + dump.size):
            digest.update(piece)
    finally:
        file.close()
    if digest.digest() != dump.digest:
        raise LogDamaged(f"{disk.place}/{name}", "the dump fails its digest")
    return dump


def read_pieces(disk: Disk, dump: Dump) -> Iterator[bytes]:
    """Return the state in a verified dump, in pieces. The file is opened at once, so that a later
    rename has no effect.

    Raises:
        LogDamaged: the file has changed.
    """
    file = disk.open(dump.name)
    try:
        found, start = _describe(file, dump.name, f"{disk.place}/{dump.name}")
        if found.digest != dump.digest:
            raise LogDamaged(f"{disk.place}/{dump.name}", "another dump took the place of this one")
    except BaseException:
        file.close()
        raise
    return _pieces_and_close(file, start, dump.size)


def _pieces_and_close(file: File, start: int, size: int) -> Iterator[bytes]:
    try:
        yield from _pieces(file, start, size)
    finally:
        file.close()


def _pieces(file: File, start: int, size: int) -> Iterator[bytes]:
    end = start + size
    while start < end:
        piece = file.read(start, min(DUMP_PIECE_BYTES, end - start))
        if not piece:
            raise OSError(errno.EIO, "a dump became shorter while it was read")
        start += len(piece)
        yield piece


def _describe(file: File, name: str, place: str) -> tuple[Dump, int]:
    """Return the description in header and end, without verifying the digest, and the state's
    offset.
    """
    if not _LEAD.size + _CRC_BYTES + _TRAILER_BYTES < file.size <= FILE_BYTES_MAX:
        raise LogDamaged(place, f"a file of {file.size} bytes is no dump")
    magic, version, length = _LEAD.unpack(file.read(0, _LEAD.size))
    start = _LEAD.size + length + _CRC_BYTES
    if magic != MAGIC or length > _HEADER_BYTES_MAX or file.size < start + _TRAILER_BYTES:
        raise LogDamaged(place, "does not begin with the header of a dump")
    lead = file.read(0, start)
    if _crc(lead[:-_CRC_BYTES]) != lead[-_CRC_BYTES:]:
        raise LogDamaged(place, "the dump's header fails its checksum")
    if version > FORMAT:
        raise UnknownFormat(f"{place}: format {version} is newer than {FORMAT}, the newest known")
    end = file.read(file.size - _TRAILER_BYTES, _TRAILER_BYTES)
    size, digest = _END.unpack(end[: _END.size])
    if _crc(end[: _END.size]) != end[_END.size :] or start + size + _TRAILER_BYTES != file.size:
        raise LogDamaged(place, "the dump's end is damaged or missing")
    try:
        header = msgspec.msgpack.decode(lead[_LEAD.size : -_CRC_BYTES], type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogDamaged(place, f"the dump's header cannot be read: {error}") from error
    at = Position(header.term, header.index)
    return Dump(name, at, header.members, size, digest, header.life), start


def _crc(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CRC_BYTES, "little")

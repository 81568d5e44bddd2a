"""The dump: the Applier's state at one position, in one file that proves itself.

Layout: `magic 8 | header length u32 | header | crc32 of the header u32 | state`; the header is a
msgpack array of term, index, state length and the state's SHA-256. A dump is written beside the old
one, synced, renamed; it is never read without its digest. A damaged one stops the replica: an
empty state in its place would take part and could lead.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path
from typing import Final

import msgspec

from consensus.engine.storage.disk import replace, sync_file, write_all
from consensus.errors import LogDamaged
from consensus.leadership import Position
from consensus.limits import DUMP_BYTES_MAX

MAGIC: Final = b"RCDUMP01"
_HEADER_BYTES_MAX: Final = 4096


class _Header(msgspec.Struct, frozen=True, array_like=True):
    term: int
    index: int
    size: int
    digest: bytes


class Dump(msgspec.Struct, frozen=True):
    """A state and the position of the last entry in it."""

    position: Position
    state: bytes


def write_taken(path: Path, dump: Dump) -> None:
    """Write `dump` to `path`, synced; the caller renames it to where it is in force."""
    digest = hashlib.sha256(dump.state).digest()
    header = msgspec.msgpack.encode(
        _Header(dump.position.term, dump.position.index, len(dump.state), digest)
    )
    lead = MAGIC + len(header).to_bytes(4, "big") + header + zlib.crc32(header).to_bytes(4, "big")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, lead)
        write_all(descriptor, dump.state)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_dump(path: Path) -> Dump:
    """Return the dump at `path`.

    Raises:
        LogDamaged: it is not whole.
    """
    if path.stat().st_size > DUMP_BYTES_MAX + _HEADER_BYTES_MAX:
        raise LogDamaged(str(path), f"dump is over {DUMP_BYTES_MAX} bytes")
    content = path.read_bytes()
    length = int.from_bytes(content[8:12], "big")
    end = 12 + length
    if content[:8] != MAGIC or length > _HEADER_BYTES_MAX or len(content) < end + 4:
        raise LogDamaged(str(path), "not a dump of this format")
    if zlib.crc32(content[12:end]).to_bytes(4, "big") != content[end : end + 4]:
        raise LogDamaged(str(path), "dump's header fails its checksum")
    header = msgspec.msgpack.decode(content[12:end], type=_Header)
    state = content[end + 4 :]
    if len(state) != header.size or hashlib.sha256(state).digest() != header.digest:
        raise LogDamaged(str(path), "dump's state fails its digest")
    return Dump(Position(header.term, header.index), state)


class Incoming:
    """A dump that arrives from the leader in pieces, in a file of its own until it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.target: tuple[int, int, int] | None = None
        self.offset = 0
        self._descriptor = -1

    def take(self, target: tuple[int, int, int], offset: int, piece: bytes) -> Dump | None:
        """Take a piece of the dump `target` (term, index, size); return it once whole and good.

        A piece that does not continue what is there is dropped; `offset` says what is missing. A
        dump that is whole and bad is dropped too, and is asked for again from its start.
        """
        if target[2] > DUMP_BYTES_MAX + _HEADER_BYTES_MAX:
            return None
        if target != self.target:
            self.drop()
            self.target = target
            self._descriptor = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
            )
        if offset != self.offset or offset + len(piece) > target[2]:
            return None
        write_all(self._descriptor, piece)
        self.offset += len(piece)
        return self._finish(target) if self.offset == target[2] else None

    def _finish(self, target: tuple[int, int, int]) -> Dump | None:
        sync_file(self.path)
        try:
            dump = read_dump(self.path)
        except LogDamaged:
            dump = None
        if dump is None or dump.position != Position(target[0], target[1]):
            self.drop()
            return None
        return dump

    def drop(self) -> None:
        """Forget what has come."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self.target, self.offset = -1, None, 0
        self.path.unlink(missing_ok=True)

    def install(self, path: Path) -> None:
        """Put the whole dump in the place of the old one."""
        replace(self.path, path)
        self.drop()

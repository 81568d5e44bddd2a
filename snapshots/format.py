"""The file format of snapshots and segments: header, lengths, checksums. Pure; `disk` does the I/O.

All kinds of files have the same structure. Integers are big-endian and unsigned.

    offset  bytes  what
         0      8  magic: 89 "RCSNAP" 0A, or 89 "RCSEGM" 0A
         8      2  format version, 3
        10      4  H, length of the header
        14      H  the header, MessagePack
      14+H      …  frames: length u32 | zstd frame of at most 1 MiB of content
         …      4  zero: no frame follows
         …      8  length of the content
         …     32  SHA-256 of the content
         …     32  SHA-256 of all bytes before

A segment consists of sections, which are compressed separately, so that one can be read alone. The
first frame contains the total length of each section's frames, as u32.

Invariant: equal contents give equal bytes, and a file with any other bytes is refused: a flipped
bit anywhere, a lost tail, additional bytes.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Annotated, Any, Final, TypeVar

import msgspec

from snapshots.errors import SnapshotCorrupt, SnapshotUnsupported, invariant

SNAPSHOT_MAGIC: Final = b"\x89RCSNAP\n"
SEGMENT_MAGIC: Final = b"\x89RCSEGM\n"
ENCRYPTED: Final = b"\x89RCENCR\n"
"""How an object of an encrypted store begins (`encrypted`)."""
KEY_MISSING: Final = "it is encrypted: name the key file, ?key=FILE in the store's URL"
FORMAT_VERSION: Final = 3
HEADER_BYTES_MAX: Final = 4096
CONTENT_BYTES_MAX: Final = 8 << 30
CHECKSUM_BYTES: Final = 32
LEAD: Final = struct.Struct(">8sHI")
LENGTH: Final = struct.Struct(">I")
END: Final = struct.Struct(">Q32s")
TAIL_BYTES: Final = LENGTH.size + END.size + CHECKSUM_BYTES

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
H = TypeVar("H", bound=msgspec.Struct)


class SnapshotHeader(msgspec.Struct, frozen=True, array_like=True):
    """A state at a position of a cell's log. `digest` is the digest by which replicas compare
    states; `taken_ms` is the log's time at the position.
    """

    cell: str
    generation: Number
    term: Number
    index: Number
    digest: bytes
    taken_ms: Number


class SegmentHeader(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one stream with `from_index` < log index <= `to_index`. `digest` is the digest of the
    rows, as in the cell's catalog.
    """

    cell: str
    generation: Number
    number: Number
    stream: str
    from_index: Number
    to_index: Number
    rows: Number
    digest: bytes


class OutputHeader(msgspec.Struct, frozen=True, array_like=True):
    """The header of an output. The content has `size` bytes; `dropped` bytes before it exceeded the
    executor's limit and were discarded.
    """

    cell: str
    launch: str
    attempt: Number
    size: Number
    dropped: Number


def encode_lead(magic: bytes, header: msgspec.Struct) -> bytes:
    """Return the bytes before the first frame."""
    encoded = msgspec.msgpack.encode(header)
    invariant(len(encoded) <= HEADER_BYTES_MAX, "snapshot: the header does not fit")
    return LEAD.pack(magic, FORMAT_VERSION, len(encoded)) + encoded


def header_bytes(lead: bytes, magic: bytes, name: str) -> int:
    """Return the length of the header that follows `lead`, the first bytes of a file.

    Raises:
        SnapshotCorrupt: the file does not begin like a file of this kind.
    """
    if lead.startswith(ENCRYPTED):
        raise SnapshotCorrupt(name, KEY_MISSING)
    if len(lead) < LEAD.size or not lead.startswith(magic):
        raise SnapshotCorrupt(name, "it does not begin like one")
    _, _, size = LEAD.unpack_from(lead)
    if size > HEADER_BYTES_MAX:
        raise SnapshotCorrupt(name, f"its header of {size} bytes is longer than any")
    return int(size)


def decode_header(lead: bytes, content: bytes, kind: type[H], name: str) -> H:
    """Return the header of a file whose checksum was verified.

    Raises:
        SnapshotUnsupported: another release wrote it.
        SnapshotCorrupt: the header cannot be decoded although the checksum is right.
    """
    _, version, _ = LEAD.unpack_from(lead)
    if version != FORMAT_VERSION:
        text = f"it has format {version}, and this release reads {FORMAT_VERSION}"
        raise SnapshotUnsupported(name, text)
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotCorrupt(name, f"its header cannot be read: {error}") from error


class Summing:
    """The two checksums of a file, updated as its bytes are read or written."""

    def __init__(self) -> None:
        self.content = hashlib.sha256()
        self.file: Any = hashlib.sha256()
        self.content_bytes = 0

    def add_content(self, block: bytes) -> None:
        """Add a block of content."""
        self.content.update(block)
        self.content_bytes += len(block)

    def end(self) -> bytes:
        """Return the bytes behind the last frame, without the checksum that covers them."""
        return LENGTH.pack(0) + END.pack(self.content_bytes, self.content.digest())

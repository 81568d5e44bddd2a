"""The frame of a snapshot: what makes bytes on a disk a snapshot that can be trusted. Pure.

    offset  bytes  what (integers are big-endian, unsigned)
         0      8  magic 89 52 43 53 4E 41 50 0A: "\\x89RCSNAP\\n"
         8      2  format version, 1
        10      1  codec of the payload: 0 none
        11      1  C, length of the cell's name
        12      1  D, length of the digest
        13      3  zero
        16      8  term    } position of the last entry
        24      8  index   } that is in the payload
        32      8  P, length of the payload as it is stored
        40      C  the cell's name, UTF-8
      40+C      D  digest of the state, of its uncompressed content (rule R12)
    40+C+D      P  payload
         …     32  SHA-256 of all bytes before

Invariant: equal contents have equal bytes, and any other bytes than those written are refused: a
flipped bit anywhere, a lost tail, bytes in addition.
"""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum
from typing import Final

import msgspec

from snapshots.errors import SnapshotCorrupt, SnapshotUnsupported, invariant

MAGIC: Final = b"\x89RCSNAP\n"
FORMAT_VERSION: Final = 1
CELL_BYTES_MAX: Final = 255
DIGEST_BYTES_MAX: Final = 255

_HEADER: Final = struct.Struct(">8sHBBB3xQQQ")
_CHECKSUM_BYTES: Final = 32
_SHORTEST: Final = _HEADER.size + _CHECKSUM_BYTES


class Codec(IntEnum):
    """How the payload is stored. The numbers are on disks: append, never renumber."""

    NONE = 0


class Snapshot(msgspec.Struct, frozen=True):
    """State at a position of a cell's log. `digest` is the state's, not that of these bytes."""

    cell: str
    term: int
    index: int
    digest: bytes
    payload: bytes
    codec: Codec = Codec.NONE


def encode(snapshot: Snapshot) -> bytes:
    """Return the bytes of `snapshot`; equal snapshots have equal bytes.

    Raises:
        InvariantViolated: a field does not fit into the frame.
    """
    cell = snapshot.cell.encode()
    invariant(0 < len(cell) <= CELL_BYTES_MAX, "snapshot: cell name does not fit")
    invariant(len(snapshot.digest) <= DIGEST_BYTES_MAX, "snapshot: digest does not fit")
    for number in (snapshot.term, snapshot.index):
        invariant(0 <= number < 1 << 64, "snapshot: position does not fit")
    header = _HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        snapshot.codec,
        len(cell),
        len(snapshot.digest),
        snapshot.term,
        snapshot.index,
        len(snapshot.payload),
    )
    body = b"".join((header, cell, snapshot.digest, snapshot.payload))
    return body + hashlib.sha256(body).digest()


def decode(content: bytes, name: str = "snapshot") -> Snapshot:
    """Return the snapshot that was encoded to `content`; `name` is for messages.

    The checksum is verified before anything else is believed but the magic and the version, which
    say how to verify it.

    Raises:
        SnapshotCorrupt: these are not the bytes of a snapshot.
        SnapshotUnsupported: it is of a newer format, or its codec is not known.
    """
    _verify(content, name)
    _, _, codec, cell_bytes, digest_bytes, term, index, payload_bytes = _HEADER.unpack_from(content)
    expected = _SHORTEST + cell_bytes + digest_bytes + payload_bytes
    if len(content) != expected or not cell_bytes:
        raise SnapshotCorrupt(name, f"it has {len(content)} bytes, its header says {expected}")
    if codec not in Codec.__members__.values():
        raise SnapshotUnsupported(name, f"its codec {codec} is not known")
    digest_at = _HEADER.size + cell_bytes
    payload_at = digest_at + digest_bytes
    try:
        cell = content[_HEADER.size : digest_at].decode()
    except UnicodeDecodeError as error:
        raise SnapshotCorrupt(name, "the cell's name is not UTF-8") from error
    return Snapshot(
        cell,
        term,
        index,
        content[digest_at:payload_at],
        content[payload_at:-_CHECKSUM_BYTES],
        Codec(codec),
    )


def _verify(content: bytes, name: str) -> None:
    if len(content) < _SHORTEST:
        raise SnapshotCorrupt(name, f"it has {len(content)} bytes, the shortest has {_SHORTEST}")
    if not content.startswith(MAGIC):
        raise SnapshotCorrupt(name, "it does not begin like a snapshot")
    view = memoryview(content)
    if hashlib.sha256(view[:-_CHECKSUM_BYTES]).digest() != view[-_CHECKSUM_BYTES:]:
        raise SnapshotCorrupt(name, "its checksum does not match")
    version = int.from_bytes(view[8:10], "big")
    if version != FORMAT_VERSION:
        raise SnapshotUnsupported(name, f"its format {version} is not {FORMAT_VERSION}")

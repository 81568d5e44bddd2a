"""What an attempt wrote, as one object: fetched, and unpacked once it is verified.

The frame is that of snapshots and segments (`format`), with a magic of its own. Its executor packs
it (`launcher.executor.packing`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from snapshots import disk
from snapshots import format as form
from snapshots.errors import (
    ObjectMissing,
    OutputDamaged,
    SnapshotCorrupt,
    SnapshotForeign,
)
from snapshots.format import Number
from snapshots.store import ObjectStore

OUTPUT_MAGIC: Final = b"\x89RCOUTP\n"
OUTPUT_BYTES_MAX: Final = 1 << 30
"""What an executor keeps of one attempt at most."""
_FRAMING_BYTES_MAX: Final = 16 << 10
"""Of header, lengths and sums, with room."""


class OutputHeader(msgspec.Struct, frozen=True, array_like=True):
    """Whose output it is. The content has `size` bytes; `dropped` bytes before it were over the
    executor's bound, and nobody has them."""

    cell: str
    launch: str
    attempt: Number
    size: Number
    dropped: Number


class PackedOutput(msgspec.Struct, frozen=True):
    """An output as it is stored: its size and SHA-256."""

    size: int
    sha256: bytes


def packed_bytes_max(output_bytes: int) -> int:
    """Return how large the object of so many bytes of output may be, with room."""
    return output_bytes + (output_bytes >> 6) + _FRAMING_BYTES_MAX


def fetch(store: ObjectStore, name: str, whose: OutputHeader, path: Path) -> OutputHeader | None:
    """Write a stored output to `path`, verified, and return its header; None if there is none.

    `whose` says of which cell, launch and attempt it must be, and how large it is at most: nobody
    fetches or unpacks more. Uses a file beside `path`.

    Raises:
        OutputDamaged, SnapshotForeign, SnapshotUnsupported: nothing of it may be shown.
        StoreError, OSError: it cannot be read now.
    """
    packed = path.with_name(path.name + disk.UNFINISHED)
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = store.head(name)
    if entry is None:
        return None
    if entry.size > packed_bytes_max(whose.size):
        raise OutputDamaged(name, f"{entry.size} bytes are stored, far more than its launch wrote")
    try:
        store.get_file(name, packed)
        return _unpack(name, packed, whose, path)
    except ObjectMissing:
        return None
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        packed.unlink(missing_ok=True)


def _unpack(name: str, packed: Path, whose: OutputHeader, path: Path) -> OutputHeader:
    try:
        with disk.create(path) as file:
            read = disk.read_frames(packed, OUTPUT_MAGIC, file.write, whose.size)
        header = form.decode_header(read.lead, read.header, OutputHeader, name)
    except SnapshotCorrupt as error:
        raise OutputDamaged(name, str(error).partition(": ")[2]) from error
    if header.cell != whose.cell:
        raise SnapshotForeign(name, f"it is of cell {header.cell!r}, not {whose.cell!r}")
    inside = (header.launch, header.attempt, header.size)
    if inside != (whose.launch, whose.attempt, read.content_bytes):
        raise OutputDamaged(name, f"it is {header.size} bytes of {header.launch}#{header.attempt}")
    return header

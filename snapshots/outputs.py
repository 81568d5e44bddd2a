"""The output of an attempt as one stored object: fetch, verify, decompress.

The file format is that of snapshots and segments (`format`), with its own magic. The executor
writes it (`launcher.executor.uploads`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from snapshots import disk
from snapshots.errors import ObjectMissing, SnapshotCorrupt, SnapshotForeign
from snapshots.format import OutputHeader
from snapshots.store import ObjectStore

OUTPUT_MAGIC: Final = b"\x89RCOUTP\n"
OUTPUT_BYTES_MAX: Final = 1 << 30
"""The largest output that an executor keeps of one attempt."""
_FRAMING_BYTES_MAX: Final = 16 << 10
"""An upper bound for header, lengths and checksums."""


class PackedOutput(msgspec.Struct, frozen=True):
    """An output as it is stored: its size and SHA-256."""

    size: int
    sha256: bytes


def packed_bytes_max(output_bytes: int) -> int:
    """Return an upper bound for the size of the object that holds `size` bytes of output."""
    return output_bytes + (output_bytes >> 6) + _FRAMING_BYTES_MAX


def fetch(store: ObjectStore, name: str, whose: OutputHeader, path: Path) -> OutputHeader | None:
    """Write a stored output to `path`, verified, and return its header; None if there is none.

    `whose` is the expected cell, launch and attempt, and the largest size: no more is fetched
    or decompressed. Uses a temporary file beside `path`.

    Raises:
        SnapshotCorrupt, SnapshotForeign, SnapshotUnsupported: the output must not be shown.
        StoreError, OSError: the output cannot be read now.
    """
    packed = path.with_name(path.name + disk.UNFINISHED)
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = store.head(name)
    if entry is None:
        return None
    if entry.size > packed_bytes_max(whose.size):
        raise SnapshotCorrupt(
            name, f"{entry.size} bytes are stored, far more than its launch wrote"
        )
    try:
        store.get_file(name, packed)
        with disk.create(path) as file:
            read = disk.read_file(packed, OUTPUT_MAGIC, OutputHeader, whose.size, file.write)
        header = read.header
        if header.cell != whose.cell:
            raise SnapshotForeign(name, f"it is of cell {header.cell!r}, not {whose.cell!r}")
        inside = (header.launch, header.attempt, header.size)
        if inside != (whose.launch, whose.attempt, read.content_bytes):
            raise SnapshotCorrupt(
                name, f"it is {header.size} bytes of {header.launch}#{header.attempt}"
            )
        return header
    except ObjectMissing:
        return None
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        packed.unlink(missing_ok=True)

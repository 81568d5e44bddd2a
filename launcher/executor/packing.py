"""Packs what an attempt wrote into one object for object storage.

The format is that of `snapshots.format` and `snapshots.outputs`, which read it and verify all of
it: a lead, a header, frames of zstd, both digests. Blocks; for a thread.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from launcher.executor import output
from launcher.names import AttemptName

MAGIC: Final = b"\x89RCOUTP\n"
VERSION: Final = 3
FRAME_BYTES: Final = 1 << 20
LEVEL: Final = 3
LEAD: Final = struct.Struct(">8sHI")
LENGTH: Final = struct.Struct(">I")
END: Final = struct.Struct(">Q32s")


class Packed(NamedTuple):
    """An object that is ready: its file, its size and its SHA-256."""

    path: Path
    size: int
    sha256: bytes


def pack(stem: str, path: Path, cell: str, name: AttemptName) -> Packed | None:
    """Write the object of the output at `stem` to `path`; None if there is no output.

    Raises:
        OSError: the disk refuses.
    """
    from backports import zstd  # only an executor whose cell stores outputs pays for it

    kept = output.read(stem, 0, 0, tail=False)
    if not kept.kept:
        return None
    whose = (cell, str(name.launch), name.attempt, kept.kept, kept.dropped)
    header = msgspec.msgpack.encode(whose)
    content, whole, size = hashlib.sha256(), hashlib.sha256(), 0
    with path.open("wb") as file:

        def put(piece: bytes) -> None:
            nonlocal size
            whole.update(piece)
            size += file.write(piece)

        put(LEAD.pack(MAGIC, VERSION, len(header)) + header)
        done, end = kept.dropped, kept.dropped + kept.kept
        while done < end:
            block = output.read(stem, done, FRAME_BYTES, tail=False).data
            if not block:
                return None  # it was let go meanwhile
            content.update(block)
            frame = zstd.compress(block, LEVEL)
            put(LENGTH.pack(len(frame)) + frame)
            done += len(block)
        put(LENGTH.pack(0) + END.pack(kept.kept, content.digest()))
        put(whole.digest())  # it covers all before it, and the last digest all of the object
    return Packed(path, size, whole.digest())

"""Thumbnails in plain Python: handlers, which `raftcron worker pictures` runs."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

from raftcron import Fatal, handler

FOLDER = Path(os.environ.get("THUMBNAILS", "thumbnails"))
SIDE, SMALL = 48, 12


@handler("thumbnails.make", timeout="1m")
def make(number: int) -> None:
    """Write the thumbnail of a picture. An attempt that is repeated writes the same file."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = FOLDER / f"{number}.part-{os.getpid()}"
    part.write_bytes(png(shrink(draw(number))))
    part.replace(FOLDER / f"{number}.png")


@handler("thumbnails.index", timeout="5m")
def index(count: int) -> str:
    """Write a page that shows all thumbnails. It runs once, when all of them are over."""
    files = [FOLDER / f"{number}.png" for number in range(count)]
    made = [file.name for file in files if file.exists()]
    page = "\n".join(f'<img src="{name}" alt="{name}">' for name in made)
    (FOLDER / "index.html").write_text(page)
    if len(made) < count:
        raise Fatal(f"{count - len(made)} of {count} thumbnails are missing")
    return f"{count} thumbnails"


def draw(number: int) -> list[bytes]:
    """Return the rows of a grey picture, a byte for each pixel; each number has its own."""
    return [bytes((number * 7 + x * y) % 256 for x in range(SIDE)) for y in range(SIDE)]


def shrink(rows: list[bytes]) -> list[bytes]:
    """Return a picture with the mean of each block of pixels."""
    block = SIDE // SMALL
    sums = [[sum(row[x : x + block]) for x in range(0, SIDE, block)] for row in rows]
    return [
        bytes(sum(column) // block**2 for column in zip(*sums[y : y + block], strict=True))
        for y in range(0, SIDE, block)
    ]


def png(rows: list[bytes]) -> bytes:
    """Return a grey picture as a file in PNG."""
    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = ((b"IHDR", head), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in parts
    )

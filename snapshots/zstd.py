"""Compression into frames of a fixed size; equal content gives equal bytes.

Each frame holds `FRAME_BYTES` of content, the last one the rest, however the content is divided
into pieces. Level and library are part of the file formats: replicas compare bytes (rule R12).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from backports import zstd

LEVEL: Final = 3
FRAME_BYTES: Final = 1 << 20
FRAME_STORED_BYTES_MAX: Final = FRAME_BYTES + (FRAME_BYTES >> 8) + 64
"""An upper bound of ZSTD_compressBound for a frame."""
_LIMITS: Final[dict[int, int]] = {
    zstd.DecompressionParameter.window_log_max: FRAME_BYTES.bit_length() - 1
}
"""The largest window, and so the largest memory, that a frame's header may ask for."""


_CHECKED: Final[dict[int, int]] = {
    zstd.CompressionParameter.compression_level: LEVEL,
    zstd.CompressionParameter.checksum_flag: 1,
}


class FrameDamaged(ValueError):
    """The bytes are not a valid frame."""


def compress(content: bytes) -> bytes:
    """Return one frame of at most `FRAME_BYTES` of content."""
    return zstd.compress(content, LEVEL)


def compress_checked(content: bytes) -> bytes:
    """Return one frame of at most `FRAME_BYTES` of content, with a checksum that `decompress`
    verifies.
    """
    return zstd.compress(content, options=_CHECKED)


def decompress(frame: bytes) -> bytes:
    """Return the content of one frame, at most `FRAME_BYTES`.

    Raises:
        FrameDamaged: it is not a frame, or holds more; nothing beyond the limit is
            decompressed.
    """
    try:
        unpacker = zstd.ZstdDecompressor(options=_LIMITS)
        content = unpacker.decompress(frame, FRAME_BYTES + 1)
        if len(content) > FRAME_BYTES or not unpacker.eof or unpacker.unused_data:
            raise FrameDamaged("a frame is not whole, or larger than any")
        return content
    except zstd.ZstdError as error:
        raise FrameDamaged(f"a frame cannot be unpacked: {error}") from error


def blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content again in blocks of exactly `FRAME_BYTES`, the last one shorter."""
    rest = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), FRAME_BYTES):
            rest += view[start : start + FRAME_BYTES]
            while len(rest) >= FRAME_BYTES:
                yield bytes(rest[:FRAME_BYTES])
                del rest[:FRAME_BYTES]
    if rest:
        yield bytes(rest)

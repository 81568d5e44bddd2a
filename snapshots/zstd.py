"""The one door to compression: content in frames of a fixed size, equal content to equal bytes.

A frame holds `FRAME_BYTES` of content, the last one the rest, however the content came in. Level
and library are part of the file formats: replicas compare bytes (rule R12).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from backports import zstd

LEVEL: Final = 3
FRAME_BYTES: Final = 1 << 20
FRAME_STORED_BYTES_MAX: Final = FRAME_BYTES + (FRAME_BYTES >> 8) + 64
"""ZSTD_compressBound of a frame, with room."""
_LIMITS: Final[dict[int, int]] = {
    zstd.DecompressionParameter.window_log_max: FRAME_BYTES.bit_length() - 1
}
"""A frame's header says how much memory reading it takes: no more than its content may have."""


_CHECKED: Final[dict[int, int]] = {
    zstd.CompressionParameter.compression_level: LEVEL,
    zstd.CompressionParameter.checksum_flag: 1,
}


class FrameDamaged(ValueError):
    """These bytes are not a frame."""


def compress(content: bytes) -> bytes:
    """Return one frame of at most `FRAME_BYTES` of content."""
    return zstd.compress(content, LEVEL)


def compress_checked(content: bytes) -> bytes:
    """Return one frame of at most `FRAME_BYTES` of content that a reader can trust by itself:
    `decompress` compares a sum that is in it."""
    return zstd.compress(content, options=_CHECKED)


def decompress(frame: bytes) -> bytes:
    """Return the content of one frame, at most `FRAME_BYTES`.

    Raises:
        FrameDamaged: it is none, or holds more: nothing is unpacked beyond the limit.
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

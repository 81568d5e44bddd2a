"""What stands behind a log of the bench, and what it notices: a dict, and gaps between events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from bench.workloads import Item
from consensus.leadership import Position

PIECE_ITEMS: Final = 100

_encoder = msgspec.msgpack.Encoder()
_items: msgspec.msgpack.Decoder[list[Item]] = msgspec.msgpack.Decoder(list[Item])


class Dictionary:
    """The Applier: the newest value of every key, in memory."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def apply(self, position: Position, entry: bytes) -> int:
        """Put the items; the answer is their number."""
        items = _items.decode(entry)
        self.values.update(items)
        return len(items)

    def take(self) -> Iterable[bytes]:
        """Return the items of this moment, encoded as they are asked for."""
        return _pieces(list(self.values.items()))

    def restore(self, position: Position, pieces: Iterable[bytes]) -> None:
        """Put the items of a dump in the place of all others."""
        unpacked: dict[bytes, bytes] = {}
        rest = b""
        for piece in pieces:
            rest += piece
            while len(rest) >= 4 and len(rest) >= (size := int.from_bytes(rest[:4], "big")) + 4:
                unpacked.update(_items.decode(rest[4 : 4 + size]))
                rest = rest[4 + size :]
        self.values = unpacked


def _pieces(items: list[Item]) -> Iterator[bytes]:
    for at in range(0, len(items), PIECE_ITEMS):
        piece = _encoder.encode(items[at : at + PIECE_ITEMS])
        yield len(piece).to_bytes(4, "big") + piece


class Gaps:
    """The longest time between two events since it was asked last."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._longest = 0.0

    def note(self) -> None:
        """An event happened now."""
        now = time.perf_counter()
        self._longest = max(self._longest, now - self._last)
        self._last = now

    def take(self) -> float:
        """Return the longest gap in milliseconds, and begin anew now."""
        self.note()
        longest, self._longest = self._longest, 0.0
        return round(longest * 1000, 1)

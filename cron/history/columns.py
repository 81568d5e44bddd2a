"""Integers as columns of bytes, and encoded rows packed, for compression. Pure.

The first byte of each integer, then the second of each, and so on: most of these columns are one
byte over and over, which compresses to nothing. Encoded rows of the same length are written in the
same way, since rows of a job have the same fields in the same places.

Packed rows are:

    u32          n, how many rows there are
    4 * n        the length of each row, as u32, in columns
    …            the rows, in groups of equal length, the shortest first; a group of few rows, or of
                 long ones, as they are, any other in columns

Integers are little-endian.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from cron.state.tail import RowsDamaged

COLUMN_ROWS_MIN: Final = 8
"""Fewer rows than this compress as well as they are."""
COLUMN_BYTES_MAX: Final = 1024
"""A longer row is mostly text, and each of its bytes would cost a slice."""
_WIDTH: Final = 8

Bytes = bytes | bytearray | memoryview


def to_columns(items: array[int]) -> bytes:
    """Return integers as columns of their bytes, the lowest byte of each first."""
    if sys.byteorder == "big":
        items = items[:]
        items.byteswap()
    raw = items.tobytes()
    return b"".join([raw[at :: items.itemsize] for at in range(items.itemsize)])


def from_columns(code: str, columns: Bytes) -> array[int]:
    """Return the integers, of an array's type code, that `to_columns` was given.

    Raises:
        RowsDamaged: it was given others.
    """
    items = array(code)
    width = items.itemsize
    count, rest = divmod(len(columns), width)
    if rest:
        raise RowsDamaged("segment: a column of numbers is cut off")
    raw = bytearray(len(columns))
    for at in range(width):
        raw[at::width] = columns[at * count : (at + 1) * count]
    items.frombytes(raw)
    if sys.byteorder == "big":
        items.byteswap()
    return items


def from_bytes(raw: Bytes) -> array[int]:
    """Return integers of 64 bits, signed."""
    items = array("q")
    items.frombytes(raw)
    if sys.byteorder == "big":
        items.byteswap()
    return items


def to_planes(items: array[int]) -> bytes:
    """Return integers of 64 bits, one at least: a byte whose bits say which of their bytes differ,
    the first integer, then a column for each of these bytes."""
    columns, rows = to_columns(items), len(items)
    mask, planes = 0, [columns[::rows]]
    for at in range(_WIDTH):
        plane = columns[at * rows : (at + 1) * rows]
        if plane.count(plane[0]) != rows:
            mask |= 1 << at
            planes.append(plane)
    return bytes((mask,)) + b"".join(planes)


class Planes:
    """Reads what `to_planes` returned, one after the other.

    Raises:
        RowsDamaged: it returned something else.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def read(self, rows: int) -> array[int]:
        """Return the next integers, which are so many."""
        mask = self._take(1)[0]
        first = self._take(_WIDTH)
        if not mask:
            return array("q", (int.from_bytes(first, "little", signed=True),)) * rows
        raw = bytearray(first * rows)
        for at in range(_WIDTH):
            if mask >> at & 1:
                raw[at::_WIDTH] = self._take(rows)
        return from_bytes(raw)

    def rest(self) -> bytes:
        """Return what stands behind them."""
        return self._content[self._at :]

    def _take(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + size
        if self._at > len(self._content):
            raise RowsDamaged("segment: a column of numbers is cut off")
        return self._content[begin : self._at]


def wrapped(numbers: Iterable[int]) -> array[int]:
    """Return integers as they are within 64 bits: sums of differences come back, however large."""
    kept = list(numbers)
    try:
        return array("q", kept)
    except OverflowError:
        return array("q", [(one + (1 << 63)) % (1 << 64) - (1 << 63) for one in kept])


def pack(rows: Sequence[Bytes]) -> bytes:
    """Return encoded rows, packed."""
    lengths = array("I", map(len, rows))
    groups: dict[int, list[Bytes]] = {length: [] for length in sorted(set(lengths))}
    for row in rows:
        groups[len(row)].append(row)
    parts = [len(rows).to_bytes(4, "little"), to_columns(lengths)]
    for length, group in groups.items():
        joined = b"".join(group)
        if _is_in_columns(length, len(group)):
            parts += [joined[at::length] for at in range(length)]
        else:
            parts.append(joined)
    return b"".join(parts)


def _is_in_columns(length: int, rows: int) -> bool:
    return rows >= COLUMN_ROWS_MIN and length <= COLUMN_BYTES_MAX


class Packed:
    """Encoded rows that `pack` returned, taken out one by one.

    Raises:
        RowsDamaged: it returned something else.
    """

    def __init__(self, content: bytes) -> None:
        count = int.from_bytes(content[:4], "little")
        at = 4 + 4 * count
        if len(content) < at:
            raise RowsDamaged("segment: a block is cut off")
        self._content = content
        self._lengths = from_columns("I", content[4:at])
        self._ranks: array[int] | None = None  # of each row, among those of its length
        self._groups: dict[int, tuple[int, int]] = {}  # by length: where it begins, how many rows
        for length, rows in sorted(Counter(self._lengths).items()):
            self._groups[length] = at, rows
            at += length * rows
        if len(content) != at:
            raise RowsDamaged("segment: a block is not as long as its rows")

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self._lengths)

    def rows(self, wanted: Iterable[int]) -> list[bytes]:
        """Return encoded rows by their numbers."""
        if self._ranks is None:
            seen = dict.fromkeys(self._groups, -1)
            self._ranks = array("I")
            for length in self._lengths:
                seen[length] += 1
                self._ranks.append(seen[length])
        return [self._row(self._lengths[one], self._ranks[one]) for one in wanted]

    def _row(self, length: int, rank: int) -> bytes:
        begin, rows = self._groups[length]
        if _is_in_columns(length, rows):
            return self._content[begin + rank : begin + length * rows : rows]
        return self._content[begin + length * rank : begin + length * (rank + 1)]

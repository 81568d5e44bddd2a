"""Rows of a segment packed for compression, and taken out again one by one. Pure.

Theory of operation. A block holds some hundred encoded rows of one job, or of few. Rows of a job
have the same fields in the same places, so that rows of the same length are written as columns of
bytes: the first byte of each, then the second of each, and so on. Most columns are one byte over
and over, which compresses to nothing, and to take a row out is one slice. No row is decoded for
this, and none is changed: a block returns the bytes that it was given.

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
from collections.abc import Sequence
from typing import Final

from cron.state.archive import RowsDamaged

COLUMN_ROWS_MIN: Final = 8
"""Fewer rows than this compress as well as they are."""
COLUMN_BYTES_MAX: Final = 1024
"""A longer row is mostly text, and each of its bytes would cost a slice."""

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


def pack(rows: Sequence[Bytes]) -> bytes:
    """Return a block of encoded rows."""
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


class Block:
    """The rows of one block.

    Raises:
        RowsDamaged: this is none.
    """

    def __init__(self, content: bytes) -> None:
        count = int.from_bytes(content[:4], "little")
        at = 4 + 4 * count
        if len(content) < at:
            raise RowsDamaged("segment: a block is cut off")
        self._content = content
        self._lengths = from_columns("I", content[4:at])
        self._groups: dict[int, tuple[int, int]] = {}  # by length: where it begins, how many rows
        for length, rows in sorted(Counter(self._lengths).items()):
            self._groups[length] = at, rows
            at += length * rows
        if len(content) != at:
            raise RowsDamaged("segment: a block is not as long as its rows")

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self._lengths)

    def rows(self, wanted: Sequence[int]) -> list[bytes]:
        """Return encoded rows by their numbers in this block, which ascend."""
        seen = dict.fromkeys(self._groups, 0)
        found = []
        number = 0
        for one in wanted:
            for length in self._lengths[number:one]:
                seen[length] += 1
            length = self._lengths[one]
            found.append(self._row(length, seen[length]))
            seen[length] += 1
            number = one + 1
        return found

    def _row(self, length: int, rank: int) -> bytes:
        begin, rows = self._groups[length]
        if _is_in_columns(length, rows):
            return self._content[begin + rank : begin + length * rows : rows]
        return self._content[begin + length * rank : begin + length * (rank + 1)]

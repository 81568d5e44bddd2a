"""Where rows stand in the projection: one number for each row that ever was, whoever brings it.

Theory of operation. Rows come live from the log, or much later from segments, in any order, and
some come twice. So the number of a row is not drawn but reckoned, from what the row is and from how
many of its entry and stream stand before it; both are the same in the log and in a segment. It
orders the rows of a stream as the log does, and a stretch of the log is a range of numbers.

A restored cell goes on at the next multiple of 10**12, so that a log index is a lineage and an
offset: 7 and 36 bits have room for what counting on to 2**63 would not.
"""

from __future__ import annotations

from typing import Final

from cron.errors import invariant
from cron.limits import LIFE_ENTRIES, LIVES_MAX
from cron.state.archive import Stream, stream_of
from cron.state.rows import Row

_NTH_BITS: Final = 19  # rows of one entry: twenty times what its 8 MiB can bring
_OFFSET_BITS: Final = 36  # entries of a lineage: a thousand a second for two years, thirty for 70
_LINEAGE_BITS: Final = (LIVES_MAX - 1).bit_length()
_STREAM_SHIFT: Final = _LINEAGE_BITS + _OFFSET_BITS + _NTH_BITS
_IN_STREAM: Final = (1 << _STREAM_SHIFT) - 1


def place(stream: Stream, index: int, nth: int) -> int:
    """Return the number of the `nth` row, from 0, of `stream` in the entry at log index `index`."""
    lineage, offset = divmod(index, LIFE_ENTRIES)
    invariant(
        lineage >> _LINEAGE_BITS == 0 and offset >> _OFFSET_BITS == 0 and nth >> _NTH_BITS == 0,
        f"history has no place for row {nth} of the entry at {index}",
    )
    return (
        stream << _STREAM_SHIFT | lineage << (_OFFSET_BITS + _NTH_BITS) | offset << _NTH_BITS | nth
    )


def places_in(stream: Stream, from_index: int, to_index: int) -> tuple[int, int]:
    """Return the first and the last place of rows of `stream` with `from_index` < ended_index <=
    `to_index`."""
    return place(stream, from_index + 1, 0), place(stream, to_index, (1 << _NTH_BITS) - 1)


def log_order(seq: int) -> int:
    """Return what orders rows of both streams as the log does, entry by entry."""
    return (seq & _IN_STREAM) << 1 | seq >> _STREAM_SHIFT


def in_lists(order: int) -> tuple[int, int, int]:
    """Return entry, stream, and number within both, of what `log_order` returned."""
    place_in_stream, stream = divmod(order, 2)
    entry, nth = divmod(place_in_stream, 1 << _NTH_BITS)
    return entry, stream, nth


class Placing:
    """Gives rows their places, in log order: all rows of an entry go through the same one."""

    def __init__(self) -> None:
        self._index = -1
        self._counts = [0 for _ in Stream]

    def place_of(self, row: Row) -> int:
        """Return the place of the next row."""
        if row.ended_index != self._index:
            invariant(row.ended_index > self._index, "history: rows are not in log order")
            self._index = row.ended_index
            self._counts = [0 for _ in Stream]
        stream = stream_of(row)
        nth = self._counts[stream]
        self._counts[stream] += 1
        return place(stream, row.ended_index, nth)

"""Rows of finished launches inside the replicated State: sealed chunks of bytes and an open tail.

Theory of operation. A row is encoded once, when it is appended, onto the end of the tail (0.2 us;
the objects may go, the bytes take half their memory). A tail of `rows_per_chunk` rows is sealed:
from then on it is one immutable `bytes`, so that a snapshot takes it as it is and a hundred
snapshots share it. When there are more than `chunks_max` chunks, the oldest is dropped whole. All
of this depends on nothing but the rows appended, so every replica holds the same bytes. It is the
forerunner of sealed segments, which will be kept on disks instead of being dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from cron.errors import InvalidInput, invariant
from cron.state.rows import Row

ROWS_PER_CHUNK: Final = 4096
"""About 600 KiB a chunk: little enough to seal without a pause."""
CHUNKS_MAX: Final = 64
"""262,144 rows, about 40 MiB: what a projection may miss and still be brought up to date."""

_FORMAT: Final = 1
_ARRAY32: Final = 0xDD
"""MessagePack's mark of an array with a length of four bytes: a chunk is an array of rows."""

_encoder = msgspec.msgpack.Encoder()
_decode_chunk = msgspec.msgpack.Decoder(list[Row]).decode


class RowsDamaged(InvalidInput):
    """Bytes that claim to be recent rows are none."""

    code = "rows_damaged"


class _Header(msgspec.Struct, frozen=True, array_like=True):
    """First part of the encoded form. The bounds travel with the rows, so that a release with other
    defaults does not let replicas differ."""

    format: int
    rows_per_chunk: int
    chunks_max: int
    last_indexes: list[int]
    tail_rows: int
    tail_index: int
    dropped_rows: int
    dropped_up_to: int


class RecentRows:
    """The newest finished rows in log order, bounded; older ones are dropped a chunk at a time.

    Invariant: `ended_index` never falls from one row to the next.
    """

    def __init__(self, rows_per_chunk: int = ROWS_PER_CHUNK, chunks_max: int = CHUNKS_MAX) -> None:
        invariant(rows_per_chunk > 0 and chunks_max > 0, "recent rows: bounds must be positive")
        self._rows_per_chunk = rows_per_chunk
        self._chunks_max = chunks_max
        self._chunks: deque[bytes] = deque()
        self._last_indexes: deque[int] = deque()  # of each chunk: ended_index of its last row
        self._tail = bytearray()
        self._tail_rows = 0
        self._last_index = 0
        self._dropped_rows = 0
        self._dropped_up_to = 0

    def __len__(self) -> int:
        return len(self._chunks) * self._rows_per_chunk + self._tail_rows

    @property
    def last_index(self) -> int:
        """The `ended_index` of the newest row ever appended; 0 before the first."""
        return self._last_index

    @property
    def dropped_rows(self) -> int:
        """How many rows have been dropped since the beginning."""
        return self._dropped_rows

    @property
    def dropped_up_to(self) -> int:
        """The `ended_index` of the newest row that was dropped; 0 if none was."""
        return self._dropped_up_to

    def append(self, row: Row) -> None:
        """Add the row of a launch that ended at or after all others; seal and drop as needed."""
        invariant(row.ended_index >= self._last_index, "recent rows: log index went back")
        self._last_index = row.ended_index
        _encoder.encode_into(row, self._tail, -1)
        self._tail_rows += 1
        if self._tail_rows == self._rows_per_chunk:
            self._seal()

    def rows_after(self, index: int) -> Iterator[Row]:
        """Yield the rows with `ended_index` > `index` that are still here, in log order.

        Sees what was here at the call: rows appended while it runs are not in it.
        """
        chunks = [
            chunk
            for chunk, last in zip(self._chunks, self._last_indexes, strict=True)
            if last > index
        ]
        if self._tail_rows and self._last_index > index:
            chunks.append(self._tail_chunk())
        return (row for chunk in chunks for row in _decode_chunk(chunk) if row.ended_index > index)

    def gap_after(self, index: int) -> tuple[int, int] | None:
        """Return (from, to) if rows with `from` < `ended_index` <= `to` may have been dropped that
        someone who knows everything up to `index` has not seen; else None."""
        return (index, self._dropped_up_to) if index < self._dropped_up_to else None

    def encode(self) -> list[bytes]:
        """Return the parts of a snapshot: a header, the sealed chunks as they are, the tail.

        Costs a copy of the tail and nothing for each chunk.
        """
        header = _Header(
            _FORMAT,
            self._rows_per_chunk,
            self._chunks_max,
            list(self._last_indexes),
            self._tail_rows,
            self._last_index,
            self._dropped_rows,
            self._dropped_up_to,
        )
        return [_encoder.encode(header), *self._chunks, bytes(self._tail)]

    @classmethod
    def decode(cls, parts: list[bytes]) -> RecentRows:
        """Return the rows that `encode` took; the chunks are kept undecoded.

        Raises:
            RowsDamaged: the parts do not belong together or are of another format.
        """
        header = _read_header(parts)
        recent = cls(header.rows_per_chunk, header.chunks_max)
        recent._chunks.extend(parts[1:-1])
        recent._last_indexes.extend(header.last_indexes)
        recent._tail = bytearray(parts[-1])
        recent._tail_rows = header.tail_rows
        recent._last_index = header.tail_index
        recent._dropped_rows = header.dropped_rows
        recent._dropped_up_to = header.dropped_up_to
        return recent

    def _seal(self) -> None:
        self._chunks.append(self._tail_chunk())
        self._last_indexes.append(self._last_index)
        self._tail = bytearray()
        self._tail_rows = 0
        if len(self._chunks) > self._chunks_max:
            self._chunks.popleft()
            self._dropped_up_to = self._last_indexes.popleft()
            self._dropped_rows += self._rows_per_chunk

    def _tail_chunk(self) -> bytes:
        return bytes((_ARRAY32, *self._tail_rows.to_bytes(4, "big"))) + self._tail


def _read_header(parts: list[bytes]) -> _Header:
    if len(parts) < 2:
        raise RowsDamaged("recent rows: header or tail is missing")
    try:
        header = msgspec.msgpack.decode(parts[0], type=_Header)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RowsDamaged(f"recent rows: header cannot be read: {error}") from error
    if header.format != _FORMAT:
        raise RowsDamaged(f"recent rows: format {header.format} is not {_FORMAT}, the known one")
    chunks = len(parts) - 2
    if len(header.last_indexes) != chunks or chunks > header.chunks_max:
        raise RowsDamaged(f"recent rows: {chunks} chunks do not agree with the header")
    if not (header.rows_per_chunk > 0 and 0 <= header.tail_rows < header.rows_per_chunk):
        raise RowsDamaged("recent rows: bounds in the header are impossible")
    return header

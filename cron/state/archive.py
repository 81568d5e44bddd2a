"""History inside State: what ended since the last Seal, and the names of all that was sealed.

Theory of operation. A row is encoded once, when it is appended, onto the end of a tail. A `Seal` in
the log closes the tails: their bytes leave State, with a record in the catalog, and every replica
keeps them on its own disk as a segment. All of this depends on nothing but the log, so every
replica seals the same bytes, and State grows by one record for each sixty thousand launches.

There are two tails, because failures are kept longer than what went well, and a segment is deleted
whole or not at all. Both segments of a Seal cover the same stretch of the log.
"""

from __future__ import annotations

import enum
import hashlib
import heapq
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from cron.errors import InvalidInput, InvariantViolated, invariant
from cron.state.commands import SegmentKey
from cron.state.rows import Row, encodable
from launcher.launch import LaunchState

ROWS_MAX: Final = 1 << 24
"""Rows that a decoder takes from one segment: far above any that we seal, against damage."""

_ARRAY32: Final = 0xDD
"""MessagePack's mark of an array with a length of four bytes: a segment is an array of rows."""
_EMPTY: Final = bytes((_ARRAY32, 0, 0, 0, 0))

_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.msgpack.Encoder()
_decode_rows = msgspec.msgpack.Decoder(list[Row]).decode


class RowsDamaged(InvalidInput):
    """Bytes that claim to be rows are none."""

    code = "rows_damaged"


class Stream(enum.IntEnum):
    """Which rows a segment holds. In the log: append, never renumber."""

    RUNS = 0
    FAILURES = 1

    @property
    def label(self) -> str:
        """The word in the names of files."""
        return self.name.lower()


_FAILURES: Final = frozenset({LaunchState.FAILED, LaunchState.LOST})
_TO_RUNS: Final = Stream.RUNS  # members of an enumeration are slow to look up
_TO_FAILURES: Final = Stream.FAILURES


def stream_of(row: Row) -> Stream:
    """Return where a row belongs: what failed or was lost is kept longer."""
    return _TO_FAILURES if row.state in _FAILURES else _TO_RUNS


_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class SegmentRecord(msgspec.Struct, frozen=True, array_like=True):
    """What the catalog says of a sealed segment.

    It holds the rows with `from_index` < ended_index <= `to_index` of its stream. `first_s` and
    `last_s` span their ScheduledTimes. `digest` is that of its content. `is_local`: the replicas
    keep it on their disks; `is_stored`: it is in object storage.
    """

    lineage: _Natural
    number: _Natural
    stream: Annotated[int, msgspec.Meta(ge=0, le=1)]
    from_index: _Natural
    to_index: _Natural
    rows: _Natural
    size: _Natural  # bytes of content
    digest: bytes
    first_s: int
    last_s: int
    sealed_at_ms: int
    is_local: bool = True
    is_stored: bool = False

    @property
    def key(self) -> SegmentKey:
        """The key under which the catalog has it."""
        return (self.lineage, self.number, self.stream)


class Sealed(msgspec.Struct, frozen=True):
    """A segment that was sealed just now, with its content."""

    record: SegmentRecord
    content: bytes


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """The newest SnapshotAt: where it is, and when it was by the log's time."""

    term: int = 0
    index: int = 0
    at_ms: int = 0


class Backup(msgspec.Struct, frozen=True, array_like=True):
    """The newest snapshot that is in object storage, with all history up to it.

    `store` is where; segments are marked as stored there. `taken_ms` is when the snapshot was
    taken, `at_ms` when the log learned that it is there. `claim` is what was drawn to tell this
    cell from any other that writes there under its name.
    """

    store: str = ""
    lineage: int = 0
    term: int = 0
    index: int = 0
    taken_ms: int = 0
    at_ms: int = 0
    claim: str = ""


def content_digest(content: bytes) -> bytes:
    """Return the digest by which the catalog knows a segment's content."""
    return hashlib.blake2b(content, digest_size=16).digest()


def decode_rows(content: bytes) -> list[Row]:
    """Return the rows in a segment's content, in log order.

    Raises:
        RowsDamaged: it is none.
    """
    if len(content) < len(_EMPTY) or content[0] != _ARRAY32:
        raise RowsDamaged("segment: it does not begin like rows")
    if int.from_bytes(content[1:5], "big") > ROWS_MAX:
        raise RowsDamaged("segment: it claims to have more rows than any segment may")
    try:
        return _decode_rows(content)
    except _UNREADABLE as error:
        raise RowsDamaged(f"segment: its rows cannot be read: {error}") from error


class Tail:
    """The rows of one stream since the last Seal, encoded."""

    __slots__ = ("content", "first_s", "last_index", "last_s", "rows")

    def __init__(self) -> None:
        self.content = bytearray()
        self.rows = 0
        self.first_s = 0
        self.last_s = 0
        self.last_index = 0

    def append(self, row: Row) -> None:
        """Add the row of a launch that ended at or after all others of this tail."""
        invariant(row.ended_index >= self.last_index, "history: log index went back")
        if not self.rows or row.scheduled_s < self.first_s:
            self.first_s = row.scheduled_s
        last_s = row.last_s if row.last_s > row.scheduled_s else row.scheduled_s
        if last_s > self.last_s:
            self.last_s = last_s
        self.last_index = row.ended_index
        self.rows += 1
        _encoder.encode_into(encodable(row), self.content, -1)

    def whole(self) -> bytes:
        """Return its content as a segment has it."""
        return bytes((_ARRAY32, *self.rows.to_bytes(4, "big"))) + self.content


class _Encoded(msgspec.Struct, frozen=True, array_like=True):
    """One tail in an image."""

    content: bytes
    rows: int
    first_s: int
    last_s: int
    last_index: int


class _Image(msgspec.Struct, frozen=True, array_like=True):
    """History in an image; append at the end with a default."""

    seals: int
    sealed_to: int
    tails: list[_Encoded]
    segments: list[SegmentRecord]
    taken: Taken
    backup: Backup
    opened_at_ms: int
    retired: int = 0
    outputs_index: int = 0


class History:
    """The open tails and the catalog; of State, and changed only by applying.

    `seals` counts Seals in the cell's life, `sealed_to` is the log index of the newest.
    `opened_at_ms`: when the oldest row of the tails was added; 0 while there is none. `retired`:
    the highest number of a Seal of which retention has let a segment go altogether.
    `outputs_index`: the output of what ended up to this log index is in object storage, or given
    up.
    """

    def __init__(self) -> None:
        self.seals = 0
        self.sealed_to = 0
        self.opened_at_ms = 0
        self.retired = 0
        self.outputs_index = 0
        self.tails = tuple(Tail() for _ in Stream)
        self.segments: dict[SegmentKey, SegmentRecord] = {}
        self.taken = Taken()
        self.backup = Backup()

    @property
    def open_rows(self) -> int:
        """How many rows the tails hold."""
        return sum(tail.rows for tail in self.tails)

    @property
    def open_bytes(self) -> int:
        """How large the tails are."""
        return sum(len(tail.content) for tail in self.tails)

    def append(self, row: Row) -> None:
        """Add the row of a launch that ended at or after all others."""
        if not self.opened_at_ms:
            self.opened_at_ms = row.ended_at_ms
        self.tails[stream_of(row)].append(row)

    def rows_after(self, index: int) -> Iterator[Row]:
        """Yield the rows of the tails with `ended_index` > `index`, in log order.

        Sees what was here at the call: rows appended while it runs are not in it.
        """
        found = [
            [row for row in decode_rows(tail.whole()) if row.ended_index > index]
            for tail in self.tails
            if tail.rows and tail.last_index > index
        ]
        return heapq.merge(*found, key=lambda row: row.ended_index)

    def seal(self, lineage: int, index: int, at_ms: int) -> tuple[Sealed, ...]:
        """Close the tails at log index `index`; return a segment for each that has rows."""
        self.seals += 1
        sealed = []
        for stream in Stream:
            tail = self.tails[stream]
            if not tail.rows:
                continue
            content = tail.whole()
            record = SegmentRecord(
                lineage,
                self.seals,
                int(stream),
                self.sealed_to,
                index,
                tail.rows,
                len(content),
                content_digest(content),
                tail.first_s,
                tail.last_s,
                at_ms,
            )
            self.segments[record.key] = record
            sealed.append(Sealed(record, content))
        self.tails = tuple(Tail() for _ in Stream)
        self.sealed_to = index
        self.opened_at_ms = 0
        return tuple(sealed)

    def encode(self) -> bytes:
        """Return its part of an image."""
        tails = [
            _Encoded(bytes(tail.content), tail.rows, tail.first_s, tail.last_s, tail.last_index)
            for tail in self.tails
        ]
        return _encoder.encode(
            _Image(
                self.seals,
                self.sealed_to,
                tails,
                list(self.segments.values()),
                self.taken,
                self.backup,
                self.opened_at_ms,
                self.retired,
                self.outputs_index,
            )
        )

    @classmethod
    def decode(cls, content: bytes) -> History:
        """Return the history that `encode` took.

        Raises:
            InvariantViolated: it cannot be read.
        """
        try:
            image = msgspec.msgpack.decode(content, type=_Image)
        except _UNREADABLE as error:
            raise InvariantViolated(f"history in a state image cannot be read: {error}") from error
        invariant(len(image.tails) == len(Stream), "history in a state image lacks a tail")
        history = cls()
        history.seals, history.sealed_to = image.seals, image.sealed_to
        history.opened_at_ms, history.retired = image.opened_at_ms, image.retired
        history.taken, history.backup = image.taken, image.backup
        history.outputs_index = image.outputs_index
        history.segments = {record.key: record for record in image.segments}
        for tail, encoded in zip(history.tails, image.tails, strict=True):
            invariant(0 <= encoded.rows <= ROWS_MAX, "history in a state image counts wrongly")
            tail.content = bytearray(encoded.content)
            tail.rows, tail.last_index = encoded.rows, encoded.last_index
            tail.first_s, tail.last_s = encoded.first_s, encoded.last_s
        return history

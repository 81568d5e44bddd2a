"""History inside State: what ended since the last Seal, and the names of all that was sealed.

Theory of operation. A row is encoded once, when it is appended, onto the end of a tail. A `Seal` in
the log closes the tails: they leave State, with a record in the catalog, and every replica keeps
them on its own disk as a segment. All of this depends on nothing but the log, so every replica
seals the same rows, and State grows by one record for each sixty thousand launches.

Beside its bytes a tail has columns: by them history finds the rows of a job or of a period without
reading the others, and sorts them into a segment. They are reckoned from the bytes, and are not in
an image.

There are two tails, because failures are kept longer than what went well, and a segment is deleted
whole or not at all. Both segments of a Seal cover the same stretch of the log.
"""

from __future__ import annotations

import enum
import hashlib
import heapq
from array import array
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from cron.errors import InvalidInput, InvariantViolated, invariant
from cron.state.commands import SegmentKey
from cron.state.rows import Chunk, Row, RowKind
from launcher.launch import LaunchState

ROWS_MAX: Final = 1 << 24
"""Rows that a decoder takes from one segment: far above any that we seal, against damage."""

_ARRAY32: Final = 0xDD
"""MessagePack's mark of an array with a length of four bytes: a segment is an array of rows."""
_EMPTY: Final = bytes((_ARRAY32, 0, 0, 0, 0))

_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.msgpack.Encoder()
_decode_rows = msgspec.msgpack.Decoder(list[Row]).decode
_decode_row = msgspec.msgpack.Decoder(Row).decode
_cut = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


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


FAILURES: Final = frozenset({LaunchState.FAILED, LaunchState.LOST})
_TO_RUNS: Final = Stream.RUNS  # members of an enumeration are slow to look up
_TO_FAILURES: Final = Stream.FAILURES
_RANGE: Final = RowKind.RANGE


def stream_of(row: Row) -> Stream:
    """Return where a row belongs: what failed or was lost is kept longer."""
    return _TO_FAILURES if row.state in FAILURES else _TO_RUNS


_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class SegmentRecord(msgspec.Struct, frozen=True, array_like=True):
    """What the catalog says of a sealed segment.

    It holds the rows with `from_index` < ended_index <= `to_index` of its stream. `first_s` and
    `last_s` span their ScheduledTimes. `size` and `digest` are those of its rows in log order, as
    State had them, however a file keeps them. `is_local`: the replicas keep it on their disks;
    `is_stored`: it is in object storage; `is_pair`: its Seal closed the other stream's tail, too.
    """

    lineage: _Natural
    number: _Natural
    stream: Annotated[int, msgspec.Meta(ge=0, le=1)]
    from_index: _Natural
    to_index: _Natural
    rows: _Natural
    size: _Natural  # bytes of the rows
    digest: bytes
    first_s: int
    last_s: int
    sealed_at_ms: int
    is_local: bool = True
    is_stored: bool = False
    is_pair: bool = False

    @property
    def key(self) -> SegmentKey:
        """The key under which the catalog has it."""
        return (self.lineage, self.number, self.stream)


class Sealed(msgspec.Struct, frozen=True):
    """A segment that was sealed just now, with its rows."""

    record: SegmentRecord
    tail: Tail


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
    _check_head(content)
    try:
        return _decode_rows(content)
    except _UNREADABLE as error:
        raise RowsDamaged(f"segment: its rows cannot be read: {error}") from error


def cut_rows(content: bytes) -> list[msgspec.Raw]:
    """Return the bytes of each row in a segment's content, in log order.

    Raises:
        RowsDamaged: it is none.
    """
    _check_head(content)
    try:
        return _cut(content)
    except _UNREADABLE as error:
        raise RowsDamaged(f"segment: its rows cannot be read: {error}") from error


def _check_head(content: bytes) -> None:
    if len(content) < len(_EMPTY) or content[0] != _ARRAY32:
        raise RowsDamaged("segment: it does not begin like rows")
    if int.from_bytes(content[1:5], "big") > ROWS_MAX:
        raise RowsDamaged("segment: it claims to have more rows than any segment may")


class Tail:
    """The rows of one stream since the last Seal: encoded, and in columns, an item for each row.

    `ends`: where its bytes end in `content`; `firsts_s` and `lasts_s`: its ScheduledTime, of a
    range the first and the last; `states`. `jobs` has the rows of each job, by number from 0, and
    `outputs` those whose output an executor keeps, with their log indexes beside. `is_numbered`:
    log index and number alone say in which order the rows are.
    """

    __slots__ = (
        "content", "ends", "firsts_s", "is_numbered", "jobs", "last_index",
        "last_number", "lasts_s", "output_indexes", "outputs", "rows", "states",
    )  # fmt: skip

    def __init__(self) -> None:
        self.content = bytearray()
        self.rows = 0
        self.last_index = 0
        self.last_number = -1
        self.is_numbered = True
        self.ends = array("Q")
        self.firsts_s = array("q")
        self.lasts_s = array("q")
        self.states = array("B")
        self.jobs: dict[str, array[int]] = {}
        self.outputs = array("I")
        self.output_indexes = array("Q")

    @classmethod
    def of(cls, content: bytes) -> Tail:
        """Return the tail whose rows in log order are `content`.

        Raises:
            RowsDamaged: these are no rows.
        """
        tail = cls()
        for raw in cut_rows(content):
            try:
                row = _decode_row(raw)
            except _UNREADABLE as error:
                raise RowsDamaged(f"segment: its rows cannot be read: {error}") from error
            tail.content += raw
            tail._note(row)
        return tail

    def append(self, row: Row) -> None:
        """Add the row of a launch that ended at or after all others of this tail."""
        invariant(row.ended_index >= self.last_index, "history: log index went back")
        _encoder.encode_into(row, self.content, -1)
        self._note(row)

    def _note(self, row: Row) -> None:
        """Put a row that is in `content` into the columns; every launch pays for this."""
        index, first_s = row.ended_index, row.scheduled_s
        if index == self.last_index and row.number <= self.last_number:
            self.is_numbered = False
        self.last_index, self.last_number = index, row.number
        self.ends.append(len(self.content))
        self.firsts_s.append(first_s)
        self.lasts_s.append(row.last_s if row.kind is _RANGE else first_s)
        self.states.append(row.state)
        number = self.rows
        self.rows = number + 1
        positions = self.jobs.get(row.job)
        if positions is None:
            positions = self.jobs[row.job] = array("I")
        positions.append(number)
        if row.output_bytes:
            self.outputs.append(number)
            self.output_indexes.append(index)

    @property
    def first_s(self) -> int:
        """The oldest ScheduledTime; 0 where there is no row. Looks at all rows."""
        return min(self.firsts_s, default=0)

    @property
    def last_s(self) -> int:
        """The newest ScheduledTime; 0 where there is no row. Looks at all rows."""
        return max(self.lasts_s, default=0)

    def row(self, number: int) -> Row:
        """Return a row by its number, from 0."""
        begin = self.ends[number - 1] if number else 0
        return _decode_row(self.content[begin : self.ends[number]])

    def whole(self) -> bytes:
        """Return its rows as a catalog's digest covers them."""
        return self._head() + self.content

    def digest(self) -> bytes:
        """Return the digest of its rows."""
        digest = hashlib.blake2b(self._head(), digest_size=16)
        digest.update(self.content)
        return digest.digest()

    def _head(self) -> bytes:
        return bytes((_ARRAY32, *self.rows.to_bytes(4, "big")))


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

    def append_chunk(self, chunk: Chunk) -> None:
        """Add the rows of launches that ended at or after all others, in the order of the chunk."""
        for row in chunk.rows():
            self.append(row)

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
        is_pair = all(tail.rows for tail in self.tails)
        for stream in Stream:
            tail = self.tails[stream]
            if not tail.rows:
                continue
            record = SegmentRecord(
                lineage,
                self.seals,
                int(stream),
                self.sealed_to,
                index,
                tail.rows,
                len(tail.content) + len(_EMPTY),
                tail.digest(),
                tail.first_s,
                tail.last_s,
                at_ms,
                is_pair=is_pair,
            )
            self.segments[record.key] = record
            sealed.append(Sealed(record, tail))
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
        history.tails = tuple(_tail_of(encoded) for encoded in image.tails)
        return history


def _tail_of(encoded: _Encoded) -> Tail:
    invariant(0 <= encoded.rows <= ROWS_MAX, "history in a state image counts wrongly")
    head = bytes((_ARRAY32, *encoded.rows.to_bytes(4, "big")))
    try:
        return Tail.of(head + encoded.content)
    except RowsDamaged as error:
        raise InvariantViolated(f"history in a state image cannot be read: {error}") from error

"""A block of a segment: some hundred rows, of one job or of few, in columns of bytes. Pure.

Theory of operation. Each field of the rows of chunks is a column of integers of eight bytes. A byte
of an integer that is the same in all rows of a segment is said once, by its `Frame`. The others of
a row, side by side, are its record: sorting rows by job moves one piece of bytes a row. In a block
the first bytes of all records stand together, then the second ones, and so on. Times and log
indexes are kept as what they are after the Begin, so that few bytes differ. Rows that no batch has,
single ones and those of skipped instants, are packed as they are encoded.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from operator import itemgetter, sub
from typing import Final

import msgspec

from cron.history.columns import (
    Bytes,
    Packed,
    from_bytes,
    from_columns,
    pack,
    to_columns,
    wrapped,
)
from cron.history.order import Match, best
from cron.notes import Note
from cron.state.rows import COLUMNS, Chunk, Row, RowKind, values
from cron.state.tail import Brief, RowsDamaged, Tail, decode_row, encode_item
from launcher.launch import LaunchState, Reason
from launcher.work import Epoch

Origin = tuple[Epoch, str, str, Note | None]
"""Where a chunk began, its epoch, the executor's name and its ledger; and its note."""
_ONCE: Final = (
    "origin", "state", "reason", "exit_code", "ended_index", "ended_at_ms", "begun_index",
    "begun_at_ms", "number",
)  # fmt: skip
"""What a chunk has once; the origin is its number in the frame."""
FIELDS: Final = (*_ONCE, "number_in", *COLUMNS)
_AT: Final = {name: at for at, name in enumerate(FIELDS)}
_SINCE_BEGIN: Final = frozenset({"launched_at_ms", "started_ms", "ended_at_ms"})
_WIDTH: Final = 8
_WITHIN: Final = 1 << 63
_PLAIN: Final = 1 << 60
"""Differences of integers below this need no second look."""
_ENDED: Final = RowKind.ENDED  # members of an enumeration are slow to look up
_STATES: Final = {int(state): state for state in LaunchState}
_REASONS: Final = {int(reason): reason for reason in Reason}
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """What all blocks of a segment share. `same`: eight bytes of each field; `differing`: the
    places of those bytes, of all fields, that are in records."""

    origins: list[Origin]
    same: bytes
    differing: bytes


# --- writing


class Unfolded:
    """The rows of a tail, in log order: of each its job and its item. Of each item: how many rows
    it has (`sizes`), whether its rows are packed (`packed`), each as a row of its own, and whether
    they are ranges. `attempts` has those of rows that are no first attempts.

    A record is what a chunk has once, and what its row has: the first is made once a chunk.
    """

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self._content = memoryview(tail.content)
        self.jobs: list[str] = []
        self.items = array("I")
        self.sizes = array("I")
        self.packed: dict[int, Sequence[Bytes]] = {}
        self.ranges: set[int] = set()
        self.attempts: dict[int, int] = {}
        self._chunks: dict[int, Chunk] = {}  # by item
        self._places = array("I")  # of each row, among those of chunks
        for number in range(len(tail)):
            item = tail.brief(number)
            rows = (
                self._add_chunk(number, item)
                if isinstance(item, Chunk)
                else self._add_row(number, item)
            )
            self.items.extend(array("I", (number,)) * rows)
            self.sizes.append(rows)
        self.longest = max(  # bytes of a packed row
            (len(row) for rows in self.packed.values() for row in rows), default=0
        )
        if self.packed:
            place = 0
            for number in self.items:
                self._places.append(place)
                place += number not in self.packed
        self.frame, self._heads, self._rows, self._row_bytes = self._interleaved()
        self._chunks.clear()

    def _add_row(self, number: int, row: Brief) -> int:
        ends = self.tail.ends
        self.packed[number] = (self._content[ends[number - 1] if number else 0 : ends[number]],)
        if row.kind is RowKind.RANGE:
            self.ranges.add(number)
        if row.attempt != 1:
            self.attempts[len(self.jobs)] = row.attempt
        self.jobs.append(row.job)
        return 1

    def _add_chunk(self, number: int, chunk: Chunk) -> int:
        jobs, first = chunk.names(), len(self.jobs)
        if chunk.count:
            self.packed[number] = [encode_item(row) for row in chunk.rows()]
            if chunk.count > 1:
                self.ranges.add(number)
        else:
            self._chunks[number] = chunk
        if chunk.attempts != 1:
            self.attempts.update(enumerate(values(chunk.attempts, len(jobs)), first))
        self.jobs += jobs
        return len(jobs)

    def _interleaved(self) -> tuple[Frame, dict[int, bytes], bytes, int]:
        """Return the frame, the beginnings of records by item, and their ends with the length."""
        origins: dict[Origin, int] = {}
        if not self._chunks:
            return Frame([], bytes(_WIDTH * len(FIELDS)), b""), {}, b"", 0
        chunks = self._chunks.values()
        for one in chunks:
            origins.setdefault(_origin_of(one), len(origins))
        varying = {
            name for name in COLUMNS if any(isinstance(getattr(one, name), bytes) for one in chunks)
        }
        if "started_ms" in varying:
            varying.add("finished_ms")  # it is kept as what comes after that
        same, differing = bytearray(_WIDTH * len(FIELDS)), bytearray()
        columns = self._of_chunks(origins, varying)
        heads, size = _side_by_side(columns, same, differing)
        of_items = {
            item: heads[size * at : size * at + size] for at, item in enumerate(self._chunks)
        }
        rows, size = _side_by_side(self._of_rows(varying), same, differing)
        return Frame(list(origins), bytes(same), bytes(differing)), of_items, rows, size

    def _of_chunks(
        self, origins: dict[Origin, int], varying: set[str]
    ) -> Iterator[tuple[str, array[int]]]:
        """Yield what is kept of each field that a chunk has once."""
        chunks = self._chunks.values()
        yield "origin", array("q", [origins[_origin_of(one)] for one in chunks])
        for name in ("state", "reason", "exit_code", "ended_index", "begun_at_ms", "number"):
            yield name, array("q", [getattr(one, name) for one in chunks])
        yield "ended_at_ms", wrapped([one.ended_at_ms - one.begun_at_ms for one in chunks])
        yield "begun_index", wrapped([one.ended_index - one.begun_index for one in chunks])
        for name in COLUMNS:
            if name not in varying:
                yield name, wrapped([getattr(one, name) - _origin(name, one) for one in chunks])

    def _of_rows(self, varying: set[str]) -> Iterator[tuple[str, array[int]]]:
        """Yield what is kept of each field that may differ from row to row."""
        sizes = [self.sizes[item] for item in self._chunks]
        counted = array("q", range(max(sizes)))
        found = array("q")
        for size in sizes:
            found.extend(counted[:size])
        yield "number_in", found
        for name in COLUMNS:
            if name in varying:
                found = array("q")
                for chunk, size in zip(self._chunks.values(), sizes, strict=True):
                    found.extend(_kept(chunk, name, size, varying))
                yield name, found

    def records(self, numbers: Sequence[int], items: Sequence[int]) -> bytes:
        """Return the records of rows, whose items stand beside: the first byte of each, then the
        second of each."""
        size, heads, rows = self._row_bytes, self._heads, self._rows
        if not numbers:
            return b""
        if self.packed:  # they have no records
            numbers = [self._places[number] for number in numbers]
        joined = b"".join(
            [
                heads[item] + rows[size * at : size * at + size]
                for item, at in zip(items, numbers, strict=True)
            ]
        )
        size += len(heads[items[0]])
        return b"".join([joined[at::size] for at in range(size)])

    def bytes_of(self, number: int) -> Bytes:
        """Return the bytes of a row that is packed, by its number in the tail."""
        item = self.items[number]
        return self.packed[item][number - self.tail.firsts[item]]


def _origin_of(chunk: Chunk) -> Origin:
    return chunk.epoch, chunk.executor, chunk.ledger, chunk.note


def _side_by_side(
    columns: Iterable[tuple[str, array[int]]], same: bytearray, differing: bytearray
) -> tuple[bytes, int]:
    """Return the bytes that differ of some fields, those of a row together, and how many these are;
    note the others in `same`, and the places of these in `differing`."""
    planes, rows = [], 0
    for name, column in columns:
        rows = len(column)
        mine, begin = to_columns(column), _WIDTH * _AT[name]
        for byte in range(_WIDTH):
            plane = mine[byte * rows : (byte + 1) * rows]
            if plane.count(plane[0]) == rows:
                same[begin + byte] = plane[0]
            else:
                differing.append(begin + byte)
                planes.append(plane)
    together = bytearray(rows * len(planes))
    for at, plane in enumerate(planes):
        together[at :: len(planes)] = plane
    return bytes(together), len(planes)


def _kept(chunk: Chunk, name: str, rows: int, varying: set[str]) -> array[int]:
    """Return what is kept of a column of a chunk."""
    column = getattr(chunk, name)
    if name == "finished_ms" and "started_ms" in varying:
        return wrapped(map(sub, values(column, rows), values(chunk.started_ms, rows)))
    origin = _origin(name, chunk)
    if isinstance(column, int):
        return wrapped((column - origin,)) * rows
    kept = values(column, rows)
    return wrapped([one - origin for one in kept]) if origin else kept


def _origin(name: str, chunk: Chunk) -> int:
    """Return from what a column of a chunk is counted."""
    if name in _SINCE_BEGIN:
        return chunk.begun_at_ms
    if name == "scheduled_s":
        return chunk.begun_at_ms // 1000
    if name == "finished_ms" and isinstance(chunk.started_ms, int):
        return chunk.started_ms
    return chunk.begun_index if name == "launched_index" else 0


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """A block as bytes."""

    rows: int
    singles: bytes  # u16: which of them are packed
    packed: bytes  # those
    jobs: list[tuple[str, int]]  # of the others, in order, and how many rows each has
    records: bytes  # of the others


class Written(msgspec.Struct):
    """A block, and what the index says of it."""

    content: bytes
    rows: int
    first_s: int
    last_s: int
    states: int


def block_of(source: Unfolded, numbers: Sequence[int]) -> Written:
    """Return a block of rows, given by their numbers in the tail in the order of the segment."""
    items, tail = source.items, source.tail
    # A getter of one thing returns it alone, not in a tuple: so it has another beside it.
    mine = itemgetter(*numbers, numbers[0])(items)[:-1]
    places: list[int] = []
    others, items_of_others = numbers, mine
    if source.packed:
        places = [at for at, item in enumerate(mine) if item in source.packed]
        others = [at for at, item in zip(numbers, mine, strict=True) if item not in source.packed]
        items_of_others = [item for item in mine if item not in source.packed]
    jobs = itemgetter(*others, others[0])(source.jobs)[:-1] if others else ()
    stored = _Stored(
        len(numbers),
        to_columns(array("H", places)),
        pack([source.bytes_of(numbers[at]) for at in places]),
        [(job, len([*same])) for job, same in groupby(jobs)],
        source.records(others, items_of_others),
    )
    used = set(mine)
    return Written(
        msgspec.msgpack.encode(stored),
        len(numbers),
        min([tail.firsts_s[item] for item in used]),
        max([tail.lasts_s[item] for item in used]),
        sum(1 << state for state in {tail.states[item] for item in used}),
    )


# --- reading


class Block:
    """The rows of one block. Rows of chunks are known here by their number among these.

    Raises:
        RowsDamaged: this is none.
    """

    def __init__(self, content: bytes, frame: Frame) -> None:
        try:
            stored = msgspec.msgpack.decode(content, type=_Stored)
        except _UNREADABLE as error:
            raise RowsDamaged(f"segment: a block cannot be read: {error}") from error
        self._size = stored.rows
        self._singles = from_columns("H", stored.singles)
        self._packed = Packed(stored.packed)
        self._jobs = [job for job, _ in stored.jobs]
        self._job_ends = [*accumulate(rows for _, rows in stored.jobs)]
        self._origins = frame.origins
        rows = self._job_ends[-1] if stored.jobs else 0
        is_whole = len(stored.records) == rows * len(frame.differing)
        if len(self._packed) != len(self._singles) or rows + len(self._singles) != stored.rows:
            is_whole = False
        if not is_whole or len(frame.same) != _WIDTH * len(FIELDS):
            raise RowsDamaged("segment: a block has not as many rows as it says")
        self._columns = [*_columns_of(frame, stored.records, rows)] if rows else []

    def __len__(self) -> int:
        """Return how many rows there are."""
        return self._size

    def rows(self, places: Sequence[int]) -> list[Row]:
        """Return rows by their places, which ascend."""
        found = []
        for place in places:
            is_single = self.is_single(place)
            found.append(
                decode_row(self.single(place)) if is_single else self._row(self.number(place))
            )
        return found

    def newest(self, places: range, match: Match, limit: int | None) -> list[Row]:
        """Return the rows at some places that match; of more than `limit`, at least the newest so
        many, in no order."""
        first, last = (bisect_left(self._singles, at) for at in (places.start, places.stop))
        singles = map(decode_row, self._packed.rows(range(first, last)))
        found = [row for row in singles if match.fits(row)]
        begin, end = places.start - first, places.stop - last
        if begin == end:
            return found
        states, begins, afters = (
            self._columns[_AT[name]][begin:end] for name in ("state", "begun_at_ms", "scheduled_s")
        )
        times = array("q", [at_ms // 1000 + s for at_ms, s in zip(begins, afters, strict=True)])
        fit = match.places(times, times, states)
        return found + [
            self._row(begin + at) for at in (fit if limit is None else best(fit, times, limit))
        ]

    # ---- rows of chunks

    def unfolded(self, at: int) -> tuple[Chunk, int, list[int]]:
        """Return what the chunk of a row has once, as a chunk of other jobs and columns; its number
        in the chunk; and its integers of `COLUMNS`."""
        kept = [column[at] for column in self._columns]
        origin, state, reason, exit_code, ended_index, *since, number = kept[: len(_ONCE)]
        ended_at_ms, begun_index, begun_at_ms = since
        columns = kept[len(_ONCE) + 1 :]
        columns[_SCHEDULED] += begun_at_ms // 1000
        columns[_LAUNCHED] += ended_index - begun_index
        columns[_LAUNCHED + 1] += begun_at_ms
        columns[_LAUNCHED + 2] += begun_at_ms
        columns[_LAUNCHED + 3] += columns[_LAUNCHED + 2]
        if max(columns) >= _WITHIN or min(columns) < -_WITHIN:
            columns = [*wrapped(columns)]
        epoch, name, ledger, note = self._origins[origin]
        chunk = Chunk(
            _STATES[state],
            _REASONS[reason],
            exit_code,
            ended_index,
            _within(ended_at_ms + begun_at_ms),
            _within(ended_index - begun_index),
            begun_at_ms,
            epoch,
            name,
            ledger,
            "",
            0,
            0,
            number=number,
            note=note,
        )
        return chunk, kept[len(_ONCE)], columns

    def job(self, at: int) -> str:
        """Return the job of a row."""
        return self._jobs[bisect_right(self._job_ends, at)]

    def _row(self, at: int) -> Row:
        """Return a row; as `unfolded` and `Chunk.made`, at a third of the cost."""
        kept = [column[at] for column in self._columns]
        if max(kept) > _PLAIN or min(kept) < -_PLAIN:
            chunk, number, columns = self.unfolded(at)
            return chunk.made(number, self.job(at), columns)
        origin, state, reason, exit_code, ended_index, ended_ms, begun, begun_ms = kept[:8]
        first, number, revision, after_s, trigger, attempt, local_min, launched = kept[8:16]
        launched_ms, started_ms, finished_ms, output_bytes, cpu_ms, memory_peak_bytes = kept[16:]
        begun_index, scheduled_s = ended_index - begun, begun_ms // 1000 + after_s
        epoch, name, ledger, note = self._origins[origin]
        return Row(
            _ENDED,
            self.job(at),
            revision,
            scheduled_s,
            trigger,
            attempt,
            _STATES[state],
            _REASONS[reason],
            ended_index,
            ended_ms + begun_ms,
            scheduled_s,  # last_s
            1,  # count
            local_min,
            begun_index,
            begun_ms,
            epoch,
            name,
            ledger,
            begun_index + launched,
            begun_ms + launched_ms,
            begun_ms + started_ms,
            begun_ms + started_ms + finished_ms,
            exit_code,
            output_bytes=output_bytes,
            note=note,
            number=first + number,
            cpu_ms=cpu_ms,
            memory_peak_bytes=memory_peak_bytes,
        )

    # ---- by places

    def key(self, place: int) -> tuple[int, int]:
        """Return the log index of the row at a place, and its number in that entry."""
        if self.is_single(place):
            row = decode_row(self.single(place))
            return row.ended_index, row.number
        at = self.number(place)
        index, first, number = (
            self._columns[_AT[name]][at] for name in ("ended_index", "number", "number_in")
        )
        return index, first + number

    def is_single(self, place: int) -> bool:
        """Whether the row at a place is packed."""
        at = bisect_left(self._singles, place)
        return at < len(self._singles) and self._singles[at] == place

    def single(self, place: int) -> bytes:
        """Return the bytes of the packed row at a place."""
        return self._packed.rows((bisect_left(self._singles, place),))[0]

    def number(self, place: int) -> int:
        """Return the number of the row at a place, which is of a chunk."""
        return place - bisect_left(self._singles, place)


_SCHEDULED: Final = COLUMNS.index("scheduled_s")
_LAUNCHED: Final = COLUMNS.index("launched_index")


def _columns_of(frame: Frame, records: bytes, rows: int) -> Iterator[array[int]]:
    """Yield the columns of `FIELDS` of so many records."""
    planes = {at: number for number, at in enumerate(frame.differing)}
    for field in range(len(FIELDS)):
        begin = _WIDTH * field
        raw = bytearray(frame.same[begin : begin + _WIDTH] * rows)
        for byte in range(_WIDTH):
            number = planes.get(begin + byte)
            if number is not None:
                raw[byte::_WIDTH] = records[number * rows : (number + 1) * rows]
        yield from_bytes(raw)


def _within(number: int) -> int:
    """Return the sum of two differences as it was before `wrapped`."""
    return number if -_WITHIN <= number < _WITHIN else wrapped((number,))[0]

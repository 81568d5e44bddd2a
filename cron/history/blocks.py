"""A block of a segment: some hundred rows, of one job or of few, in columns of integers. Pure.

Theory of operation. Whatever an item of a tail says in integers is a column here (`FIELDS`), and
what else it says, its origin, is a number in a list of the whole segment. Times and log indexes
that follow each other closely are kept as differences, so that few of their bytes differ. A byte of
an integer that is the same in all rows of a segment is said once, by its `Frame`. In a block the
first of the other bytes of all rows stand together, then the second ones: such columns compress
well. A single row, which may have text, stands among the others with its times and its state, and
its bytes stand beside them as they are.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, repeat
from operator import sub
from typing import Final

import msgspec

from cron.history.order import Match, best, newest_s
from cron.launch_state import LaunchState
from cron.notes import Note
from cron.state.rows import COLUMNS, Chunk, Column, Row, RowKind, column, values
from cron.state.tail import RowsDamaged, Tail, decode_row, encode_item
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch

Origin = tuple[Epoch, str, str, Note | None]
"""Epoch, executor and ledger of a chunk, and its note."""
_SINCE: Final = {
    "begun_at_ms": ("scheduled_s", 1000),
    "begun_index": ("ended_index", 1),
    "ended_at_ms": ("begun_at_ms", 1),
    "last_s": ("scheduled_s", 1),
    "launched_index": ("begun_index", 1),
    "launched_at_ms": ("begun_at_ms", 1),
    "started_ms": ("begun_at_ms", 1),
    "finished_ms": ("started_ms", 1),
}
"""From what a field may be counted, and in which unit that is."""
FIELDS: Final = (
    "origin", "state", "reason", "exit_code", "number", "count", "ended_index", "begun_index",
    "scheduled_s", "last_s", "begun_at_ms", "ended_at_ms",
    *(name for name in COLUMNS if name != "scheduled_s"),
)  # fmt: skip
"""What is a column; each stands behind that from which it is counted."""
_AT: Final = {name: at for at, name in enumerate(FIELDS)}
_BASES: Final = tuple((_AT[name], _AT[base], unit) for name, (base, unit) in _SINCE.items())
_WIDTH: Final = 8
_ENDED: Final = RowKind.ENDED  # members of an enumeration are slow to look up
_RANGE: Final = RowKind.RANGE
_STATES: Final = {int(state): state for state in LaunchState}
_REASONS: Final = {int(reason): reason for reason in Reason}
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


# --- integers as bytes


def to_columns(items: array[int]) -> bytes:
    """Return integers as columns of their bytes, the lowest byte of each first."""
    if sys.byteorder == "big":
        items = items[:]
        items.byteswap()
    raw = items.tobytes()
    return b"".join([raw[at :: items.itemsize] for at in range(items.itemsize)])


def from_columns(code: str, columns: bytes) -> array[int]:
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


def from_bytes(raw: bytearray) -> array[int]:
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


# --- writing


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """What all blocks of a segment share. `since`: a bit for each of `FIELDS`, whether it is kept
    as a difference; `same`: the first eight bytes of each field; `differing`: the places of those
    bytes, of all fields, that are not the same in all rows."""

    origins: list[Origin]
    since: int
    same: bytes
    differing: bytes


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """A block as bytes."""

    jobs: list[tuple[str, int]]  # in order, and how many rows each has
    records: bytes  # of all rows the first byte that differs, then the second one
    singles: dict[int, bytes]  # by place


class Unfolded:
    """The rows of a tail, in log order. `names`: the jobs; `jobs`: of each row its job, by its
    place in `names`; `sizes`: of each item how many rows it has, 0 for a single row; `singles`: the
    bytes of these, by their numbers among the rows.

    The bytes of a row that differ stand together, in `_records`: sorting rows moves one piece of
    bytes a row. There is no object for a row: what a Seal allocates at once stays with the process.
    """

    def __init__(self, tail: Tail) -> None:
        numbers: dict[str, int] = {}
        self.jobs = array("I")
        self.sizes = array("I")
        self.singles: dict[int, bytes] = {}
        self._chunks: list[Chunk] = []
        for number in range(len(tail)):
            item = tail.item(number)
            if isinstance(item, Row):
                self.singles[len(self.jobs)] = bytes(tail.raw(number))
                item, size = _stand_in(item), 0
            else:
                size = len(item)
            self._chunks.append(item)
            self.sizes.append(size)
            self.jobs.extend([numbers.setdefault(one, len(numbers)) for one in item.names()])
        self.names = list(numbers)
        origins: dict[Origin, int] = {}
        self._origins = [
            origins.setdefault((one.epoch, one.executor, one.ledger, one.note), len(origins))
            for one in self._chunks
        ]
        since, same, differing, planes = 0, bytearray(), bytearray(), list[bytes]()
        for field, name in enumerate(FIELDS):
            try:
                found = self.field(name, *_SINCE.get(name, ("", 0)))
                since |= (name in _SINCE) << field
            except OverflowError:
                found = self.field(name)
            columns = to_columns(array("q", (found,)) if isinstance(found, int) else found)
            rows = len(columns) // _WIDTH
            for byte in range(_WIDTH):
                plane = columns[byte * rows : (byte + 1) * rows]
                same.append(plane[0])
                if plane.count(plane[0]) != rows:
                    differing.append(_WIDTH * field + byte)
                    planes.append(plane)
        records = bytearray(len(planes) * len(self.jobs))
        for at, plane in enumerate(planes):
            records[at :: len(planes)] = plane
        self._records = records
        self.frame = Frame(list(origins), since, bytes(same), bytes(differing))

    def block(self, jobs: list[tuple[str, int]], numbers: Sequence[int]) -> bytes:
        """Return a block of rows, given by their numbers in the order of the segment; `jobs`: of
        which jobs they are, and how many of each."""
        size, records = len(self.frame.differing), self._records
        joined_ = b"".join([records[size * at : size * at + size] for at in numbers])
        found = ((place, self.singles.get(number)) for place, number in enumerate(numbers))
        singles = {place: raw for place, raw in found if raw is not None} if self.singles else {}
        planes = b"".join([joined_[at::size] for at in range(size)])
        return msgspec.msgpack.encode(_Stored(jobs, planes, singles))

    def field(self, name: str, base: str = "", unit: int = 0) -> int | array[int]:
        """Return one of `FIELDS` of all rows, less `base` times `unit`; an integer if all have the
        same.

        Raises:
            OverflowError: 64 bits do not hold a difference.
        """
        sizes = [size or 1 for size in self.sizes]
        if name == "number":
            firsts = zip((one.number for one in self._chunks), sizes, strict=True)
            return array("q", chain.from_iterable(range(one, one + rows) for one, rows in firsts))
        said = self._said(name)
        bases = self._said(base) if base else [0] * len(said)
        parts = [
            one - unit * less
            if isinstance(one, int) and isinstance(less, int)
            else _difference(values(one, rows), values(less, rows), unit)
            for one, less, rows in zip(said, bases, sizes, strict=True)
        ]
        first = parts[0]
        if isinstance(first, int) and parts.count(first) == len(parts):
            return array("q", (first,))[0]
        found = array("q")
        for part, rows in zip(parts, sizes, strict=True):
            found.extend(array("q", (part,)) * rows if isinstance(part, int) else part)
        return found

    def _said(self, name: str) -> Sequence[Column]:
        """Return what each item says of a field."""
        if name == "origin":
            return self._origins
        if name == "last_s":
            return [one.last_s if one.count else one.scheduled_s for one in self._chunks]
        return [getattr(one, name) for one in self._chunks]


def picked(field: int | array[int], numbers: Sequence[int]) -> Iterable[int]:
    """Return what `Unfolded.field` says of some rows."""
    if isinstance(field, int):
        return repeat(field, len(numbers))
    return map(field.__getitem__, numbers)


def _difference(ones: array[int], bases: array[int], unit: int) -> array[int]:
    if not unit:
        return ones
    return array("q", map(sub, ones, bases if unit == 1 else [unit * one for one in bases]))


def _stand_in(row: Row) -> Chunk:
    """Return what stands among the columns for a single row."""
    return Chunk(
        row.state, Reason.NONE, 0, row.ended_index, 0, 0, 0, Epoch(), "", "", row.job, 0,
        row.scheduled_s, attempts=row.attempt, number=row.number, count=1, last_s=newest_s(row),
    )  # fmt: skip


# --- reading


class Block:
    """The rows of one block; a place is the number of a row in it.

    Raises:
        RowsDamaged: this is none.
    """

    def __init__(self, content: bytes, frame: Frame) -> None:
        try:
            stored = msgspec.msgpack.decode(content, type=_Stored)
        except _UNREADABLE as error:
            raise RowsDamaged(f"segment: a block cannot be read: {error}") from error
        self.jobs = stored.jobs
        self.singles = stored.singles
        self._rows = sum([rows for _, rows in stored.jobs])
        self._records = stored.records
        self._frame = frame
        self._bases = {at: by for at, *by in _BASES if frame.since >> at & 1}
        self._planes: dict[int, list[tuple[int, int]]] = {}  # by field: its bytes that differ
        for number, at in enumerate(frame.differing):
            self._planes.setdefault(at // _WIDTH, []).append((at % _WIDTH, number * len(self)))
        is_whole = len(stored.records) == len(self) * len(frame.differing)
        is_whole = is_whole and all(rows > 0 for _, rows in stored.jobs)
        if not is_whole or len(frame.same) != _WIDTH * len(FIELDS):
            raise RowsDamaged("segment: a block has not as many rows as it says")

    def __len__(self) -> int:
        """Return how many rows there are."""
        return self._rows

    @cached_property
    def _ends(self) -> list[int]:
        """Behind which row each job ends."""
        return [*accumulate(rows for _, rows in self.jobs)]

    def column(self, name: str, begin: int = 0, end: int | None = None) -> array[int]:
        """Return a field of `FIELDS` of the rows from one place to another."""
        return self._column(_AT[name], begin, len(self) if end is None else end)

    def _column(self, at: int, begin: int, end: int) -> array[int]:
        kept = self._kept(at, begin, end)
        if at in self._bases:
            base, unit = self._bases[at]
            both = zip(kept, self._column(base, begin, end), strict=True)
            return array("q", [one + unit * more for one, more in both])
        return kept

    def _kept(self, at: int, begin: int, end: int) -> array[int]:
        raw = bytearray(self._frame.same[_WIDTH * at : _WIDTH * at + _WIDTH] * (end - begin))
        for byte, first in self._planes.get(at, ()):
            raw[byte::_WIDTH] = self._records[first + begin : first + end]
        return from_bytes(raw)

    def newest(self, job: str, match: Match, limit: int | None) -> list[Row]:
        """Return the rows of a job that match; of more than `limit`, at least the newest so many,
        in no order."""
        at = next((at for at, (name, _) in enumerate(self.jobs) if name == job), None)
        if at is None:
            return []
        begin = sum([rows for _, rows in self.jobs[:at]])
        end = begin + self.jobs[at][1]
        firsts_s, lasts_s, states = (
            self.column(name, begin, end) for name in ("scheduled_s", "last_s", "state")
        )
        fit = match.places(firsts_s, lasts_s, states)
        if match.is_scheduled:
            fit = self._scheduled(fit, range(begin, end))
        wanted = fit if limit is None else best(fit, lasts_s, limit)
        return self._rows_at([begin + at for at in wanted], job)

    def _scheduled(self, wanted: Iterable[int], places: range) -> list[int]:
        """Return those of the rows at some of these places that are of no manual launch."""
        triggers = self.column("triggers", places.start, places.stop)
        singles = {place: self.singles.get(places.start + place) for place in wanted}
        return [
            place
            for place, single in singles.items()
            if not (triggers[place] if single is None else decode_row(single).trigger)
        ]

    def rows(self, places: Sequence[int]) -> list[Row]:
        """Return the rows at some places, which ascend."""
        return self._rows_at(places, None)

    def _rows_at(self, places: Sequence[int], job: str | None) -> list[Row]:
        """Return the rows at some places, which ascend; all are of `job`, where it is said."""
        if not places:
            return []
        begin, end = places[0], places[-1] + 1
        if begin < 0 or end > len(self):
            raise RowsDamaged(f"segment: a block has {len(self)} rows, and row {end} is looked for")
        columns = [self._kept(at, begin, end) for at in range(len(FIELDS))]
        found = []
        for place in places:
            single = self.singles.get(place)
            if single is not None:
                found.append(decode_row(single))
            else:
                name = job or self.jobs[bisect_right(self._ends, place)][0]
                found.append(self._row(name, [one[place - begin] for one in columns]))
        return found

    def _row(self, job: str, kept: list[int]) -> Row:
        for at, (base, unit) in self._bases.items():
            kept[at] += unit * kept[base]
        origin, state, reason, exit_code, number, count, ended_index, begun_index = kept[:8]
        scheduled_s, last_s, begun_at_ms, ended_at_ms, revision, trigger = kept[8:14]
        attempt, local_min, launched_index, launched_at_ms, started_ms = kept[14:19]
        finished_ms, output_bytes, cpu_ms, memory_peak_bytes = kept[19:]
        epoch, executor, ledger, note = self._frame.origins[origin]
        return Row(
            _RANGE if count > 1 else _ENDED,
            job,
            revision,
            scheduled_s,
            trigger,
            attempt,
            _STATES[state],
            _REASONS[reason],
            ended_index,
            ended_at_ms,
            last_s,
            count or 1,
            local_min,
            begun_index,
            begun_at_ms,
            epoch,
            executor,
            ledger,
            launched_index,
            launched_at_ms,
            started_ms,
            finished_ms,
            exit_code,
            output_bytes=output_bytes,
            note=note,
            number=number,
            cpu_ms=cpu_ms,
            memory_peak_bytes=memory_peak_bytes,
        )


def items_of(
    blocks: Sequence[Block], frame: Frame, order: Sequence[int], sizes: Iterable[int]
) -> Iterator[bytes]:
    """Yield the items, encoded, whose rows are in these blocks: `order` has the places of all rows
    in log order, `sizes` how many rows each item has, 0 for a single row.

    No step of it is long: the loop's thread must not wait.
    """
    names = [job for block in blocks for job, rows in block.jobs for _ in range(rows)]
    singles: dict[int, bytes] = {}
    firsts = accumulate(map(len, blocks), initial=0)
    for first, block in zip(firsts, blocks, strict=False):
        singles |= {first + place: raw for place, raw in block.singles.items()}
    columns = {
        name: [whole[place] for place in order]
        for name in FIELDS
        if (whole := [one for block in blocks for one in block.column(name)])
    }
    begin = 0
    for size in sizes:
        if not size:
            yield singles[order[begin]]
            begin += 1
            continue
        mine = slice(begin, begin + size)
        once = {name: columns[name][begin] for name in FIELDS if name not in COLUMNS}
        epoch, executor, ledger, note = frame.origins[once["origin"]]
        yield encode_item(
            Chunk(
                _STATES[once["state"]],
                _REASONS[once["reason"]],
                once["exit_code"],
                once["ended_index"],
                once["ended_at_ms"],
                once["begun_index"],
                once["begun_at_ms"],
                epoch,
                executor,
                ledger,
                "\n".join([names[place] for place in order[mine]]),
                number=once["number"],
                note=note,
                count=once["count"],
                last_s=once["last_s"] if once["count"] else 0,
                **{name: column(columns[name][mine]) for name in COLUMNS},
            )
        )
        begin += size

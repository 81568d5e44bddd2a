"""A sealed segment: its rows sorted by job, in sections that are read one by one.

Theory of operation. A tail leaves State in log order. Its rows are sorted by job, those of a job
stay in log order, and are cut into blocks. A question about a job reads the index and the one or
two blocks that the job is in. A question about all jobs reads the columns of times and states,
chooses rows by them, and reads the blocks of those. All of it depends on the rows alone: every
replica writes the same bytes.

| section | what is in it |
| --- | --- |
| 0 | the index: jobs and their first rows; of each block the first row, the times, the states |
| 1 | of each row, sorted: the last ScheduledTime, how long its range is, its state |
| 2 | of each row with output, in log order: its log index, and its place among the sorted |
| 3 | the places of all sorted rows in log order; empty where log index and number tell |
| 4 … | the blocks |

The catalog's digest covers the rows in log order (`content`), so that State need not know how
segments are kept. Jobs are sorted by a hash of their names.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import sub
from typing import Any, Final, Protocol

import msgspec

from cron.history.blocks import Block, from_columns, pack, to_columns
from cron.history.order import Match, best, newest_of, newest_s
from cron.state.archive import RowsDamaged, SegmentRecord, Tail, content_digest
from cron.state.rows import Row

BLOCK_ROWS: Final = 512
BLOCK_BYTES: Final = 256 << 10
PIECE_ROWS: Final = 8_192
"""Rows that are worked on in one call: a longer one would keep the loop's thread waiting."""
_FORMAT: Final = 1
_MANY_JOBS: Final = 64
"""So many are looked up all together."""
_INDEX, _TIMES, _OUTPUTS, _ORDER, _BLOCKS = range(5)
_ARRAY32: Final = 0xDD

_decode: Final = msgspec.msgpack.Decoder(Row).decode
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Index(msgspec.Struct, frozen=True, array_like=True):
    """Section 0: columns of integers."""

    format: int
    rows: int
    hashes: bytes  # u64, ascending: a job each
    firsts: bytes  # u32: the first row of each job
    block_firsts: bytes  # u32: the first row of each block
    firsts_s: bytes  # i64, of each block
    lasts_s: bytes  # i64, of each block
    states: bytes  # u16, of each block: a bit for each LaunchState in it


class Sections(Protocol):
    """A segment's file."""

    def __len__(self) -> int:
        """Return how many sections there are."""

    def read(self, number: int) -> bytes:
        """Return the content of a section. Raises SnapshotError, OSError."""


def job_hash(job: str) -> int:
    """Return what the jobs of a segment are sorted and found by."""
    return int.from_bytes(hashlib.blake2b(job.encode(), digest_size=8).digest(), "little")


# --- writing


def sections_of(tail: Tail) -> list[bytes]:
    """Return the sections of a segment; in a thread, at 2 us a row."""
    jobs = sorted((job_hash(job), job) for job in tail.jobs)
    order = array("I")
    firsts = array("I")
    for _, job in jobs:
        firsts.append(len(order))
        order.extend(tail.jobs[job])
    blocks = list(_blocks(tail, order))
    index = _Index(
        _FORMAT,
        tail.rows,
        to_columns(array("Q", [number for number, _ in jobs])),
        to_columns(firsts),
        to_columns(array("I", accumulate((one.rows for one in blocks[:-1]), initial=0))),
        to_columns(array("q", [one.first_s for one in blocks])),
        to_columns(array("q", [one.last_s for one in blocks])),
        to_columns(array("H", [one.states for one in blocks])),
    )
    return [
        msgspec.msgpack.encode(index),
        _times(tail, order),
        _outputs(tail, order),
        b"" if tail.is_numbered else to_columns(order),
        *(one.content for one in blocks),
    ]


class _Written(msgspec.Struct):
    """A block, and what the index says of it."""

    content: bytes
    rows: int
    first_s: int
    last_s: int
    states: int


def _blocks(tail: Tail, order: array[int]) -> Iterator[_Written]:
    ends, content = tail.ends, memoryview(tail.content)
    for begin in range(0, len(order), BLOCK_ROWS):
        places = order[begin : begin + BLOCK_ROWS]
        rows = [content[ends[at - 1] if at else 0 : ends[at]] for at in places]
        for first, last in _cuts(rows):
            mine = places[first:last]
            yield _Written(
                pack(rows[first:last]),
                last - first,
                min([tail.firsts_s[at] for at in mine]),
                max([tail.lasts_s[at] for at in mine]),
                sum(1 << state for state in {tail.states[at] for at in mine}),
            )


def _cuts(rows: Sequence[memoryview]) -> Iterator[tuple[int, int]]:
    """Yield where a block of long rows is cut, so that no part has many more than BLOCK_BYTES."""
    begin = size = 0
    for at, row in enumerate(rows):
        if size and size + len(row) > BLOCK_BYTES:
            yield begin, at
            begin, size = at, 0
        size += len(row)
    yield begin, len(rows)


def _times(tail: Tail, order: array[int]) -> bytes:
    lasts_s, spans_s, states = array("q"), array("q"), array("B")
    for begin in range(0, len(order), PIECE_ROWS):
        places = order[begin : begin + PIECE_ROWS]
        lasts_s.extend(map(tail.lasts_s.__getitem__, places))
        spans_s.extend(map(sub, lasts_s[begin:], map(tail.firsts_s.__getitem__, places)))
        states.extend(map(tail.states.__getitem__, places))
    return to_columns(_steps(lasts_s)) + to_columns(spans_s) + states.tobytes()


def _outputs(tail: Tail, order: array[int]) -> bytes:
    if not tail.outputs:
        return b""
    place_of = array("I", bytes(4 * len(order)))
    for place, number in enumerate(order):
        place_of[number] = place
    places = array("I", map(place_of.__getitem__, tail.outputs))
    return to_columns(_steps(array("q", tail.output_indexes))) + to_columns(places)


def _steps(items: array[int]) -> array[int]:
    """Return the first of some numbers, and the step from each to the next."""
    steps = array("q", items[:1])
    for begin in range(1, len(items), PIECE_ROWS):
        end = begin + PIECE_ROWS
        steps.extend(map(sub, items[begin:end], items[begin - 1 : end]))
    return steps


def _sums(steps: array[int]) -> array[int]:
    """Return the numbers of which `_steps` made these."""
    sums = array("q")
    total = 0
    for begin in range(0, len(steps), PIECE_ROWS):
        sums.extend(accumulate(steps[begin + 1 : begin + PIECE_ROWS], initial=total + steps[begin]))
        total = sums[-1]
    return sums


def check_sections(record: SegmentRecord, sections: Sections) -> bytes:
    """Return the rows of a segment in log order, once all of its sections are known to be theirs.

    Raises:
        RowsDamaged: they are not. And whatever `sections` raises.
    """
    try:
        content = Segment(record, sections).content()
    except (LookupError, ValueError, OverflowError) as error:  # numbers lead astray
        raise RowsDamaged(f"segment: its sections contradict each other: {error}") from error
    expected = sections_of(Tail.of(content))
    found = len(sections) == len(expected)
    if not found or any(sections.read(at) != one for at, one in enumerate(expected)):
        raise RowsDamaged("segment: its index is not that of its rows")
    return content


# --- reading


class Times(msgspec.Struct):
    """Of each row, sorted: its first and its last ScheduledTime, and its state."""

    firsts_s: array[int]
    lasts_s: array[int]
    states: bytes


class Segment:
    """The rows of one segment; its index is held, all else is read anew.

    Every call may raise RowsDamaged, SnapshotError and OSError: the file is damaged, gone, or the
    disk refuses.
    """

    def __init__(self, record: SegmentRecord, sections: Sections) -> None:
        self.record = record
        self._sections = sections
        content = sections.read(_INDEX)
        try:
            index = msgspec.msgpack.decode(content, type=_Index)
        except _UNREADABLE as error:
            raise RowsDamaged(f"segment: its index cannot be read: {error}") from error
        self._hashes = from_columns("Q", index.hashes)
        self._firsts = from_columns("I", index.firsts)
        self._block_firsts = from_columns("I", index.block_firsts)
        self._firsts_s = from_columns("q", index.firsts_s)
        self._lasts_s = from_columns("q", index.lasts_s)
        self._states = from_columns("H", index.states)
        self.rows = index.rows
        self.held_bytes = 2 * len(content)
        blocks = {len(self._firsts_s), len(self._lasts_s), len(self._states), len(sections) - 4}
        if (
            index.format != _FORMAT
            or index.rows != record.rows
            or len(self._hashes) != len(self._firsts)
            or blocks != {len(self._block_firsts)}
        ):
            raise RowsDamaged("segment: its index is not that of its rows")

    # ---- one job

    def span(self, number: int) -> tuple[int, int]:
        """Return the first row of the job of this hash, and the first of the next; equal where it
        has none."""
        at = bisect_left(self._hashes, number)
        if at == len(self._hashes) or self._hashes[at] != number:
            return 0, 0
        end = bisect_right(self._hashes, number, at)
        return self._firsts[at], self._firsts[end] if end < len(self._firsts) else self.rows

    def which_of(self, numbers: Collection[int]) -> list[int]:
        """Return which of the jobs of these hashes have rows."""
        if len(numbers) > _MANY_JOBS:
            return [*frozenset(numbers).intersection(self._hashes)]
        return [number for number in numbers if self.span(number) != (0, 0)]

    def of_job(self, job: str, match: Match, limit: int | None = None) -> list[Row]:
        """Return the rows of a job that match; of more than `limit`, at least the newest so many,
        in no order."""
        begin, end = self.span(job_hash(job))
        if begin == end:
            return []
        first = bisect_right(self._block_firsts, begin) - 1
        last = bisect_left(self._block_firsts, end)
        found: list[Row] = []
        for block in sorted(range(first, last), key=self._lasts_s.__getitem__, reverse=True):
            if limit is not None and len(found) >= limit:
                found = newest_of(found, limit)
                if newest_s(found[-1]) > self._lasts_s[block]:
                    break
            if match.may_be(self._firsts_s[block], self._lasts_s[block], self._states[block]):
                rows = self._rows_in(block, range(begin, end))
                found += [row for row in rows if row.job == job and match.fits(row)]
        return found

    # ---- all jobs

    def newest(self, match: Match, limit: int) -> list[Row]:
        """Return at least the newest `limit` rows that match, in no order."""
        times = self.times()
        places = match.places(times.firsts_s, times.lasts_s, times.states)
        return self.rows_at(best(places, times.lasts_s, limit))

    def times(self) -> Times:
        """Return the times and states of all rows, sorted by job."""
        content = memoryview(self._sections.read(_TIMES))
        if len(content) != 17 * self.rows:
            raise RowsDamaged("segment: it has not as many times as rows")
        at = 8 * self.rows
        lasts_s = _sums(from_columns("q", content[:at]))
        spans_s, firsts_s = from_columns("q", content[at : 2 * at]), array("q")
        for begin in range(0, self.rows, PIECE_ROWS):
            end = begin + PIECE_ROWS
            firsts_s.extend(map(sub, lasts_s[begin:end], spans_s[begin:end]))
        return Times(firsts_s, lasts_s, bytes(content[2 * at :]))

    def jobs(self) -> Iterator[tuple[str, int, int]]:
        """Yield each job's name, its first row, and the first of the next job, in order."""
        rows = self.rows_at(self._firsts)
        ends = [*self._firsts[1:], self.rows]
        for row, begin, end in zip(rows, self._firsts, ends, strict=True):
            yield row.job, begin, end

    def rows_at(self, places: Iterable[int]) -> list[Row]:
        """Return rows by their places among the sorted ones, in the order of these."""
        found: list[Row] = []
        mine: list[int] = []
        block, end = -1, -1
        for place in sorted(places):
            if place >= end:
                found += self._decoded(block, mine)
                block = bisect_right(self._block_firsts, place) - 1
                end, mine = self._end_of(block), []
            mine.append(place - self._block_firsts[block])
        return found + self._decoded(block, mine)

    def all_rows(self) -> Iterator[Row]:
        """Yield all rows, sorted by job."""
        for block in range(len(self._block_firsts)):
            yield from self._rows_in(block, range(self.rows))

    # ---- output

    def outputs(self) -> tuple[array[int], array[int]]:
        """Return the log indexes of the rows with output, in log order, and their places."""
        content = memoryview(self._sections.read(_OUTPUTS))
        count, rest = divmod(len(content), 12)
        if rest:
            raise RowsDamaged("segment: its outputs are cut off")
        indexes = _sums(from_columns("q", content[: 8 * count]))
        return indexes, from_columns("I", content[8 * count :])

    # ---- as the catalog knows it

    def content(self) -> bytes:
        """Return the rows in log order.

        Raises:
            RowsDamaged: they are not those of the catalog's record.
        """
        rows: list[bytes] = []
        for block in range(len(self._block_firsts)):
            packed = self._block(block)
            rows += packed.rows(range(len(packed)))
        order = from_columns("I", self._sections.read(_ORDER))
        if not order:
            keys = [(row.ended_index, row.number) for row in map(_decoded, rows)]
            places = sorted(range(len(rows)), key=keys.__getitem__)
        elif len(order) == len(rows):
            places = sorted(range(len(rows)), key=order.__getitem__)
        else:
            raise RowsDamaged("segment: its order is not that of its rows")
        head = bytes((_ARRAY32, *len(rows).to_bytes(4, "big")))
        content = head + b"".join([rows[at] for at in places])
        if content_digest(content) != self.record.digest:
            raise RowsDamaged("segment: its rows are not those that the catalog names")
        return content

    # ---- blocks

    def _end_of(self, block: int) -> int:
        firsts = self._block_firsts
        return firsts[block + 1] if block + 1 < len(firsts) else self.rows

    def _rows_in(self, block: int, places: range) -> list[Row]:
        """Return those of the rows at `places` that are in a block."""
        begin, end = self._block_firsts[block], self._end_of(block)
        mine = range(max(places.start, begin) - begin, min(places.stop, end) - begin)
        return self._decoded(block, mine)

    def _decoded(self, block: int, numbers: Sequence[int]) -> list[Row]:
        return [*map(_decoded, self._block(block).rows(numbers))] if numbers else []

    def _block(self, block: int) -> Block:
        packed = Block(self._sections.read(_BLOCKS + block))
        if len(packed) != self._end_of(block) - self._block_firsts[block]:
            raise RowsDamaged("segment: a block has not as many rows as the index says")
        return packed


def _decoded(raw: Any) -> Row:
    try:
        return _decode(raw)
    except _UNREADABLE as error:
        raise RowsDamaged(f"segment: a row cannot be read: {error}") from error

"""A sealed segment: its rows sorted by job, in sections that are read one by one.

Theory of operation. A tail leaves State in log order, as chunks and single rows. Its rows are
sorted by job, those of a job stay in log order, and are cut into blocks. A question about a job
reads the index and the one or two blocks that the job is in. A question about all jobs reads the
list of each state in question, newest last, and the blocks of the rows that it takes from there; a
segment that has no row of a state is passed over by its index. All of it depends on the chunks
alone: every replica writes the same bytes.

| section | what is in it |
| --- | --- |
| 0 | the index: jobs and their first rows; of each block the first row, the times, the states |
| 1 | of each item of the tail, in log order: 0 for a single row, else how many rows a chunk has, |
|   | the highest bit set where they are skipped instants |
| 2 | the places of all rows, in log order; empty where log index and number tell |
| 3 … | lists: of the rows of one state the ScheduledTimes and the places; the last is of ranges |
| … | the blocks (`blocks.py`) |

The catalog's digest covers the items in log order (`content`), so that State need not know how
segments are kept. Jobs are sorted by a hash of their names.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, Protocol

import msgspec

from cron.errors import invariant
from cron.history.blocks import Block, Frame, Unfolded, Written, block_of
from cron.history.columns import Planes, from_columns, to_columns, to_planes
from cron.history.order import Match, best, newest_of, newest_s
from cron.state.archive import SegmentRecord
from cron.state.rows import COLUMNS, Chunk, Row, column, values
from cron.state.tail import RowsDamaged, Tail, content_digest, decode_row, encode_item, head_of

BLOCK_ROWS: Final = 512
BLOCK_BYTES: Final = 256 << 10
_FORMAT: Final = 4
_PLACE_BITS: Final = 32
_SKIPPED: Final = 1 << 31
"""Marks, among the sizes of items, a chunk of skipped instants."""
_MANY_JOBS: Final = 64
"""So many are looked up all together."""
_INDEX, _ITEMS, _ORDER, _LISTS = range(4)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Formatted(msgspec.Struct, frozen=True, array_like=True):
    """The one field of an index that every version of this program can read."""

    format: int


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
    lists: list[tuple[int, int]]  # of each list: the states in it, a bit each, and its rows
    has_ranges: bool  # whether the last list is of ranges
    frame: Frame


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
    """Return the sections of a segment; in a thread."""
    source = Unfolded(tail)
    hashes, firsts, order = _sorted(source)
    places = array("I", bytes(4 * len(order)))  # of each row, in log order
    for place, number in enumerate(order):
        places[number] = place
    blocks = list(_blocks(source, order))
    lists = _Lists(source, places)
    index = _Index(
        _FORMAT,
        tail.rows,
        to_columns(hashes),
        to_columns(firsts),
        to_columns(array("I", accumulate((one.rows for one in blocks[:-1]), initial=0))),
        to_columns(array("q", [one.first_s for one in blocks])),
        to_columns(array("q", [one.last_s for one in blocks])),
        to_columns(array("H", [one.states for one in blocks])),
        lists.said,
        lists.has_ranges,
        source.frame,
    )
    sizes = [
        rows if item not in source.packed else rows | _SKIPPED if tail.is_chunk(item) else 0
        for item, rows in enumerate(source.sizes)
    ]
    return [
        msgspec.msgpack.encode(index),
        to_columns(array("I", sizes)),
        b"" if tail.is_numbered else to_columns(places),
        *lists.contents,
        *(one.content for one in blocks),
    ]


def _sorted(source: Unfolded) -> tuple[array[int], array[int], array[int]]:
    """Return the hashes of all jobs, the first row of each, and the rows sorted by job."""
    of_job: defaultdict[str, list[int]] = defaultdict(list)
    for number, job in enumerate(source.jobs):
        of_job[job].append(number)
    by_hash: dict[int, list[str]] = {}
    for job in of_job:
        by_hash.setdefault(job_hash(job), []).append(job)
    hashes, firsts, order = array("Q"), array("I"), array("I")
    for number in sorted(by_hash):
        for job in sorted(by_hash[number]):
            hashes.append(number)
            firsts.append(len(order))
            order.extend(of_job[job])
    return hashes, firsts, order


def _blocks(source: Unfolded, order: array[int]) -> Iterator[Written]:
    for begin in range(0, len(order), BLOCK_ROWS):
        numbers = order[begin : begin + BLOCK_ROWS]
        for first, last in _cuts(source, numbers):
            yield block_of(source, numbers[first:last])


def _cuts(source: Unfolded, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where a block of long rows is cut, so that no part has many more than BLOCK_BYTES."""
    begin = size = 0
    if source.longest * len(numbers) > BLOCK_BYTES:
        for place, number in enumerate(numbers):
            is_packed = source.items[number] in source.packed
            row_bytes = len(source.bytes_of(number)) if is_packed else 0
            if size and size + row_bytes > BLOCK_BYTES:
                yield begin, place
                begin, size = place, 0
            size += row_bytes
    yield begin, len(numbers)


class _Lists:
    """The rows of each state, as they are listed, newest last; ranges are in a list of their own.

    `said` and `contents`: what the index says of each list, and its bytes.
    """

    def __init__(self, source: Unfolded, places: array[int]) -> None:
        self._source = source
        self._places = places
        self._of_states: dict[int, dict[int, list[int]]] = {}  # rows by state and ScheduledTime
        self._ranges: list[tuple[int, int]] = []  # items, and their rows
        self._sort()
        self.said: list[tuple[int, int]] = []
        self.contents: list[bytes] = []
        for state in sorted(self._of_states):
            self._write(state)
        self.has_ranges = bool(self._ranges)
        if self.has_ranges:
            self._write_ranges()

    def _sort(self) -> None:
        """Sort rows by state and ScheduledTime; those that have both are in log order."""
        source, tail = self._source, self._source.tail
        first = 0
        for item, rows in enumerate(source.sizes):
            numbers = range(first, first + rows)
            first += rows
            if item in source.ranges:
                self._ranges += [(item, number) for number in numbers]
                continue
            times = self._of_states.setdefault(tail.states[item], {})
            if tail.firsts_s[item] == tail.lasts_s[item]:
                times.setdefault(tail.firsts_s[item], []).extend(numbers)
                continue
            chunk = tail.item(item)
            invariant(isinstance(chunk, Chunk), "history: a single row has two ScheduledTimes")
            scheduled = values(chunk.scheduled_s, rows) if isinstance(chunk, Chunk) else ()
            for number, scheduled_s in zip(numbers, scheduled, strict=True):
                times.setdefault(scheduled_s, []).append(number)

    def _write(self, state: int) -> None:
        lasts_s, listed = array("q"), array("I")
        times, attempts = self._of_states[state], self._source.attempts
        for scheduled_s in sorted(times):
            numbers = times[scheduled_s]
            if attempts:
                numbers.sort(key=lambda number: attempts.get(number, 1))
            lasts_s.extend(array("q", (scheduled_s,)) * len(numbers))
            listed.extend(map(self._places.__getitem__, numbers))
        self.said.append((1 << state, len(listed)))
        self.contents.append(to_planes(lasts_s) + to_columns(listed))

    def _write_ranges(self) -> None:
        tail, attempts = self._source.tail, self._source.attempts
        ranges = sorted(
            self._ranges, key=lambda one: (tail.lasts_s[one[0]], attempts.get(one[1], 1))
        )
        states = array("q", [tail.states[item] for item, _ in ranges])
        self.said.append((sum(1 << state for state in set(states)), len(ranges)))
        self.contents.append(
            to_planes(array("q", [tail.lasts_s[item] for item, _ in ranges]))
            + to_planes(array("q", [tail.firsts_s[item] for item, _ in ranges]))
            + to_planes(states)
            + to_columns(array("I", [self._places[number] for _, number in ranges]))
        )


def check_sections(record: SegmentRecord, sections: Sections) -> bytes:
    """Return the rows of a segment in log order, once all of its sections are known to be theirs.

    Raises:
        RowsDamaged: they are not. And whatever `sections` raises.
    """
    try:
        content = Segment(record, sections).content()
        expected = sections_of(Tail.of(content))
    except (LookupError, ValueError, OverflowError) as error:  # numbers lead astray
        raise RowsDamaged(f"segment: its sections contradict each other: {error}") from error
    found = len(sections) == len(expected)
    if not found or any(sections.read(number) != one for number, one in enumerate(expected)):
        raise RowsDamaged("segment: its index is not that of its rows")
    return content


# --- reading


class _Listed(msgspec.Struct):
    """A list of rows, newest last; of ranges, where each begins and its state."""

    lasts_s: array[int]
    places: array[int]
    firsts_s: array[int] | None = None
    states: array[int] | None = None

    def newest(self, match: Match, limit: int) -> range | list[int]:
        """Return the numbers of the newest `limit` that match."""
        if self.firsts_s is not None and self.states is not None:
            return match.places(self.firsts_s, self.lasts_s, self.states)[-limit:]
        begin, end = (
            bisect_left(self.lasts_s, match.since_s),
            bisect_right(self.lasts_s, match.until_s),
        )
        return range(max(begin, end - limit), end)


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
            known = msgspec.msgpack.decode(content, type=_Formatted).format
            if known != _FORMAT:
                text = f"segment: it has format {known}, this program reads {_FORMAT}"
                raise RowsDamaged(f"{text}: use the release that wrote it")
            index = msgspec.msgpack.decode(content, type=_Index)
        except _UNREADABLE as error:
            raise RowsDamaged(f"segment: its index cannot be read: {error}") from error
        self._hashes = from_columns("Q", index.hashes)
        self._firsts = from_columns("I", index.firsts)
        self._block_firsts = from_columns("I", index.block_firsts)
        self._firsts_s = from_columns("q", index.firsts_s)
        self._lasts_s = from_columns("q", index.lasts_s)
        self._states = from_columns("H", index.states)
        self._lists = index.lists
        self._has_ranges = index.has_ranges
        self._frame = index.frame
        self._first_block = _LISTS + len(index.lists)
        self.rows = index.rows
        self.held_bytes = 2 * len(content)
        count = len(sections) - self._first_block
        blocks = {len(self._firsts_s), len(self._lasts_s), len(self._states), count}
        if (
            index.rows != record.rows
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
                first_row = self._block_firsts[block]
                places = range(max(begin - first_row, 0), min(end, self._end_of(block)) - first_row)
                rows = self._block(block).newest(places, match, limit)
                found += [row for row in rows if row.job == job]
        return found

    # ---- all jobs

    def newest(self, match: Match, limit: int) -> list[Row]:
        """Return at least the newest `limit` rows that match, in no order."""
        lasts_s: list[int] = []
        places: list[int] = []
        for number, (states, _) in enumerate(self._lists):
            if states & match.states:
                listed = self._listed(number)
                for one in listed.newest(match, limit):
                    lasts_s.append(listed.lasts_s[one])
                    places.append(listed.places[one])
        return self.rows_at([places[one] for one in best(range(len(places)), lasts_s, limit)])

    def lasts_s(self) -> array[int]:
        """Return the last ScheduledTime of each row, sorted by job."""
        found = array("q", bytes(8 * self.rows))
        for number in range(len(self._lists)):
            listed = self._listed(number)
            for last_s, place in zip(listed.lasts_s, listed.places, strict=True):
                found[place] = last_s
        return found

    def _listed(self, number: int) -> _Listed:
        content = self._sections.read(_LISTS + number)
        rows = self._lists[number][1]
        planes = Planes(content)
        columns = [planes.read(rows)]
        if self._has_ranges and number == len(self._lists) - 1:
            columns += [planes.read(rows), planes.read(rows)]
        places = from_columns("I", planes.rest())
        if len(places) != rows:
            raise RowsDamaged("segment: a list has not as many rows as the index says")
        return _Listed(columns[0], places, *columns[1:])

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
            found = self._block(block)
            yield from found.rows(range(len(found)))

    # ---- as the catalog knows it

    def content(self) -> bytes:
        """Return the rows in log order, as chunks and single rows.

        Raises:
            RowsDamaged: they are not those of the catalog's record.
        """
        blocks = [self._block(block) for block in range(len(self._block_firsts))]
        order = self._in_log_order(blocks)
        parts: list[bytes] = []
        begin = 0
        for size in from_columns("I", self._sections.read(_ITEMS)):
            rows = size & ~_SKIPPED or 1
            mine = [self._located(blocks, place) for place in order[begin : begin + rows]]
            begin += len(mine)
            if size > _SKIPPED:
                parts.append(_skipped_of(mine))
            else:
                parts.append(_chunk_of(mine) if size else mine[0][0].single(mine[0][1]))
        content = head_of(len(parts)) + b"".join(parts)
        if begin != self.rows or content_digest(content) != self.record.digest:
            raise RowsDamaged("segment: its rows are not those that the catalog names")
        return content

    def _in_log_order(self, blocks: list[Block]) -> array[int]:
        """Return the places of all rows, in log order. No step of it is long: the loop's thread
        must not wait."""
        order = from_columns("I", self._sections.read(_ORDER))
        if order:
            if len(order) != self.rows:
                raise RowsDamaged("segment: its order is not that of its rows")
            return order
        entries: defaultdict[int, list[int]] = defaultdict(list)  # of each row number and place
        for block, first in zip(blocks, self._block_firsts, strict=True):
            for place in range(len(block)):
                index, number = block.key(place)
                entries[index].append((number << _PLACE_BITS) + first + place)
        for index in sorted(entries):
            mine = entries.pop(index)
            order.extend([one & (1 << _PLACE_BITS) - 1 for one in sorted(mine)])
        return order

    def _located(self, blocks: list[Block], place: int) -> tuple[Block, int]:
        block = bisect_right(self._block_firsts, place) - 1
        return blocks[block], place - self._block_firsts[block]

    # ---- blocks

    def _end_of(self, block: int) -> int:
        firsts = self._block_firsts
        return firsts[block + 1] if block + 1 < len(firsts) else self.rows

    def _decoded(self, block: int, places: Sequence[int]) -> list[Row]:
        return self._block(block).rows(places) if places else []

    def _block(self, block: int) -> Block:
        found = Block(self._sections.read(self._first_block + block), self._frame)
        if len(found) != self._end_of(block) - self._block_firsts[block]:
            raise RowsDamaged("segment: a block has not as many rows as the index says")
        return found


def _skipped_of(rows: list[tuple[Block, int]]) -> bytes:
    """Return a chunk of skipped instants, encoded, whose rows are at some places of blocks."""
    found = [decode_row(block.single(place)) for block, place in rows]
    jobs, revisions = [row.job for row in found], [row.revision for row in found]
    return encode_item(Chunk.skipped(found[0], jobs, revisions))


def _chunk_of(rows: list[tuple[Block, int]]) -> bytes:
    """Return a chunk, encoded, whose rows are at some places of some blocks."""
    mine = [(block, block.number(place)) for block, place in rows]
    found = [block.unfolded(one) for block, one in mine]
    columns = zip(*(integers for _, _, integers in found), strict=True)
    fields = {name: column(integers) for name, integers in zip(COLUMNS, columns, strict=True)}
    jobs = "\n".join(block.job(one) for block, one in mine)
    return encode_item(msgspec.structs.replace(found[0][0], jobs=jobs, **fields))

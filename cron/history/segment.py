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
| 1 | of each item of the tail, in log order: how many rows a chunk has, 0 for a single row |
| 2 | the places of all rows, in log order; empty where log index and number tell |
| 3 … | lists: of the rows of one state the ScheduledTimes, how long they last, and the places |
| … | the blocks (`blocks.py`) |

The catalog's digest covers the items in log order (`content`), so that State need not know how
segments are kept. Jobs are sorted by a hash of their names.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, wraps
from itertools import accumulate, chain, count, groupby, pairwise
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

import msgspec

from cron.history.blocks import (
    Block,
    Frame,
    Planes,
    Unfolded,
    from_columns,
    items_of,
    picked,
    to_columns,
    to_planes,
)
from cron.history.ends import NO_END, Ends
from cron.history.order import Match, best, newest_of, newest_s
from cron.state.archive import SegmentRecord
from cron.state.rows import Row, RowKind
from cron.state.tail import RowsDamaged, Tail, content_digest, decode_row, head_of

BLOCK_ROWS: Final = 512
BLOCK_BYTES: Final = 256 << 10
_FORMAT: Final = 6
HELD_JOBS_MAX: Final = 2_048
"""Jobs of a segment whose places are held. Where there are more, the jobs at which blocks begin
are, and a block is read to see whether a job is in it."""
_PLACE_BITS: Final = 32
_BLOCK_HELD_BYTES: Final = 200
_JOB_HELD_BYTES: Final = 12
_INDEX, _ITEMS, _ORDER, _LISTS = range(4)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Formatted(msgspec.Struct, frozen=True, array_like=True):
    """The one field of an index that every version of this program can read."""

    format: int


class _BlockIndex(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of a block: its first row, the times, and a bit for each LaunchState in it."""

    first: int
    first_s: int
    last_s: int
    states: int


class _Index(msgspec.Struct, frozen=True, array_like=True):
    """Section 0."""

    format: int
    rows: int
    hashes: bytes  # u64, ascending: a job each
    firsts: bytes  # u32: the first row of each job
    frame: Frame
    blocks: list[_BlockIndex] = []
    lists: list[tuple[int, int]] = []  # of each list: its state and its rows


class Sections(Protocol):
    """A segment's file."""

    def __len__(self) -> int:
        """Return how many sections there are."""

    def read(self, number: int) -> bytes:
        """Return the content of a section. Raises SnapshotError, OSError."""


@lru_cache(maxsize=1024)
def job_hash(job: str) -> int:
    """Return what the jobs of a segment are sorted and found by."""
    return int.from_bytes(hashlib.blake2b(job.encode(), digest_size=8).digest(), "little")


# --- writing


def sections_of(tail: Tail) -> list[bytes]:
    """Return the sections of a segment; in a thread."""
    source = Unfolded(tail)
    of_job = [array("I") for _ in source.names]
    for number, job in enumerate(source.jobs):
        of_job[job].append(number)
    jobs = sorted((job_hash(name), name, job) for job, name in enumerate(source.names))
    order = array("I", chain.from_iterable(of_job[job] for _, _, job in jobs))
    firsts = [*accumulate((len(of_job[job]) for _, _, job in jobs), initial=0)]
    places = array("I", bytes(4 * len(order)))  # of each row, in log order
    for place, number in enumerate(order):
        places[number] = place
    index = _Index(
        _FORMAT,
        tail.rows,
        to_columns(array("Q", [number for number, _, _ in jobs])),
        to_columns(array("I", firsts[:-1])),
        source.frame,
    )
    lists = list(_lists(source, places))
    index.lists.extend((state, rows) for state, rows, _ in lists)
    firsts_s, lasts_s, states = map(source.field, ("scheduled_s", "last_s", "state"))
    blocks = []
    for begin, end in _cuts(source, order):
        mine = order[begin:end]
        first, last = bisect_right(firsts, begin) - 1, bisect_left(firsts, end)
        runs = [
            (jobs[at][1], min(firsts[at + 1], end) - max(firsts[at], begin))
            for at in range(first, last)
        ]
        blocks.append(source.block(runs, mine))
        # Of a row that ended before its time, the last time is the earlier one.
        times = [*picked(firsts_s, mine), *picked(lasts_s, mine)]
        index.blocks.append(
            _BlockIndex(
                begin,
                min(times),
                max(times),
                sum(1 << state for state in {*picked(states, mine)}),
            )
        )
    return [
        msgspec.msgpack.encode(index),
        to_columns(source.sizes),
        b"" if tail.is_numbered else to_columns(places),
        *(content for _, _, content in lists),
        *blocks,
    ]


def _cuts(source: Unfolded, order: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where blocks begin and end; where single rows are long, they have fewer rows."""
    for first in range(0, len(order), BLOCK_ROWS):
        begin, end, size = first, min(first + BLOCK_ROWS, len(order)), 0
        for at in range(first, end) if source.singles else ():
            row_bytes = len(source.singles.get(order[at], b""))
            if size and size + row_bytes > BLOCK_BYTES:
                yield begin, at
                begin, size = at, 0
            size += row_bytes
        yield begin, end


def _lists(source: Unfolded, places: array[int]) -> Iterator[tuple[int, int, bytes]]:
    """Yield of each state how many rows it has, and these as they are listed, newest last."""
    lasts_s, states, attempts = map(source.field, ("last_s", "state", "attempts"))
    lasting_s = source.field("last_s", "scheduled_s", 1)
    order = array("I", range(len(places)))
    for one in (attempts, lasts_s):
        if not isinstance(one, int):
            order = array("I", sorted(order, key=one.__getitem__))
    for state in (states,) if isinstance(states, int) else sorted({*states}):
        mine = order
        if not isinstance(states, int):
            mine = array("I", (number for number in order if states[number] == state))
        times = [to_planes(array("q", picked(one, mine))) for one in (lasts_s, lasting_s)]
        yield state, len(mine), b"".join(times) + to_columns(array("I", picked(places, mine)))


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
    """Rows of one state, newest last: their last ScheduledTimes, how long each lasts, and their
    places. One that ended before its time has the time of its end as its last, and lasts less than
    nothing."""

    lasts_s: array[int]
    lasting_s: array[int]
    places: array[int]

    def newest(self, match: Match, limit: int, wanted: bytes = b"") -> list[int]:
        """Return the numbers of the newest `limit` that have an instant in the period of `match`,
        newest first. `wanted` has a byte for each place, 0 for rows that do not count; empty for
        all."""
        lasts_s, lasting_s = self.lasts_s, self.lasting_s
        is_early = min(lasting_s, default=0) < 0  # of those that ended before their time
        begin, end = 0 if is_early else bisect_left(lasts_s, match.since_s), len(lasts_s)
        if not any(lasting_s):
            end = bisect_right(lasts_s, match.until_s)
        if match.since_s > match.until_s:
            begin = end
        found: list[int] = []
        for at in range(end - 1, begin - 1, -1):
            last_s, first_s = lasts_s[at], lasts_s[at] - lasting_s[at]
            if is_early and max(first_s, last_s) < match.since_s:
                continue
            if min(first_s, last_s) <= match.until_s and (not wanted or wanted[self.places[at]]):
                found.append(at)
                if len(found) == limit:
                    break
        return found


class _Jobs:
    """The jobs of a segment, by their hashes, and the first row of each."""

    def __init__(self, index: _Index) -> None:
        self.hashes = from_columns("Q", index.hashes)
        self.firsts = from_columns("I", index.firsts)
        self._rows = index.rows
        if len(self.hashes) != len(self.firsts):
            raise RowsDamaged("segment: its index is not that of its rows")

    def span(self, job: str) -> tuple[int, int]:
        """Return the first row of the jobs of the hash of `job`, and the first of the next; equal
        where there are none."""
        number = job_hash(job)
        at = bisect_left(self.hashes, number)
        if at == len(self.hashes) or self.hashes[at] != number:
            return 0, 0
        end = bisect_right(self.hashes, number, at)
        return self.firsts[at], self.firsts[end] if end < len(self.firsts) else self._rows


P = ParamSpec("P")
R = TypeVar("R")


def _of_its_rows(
    read: Callable[Concatenate[Segment, P], R],
) -> Callable[Concatenate[Segment, P], R]:
    """Return a method of Segment that says RowsDamaged of numbers which lead to no row."""

    @wraps(read)
    def reading(segment: Segment, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return read(segment, *args, **kwargs)
        except (LookupError, OverflowError, ValueError) as error:
            raise RowsDamaged(f"segment: its numbers are not of its rows: {error!r}") from error

    return reading


class Segment:
    """The rows of one segment; its index is held, or the least of it, and all else is read anew.

    Every call may raise RowsDamaged, SnapshotError and OSError: the file is damaged, gone, or the
    disk refuses.
    """

    @_of_its_rows
    def __init__(
        self, record: SegmentRecord, sections: Sections, held_jobs_max: int = HELD_JOBS_MAX
    ) -> None:
        self.record = record
        self._sections = sections
        index = self._read_index()
        jobs = _Jobs(index)
        self._jobs = jobs if len(jobs.hashes) <= held_jobs_max else None
        self._blocks = index.blocks
        self._block_firsts = [one.first for one in index.blocks]
        self._block_hashes = [
            jobs.hashes[bisect_right(jobs.firsts, first) - 1] for first in self._block_firsts
        ]
        self._lists = index.lists
        self._frame = index.frame
        self._first_block = _LISTS + len(index.lists)
        self._last_block: tuple[int, Block] | None = None
        self.rows = index.rows
        self.held_bytes = _BLOCK_HELD_BYTES * len(index.blocks)
        self.held_bytes += _JOB_HELD_BYTES * len(jobs.hashes) if self._jobs is not None else 0
        if index.rows != record.rows or len(sections) - self._first_block != len(self._blocks):
            raise RowsDamaged("segment: its index is not that of its rows")
        places = [*self._block_firsts, index.rows]  # they bound what a block may have
        is_divided = places[0] == 0 and all(one < other for one, other in pairwise(places))
        if not is_divided or any(not 0 <= rows <= index.rows for _, rows in index.lists):
            raise RowsDamaged("segment: its blocks and lists are not of its rows")

    def _read_index(self) -> _Index:
        content = self._sections.read(_INDEX)
        try:
            known = msgspec.msgpack.decode(content, type=_Formatted).format
            if known != _FORMAT:
                text = f"segment: it has format {known}, this program reads {_FORMAT}"
                raise RowsDamaged(f"{text}: use the release that wrote it")
            return msgspec.msgpack.decode(content, type=_Index)
        except _UNREADABLE as error:
            raise RowsDamaged(f"segment: its index cannot be read: {error}") from error

    # ---- one job

    def _blocks_of(self, job: str) -> range:
        """Return the blocks in which a job may have rows."""
        if self._jobs is None:
            number = job_hash(job)
            first = bisect_left(self._block_hashes, number)
            return range(max(0, first - 1), bisect_right(self._block_hashes, number, first))
        begin, end = self._jobs.span(job)
        if begin == end:
            return range(0)
        first = bisect_right(self._block_firsts, begin) - 1
        return range(first, bisect_left(self._block_firsts, end))

    @_of_its_rows
    def of_job(self, job: str, match: Match, limit: int | None = None) -> list[Row]:
        """Return the rows of a job that match; of more than `limit`, at least the newest so many,
        in no order."""
        found: list[Row] = []
        numbers = self._blocks_of(job)
        for number in sorted(numbers, key=lambda one: self._blocks[one].last_s, reverse=True):
            block = self._blocks[number]
            if limit is not None and len(found) >= limit:
                found = newest_of(found, limit)
                if newest_s(found[-1]) > block.last_s:
                    break
            if match.may_be(block.first_s, block.last_s, block.states):
                found += self._block(number).newest(job, match, limit)
        return found

    # ---- all jobs

    @_of_its_rows
    def newest(self, match: Match, limit: int, jobs: frozenset[str] | None = None) -> list[Row]:
        """Return at least the newest `limit` rows that match, of these jobs, in no order."""
        mask = b"" if jobs is None else self._mask(jobs)
        if jobs is not None and not any(mask):
            return []
        lasts_s: list[int] = []
        places: list[int] = []
        for number, (state, _) in enumerate(self._lists):
            if match.states >> state & 1:
                listed = self._listed(number)
                for one in listed.newest(match, limit, mask):
                    lasts_s.append(listed.lasts_s[one])
                    places.append(listed.places[one])
        wanted = sorted(places[one] for one in best(range(len(places)), lasts_s, limit))
        found: list[Row] = []
        for number, mine in groupby(wanted, lambda one: bisect_right(self._block_firsts, one) - 1):
            block, first = self._block(number), self._block_firsts[number]
            found += block.rows([place - first for place in mine])
        return found if jobs is None else [row for row in found if row.job in jobs]

    def _mask(self, names: frozenset[str]) -> bytes:
        """Return a byte for each row, 1 for those of these jobs, and of jobs with their hashes."""
        known = self._jobs or _Jobs(self._read_index())
        mask = bytearray(self.rows)
        for begin, end in map(known.span, names):
            mask[begin:end] = b"\1" * (end - begin)
        return bytes(mask)

    def _listed(self, number: int) -> _Listed:
        rows = self._lists[number][1]
        planes = Planes(self._sections.read(_LISTS + number))
        listed = _Listed(planes.read(rows), planes.read(rows), from_columns("I", planes.rest()))
        if len(listed.places) != rows:
            raise RowsDamaged("segment: a list has not as many rows as the index says")
        return listed

    def all_rows(self) -> Iterator[Row]:
        """Yield all rows, sorted by job."""
        for number in range(len(self._block_firsts)):
            yield from self._rows_of(number)

    @_of_its_rows
    def _rows_of(self, number: int) -> list[Row]:
        block = self._block(number)
        return block.rows(range(len(block)))

    @_of_its_rows
    def ends(self) -> dict[str, Ends]:
        """Return, by job, how its rows ended, in log order."""
        found: dict[str, Ends] = {}
        for number in range(len(self._block_firsts)):
            block, begin = self._block(number), 0
            states = bytearray(block.column("state").tolist())
            indexes, numbers = block.column("ended_index"), block.column("number")
            for place, raw in block.singles.items():
                if decode_row(raw).kind is RowKind.AMENDMENT:
                    states[place] = NO_END
            for job, rows in block.jobs:
                end = begin + rows
                mine = found.setdefault(job, Ends.none())
                mine.states.extend(states[begin:end])
                mine.indexes.extend(indexes[begin:end])
                mine.numbers.extend(numbers[begin:end])
                begin = end
        return found

    @_of_its_rows
    def lasts_s(self) -> dict[str, int]:
        """Return the newest ScheduledTime of each job."""
        found: dict[str, int] = {}
        for number in range(len(self._block_firsts)):
            block, begin = self._block(number), 0
            times = block.column("last_s")
            for job, rows in block.jobs:
                last_s = max(times[begin : begin + rows])
                found[job] = max(last_s, found.get(job, last_s))
                begin += rows
        return found

    @_of_its_rows
    def later(self, than_s: Mapping[str, int]) -> dict[str, int]:
        """Return, by job, how many rows are of later instants than these."""
        times: array[int] | None = None
        jobs = self._jobs or _Jobs(self._read_index())
        found = {}
        for job, last_s in than_s.items():
            begin, end = jobs.span(job)
            if self.record.first_s > last_s:
                found[job] = end - begin
            elif begin < end and self.record.last_s > last_s:
                times = times or self._times()
                found[job] = sum(one > last_s for one in times[begin:end])
        return found

    def _times(self) -> array[int]:
        """Return the last ScheduledTime of each row, sorted by job."""
        found = array("q", bytes(8 * self.rows))
        for number in range(len(self._lists)):
            listed = self._listed(number)
            for last_s, place in zip(listed.lasts_s, listed.places, strict=True):
                found[place] = last_s
        return found

    # ---- as the catalog knows it

    @_of_its_rows
    def content(self) -> bytes:
        """Return the rows in log order, as chunks and single rows.

        Raises:
            RowsDamaged: they are not those of the catalog's record.
        """
        blocks = [self._block(block) for block in range(len(self._block_firsts))]
        order = from_columns("I", self._sections.read(_ORDER)) or _log_order(blocks)
        sizes = from_columns("I", self._sections.read(_ITEMS))
        parts = list(items_of(blocks, self._frame, order, sizes))
        content = head_of(len(parts)) + b"".join(parts)
        if len(order) != self.rows or content_digest(content) != self.record.digest:
            raise RowsDamaged("segment: its rows are not those that the catalog names")
        return content

    # ---- blocks

    def _block(self, number: int) -> Block:
        known = self._last_block  # of many jobs in the order of their hashes, most are in one
        if known is not None and known[0] == number:
            return known[1]
        found = Block(self._sections.read(self._first_block + number), self._frame)
        firsts = self._block_firsts
        end = firsts[number + 1] if number + 1 < len(firsts) else self.rows
        if len(found) != end - firsts[number]:
            raise RowsDamaged("segment: a block has not as many rows as the index says")
        self._last_block = (number, found)
        return found


def _log_order(blocks: Iterable[Block]) -> array[int]:
    """Return the places of all rows, in log order, which log index and number tell. No step of it
    is long: the loop's thread must not wait."""
    entries: defaultdict[int, list[int]] = defaultdict(list)  # of each row number and place
    place = count()
    for block in blocks:
        indexes, numbers = block.column("ended_index"), block.column("number")
        for index, number in zip(indexes, numbers, strict=True):
            entries[index].append((number << _PLACE_BITS) + next(place))
    order = array("I")
    for index in sorted(entries):
        order.extend([one & (1 << _PLACE_BITS) - 1 for one in sorted(entries[index])])
    return order

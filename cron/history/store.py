"""History of one replica, for queries: the tails in State, and the segments on its disk.

Theory of operation. Nothing is kept beside these two. What ended since the last Seal is in State's
tails; a tail that was sealed just now is read in the same way until its file is there. Tails and
segments are read in a thread of their own, named `history`, so that no question keeps the loop
waiting, whatever it has to look at. The catalog says which segments a question may concern, their
indexes are held in memory up to a bound, and of their rows only the blocks in question are read. So
a launch costs no more than its place in a chunk of the tail, and a replica that starts, or gets its
segments from another, has nothing to rebuild.

What a question sees is decided on the loop, at one moment: it passes the segments, the tails and
the number of their items to the thread. A segment that is let go of meanwhile makes it ask again.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from cron.errors import InvariantViolated, LimitExceeded, Shutdown, Unavailable
from cron.history.gaps import Gap, narrowed
from cron.history.order import (
    ALL_STATES,
    Match,
    Query,
    listed,
    log_order,
    newest_of,
    newest_s,
)
from cron.history.segment import Segment, job_hash
from cron.history.tails import TailReader
from cron.limits import HISTORY_ROWS_MAX
from cron.state.archive import History, Sealed, SegmentRecord, Stream
from cron.state.commands import SegmentKey
from cron.state.rows import Row, RowKind
from cron.state.tail import RowsDamaged, Tail
from launcher.launch import LaunchState
from launcher.names import LaunchName
from snapshots.errors import SnapshotError, SnapshotMissing

INDEX_BYTES_MAX: Final = 16 << 20
"""Indexes of segments that are held: a thousand of a thousand jobs each."""
JOBS_AT_ONCE: Final = 250
"""Jobs whose newest row is looked for before another question has its turn."""
_TRIES: Final = 3
_FAILURES: Final = 1 << LaunchState.FAILED | 1 << LaunchState.LOST

_T = TypeVar("_T")
_Tails = Sequence[tuple[TailReader, int]]
"""The tails that a question sees, and how many items of each."""


class SegmentShelf(Protocol):
    """What this replica has of the segments that State names. Thread-safe."""

    version: int
    """Another one whenever what is here has changed."""

    def holdings(
        self, records: Iterable[SegmentRecord]
    ) -> tuple[list[SegmentRecord], list[Sealed]]:
        """Return which of the segments are files here, and those that wait to be written."""

    def open_rows(self, record: SegmentRecord) -> Segment:
        """Return a segment that is here. Raises SnapshotError, OSError."""

    def distrust(self, record: SegmentRecord, error: Exception) -> None:
        """Set aside a segment that was found damaged: it is missing from now on."""


class _Seen(msgspec.Struct):
    """What there is at one moment: tails, and segments with the newest ScheduledTime first."""

    tails: list[tuple[Tail, int]]  # and how many of its items
    records: list[SegmentRecord]


class RowStore:
    """Answers from the history that it follows. All calls on the loop's thread."""

    def __init__(self, shelf: SegmentShelf | None = None) -> None:
        self.shelf = shelf
        self._history = History()
        self._pool: ThreadPoolExecutor | None = None
        self._is_stopped = False
        self._seen_of: tuple[object, ...] = ()
        self._records: list[SegmentRecord] = []
        self._waiting: list[Sealed] = []
        # Of the thread alone:
        self._held: OrderedDict[SegmentKey, Segment] = OrderedDict()
        self._reading: SegmentRecord | None = None
        self._readers: dict[int, TailReader] = {}  # by the identity of the tail

    # ---- life

    def follow(self, history: History) -> None:
        """Answer from the history of this State from now on."""
        self._history = history
        self._seen_of = ()

    def stop(self) -> None:
        """End the thread; idempotent, waits. Questions after it end with Shutdown."""
        self._is_stopped = True
        if self._pool is not None:
            self._pool.shutdown()

    # ---- lists

    async def newest(self, query: Query) -> list[Row]:
        """Return the rows of `query`, newest ScheduledTime first; ties by attempt, then log order.
        A range of skipped instants stands at the last of them.

        Raises:
            LimitExceeded: more rows are asked for than one answer may have.
            Unavailable, Shutdown: a segment cannot be read now; all questions raise these.
        """
        if query.limit > HISTORY_ROWS_MAX:
            raise LimitExceeded(f"limit {query.limit} is over {HISTORY_ROWS_MAX}, the most at once")
        match = Match.of(query)

        def in_tails(tails: _Tails) -> list[Row]:
            rows = (
                row
                for reader, items in tails
                for row in reader.newest(query.job, match, query.limit, items)
            )
            return newest_of(rows, query.limit)

        def in_segments(found: list[Row], records: Sequence[SegmentRecord]) -> list[Row]:
            for record in records:
                if _is_enough(found, query.limit, record):
                    break
                if _may_match(record, match):
                    segment = self._opened(record)
                    newer = sum(newest_s(row) > record.last_s for row in found)
                    lacks = query.limit - newer  # rows; those that are newer stay
                    if query.job is None:
                        found += segment.newest(match, lacks)
                    else:
                        found += segment.of_job(query.job, match, lacks)
                    found = newest_of(found, query.limit)
            return found

        return await self._ask(in_tails, in_segments)

    async def of_job(
        self, job: str, from_s: int, to_s: int, limit: int = HISTORY_ROWS_MAX
    ) -> list[Row]:
        """Return all rows of `job` with an instant in [from_s, to_s], oldest ScheduledTime first;
        a range of skipped instants stands at the first of them. Ties are in log order.

        Raises:
            LimitExceeded: there are more than `limit`; nothing is cut off silently.
        """
        match = Match(from_s, to_s)

        def in_tails(tails: _Tails) -> list[Row]:
            return [
                row for reader, items in tails for row in reader.newest(job, match, None, items)
            ]

        def in_segments(found: list[Row], records: Sequence[SegmentRecord]) -> list[Row]:
            for record in records:
                if _may_match(record, match) and len(found) <= limit:
                    found += self._opened(record).of_job(job, match)
            return found

        rows = await self._ask(in_tails, in_segments)
        if len(rows) > limit:
            raise LimitExceeded(
                f"{job} has more than {limit} rows in this period", "ask for a shorter period"
            )
        return sorted(rows, key=lambda row: (row.scheduled_s, *log_order(row)))

    async def of_launch(self, launch: LaunchName) -> list[Row]:
        """Return all that is known of `launch` in log order: attempts, amendments, and the ranges
        of skipped instants that contain it."""
        rows = await self.of_job(launch.job, launch.scheduled_s, launch.scheduled_s)
        found = [row for row in rows if row.trigger == launch.trigger]
        return sorted(found, key=lambda row: (row.ended_index, row.attempt))

    async def of_attempts(self, attempts: list[tuple[str, int, int]]) -> list[Row]:
        """Return all rows of attempts, given by job, scheduled_s and number, but for ranges."""
        by_job: dict[str, set[int]] = {}
        for job, scheduled_s, _ in attempts:
            by_job.setdefault(job, set()).add(scheduled_s)
        matches = {job: Match(min(times), max(times)) for job, times in by_job.items()}

        def in_tails(tails: _Tails) -> list[Row]:
            return [
                row
                for reader, items in tails
                for job, match in matches.items()
                for row in reader.newest(job, match, None, items)
            ]

        def in_segments(found: list[Row], records: Sequence[SegmentRecord]) -> list[Row]:
            for record in records:
                for job, match in matches.items():
                    if _may_match(record, match):
                        found += self._opened(record).of_job(job, match)
            return found

        wanted = frozenset(attempts)
        return [
            row
            for row in await self._ask(in_tails, in_segments)
            if row.kind is not RowKind.RANGE and (row.job, row.scheduled_s, row.attempt) in wanted
        ]

    async def last_of_each(self, jobs: list[str]) -> dict[str, Row]:
        """Return, by job, the row with the newest ScheduledTime; jobs without rows are left out."""
        found: dict[str, Row] = {}
        for at in range(0, len(jobs), JOBS_AT_ONCE):
            found |= await self._last_of_each(jobs[at : at + JOBS_AT_ONCE])
        return found

    async def _last_of_each(self, jobs: list[str]) -> dict[str, Row]:
        match = Match()
        numbers = {job_hash(job): job for job in jobs}

        def in_tails(tails: _Tails) -> dict[str, Row]:
            found = {}
            for job in jobs:
                rows = [one for tail, items in tails for one in tail.newest(job, match, 1, items)]
                if rows:
                    found[job] = max(rows, key=listed)
            return found

        def in_segments(found: dict[str, Row], records: Sequence[SegmentRecord]) -> dict[str, Row]:
            missing = dict(numbers)
            for record in records:
                for number, job in list(missing.items()):
                    if job in found and newest_s(found[job]) > record.last_s:
                        del missing[number]
                if not missing:
                    break
                segment = self._opened(record)
                for number in segment.which_of(missing.keys()):
                    job = missing[number]
                    rows = segment.of_job(job, match, 1)
                    if job in found:
                        rows.append(found[job])
                    if rows:
                        found[job] = max(rows, key=listed)
            return found

        return await self._ask(in_tails, in_segments)

    # ---- what is missing

    def gaps(self) -> list[Gap]:
        """Return the stretches of the log whose rows may be missing here, oldest first: those of
        Seals of which a segment is not here, or is gone."""
        self._see()
        here: dict[tuple[int, int], list[SegmentRecord]] = {}
        for record in [*self._records, *(one.record for one in self._waiting)]:
            here.setdefault((record.lineage, record.number), []).append(record)
        gaps = [Gap(0, self._history.sealed_to)] if self._history.sealed_to else []
        for records in here.values():
            if len(records) == 1 + records[0].is_pair:
                gaps = narrowed(gaps, Gap(records[0].from_index, records[0].to_index))
        return gaps

    def is_here(self, record: SegmentRecord) -> bool:
        """Whether the rows of a segment are on this replica."""
        self._see()
        return any(one.key == record.key for one in self._records) or any(
            one.record.key == record.key for one in self._waiting
        )

    # ---- retention

    async def outlived(self, record: SegmentRecord, newer: int) -> bool:
        """Whether each row of a segment has at least `newer` rows of later instants of its job;
        False where it is no file here."""
        if all(one.key != record.key for one in self._see().records):
            return False
        jobs = await self._ask(lambda _: [], lambda _, __: list(self._newest_of_jobs(record)))

        def in_tails(tails: _Tails) -> dict[str, tuple[int, int]]:
            lacks: dict[str, tuple[int, int]] = {}
            for job, last_s in jobs:
                later = sum(reader.later(job, last_s, items) for reader, items in tails)
                if later < newer:
                    lacks[job] = last_s, newer - later
            return lacks

        def in_segments(
            lacks: dict[str, tuple[int, int]], records: Sequence[SegmentRecord]
        ) -> dict[str, tuple[int, int]]:
            for one in records:
                if not lacks:
                    break
                for job, later in _later_in(self._opened(one), lacks):
                    last_s, least = lacks[job]
                    lacks[job] = last_s, least - later
                    if later >= least:
                        del lacks[job]
            return lacks

        return not await self._ask(in_tails, in_segments)

    def _newest_of_jobs(self, record: SegmentRecord) -> Iterator[tuple[str, int]]:
        """Yield each job of a segment with its newest ScheduledTime in it; in the thread."""
        segment = self._opened(record)
        lasts_s = segment.lasts_s()
        for job, begin, end in segment.jobs():
            yield job, max(lasts_s[begin:end])

    # ---- from the loop to the thread

    def _see(self) -> _Seen:
        """Return what there is now."""
        history = self._history
        version = self.shelf.version if self.shelf is not None else 0
        seen_of = (history, history.seals, len(history.segments), version)
        if seen_of != self._seen_of:
            self._seen_of = seen_of
            local = [one for one in history.segments.values() if one.is_local]
            records, self._waiting = (
                self.shelf.holdings(local) if self.shelf is not None else ([], [])
            )
            self._records = sorted(records, key=lambda one: one.last_s, reverse=True)
        tails = [*(one.tail for one in self._waiting), *history.tails]
        return _Seen([(tail, len(tail)) for tail in tails if len(tail)], self._records)

    async def _ask(
        self,
        in_tails: Callable[[_Tails], _T],
        in_segments: Callable[[_T, Sequence[SegmentRecord]], _T],
    ) -> _T:
        """Return what is found in the tails, and then in segments, in the thread.

        Raises:
            Shutdown, Unavailable: it cannot be found now.
        """
        tried = 0
        while True:
            if self._is_stopped:
                raise Shutdown("history is stopped")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="history")
            loop, tried = asyncio.get_running_loop(), tried + 1
            is_last = tried >= _TRIES
            read = partial(self._read, in_tails, in_segments, self._see(), is_last=is_last)
            try:
                return await loop.run_in_executor(self._pool, read)
            except SnapshotMissing as error:  # let go of, or set aside, since the moment we saw
                if is_last:
                    raise _unavailable(error) from error

    # ---- in the thread

    def _read(
        self,
        in_tails: Callable[[_Tails], _T],
        in_segments: Callable[[_T, Sequence[SegmentRecord]], _T],
        seen: _Seen,
        *,
        is_last: bool,
    ) -> _T:
        """Return what is found in what a question sees. A segment that is damaged is set aside, and
        fetched anew. So is one whose file is still missing in the last try, and which nobody let go
        of.

        Raises:
            SnapshotMissing: one is not here any more. Unavailable: one cannot be read.
        """
        self._reading = None
        known = self._readers
        self._readers = {
            id(tail): known.get(id(tail)) or TailReader(tail) for tail, _ in seen.tails
        }
        tails = [(self._readers[id(tail)], items) for tail, items in seen.tails]
        try:
            return in_segments(in_tails(tails), seen.records)
        except SnapshotMissing as error:
            if is_last:
                self._distrust(error)
            raise
        except (SnapshotError, RowsDamaged) as error:
            self._distrust(error)
            raise _unavailable(error) from error
        except OSError as error:
            raise _unavailable(error) from error

    def _distrust(self, error: Exception) -> None:
        """Have the segment that is read just now fetched anew, if the shelf still lists it."""
        record = self._reading
        if record is not None and self.shelf is not None:
            self._held.pop(record.key, None)
            if self.shelf.holdings([record])[0]:
                self.shelf.distrust(record, error)

    def _opened(self, record: SegmentRecord) -> Segment:
        """Return a segment, whose index may be held."""
        self._reading = record
        held = self._held.get(record.key)
        if held is not None and held.record.digest == record.digest:
            self._held.move_to_end(record.key)
            return held
        if self.shelf is None:
            raise InvariantViolated("history has segments and nowhere to read them")
        segment = self._held[record.key] = self.shelf.open_rows(record)
        while sum(one.held_bytes for one in self._held.values()) > INDEX_BYTES_MAX:
            if self._held.popitem(last=False)[1] is segment:
                break
        return segment


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(f"history cannot be read: {error}", "ask another replica")


# --- segments


def _may_match(record: SegmentRecord, match: Match) -> bool:
    states = _FAILURES if record.stream == Stream.FAILURES else ALL_STATES & ~_FAILURES
    return match.may_be(record.first_s, record.last_s, states)


def _is_enough(found: Sequence[Row], limit: int, record: SegmentRecord) -> bool:
    """Whether no row of a segment, or of an older one, belongs to the newest `limit`."""
    return len(found) >= limit and newest_s(found[-1]) > record.last_s


def _later_in(segment: Segment, lacks: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, int]]:
    """Yield of each job how many rows a segment has that are later than a time."""
    lasts_s: array[int] | None = None
    for job, (last_s, _) in list(lacks.items()):
        begin, end = segment.span(job_hash(job))
        if begin == end or segment.record.last_s <= last_s:
            continue
        if segment.record.first_s > last_s:
            yield job, end - begin
            continue
        lasts_s = lasts_s or segment.lasts_s()
        yield job, sum(one > last_s for one in lasts_s[begin:end])

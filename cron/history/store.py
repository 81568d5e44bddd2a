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
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from cron.errors import InvariantViolated, LimitExceeded, Shutdown, Unavailable
from cron.history.ends import ends_of_tail, in_log_order
from cron.history.order import (
    ALL_STATES,
    ENDED_STATES,
    Match,
    Query,
    listed,
    log_order,
    newest_of,
    newest_s,
)
from cron.history.segment import Segment
from cron.history.tails import TailReader
from cron.launch_state import LaunchState
from cron.limits import HISTORY_ROWS_MAX
from cron.state.archive import History, Sealed, SegmentRecord, Stream
from cron.state.commands import SegmentKey
from cron.state.rows import Row, RowKind
from cron.state.tail import RowsDamaged, Tail
from launcher.protocol.names import LaunchName
from snapshots.errors import SnapshotError, SnapshotMissing

INDEX_BYTES_MAX: Final = 16 << 20
"""Indexes of segments that are held: several hundred, however many jobs they have."""
JOBS_AT_ONCE: Final = 250
"""Jobs whose newest row is looked for before another question has its turn."""
_TRIES: Final = 3
_FAILURES: Final = 1 << LaunchState.FAILED | 1 << LaunchState.LOST

_LATEST_S: Final = 1 << 62

_T = TypeVar("_T")


class Gap(msgspec.Struct, frozen=True, order=True):
    """Rows with `from_index` < ended_index <= `to_index` may be missing on this replica."""

    from_index: int
    to_index: int


class SegmentFiles(Protocol):
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


class _Part(NamedTuple):
    """A tail, or a segment that is opened when it is read: which rows it may have. Tails come
    first, and may have any; segments come with the newest ScheduledTime first."""

    open: Callable[[], TailReader | Segment]
    first_s: int = 0
    last_s: int = _LATEST_S
    states: int = ALL_STATES

    def may_match(self, match: Match) -> bool:
        """Whether any of its rows may match."""
        return match.may_be(self.first_s, self.last_s, self.states)


class RowStore:
    """Answers from the history that it follows. All calls on the loop's thread."""

    def __init__(self, segment_files: SegmentFiles | None = None) -> None:
        self.segment_files = segment_files
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
        match, limit, jobs = Match.of(query), query.limit, query.jobs
        if not match.states & ENDED_STATES:
            return []
        (job,) = jobs if jobs is not None and len(jobs) == 1 else ("",)

        def look(parts: Sequence[_Part]) -> list[Row]:
            found: list[Row] = []
            for part in parts:
                if len(found) >= limit and newest_s(found[-1]) > part.last_s:
                    break  # no row of it, or of an older one, belongs to the newest
                if part.may_match(match):
                    newer = sum(newest_s(row) > part.last_s for row in found)
                    lacks = limit - newer  # rows; those that are newer stay
                    if job:
                        found += part.open().of_job(job, match, lacks)
                    else:
                        found += part.open().newest(match, lacks, jobs)
                    found = newest_of(found, limit)
            return found

        return await self._ask(look)

    async def of_job(
        self, job: str, from_s: int, to_s: int, limit: int = HISTORY_ROWS_MAX
    ) -> list[Row]:
        """Return all rows of `job` with an instant in [from_s, to_s], oldest ScheduledTime first;
        a range of skipped instants stands at the first of them. Ties are in log order.

        Raises:
            LimitExceeded: there are more than `limit`; nothing is cut off silently.
        """
        match = Match(from_s, to_s)

        def look(parts: Sequence[_Part]) -> list[Row]:
            found: list[Row] = []
            for part in parts:
                if part.may_match(match) and len(found) <= limit:
                    found += part.open().of_job(job, match)
            return found

        rows = await self._ask(look)
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

    async def of_launches(self, launches: Sequence[LaunchName]) -> dict[LaunchName, list[Row]]:
        """Return what is known of launches, each as `of_launch` does; a launch without rows is left
        out. They are of different jobs."""
        matches = {one.job: Match(one.scheduled_s, one.scheduled_s) for one in launches}
        wanted = {(one.job, one.trigger): one for one in launches}

        def look(parts: Sequence[_Part]) -> list[Row]:
            return [
                row
                for part in parts
                for job, match in matches.items()
                if part.may_match(match)
                for row in part.open().of_job(job, match)
            ]

        found: dict[LaunchName, list[Row]] = {}
        for row in await self._ask(look):
            launch = wanted.get((row.job, row.trigger))
            if launch is not None:
                found.setdefault(launch, []).append(row)
        for rows in found.values():
            rows.sort(key=lambda row: (row.ended_index, row.attempt))
        return found

    async def of_attempts(self, attempts: list[tuple[str, int, int]]) -> list[Row]:
        """Return all rows of attempts, given by job, scheduled_s and number, but for ranges."""
        by_job: dict[str, set[int]] = {}
        for job, scheduled_s, _ in attempts:
            by_job.setdefault(job, set()).add(scheduled_s)
        matches = {job: Match(min(times), max(times)) for job, times in by_job.items()}

        def look(parts: Sequence[_Part]) -> list[Row]:
            return [
                row
                for part in parts
                for job, match in matches.items()
                if part.may_match(match)
                for row in part.open().of_job(job, match)
            ]

        wanted = frozenset(attempts)
        return [
            row
            for row in await self._ask(look)
            if row.kind is not RowKind.RANGE and (row.job, row.scheduled_s, row.attempt) in wanted
        ]

    async def last_of_each(self, jobs: list[str]) -> dict[str, Row]:
        """Return, by job, the row with the newest ScheduledTime; jobs without rows are left out."""
        match = Match()

        def look(parts: Sequence[_Part], some: Sequence[str]) -> dict[str, Row]:
            found: dict[str, Row] = {}
            for part in parts:
                some = [job for job in some if _is_older(found.get(job), part.last_s)]
                if not some:
                    break
                opened = part.open()
                for job in some:
                    rows = opened.of_job(job, match, 1)
                    if rows:
                        found[job] = max([*rows, found.get(job, rows[0])], key=listed)
            return found

        found: dict[str, Row] = {}
        for at in range(0, len(jobs), JOBS_AT_ONCE):
            found |= await self._ask(partial(look, some=jobs[at : at + JOBS_AT_ONCE]))
        return found

    async def newest_of_each(
        self, jobs: Sequence[str], limit: int, *, is_scheduled: bool = False
    ) -> dict[str, list[Row]]:
        """Return, by job, the `limit` rows with the newest ScheduledTimes, newest first; jobs
        without rows are left out, and with `is_scheduled` manual launches."""
        match = Match(is_scheduled=is_scheduled)

        def look(parts: Sequence[_Part], some: Sequence[str]) -> dict[str, list[Row]]:
            found: dict[str, list[Row]] = {}
            for part in parts:
                some = [job for job in some if not _has(found.get(job), limit, part.last_s)]
                if not some:
                    break
                if part.may_match(match):
                    opened = part.open()
                    for job in some:
                        rows = [*found.get(job, ()), *opened.of_job(job, match, limit)]
                        if rows:
                            found[job] = newest_of(rows, limit)
            return found

        found: dict[str, list[Row]] = {}
        for at in range(0, len(jobs), JOBS_AT_ONCE):
            found |= await self._ask(partial(look, some=jobs[at : at + JOBS_AT_ONCE]))
        return found

    async def ends_before(self, index: int) -> tuple[int, dict[str, bytes]]:
        """Return how launches ended in the newest stretch of history whose log indexes are `index`
        at most: by job the states of its rows, a byte each, in log order. And up to which index to
        ask next, 0 if nothing older is here.

        A stretch is what one Seal closed, or what none has closed yet. Amendments are left out.
        """
        tails = [(tail, len(tail)) for tail in self._history.tails]
        records: list[SegmentRecord] = []
        older = self._history.sealed_to
        if index <= older:
            self._see()
            known = [*self._records, *(one.record for one in self._waiting)]
            fit = [one for one in known if one.to_index <= index]
            if not fit:
                return 0, {}
            newest = max(one.to_index for one in fit)
            mine = {one.key: one for one in fit if one.to_index == newest}
            older = min(one.from_index for one in mine.values())
            waiting = {one.record.key: one.tail for one in self._waiting if one.record.key in mine}
            tails = [(one, len(one)) for one in waiting.values() if isinstance(one, Tail)]
            records = [one for key, one in mine.items() if key not in waiting]

        def look(_: Sequence[_Part]) -> dict[str, bytes]:
            streams = [ends_of_tail(tail, items, index) for tail, items in tails]
            streams += [self._opened(record).ends() for record in records]
            return in_log_order(streams)

        return older, await self._ask(look)

    # ---- what is missing

    def gaps(self) -> list[Gap]:
        """Return the stretches of the log whose rows may be missing here, oldest first: those of
        Seals of which a segment is not here, or is gone."""
        self._see()
        here: dict[tuple[int, int], list[SegmentRecord]] = {}
        for record in [*self._records, *(one.record for one in self._waiting)]:
            here.setdefault((record.generation, record.number), []).append(record)
        covered = [
            (records[0].from_index, records[0].to_index)
            for records in here.values()
            if len(records) == 1 + records[0].is_pair
        ]
        gaps, reached = [], 0
        for from_index, to_index in sorted([*covered, (self._history.sealed_to, 0)]):
            if from_index > reached:
                gaps.append(Gap(reached, from_index))
            reached = max(reached, to_index)
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

        def look(parts: Sequence[_Part]) -> bool:
            lasts_s = self._opened(record).lasts_s()
            lacks = dict.fromkeys(lasts_s, newer)
            for part in parts:
                for job, later in part.open().later(lasts_s).items() if lasts_s else ():
                    lacks[job] -= later
                    if lacks[job] <= 0:
                        del lasts_s[job]
            return not lasts_s

        return await self._ask(look)

    # ---- from the loop to the thread

    def _see(self) -> _Seen:
        """Return what there is now."""
        history = self._history
        version = self.segment_files.version if self.segment_files is not None else 0
        seen_of = (history, history.seals, len(history.segments), version)
        if seen_of != self._seen_of:
            self._seen_of = seen_of
            local = [one for one in history.segments.values() if one.is_local and one.is_history]
            records, waiting = (
                self.segment_files.holdings(local) if self.segment_files is not None else ([], [])
            )
            self._waiting = [one for one in waiting if one.record.is_history]
            self._records = sorted(records, key=lambda one: one.last_s, reverse=True)
        unwritten = [one.tail for one in self._waiting if isinstance(one.tail, Tail)]
        tails = [*unwritten, *history.tails]
        return _Seen([(tail, len(tail)) for tail in tails if len(tail)], self._records)

    async def _ask(self, look: Callable[[Sequence[_Part]], _T]) -> _T:
        """Return what `look` finds in the tails and segments, in the thread.

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
            read = partial(self._read, look, self._see(), is_last=is_last)
            try:
                return await loop.run_in_executor(self._pool, read)
            except SnapshotMissing as error:  # let go of, or set aside, since the moment we saw
                if is_last:
                    raise _unavailable(error) from error

    # ---- in the thread

    def _read(
        self,
        look: Callable[[Sequence[_Part]], _T],
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
        parts = []
        for tail, items in seen.tails:
            parts.append(_Part(partial(self._readers[id(tail)].upto, items)))
        for record in seen.records:
            states = _FAILURES if record.stream == Stream.FAILURES else ENDED_STATES & ~_FAILURES
            opened = partial(self._opened, record)
            parts.append(_Part(opened, record.first_s, record.last_s, states))
        try:
            return look(parts)
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
        """Have the segment that is read just now fetched anew, if the segment files still lists
        it."""
        record = self._reading
        if record is not None and self.segment_files is not None:
            self._held.pop(record.key, None)
            if self.segment_files.holdings([record])[0]:
                self.segment_files.distrust(record, error)

    def _opened(self, record: SegmentRecord) -> Segment:
        """Return a segment, whose index may be held."""
        self._reading = record
        held = self._held.get(record.key)
        if held is not None and held.record.digest == record.digest:
            self._held.move_to_end(record.key)
            return held
        if self.segment_files is None:
            raise InvariantViolated("history has segments and nowhere to read them")
        segment = self._held[record.key] = self.segment_files.open_rows(record)
        while sum(one.held_bytes for one in self._held.values()) > INDEX_BYTES_MAX:
            if self._held.popitem(last=False)[1] is segment:
                break
        return segment


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(f"history cannot be read: {error}", "ask another replica")


def _has(rows: list[Row] | None, limit: int, last_s: int) -> bool:
    """Whether there are `limit` rows, and none of what ends at `last_s` may be newer."""
    return rows is not None and len(rows) >= limit and newest_s(rows[-1]) > last_s


def _is_older(row: Row | None, last_s: int) -> bool:
    """Whether what ends at `last_s` may have a row that is listed before this one."""
    return row is None or newest_s(row) <= last_s

"""Reads launches that are in object storage alone; they are fetched for each query."""

from __future__ import annotations

import asyncio
import heapq
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from cron.errors import Conflict, LimitExceeded, StorageAway, Unavailable
from cron.history.order import Match, Query, newest_s
from cron.launch_state import LaunchState
from cron.state.archive import History, SegmentRecord, Stream
from cron.state.rows import Row
from cron.state.tail import RowsDamaged
from cron.storage.folders import name_of, open_rows
from snapshots.backup_store import BackupStore
from snapshots.errors import SnapshotError, StoreAway, StoreError

SEGMENTS_MAX: Final = 64
"""Segments that one query may fetch: at most half a gigabyte, and some cents."""
FOLDER: Final = "archive-"
"""The prefix of the folders into which segments are fetched."""


class ArchivedRows:
    """The rows that a cell has in `backup_store` alone; segments are fetched below `data`."""

    def __init__(self, backup_store: BackupStore | None, data: Path) -> None:
        self._backup_store = backup_store
        self._data = data
        remove_left(data, FOLDER)

    async def rows(self, history: History, query: Query, known: Sequence[Row] = ()) -> list[Row]:
        """Return the rows of archived segments that match a query, in log order: all ranges of
        skipped instants, and the newest other rows, up to the query's limit. 64 segments may have
        four million rows, too many for a leader's memory.

        `known` are rows that the query found already; they are not returned again. Segments are
        fetched from the newest on, until the limit is reached.

        Raises:
            LimitExceeded: too many segments. Unavailable, Conflict: the store fails.
        """
        newest = _Newest(query.limit, known)
        wanted = [one for one in archived(history, query) if newest.may_lack(one)]
        if not wanted:
            return []
        if len(wanted) > SEGMENTS_MAX:
            text = f"{len(wanted)} segments are in this period, at most {SEGMENTS_MAX} are fetched"
            raise LimitExceeded(text, "narrow it with --since and --until")
        if self._backup_store is None:
            text = "older launches are in object storage, and none is configured here"
            raise Conflict(text, "write [object_storage] url into replica.toml, or omit --archive")
        try:
            return await asyncio.to_thread(self._read, self._backup_store, wanted, query, newest)
        except StoreAway as error:
            raise StorageAway(str(error), error.hint) from error
        except (StoreError, SnapshotError, RowsDamaged) as error:
            raise Conflict(str(error), getattr(error, "hint", "")) from error
        except OSError as error:
            text = f"{error.filename or self._data}: {error.strerror or error}"
            hint = "make room on the leader's disk, or narrow it with --since and --until"
            raise Unavailable(f"segments cannot be fetched: {text}", hint) from error

    def _read(
        self, backup_store: BackupStore, wanted: list[SegmentRecord], query: Query, newest: _Newest
    ) -> list[Row]:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=self._data))
        try:
            for record in sorted(wanted, key=lambda one: one.last_s, reverse=True):
                if not newest.may_lack(record):
                    break
                file = backup_store.fetch_segment(name_of(record), folder)
                segment = open_rows(file.path, backup_store.cell, record)
                match, jobs = Match.of(query), query.jobs
                if jobs is not None and len(jobs) == 1:
                    newest.add(segment.of_job(next(iter(jobs)), match))
                else:
                    rows = (row for row in segment.all_rows() if match.fits(row))
                    newest.add(row for row in rows if jobs is None or row.job in jobs)
                file.path.unlink()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return newest.found()


class _Newest:
    """The newest rows, up to a limit, and all ranges of skipped instants: the end of a range is not
    its newest instant in a period.
    """

    def __init__(self, limit: int, known: Sequence[Row]) -> None:
        self._limit = limit
        self._known = frozenset(map(_identity, known))
        self._ranges: list[Row] = []
        self._rows = [row for row in known if row.last_s <= row.scheduled_s]
        self._shorten()

    def may_lack(self, record: SegmentRecord) -> bool:
        """Return whether a segment may have wanted rows."""
        is_full = len(self._rows) >= self._limit
        return not is_full or not self._rows or record.last_s >= newest_s(self._rows[-1])

    def add(self, rows: Iterable[Row]) -> None:
        """Add the rows of a segment."""
        for row in rows:
            if _identity(row) not in self._known:
                (self._ranges if row.last_s > row.scheduled_s else self._rows).append(row)
        self._shorten()

    def _shorten(self) -> None:
        self._rows = heapq.nlargest(self._limit, self._rows, key=_newest)

    def found(self) -> list[Row]:
        """Return the added rows, in log order."""
        new = [row for row in self._rows if _identity(row) not in self._known]
        return sorted(self._ranges + new, key=lambda row: row.ended_index)


def archived(history: History, query: Query) -> list[SegmentRecord]:
    """Return the segments in object storage alone that may have rows of a query."""
    since_s, until_s = -(-query.since_ms // 1000), query.until_ms // 1000
    failures = {LaunchState.FAILED, LaunchState.LOST}
    streams = {
        Stream.FAILURES if state in failures else Stream.RUNS
        for state in (query.states if query.states is not None else LaunchState)
    }
    return [
        record
        for record in history.segments.values()
        if not record.is_local
        and record.stream in streams
        and record.first_s <= until_s
        and record.last_s >= since_s
    ]


def _identity(row: Row) -> tuple[int, int, str, int, int, int]:
    """Return values that identify a row."""
    return (row.ended_index, row.kind, row.job, row.scheduled_s, row.trigger, row.attempt)


def _newest(row: Row) -> tuple[int, int, int]:
    """Return the key by which launches are shown, oldest first."""
    return (newest_s(row), row.attempt, row.ended_index)


def remove_left(data: Path, prefix: str) -> None:
    """Remove folders below `data` that a killed process left."""
    for folder in data.glob(f"{prefix}*"):
        shutil.rmtree(folder, ignore_errors=True)

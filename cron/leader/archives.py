"""Launches that are in object storage alone: fetched for a question, and forgotten again."""

from __future__ import annotations

import asyncio
import heapq
import shutil
import tempfile
from pathlib import Path
from typing import Final

from cron.errors import Conflict, LimitExceeded, Unavailable
from cron.history.queries import Query
from cron.leader.uploads import name_of
from cron.state.archive import History, RowsDamaged, SegmentRecord, Stream, decode_rows
from cron.state.rows import Row
from launcher.launch import LaunchState
from snapshots.disk import read_segment
from snapshots.errors import SnapshotError, StoreAway, StoreError
from snapshots.vault import Vault

SEGMENTS_MAX: Final = 64
"""Segments that one question may fetch: half a gigabyte at most, and some cents."""
FOLDER: Final = "archive-"
"""How the names of folders begin into which segments are fetched."""


class Archive:
    """What a cell has in `vault` alone; pieces are put below `data` while they are read."""

    def __init__(self, vault: Vault | None, data: Path) -> None:
        self._vault = vault
        self._data = data
        remove_left(data, FOLDER)

    async def rows(self, history: History, query: Query) -> list[Row]:
        """Return the rows of archived segments that a query may mean, in log order: all ranges of
        skipped instants, and of others the newest, as many as it asks for. 64 segments may have
        four million, too many for a leader's memory.

        Raises:
            LimitExceeded: too many segments. Unavailable, Conflict: the store's doing.
        """
        wanted = archived(history, query)
        if not wanted:
            return []
        if len(wanted) > SEGMENTS_MAX:
            text = f"{len(wanted)} segments are in this period, at most {SEGMENTS_MAX} are fetched"
            raise LimitExceeded(text, "narrow it with --since and --until")
        if self._vault is None:
            text = "older launches are in object storage, and none is configured here"
            raise Conflict(text, "write [object_storage] url into replica.toml, or omit --archive")
        try:
            return await asyncio.to_thread(self._read, self._vault, wanted, query)
        except StoreAway as error:
            raise Unavailable(str(error), error.hint) from error
        except (StoreError, SnapshotError, RowsDamaged) as error:
            raise Conflict(str(error), getattr(error, "hint", "")) from error
        except OSError as error:
            text = f"{error.filename or self._data}: {error.strerror or error}"
            hint = "make room on the leader's disk, or narrow it with --since and --until"
            raise Unavailable(f"segments cannot be fetched: {text}", hint) from error

    def _read(self, vault: Vault, wanted: list[SegmentRecord], query: Query) -> list[Row]:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=self._data))
        ranges: list[Row] = []
        found: list[Row] = []
        try:
            for record in wanted:
                file = vault.fetch_segment(name_of(record), folder)
                _, content = read_segment(file.path, vault.cell, record.size)
                file.path.unlink()
                wanted_rows = [row for row in decode_rows(content) if matches(row, query)]
                ranges += [row for row in wanted_rows if row.last_s > row.scheduled_s]
                found += [row for row in wanted_rows if row.last_s <= row.scheduled_s]
                found = heapq.nlargest(query.limit, found, key=_newest)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return sorted(ranges + found, key=lambda row: row.ended_index)


def archived(history: History, query: Query) -> list[SegmentRecord]:
    """Return the segments that are in object storage alone and may have rows of a query."""
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


def matches(row: Row, query: Query) -> bool:
    """Whether a row is one that a query means."""
    since_s, until_s = -(-query.since_ms // 1000), query.until_ms // 1000
    return (
        (query.job is None or row.job == query.job)
        and (query.states is None or row.state in query.states)
        and row.scheduled_s <= until_s
        and max(row.last_s, row.scheduled_s) >= since_s
    )


def _newest(row: Row) -> tuple[int, int, int]:
    """The order in which launches are shown."""
    return (row.scheduled_s, row.attempt, row.ended_index)


def remove_left(data: Path, prefix: str) -> None:
    """Remove folders below `data` that a process that was killed had fetched something into."""
    for folder in data.glob(f"{prefix}*"):
        shutil.rmtree(folder, ignore_errors=True)

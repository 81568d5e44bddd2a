"""Brings what this disk lacks: segments from peers or object storage, and the rows of segments into
the index of history, newest first, until nothing is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import structlog

from cron.errors import CronError
from cron.history.gaps import touches
from cron.history.projection import Projection
from cron.keeper.keeper import Keeper
from cron.leader.applier import StateApplier
from cron.segments import name_of
from cron.state.archive import History, RowsDamaged, SegmentRecord
from cron.state.commands import SegmentKey
from snapshots.errors import SnapshotError, SnapshotMissing, StoreError

_log = structlog.get_logger()

RETRY_S: Final = 2.0
RETRY_S_MAX: Final = 60.0
"""What nobody has is asked for ever more rarely: each question to a store has its price."""
LOOK_S: Final = 10.0
"""How often gaps and files are looked at without a reason: an index may have been begun anew."""


class Source(Protocol):
    """Where segments come from that this disk lacks."""

    async def fetch(self, record: SegmentRecord, folder: Path) -> bool:
        """Bring a segment into `folder` under its name; False if it is not there. What came is not
        to be trusted. Raises CronError, StoreError, SnapshotError, OSError."""


class Filler:
    """The task of one replica that completes its history; `progress` is for `status`."""

    def __init__(self, keeper: Keeper, projection: Projection, applier: StateApplier) -> None:
        self._keeper = keeper
        self._projection = projection
        self._applier = applier
        self._catalogs = 0
        self.sources: list[Source] = []
        self.progress = ""
        self._why = ""  # why a source could not be asked

    @property
    def _history(self) -> History:
        return self._applier.state.history

    async def run(self) -> None:
        """Go on for ever."""
        retry_s, told = RETRY_S, ""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._keeper.changed.wait()
            self._keeper.changed.clear()
            try:
                await self.look()
            except (CronError, StoreError, SnapshotError, RowsDamaged, OSError) as error:
                if str(error) != told:
                    _log.warning("history.incomplete", error=str(error))
                    retry_s, told = RETRY_S, str(error)
                self.progress = f"{self.progress.partition(' (')[0]} ({error})"
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_S_MAX)
                self._keeper.changed.set()
            else:
                retry_s, told = RETRY_S, ""

    async def look(self) -> None:
        """Do what is to be done now.

        Raises:
            CronError, StoreError, SnapshotError, OSError: it is not complete yet.
        """
        if self._catalogs != self._keeper.catalogs:
            catalogs, history = self._keeper.catalogs, self._history
            local = [record for record in history.segments.values() if record.is_local]
            await self._projection.retain(local, history.sealed_to)
            self._catalogs = catalogs
        lacks = await self._fetch_missing()
        # What is here is filled, also while the rest cannot be had.
        await self._fill()
        if lacks:
            text = self._why or "no replica and no store has it"
            raise SnapshotMissing(lacks[0], f"{text}; {len(lacks)} segments are missing")
        self.progress = ""

    async def _fetch_missing(self) -> list[str]:
        """Fetch segments, and return the names of those that nobody has."""
        missing = self._keeper.missing()
        nowhere = []
        self._why = ""
        for number, record in enumerate(missing, 1):
            self.progress = f"fetches history: {number} of {len(missing)} segments"
            if not await self._fetch(record):
                nowhere.append(name_of(record))
        if len(missing) > len(nowhere):
            _log.info("history.fetched", segments=len(missing) - len(nowhere))
        return nowhere

    async def _fetch(self, record: SegmentRecord) -> bool:
        for source in self.sources:
            try:
                if not await source.fetch(record, self._keeper.folders.incoming):
                    continue
                await asyncio.to_thread(self._keeper.admit, record)
            except SnapshotError as error:
                _log.warning("segment.distrusted", segment=name_of(record), error=str(error))
            except (CronError, StoreError) as error:
                self._why = str(error)
            else:
                return True
        return not self._keeper.wants(record)

    async def _fill(self) -> None:
        lacking = await self._projection.lacking()
        history = self._history
        index = self._applier.state.index
        if touches(lacking.gaps, history.sealed_to, index):  # no segment has these rows yet
            rows = list(history.rows_after(history.sealed_to))
            self._projection.mend(rows, history.sealed_to, index)
        todo = [
            record
            for record in sorted(
                history.segments.values(), key=lambda one: one.to_index, reverse=True
            )
            if record.is_local
            and record.key not in lacking.filled
            and touches(lacking.gaps, record.from_index, record.to_index)
            and self._keeper.segment_path(name_of(record)) is not None
        ]
        total, before = sum(record.rows for record in todo), 0
        for record in todo:
            content = await asyncio.to_thread(self._keeper.read, record)
            tell = partial(self._tell_filled, before, total)
            await self._projection.fill(record, content, _seal_of(record, history), tell)
            before += record.rows
        if todo:
            _log.info("history.filled", segments=len(todo), rows=total)

    def _tell_filled(self, before: int, total: int, done: int) -> None:
        self.progress = f"fills the index of history: {before + done:,} of {total:,} rows"


def _seal_of(record: SegmentRecord, history: History) -> frozenset[SegmentKey]:
    """Return all segments of a Seal; none if one of them may be gone, or is not on this disk: then
    what they cover stays a gap."""
    same = [one for one in history.segments.values() if one.key[:2] == record.key[:2]]
    if record.number <= history.retired or not all(one.is_local for one in same):
        return frozenset()
    return frozenset(one.key for one in same)

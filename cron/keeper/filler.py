"""Brings the segments that this disk lacks from peers or object storage, newest first, until none
is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final, Protocol

import structlog

from cron.errors import CronError
from cron.keeper.keeper import Keeper
from cron.segments import name_of
from cron.state.archive import SegmentRecord
from snapshots.errors import SnapshotError, SnapshotMissing, StoreError

_log = structlog.get_logger()

RETRY_S: Final = 2.0
RETRY_S_MAX: Final = 60.0
"""What nobody has is asked for ever more rarely: each question to a store has its price."""
LOOK_S: Final = 10.0
"""How often files are looked at without a reason."""


class Source(Protocol):
    """Where segments come from that this disk lacks."""

    async def fetch(self, record: SegmentRecord, folder: Path) -> bool:
        """Bring a segment into `folder` under its name; False if it is not there. What came is not
        to be trusted. Raises CronError, StoreError, SnapshotError, OSError."""


class Filler:
    """The task of one replica that completes its history; `progress` is for `status`."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.sources: list[Source] = []
        self.progress = ""
        self._why = ""  # why a source could not be asked

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
            except (CronError, StoreError, SnapshotError, OSError) as error:
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
        lacks = await self._fetch_missing()
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

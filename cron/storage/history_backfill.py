"""Completes this replica's history: fetches the segments that its disk lacks, newest first, from
the other replicas, then from object storage.

The snapshot writer verifies each segment against the catalog.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import grpc
import structlog

from cron.errors import CronError
from cron.failpoints import hit
from cron.state.archive import SegmentRecord
from cron.storage.folders import name_of
from cron.storage.snapshot_writer import SnapshotWriter
from snapshots.backup_store import BackupStore
from snapshots.errors import SnapshotCorrupt, SnapshotError, SnapshotMissing, StoreError

_log = structlog.get_logger()

PIECE_BYTES: Final = 1 << 20
PIECE_TIMEOUT_MS: Final = 10_000
FILE_BYTES_MAX: Final = 1 << 30
RETRY_S: Final = 2.0
RETRY_S_MAX: Final = 60.0
"""Segments that nobody has are requested ever more rarely, because a store charges per request."""
LOOK_S: Final = 10.0
"""How often files are checked without a notification."""


class Source(Protocol):
    """A source of segments that this disk lacks."""

    async def fetch(self, record: SegmentRecord, folder: Path) -> bool:
        """Fetch a segment into `folder` under its name, without verifying it; return False if the
        source does not have it. Raises CronError, StoreError, SnapshotError, OSError.
        """


class Fetching(Protocol):
    """The client of the other replicas."""

    async def segment(
        self, address: str, name: str, offset: int, limit: int, timeout_ms: int
    ) -> tuple[bytes, int]:
        """Return a piece of a segment there, and the segment's size. Raises gRPC errors."""


class PeerSource:
    """The other replicas; `addresses` returns their present addresses."""

    def __init__(self, ask: Fetching, addresses: Callable[[], list[str]]) -> None:
        self._ask = ask
        self._addresses = addresses

    async def fetch(self, record: SegmentRecord, folder: Path) -> bool:
        """Fetch a segment from the first replica that has it."""
        for address in self._addresses():
            try:
                await self._fetch_from(address, name_of(record), folder)
            except grpc.aio.AioRpcError as error:
                _log.debug("segment.elsewhere", address=address, error=error.details())
            else:
                return True
        return False

    async def _fetch_from(self, address: str, name: str, folder: Path) -> None:
        with (folder / name).open("wb") as file:
            done, size = 0, 1
            while done < size:
                content, size = await self._ask.segment(
                    address, name, done, PIECE_BYTES, PIECE_TIMEOUT_MS
                )
                if not content or size > FILE_BYTES_MAX:
                    raise SnapshotCorrupt(name, f"{address} gave {done} of {size} bytes")
                file.write(content)
                done += len(content)


class StoreSource:
    """Object storage."""

    def __init__(self, backup_store: BackupStore) -> None:
        self._backup_store = backup_store

    async def fetch(self, record: SegmentRecord, folder: Path) -> bool:
        """Fetch a segment from the store."""
        try:
            await asyncio.to_thread(self._backup_store.fetch_segment, name_of(record), folder)
        except SnapshotMissing:
            return False
        return True


class HistoryBackfill:
    """The task of one replica that completes its history; `progress` is for `status`."""

    def __init__(self, writer: SnapshotWriter, sources: list[Source]) -> None:
        self._writer = writer
        self.sources = sources
        self.progress = ""
        self._why = ""  # why a source could not be asked

    async def run(self) -> None:
        """Fetch missing segments until cancelled."""
        retry_s, logged = RETRY_S, ""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._writer.changed.wait()
            self._writer.changed.clear()
            try:
                await self.look()
            except (CronError, StoreError, SnapshotError, OSError) as error:
                if str(error) != logged:
                    _log.warning("history.incomplete", error=str(error))
                    retry_s, logged = RETRY_S, str(error)
                self.progress = f"{self.progress.partition(' (')[0]} ({error})"
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_S_MAX)
                self._writer.changed.set()
            else:
                retry_s, logged = RETRY_S, ""

    async def look(self) -> None:
        """Fetch what is missing.

        Raises:
            CronError, StoreError, SnapshotError, OSError: it is not complete yet.
        """
        missing, nowhere = self._writer.missing(), []
        self._why = ""
        for number, record in enumerate(missing, 1):
            self.progress = f"fetches history: {number} of {len(missing)} segments"
            if not await self._fetch(record):
                nowhere.append(name_of(record))
        if len(missing) > len(nowhere):
            _log.info("history.fetched", segments=len(missing) - len(nowhere))
        if nowhere:
            text = self._why or "no replica and no store has it"
            raise SnapshotMissing(nowhere[0], f"{text}; {len(nowhere)} segments are missing")
        self.progress = ""

    async def _fetch(self, record: SegmentRecord) -> bool:
        for source in self.sources:
            try:
                if not await source.fetch(record, self._writer.folders.incoming):
                    continue
                hit("segment-fetched")
                await asyncio.to_thread(self._writer.admit, record)
            except SnapshotError as error:
                _log.warning("segment.distrusted", segment=name_of(record), error=str(error))
            except (CronError, StoreError) as error:
                self._why = str(error)
            else:
                return True
        return not self._writer.wants(record)

"""Where segments come from that this disk lacks: the other replicas first, then object storage.

Nothing of it is believed: the keeper admits what is the segment that the catalog names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import grpc
import structlog

from cron.segments import name_of
from cron.state.archive import SegmentRecord
from snapshots.errors import SnapshotCorrupt, SnapshotMissing
from snapshots.vault import Vault

_log = structlog.get_logger()

PIECE_BYTES: Final = 1 << 20
PIECE_TIMEOUT_MS: Final = 10_000
FILE_BYTES_MAX: Final = 1 << 30


class Fetching(Protocol):
    """The door to the other replicas."""

    async def segment(
        self, address: str, name: str, offset: int, limit: int, timeout_ms: int
    ) -> tuple[bytes, int]:
        """Return a piece of a segment there, and its size. Raises what gRPC raises."""


class PeerSource:
    """The other replicas; `addresses` returns where they are now."""

    def __init__(self, ask: Fetching, addresses: Callable[[], list[str]]) -> None:
        self._ask = ask
        self._addresses = addresses

    async def fetch(self, record: SegmentRecord, folder: Path) -> bool:
        """Bring a segment from the first replica that has it."""
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

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    async def fetch(self, record: SegmentRecord, folder: Path) -> bool:
        """Bring a segment from the store."""
        try:
            await asyncio.to_thread(self._vault.fetch_segment, name_of(record), folder)
        except SnapshotMissing:
            return False
        return True

"""Outputs that are in object storage, fetched for whoever reads them, and kept for a while.

An object can only be verified whole. So it is fetched once, and the pieces that are asked for one
after the other come from a file; the newest few of these stay.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from cron.api.launches import LaunchView, OutputQuery
from cron.errors import Conflict, Unavailable
from cron.lane import Lane
from snapshots.errors import SnapshotError, StoreAway, StoreError
from snapshots.outputs import OUTPUT_BYTES_MAX, OutputHeader
from snapshots.vault import Vault

FETCHED_MAX: Final = 4
BYTES_MAX_MIN: Final = 1 << 20
"""Of more than twice what its row says nothing is fetched, but so much always."""
FETCH_TIMEOUT_S: Final = 20.0
"""A client waits for so long; the fetch goes on, and the next one who asks may find it done."""


class StoredPiece(msgspec.Struct, frozen=True):
    """A part of an output, as executors give it: `offset` of its first byte in all of it, `size`
    bytes kept, `dropped` before these that nobody has."""

    data: bytes
    offset: int
    size: int
    dropped: int


_Key = tuple[int, str, int]  # when it ended, launch, attempt


class StoredOutputs:
    """What `vault` has of outputs; those that are read are kept below `folder`."""

    def __init__(self, vault: Vault, folder: Path) -> None:
        self._vault = vault
        self._folder = folder
        self._lane = Lane("output-reads")
        self._fetched: OrderedDict[_Key, tuple[Path, OutputHeader]] = OrderedDict()
        self._count = 0

    @property
    def url(self) -> str:
        """Where they are."""
        return self._vault.store.url

    def close(self) -> None:
        """End the thread."""
        self._lane.close()

    async def read(self, ended: LaunchView, query: OutputQuery) -> StoredPiece | None:
        """Return the part of an output that `query` asks for, of an attempt by its end; None if it
        is not in the store.

        Raises:
            Unavailable: the store does not answer now. Conflict: it refuses, or it is damaged.
        """
        key = (ended.ended_at_ms, query.launch, ended.attempt)
        bytes_max = min(max(2 * ended.output_bytes, BYTES_MAX_MIN), OUTPUT_BYTES_MAX)
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                return await self._lane.work(partial(self._read, key, query, bytes_max))
        except TimeoutError as error:
            text = f"{self.url} did not give the output within {FETCH_TIMEOUT_S:.0f} s"
            raise Unavailable(text, "try again in a while") from error
        except StoreAway as error:
            raise Unavailable(str(error), error.hint) from error
        except (StoreError, SnapshotError) as error:
            raise Conflict(str(error), error.hint) from error
        except OSError as error:
            raise Unavailable(f"{self._folder}: {error.strerror}", "look at the disk") from error

    # ---- in the thread

    def _read(self, key: _Key, query: OutputQuery, bytes_max: int) -> StoredPiece | None:
        found = self._fetched.get(key) or self._fetch(key, bytes_max)
        if found is None:
            return None
        self._fetched.move_to_end(key)
        path, header = found
        dropped, end = header.dropped, header.dropped + header.size
        begin = max(dropped, end - query.limit) if query.tail else query.offset
        begin = min(max(begin, dropped), end)
        with path.open("rb") as file:
            file.seek(begin - dropped)
            data = file.read(query.limit)
        return StoredPiece(data, begin, header.size, dropped)

    def _fetch(self, key: _Key, bytes_max: int) -> tuple[Path, OutputHeader] | None:
        if not self._count:
            shutil.rmtree(self._folder, ignore_errors=True)  # of an earlier life of this process
        self._count += 1
        path = self._folder / f"{self._count}"
        header = self._vault.fetch_output(*key, path, bytes_max)
        if header is None:
            return None
        while len(self._fetched) >= FETCHED_MAX:
            _, (old, _) = self._fetched.popitem(last=False)
            old.unlink(missing_ok=True)
        self._fetched[key] = path, header
        return path, header

"""What an executor says to its leader about itself and its ledger, put into messages."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import metadata
from typing import Final

from launcher.config import ExecutorConfig
from launcher.executor.offers import Offer
from launcher.executor.outlet import Page
from launcher.executor.resources import UNLIMITED, Capacity
from launcher.executor.row import ENDED, Change, Row, changes_of_rows
from launcher.rpc.v1 import pool_pb2

PROTOCOL: Final = 3
"""What this executor speaks; `Welcome.protocol` in pool.proto says what each number is."""


class Words:
    """Messages of one executor; `kept` says how many bytes of an attempt's output it keeps, `room`
    what its host has for launches."""

    def __init__(
        self, kept: Callable[[str], int] = lambda name: 0, room: Capacity = UNLIMITED
    ) -> None:
        self._kept = kept
        self._room = room

    def hello(self, config: ExecutorConfig, ledger: str, incarnation: str) -> pool_pb2.Hello:
        """Return the greeting, still without the clock, the epoch and the rows."""
        return pool_pb2.Hello(
            cell=config.cell,
            executor=config.id,
            ledger=ledger,
            incarnation=incarnation,
            slots=config.slots,
            host=socket.gethostname() or "unknown",
            pid=os.getpid(),
            version=_version(),
            labels=config.labels,
            can_recall=True,
            cpu_milli=self._room.cpu_milli,
            memory_bytes=self._room.memory_bytes,
            protocol=PROTOCOL,
        )

    def offers(self, offers: Sequence[Offer]) -> pool_pb2.Offers:
        """Return what the workers serve."""
        return pool_pb2.Offers(
            offers=[
                pool_pb2.Offer(group=one.group, slots=one.slots, handlers=one.handlers)
                for one in offers
            ]
        )

    def known(self, rows: Sequence[Row]) -> list[Change]:
        """Return what a leader is told of rows of the ledger."""
        self._add_outputs(rows)
        return changes_of_rows(rows)

    def reports(self, changes: list[Change], rows_max: int) -> Iterator[pool_pb2.Reports]:
        """Return messages of at most `rows_max` rows each with what became of rows. A change is not
        cut: the rows of one batch are no more than a leader begins at once."""
        message, count = pool_pb2.Reports(), 0
        for change in changes:
            size = len(change)
            if count and count + size > rows_max:
                yield message
                message, count = pool_pb2.Reports(), 0
            count += size
            message.batches.append(change.message())
        if count:
            yield message

    def recollection(self, page: Page) -> pool_pb2.Recollection:
        """Return what a leader is told that may not know where the rows come from."""
        self._add_outputs(page.rows)
        return pool_pb2.Recollection(
            reports=[row.recollection() for row in page.rows],
            last=page.rest is None,
            floor=page.floor,
        )

    def _add_outputs(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.fate == ENDED:
                row.output_bytes = self._kept(row.name)


@lru_cache(maxsize=1)
def _version() -> str:
    try:
        return metadata.version("raftcron")
    except metadata.PackageNotFoundError:
        return "unknown"

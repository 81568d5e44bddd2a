"""A turn of the foreman: what has arrived, and how it is written into the ledger.

All of it in one transaction, in the ledger's thread; nothing is acted on here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from launcher.executor.attempt import Attempt, News
from launcher.executor.ledger import Ledger
from launcher.executor.outlet import Outlet, Page, Recall
from launcher.executor.row import (
    ACCEPTED,
    ENDED,
    REFUSED,
    Change,
    Row,
    changes_of,
    changes_of_rows,
)
from launcher.executor.rules import Conditions, Settled, settle
from launcher.rpc.v1 import pool_pb2
from launcher.work import Epoch

ReadPage = Callable[[Ledger, Recall], Page | None]


class Turn(msgspec.Struct):
    """What arrived since the last turn, in the order it is served in. `came` are worker processes
    (id, start time) that wait to be fed, `went` the ids of dead ones; `starting` are attempts that
    waited and are about to get a worker; `offered`: what workers serve has changed. The first
    `unleased` orders came before a gap between two leases."""

    news: News = msgspec.field(default_factory=News)
    orders: list[tuple[Outlet, pool_pb2.Orders]] = []
    unleased: int = 0
    epoch: Epoch | None = None
    arriving: Outlet | None = None
    recall: Recall | None = None
    spawner_died: bool = False
    came: list[tuple[int, int]] = []
    went: list[int] = []
    starting: list[Attempt] = []
    offered: bool = False

    def __bool__(self) -> bool:
        arrived = self.news or self.orders or self.epoch or self.arriving or self.recall
        changed = self.spawner_died or self.came or self.went or self.starting or self.offered
        return bool(arrived or changed)

    def must_sync(self, ledger: Ledger) -> bool:
        """Whether something of it may be acted on, or told, only once it is on the disk."""
        if self.came or self.starting or self.news.ended or self.news.refused:
            return True
        if self.epoch is not None and self.epoch > ledger.highest:
            return True
        return any(
            orders.batches or orders.fences or orders.floor > ledger.floor
            for _, orders in self.orders
        )


class Written(msgspec.Struct):
    """What a turn came to, now durable. `changes` is what the leader is told."""

    changes: list[Change] = []
    settled: list[tuple[Outlet, Settled]] = []
    known: list[Row] = []
    page: Page | None = None


def write(ledger: Ledger, turn: Turn, conditions: Conditions, read: ReadPage) -> Written:
    """Write a turn in one transaction; return what it came to. `read` gives the page that is asked
    for."""
    written = Written()
    with ledger.transaction(synced=turn.must_sync(ledger)):
        written.changes = record(ledger, turn.news)
        if turn.came or turn.went:
            ledger.record_workers(turn.came, turn.went)
        for index, some in _by_index(turn.starting).items():
            ledger.starting(index, sorted(some))
        if turn.epoch is not None:
            ledger.raise_epoch(turn.epoch)
        gone = msgspec.structs.replace(conditions, lease_valid=False)
        for place, (outlet, orders) in enumerate(turn.orders):
            now = conditions if place >= turn.unleased else gone
            settled = settle(ledger, orders, outlet.works, now)
            conditions = settled.left or conditions
            written.settled.append((outlet, settled))
    for _, settled in written.settled:
        written.changes += settled.refused
    if answers := [row for _, settled in written.settled for row in settled.answers]:
        written.changes += changes_of_rows(answers)
    if turn.arriving is not None:
        written.known = [row for row in ledger.unacked() if not row.is_pending]
    if turn.recall is not None:
        written.page = read(ledger, turn.recall)
    return written


def record(ledger: Ledger, news: News) -> list[Change]:
    """Write what the spawner and the workers said, inside a transaction; return it as the leader is
    told. Of an attempt that is over already only that."""
    started = [one for one in dict.fromkeys(news.started) if not one.is_over]
    said = changes_of(ACCEPTED, started)
    said += changes_of(ENDED, news.ended)
    said += changes_of(REFUSED, news.refused)
    ledger.changed(said)
    return said


def _by_index(some: Iterable[Attempt]) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for one in some:
        rows.setdefault(one.index, []).append(one.row)
    return rows

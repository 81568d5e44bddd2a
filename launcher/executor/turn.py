"""A turn of the foreman: what has arrived, and how it is written into the ledger.

All of it in one transaction, in the ledger's thread; nothing is acted on here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from launcher.executor.children import News
from launcher.executor.ledger import Ledger
from launcher.executor.outlet import Outlet, Page, Recall
from launcher.executor.records import End
from launcher.executor.row import Row
from launcher.executor.rules import Conditions, Settled, settle
from launcher.launch import Reason
from launcher.rpc.v1 import pool_pb2
from launcher.work import Epoch

ReadPage = Callable[[Ledger, Recall], Page | None]


class Turn(msgspec.Struct):
    """What arrived since the last turn, in the order it is served in. `came` are worker processes
    (id, start time) that wait to be fed, `went` the ids of dead ones; `starting` are launches that
    waited and are about to get a worker; `offered`: what workers serve has changed. The first
    `unleased` orders came before a gap between two leases."""

    news: list[News] = []
    orders: list[tuple[Outlet, pool_pb2.Orders]] = []
    unleased: int = 0
    epoch: Epoch | None = None
    arriving: Outlet | None = None
    recall: Recall | None = None
    spawner_died: bool = False
    came: list[tuple[int, int]] = []
    went: list[int] = []
    starting: list[str] = []
    offered: bool = False

    def __bool__(self) -> bool:
        arrived = self.news or self.orders or self.epoch or self.arriving or self.recall
        changed = self.spawner_died or self.came or self.went or self.starting or self.offered
        return bool(arrived or changed)

    def must_sync(self, ledger: Ledger) -> bool:
        """Whether something of it may be acted on, or told, only once it is on the disk."""
        if self.came or self.starting or any(news[0] != "started" for news in self.news):
            return True
        if self.epoch is not None and self.epoch > ledger.highest:
            return True
        return any(
            orders.starts or orders.fences or orders.floor > ledger.floor
            for _, orders in self.orders
        )


class Written(msgspec.Struct):
    """What a turn came to, now durable."""

    changed: list[Row] = []
    settled: list[tuple[Outlet, Settled]] = []
    known: list[Row] = []
    page: Page | None = None


def write(
    ledger: Ledger, turn: Turn, conditions: Conditions, lost: list[str] | None, read: ReadPage
) -> Written:
    """Write a turn in one transaction; return what it came to. `lost` are names that a dead spawner
    ran, `read` gives the page that is asked for."""
    written = Written()
    with ledger.transaction(synced=turn.must_sync(ledger)):
        record(ledger, turn.news, conditions.wall_ms)
        if turn.came or turn.went:
            ledger.record_workers(turn.came, turn.went)
        if turn.starting:
            ledger.starting(turn.starting)
        if turn.epoch is not None:
            ledger.raise_epoch(turn.epoch)
        gone = msgspec.structs.replace(conditions, lease_valid=False)
        for place, (outlet, orders) in enumerate(turn.orders):
            settled = settle(ledger, orders, conditions if place >= turn.unleased else gone)
            conditions = settled.left or conditions
            written.settled.append((outlet, settled))
    names = list(dict.fromkeys([news[1] for news in turn.news] + (lost or [])))
    written.changed = list(ledger.rows(names).values())
    if turn.arriving is not None:
        written.known = [row for row in ledger.unacked() if not row.is_pending]
    if turn.recall is not None:
        written.page = read(ledger, turn.recall)
    return written


def record(ledger: Ledger, news: Sequence[News], now_ms: int) -> None:
    """Write what the spawner and the workers said, inside a transaction."""
    started: list[Any] = []
    refused: list[Any] = []
    ends: list[End] = []
    for one in news:
        verb, name, *rest = one
        if verb == "started":
            started.append((name, *rest))
        elif verb == "refused":
            refused.append((name, *rest))
        elif verb == "failed":
            reason, detail = rest
            ends.append(End(name, now_ms, 126 if reason == Reason.USER else 127, reason, detail))
        elif verb == "ended":
            exit_code, reason, finished_ms, _, detail, *used = rest
            end = End(name, finished_ms, exit_code, reason, detail)
            if used:
                end.cpu_ms, end.memory_peak_bytes = used
            ends.append(end)
        else:
            exit_code, reason, finished_ms, _, detail, after_ms, started_ms = rest
            ends.append(End(name, finished_ms, exit_code, reason, detail, after_ms, started_ms))
    ledger.started(started)
    ledger.refused(refused)
    ledger.ended(ends)

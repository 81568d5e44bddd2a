"""Pages of a ledger: every row once, in log order, whatever is written between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.executor.ledger import Inventory, Ledger, Page
from launcher.executor.rows import (
    ACCEPTED,
    ENDED,
    FENCED,
    INTERRUPTED,
    REFUSED,
    changes_of,
    tombstone,
)
from launcher.protocol.reports import RowReport
from tests.unit.pool_rig import attempt


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "journal")
    yield ledger
    ledger.close()


def row(number: int, status: int = ENDED, **fields: Any) -> RowReport:
    fields = {"index": 10 + number // 3, "epoch": "0.1.r1", "started_ms": 1} | fields
    return RowReport(row=number, status=status, name=str(attempt(number)), **fields)


def fill(ledger: Ledger, *rows: RowReport, acked: tuple[int, ...] = ()) -> None:
    """Let rows be in the ledger, and some of them be acknowledged."""
    with ledger.transaction():
        for one in rows:
            batch = tombstone(one.index, one.row, one.name, one.epoch)
            batch.states[0] = one.status
            batch.started[0], batch.finished[0] = one.started_ms, one.finished_ms
            ledger.insert(batch)
        for one in ledger.unacked():
            if one.row in acked:
                ledger.ack(one.index, [one.row])


def pages(ledger: Ledger, rows_max: int) -> list[Page]:
    """All pages, read one after the other."""
    found: list[Page] = []
    inventory: Inventory | None = Inventory()
    while inventory is not None:
        page = ledger.recollect(inventory, rows_max)
        assert page is not None
        found.append(page)
        inventory = page.rest
    return found


def names(found: list[Page]) -> list[str]:
    return [one.name for page in found for one in page.rows]


@pytest.mark.parametrize("rows_max", [1, 2, 3, 7, 20, 21])
def test_every_row_is_on_one_page_in_log_order(ledger: Ledger, rows_max: int) -> None:
    statuses = (ENDED, FENCED, REFUSED, INTERRUPTED, ACCEPTED)
    rows = [row(number, statuses[number % 5]) for number in range(20)]
    fill(ledger, *reversed(rows), acked=(0, 1, 2, 7, 8, 15, 18))
    found = pages(ledger, rows_max)
    assert names(found) == [one.name for one in rows]
    assert all(len(page.rows) <= rows_max for page in found)
    assert all(len(page.rows) == rows_max for page in found[:-1])


def test_a_page_ends_before_a_pending_row_and_waits_for_it(ledger: Ledger) -> None:
    pending = row(1, ACCEPTED, index=2, started_ms=0)
    fill(ledger, row(0, index=1), pending, row(2, index=3))
    first = ledger.recollect(Inventory(), 10)
    assert first is not None
    assert first.rest is not None
    assert names([first]) == [str(attempt(0))]
    assert ledger.recollect(first.rest, 10) is None
    with ledger.transaction():
        pending.status = REFUSED
        ledger.changed(changes_of([pending]))
    second = ledger.recollect(first.rest, 10)
    assert second is not None
    assert [(one.name, one.status) for one in second.rows] == [
        (pending.name, REFUSED),
        (str(attempt(2)), ENDED),
    ]
    assert second.rest is None

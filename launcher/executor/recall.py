"""All that a ledger remembers, page by page, for a leader that knows less than the ledger (R13).

Theory of operation. A page is read in a turn, in the ledger's thread, after the turn's transaction:
so the epoch of the leader that asks is durable before the first page is read, and no start of an
older one can come behind a page. Pages follow (log index, row), by which a row is known;
what is written between two pages lies behind the cursor, or is reported as any change is.

A row that is pending (row.py) is told to nobody, and to leave it out would say that it never ran:
so the page ends before it, and the rest waits for the spawner's word, which makes a turn.
"""

from __future__ import annotations

from itertools import takewhile

import msgspec

from launcher.executor.ledger import Ledger
from launcher.executor.outlet import Page, Recall
from launcher.limits import RECALL_ROWS_MAX


def read_page(ledger: Ledger, recall: Recall, rows_max: int = RECALL_ROWS_MAX) -> Page | None:
    """Return the page that `recall` asks for; None while its first row is pending."""
    if recall.until < 0:
        recall = msgspec.structs.replace(recall, until=ledger.newest_index)
    found = ledger.page(recall.after, recall.until, rows_max)
    rows = list(takewhile(lambda row: not row.is_pending, found))
    if len(rows) == len(found) < rows_max:
        return Page(rows, ledger.floor, None)
    if not rows:
        return None
    rest = msgspec.structs.replace(recall, after=(rows[-1].index, rows[-1].row))
    return Page(rows, ledger.floor, rest)

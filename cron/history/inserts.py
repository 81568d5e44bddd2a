"""Rows into the projection: one transaction for a batch of rows and the mark that covers them.

Runs in the projection's thread, on its connection.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from cron.history.schema import read_mark
from cron.state.rows import Row, RowKind

JOB_NUMBERS_KEPT: Final = 200_000
"""Numbers of jobs kept in memory, about 30 MB; beyond it they are looked up anew."""

_encode = msgspec.msgpack.Encoder().encode

_INSERT: Final = """
    INSERT INTO rows (job, state, newest_s, attempt, level, scheduled_s, body)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""
_TALLY: Final = """
    INSERT INTO tally VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET rows = rows + excluded.rows, instants = instants + excluded.instants
"""


class Offer(msgspec.Struct):
    """All rows with `ended_index` <= `up_to` that the projection has not been offered before, but
    for those in (gap_from, gap_to], which nobody here has any more."""

    rows: list[Row]
    up_to: int
    gap_from: int = 0
    gap_to: int = 0


class Inserter:
    """Writes offers to one connection. Not usable after that connection was closed."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._jobs: dict[str, int] = {}
        self.mark = read_mark(db)

    def write(self, offers: Iterable[Offer]) -> int:
        """Write `offers` in one transaction, ignoring rows that are known already, and move the
        mark, which is returned; all or nothing.

        Raises:
            sqlite3.Error: nothing was written.
        """
        mark, rows, tally = self.mark, [], Counter[tuple[int, int, int]]()
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for offer in offers:
                self._write_gap(offer, mark)
                for row in offer.rows:
                    if row.ended_index > mark:
                        rows.append(self._columns(row))
                        tally[row.kind, row.state, row.count] += 1
                mark = max(mark, offer.up_to)
            self._db.executemany(_INSERT, rows)
            self._db.executemany(
                _TALLY, [(kind, state, n, n * count) for (kind, state, count), n in tally.items()]
            )
            self._db.execute("UPDATE meta SET value = ? WHERE key = 'mark'", (mark,))
            self._db.execute("COMMIT")
        except BaseException:
            self._jobs.clear()  # numbers given in this transaction are gone with it
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self.mark = mark
        return mark

    def _write_gap(self, offer: Offer, mark: int) -> None:
        # What lies below the mark was seen before it was dropped elsewhere.
        gap_from = max(offer.gap_from, mark)
        if gap_from >= offer.gap_to:
            return
        wider = "UPDATE gaps SET to_index = ? WHERE to_index = ?"
        if self._db.execute(wider, (offer.gap_to, gap_from)).rowcount == 0:
            self._db.execute("INSERT INTO gaps VALUES (?, ?)", (gap_from, offer.gap_to))

    def _columns(self, row: Row) -> tuple[int | bytes | None, ...]:
        job = self._jobs.get(row.job) or self._number(row.job)
        body = _encode(row)
        if row.kind is not RowKind.RANGE:
            return job, row.state, row.scheduled_s, row.attempt, None, None, body
        level = max(row.last_s - row.scheduled_s, 0).bit_length()
        return job, row.state, row.last_s, row.attempt, level, row.scheduled_s, body

    def _number(self, job: str) -> int:
        if len(self._jobs) >= JOB_NUMBERS_KEPT:
            self._jobs.clear()
        self._db.execute("INSERT OR IGNORE INTO jobs (name) VALUES (?)", (job,))
        found = self._db.execute("SELECT number FROM jobs WHERE name = ?", (job,)).fetchone()
        self._jobs[job] = number = int(found[0])
        return number

"""Rows into the projection and out of it: transactions, each with the counters that it moves.

Runs in the projection's thread, on its connection.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from cron.history import queries
from cron.history.gaps import Gap, narrowed, touches, widened
from cron.history.places import Placing
from cron.history.schema import read_mark
from cron.state.archive import Stream, stream_of
from cron.state.commands import SegmentKey
from cron.state.rows import Row, RowKind, encodable

JOB_NUMBERS_KEPT: Final = 200_000
"""Numbers of jobs kept in memory, about 30 MB; beyond it they are looked up anew."""
PIECE_ROWS: Final = 2_048
"""Rows that one transaction brings from a segment or deletes: 50 ms, in which questions wait."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Row).decode

_INSERT: Final = """
    INSERT INTO rows (seq, job, state, newest_s, attempt, level, scheduled_s, output, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_TALLY: Final = """
    INSERT INTO tally VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET rows = rows + excluded.rows, instants = instants + excluded.instants
"""

Placed = tuple[int, Row, bytes | None]
"""A row with its place before it, and its bytes where they are known."""


class Offer(msgspec.Struct):
    """All rows with `ended_index` <= `up_to` that the projection has not been offered before, but
    for those in (gap_from, gap_to], which nobody here has any more.

    `whole_from`: all rows after it are here, also those that were offered before; -1 where they are
    not.
    """

    rows: list[Row]
    up_to: int
    gap_from: int = 0
    gap_to: int = 0
    whole_from: int = -1


class Filled(msgspec.Struct, frozen=True):
    """The last rows of segment `key` are in; its stretch is a gap no more once all of `seal` are.
    An empty `seal` leaves the gap."""

    key: SegmentKey
    gap: Gap
    seal: frozenset[SegmentKey]


class Inserter:
    """Writes to one connection. Not usable after that connection was closed."""

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
        mark = self.mark
        with self._transaction():
            for offer in offers:
                # What lies below the mark was seen before it was dropped elsewhere.
                self._note_gap(max(offer.gap_from, mark), offer.gap_to)
                placing = Placing()
                placed: list[Placed] = [(placing.place_of(row), row, None) for row in offer.rows]
                self._insert([one for one in placed if one[1].ended_index > mark])
                if offer.whole_from >= 0:
                    self._mend(offer, [one for one in placed if one[1].ended_index <= mark])
                mark = max(mark, offer.up_to)
            self._db.execute("UPDATE meta SET value = ? WHERE key = 'mark'", (mark,))
        self.mark = mark
        return mark

    def fill(self, placed: Sequence[Placed], filled: Filled | None = None) -> None:
        """Write rows of one stream that are not here yet; with `filled`, note that they are the
        last of their segment. All or nothing, and as often as anybody likes.

        Raises:
            sqlite3.Error: nothing was written.
        """
        with self._transaction():
            self._insert_missing(placed)
            if filled is not None:
                self._note_filled(filled)

    def drop(self, first: int, last: int, gap_from: int | None) -> tuple[int, int] | None:
        """Delete the oldest rows at the places from `first` to `last`, up to PIECE_ROWS of them;
        return place and log index of the last of them, None where there is none.

        They leave a gap, from log index `gap_from` on or, where that is None, from the first row.

        Raises:
            sqlite3.Error: nothing was deleted.
        """
        sql = "SELECT seq, body FROM rows WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?"
        found = self._db.execute(sql, (first, last, PIECE_ROWS)).fetchall()
        if not found:
            return None
        rows = [_decode(body) for _, body in found]
        gap_from = rows[0].ended_index - 1 if gap_from is None else gap_from
        with self._transaction():
            bounds = (found[0][0], found[-1][0])
            self._db.execute("DELETE FROM rows WHERE seq BETWEEN ? AND ?", bounds)
            self._count(rows, -1)
            self._note_gap(gap_from, rows[-1].ended_index)
        return found[-1][0], rows[-1].ended_index

    def forget(self, kept: frozenset[SegmentKey]) -> None:
        """Forget that segments were filled that are not in `kept`.

        Raises:
            sqlite3.Error: nothing was forgotten.
        """
        with self._transaction():
            for key in queries.lacking(self._db).filled - kept:
                self._forget(key)

    # ---- inside a transaction

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self._jobs.clear()  # numbers given in this transaction are gone with it
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _insert(self, placed: Sequence[Placed]) -> None:
        self._db.executemany(_INSERT, [self._columns(*one) for one in placed])
        self._count([row for _, row, _ in placed], 1)

    def _insert_missing(self, placed: Sequence[Placed]) -> None:
        """Insert rows of one stream, ordered by place, but for those that are here."""
        if not placed:
            return
        sql = "SELECT seq FROM rows WHERE seq BETWEEN ? AND ?"
        known = {seq for (seq,) in self._db.execute(sql, (placed[0][0], placed[-1][0]))}
        self._insert([one for one in placed if one[0] not in known])

    def _mend(self, offer: Offer, placed: Sequence[Placed]) -> None:
        """Put rows where gaps are, which all of them are known to be no more."""
        gaps = queries.gaps(self._db)
        if not touches(gaps, offer.whole_from, offer.up_to):
            return
        for stream in Stream:
            self._insert_missing(
                [
                    one
                    for one in placed
                    if one[1].ended_index > offer.whole_from and stream_of(one[1]) is stream
                ]
            )
        self._put_gaps(narrowed(gaps, Gap(offer.whole_from, offer.up_to)))

    def _count(self, rows: Iterable[Row], sign: int) -> None:
        tally = Counter((row.kind, row.state, row.count) for row in rows)
        self._db.executemany(
            _TALLY,
            [
                (kind, state, sign * n, sign * n * count)
                for (kind, state, count), n in tally.items()
            ],
        )

    def _note_gap(self, from_index: int, to_index: int) -> None:
        if from_index < to_index:
            self._put_gaps(widened(queries.gaps(self._db), Gap(from_index, to_index)))

    def _note_filled(self, filled: Filled) -> None:
        self._db.execute("INSERT OR IGNORE INTO fills VALUES (?, ?, ?)", filled.key)
        lacking = queries.lacking(self._db)
        if filled.seal and filled.seal <= lacking.filled:
            self._put_gaps(narrowed(lacking.gaps, filled.gap))
            for key in filled.seal:
                self._forget(key)

    def _forget(self, key: SegmentKey) -> None:
        self._db.execute("DELETE FROM fills WHERE (lineage, number, stream) = (?, ?, ?)", key)

    def _put_gaps(self, gaps: Iterable[Gap]) -> None:
        self._db.execute("DELETE FROM gaps")
        rows = [(gap.from_index, gap.to_index) for gap in gaps]
        self._db.executemany("INSERT INTO gaps VALUES (?, ?)", rows)

    def _columns(self, seq: int, row: Row, body: bytes | None) -> tuple[int | bytes | None, ...]:
        job = self._jobs.get(row.job) or self._number(row.job)
        body = _encode(encodable(row)) if body is None else body
        if row.kind is not RowKind.RANGE:
            output = 1 if row.output_bytes else None
            return seq, job, row.state, row.scheduled_s, row.attempt, None, None, output, body
        level = max(row.last_s - row.scheduled_s, 0).bit_length()
        return seq, job, row.state, row.last_s, row.attempt, level, row.scheduled_s, None, body

    def _number(self, job: str) -> int:
        if len(self._jobs) >= JOB_NUMBERS_KEPT:
            self._jobs.clear()
        self._db.execute("INSERT OR IGNORE INTO jobs (name) VALUES (?)", (job,))
        found = self._db.execute("SELECT number FROM jobs WHERE name = ?", (job,)).fetchone()
        self._jobs[job] = number = int(found[0])
        return number

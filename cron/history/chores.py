"""Long work of the projection, done a transaction at a time, so that questions pass between.

Runs in the projection's thread. Every step may be done again after a kill: it leaves the same.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from cron.history.asking import Ask
from cron.history.gaps import Gap
from cron.history.inserts import PIECE_ROWS, Filled, Inserter, Placed
from cron.history.places import Placing, places_in
from cron.state.archive import RowsDamaged, SegmentRecord, Stream, stream_of
from cron.state.commands import SegmentKey
from cron.state.rows import Row

_cut = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode: Final = msgspec.msgpack.Decoder(Row).decode

Progress = Callable[[int], None]


class Chore(Ask[None]):
    """Work of many transactions; begun once the mark has reached `index`."""

    def __init__(self, index: int) -> None:
        super().__init__(lambda _db: None, index)

    @abc.abstractmethod
    def step(self, inserter: Inserter) -> bool:
        """Do the next transaction; return whether there is more to do.

        Raises:
            sqlite3.Error: this transaction did nothing.
        """


class Fill(Chore):
    """All rows of one segment, from its content. Several megabytes are cut into rows at once, which
    takes 10 ms; a row is read when its turn comes."""

    def __init__(
        self,
        record: SegmentRecord,
        content: bytes,
        seal: frozenset[SegmentKey],
        progress: Progress | None,
    ) -> None:
        super().__init__(record.to_index)
        self._record = record
        self._content = content
        self._gap = Gap(record.from_index, record.to_index)
        self._filled = Filled(record.key, self._gap, seal)
        self._progress = progress
        self._rows: list[msgspec.Raw] | None = None
        self._done = 0
        self._placing = Placing()

    def step(self, inserter: Inserter) -> bool:
        """Bring the next rows.

        Raises:
            RowsDamaged: the content is not what the record says.
        """
        if self._rows is None:
            self._rows = self._cut_rows()
        piece = [self._placed(row) for row in self._rows[self._done : self._done + PIECE_ROWS]]
        done = self._done + len(piece)
        is_last = done == len(self._rows)
        inserter.fill(piece, self._filled if is_last else None)
        self._done = done
        if self._progress is not None:
            progress = self._progress
            self._on_loop(lambda: progress(done))
        return not is_last

    def _cut_rows(self) -> list[msgspec.Raw]:
        try:
            rows = _cut(self._content)
        except msgspec.MsgspecError as error:
            raise RowsDamaged(f"segment: its rows cannot be read: {error}") from error
        if len(rows) != self._record.rows:
            raise RowsDamaged(f"segment: it has {len(rows)} rows, not {self._record.rows}")
        return rows

    def _placed(self, raw: msgspec.Raw) -> Placed:
        try:
            row = _decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RowsDamaged(f"segment: a row cannot be read: {error}") from error
        is_in_range = self._gap.from_index < row.ended_index <= self._gap.to_index
        if not is_in_range or stream_of(row) != self._record.stream:
            raise RowsDamaged(f"segment: a row of log index {row.ended_index} is not its own")
        return self._placing.place_of(row), row, bytes(raw)


class Retain(Chore):
    """Rows up to log index `up_to` go that are in none of `records`."""

    def __init__(self, records: Sequence[SegmentRecord], up_to: int) -> None:
        super().__init__(up_to)
        self._kept = frozenset(record.key for record in records)
        self._stretches = list(_uncovered(records, up_to))
        self._is_begun = False
        self._gap_from: int | None = None  # where the gap begins that this stretch leaves

    def step(self, inserter: Inserter) -> bool:
        """Delete the next rows."""
        if not self._is_begun:
            inserter.forget(self._kept)
            self._is_begun = True
        while self._stretches:
            first, last = self._stretches[-1]
            dropped = inserter.drop(first, last, self._gap_from)
            if dropped is not None:
                place, self._gap_from = dropped
                self._stretches[-1] = place + 1, last
                return True
            self._stretches.pop()
            self._gap_from = None
        return False


def _uncovered(records: Sequence[SegmentRecord], up_to: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last place of each stretch that no record covers."""
    for stream in Stream:
        covered = sorted((r.from_index, r.to_index) for r in records if r.stream == stream)
        at = 0
        for from_index, to_index in [*covered, (up_to, up_to)]:
            if at < from_index:
                yield places_in(stream, at, from_index)
            at = max(at, to_index)

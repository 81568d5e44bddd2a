"""Which ended attempts have output that their executors keep, in log order.

An index holds these rows alone: a question reads what it returns, whatever else has ended.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from cron.history import queries
from cron.history.places import log_order, places_in
from cron.history.queries import Lacking
from cron.state.archive import Stream
from cron.state.rows import Row

_decode = msgspec.msgpack.Decoder(Row).decode
_T = TypeVar("_T")

_ROWS: Final = """
    SELECT seq, body FROM rows INDEXED BY outputs
    WHERE output IS NOT NULL AND seq BETWEEN ? AND ? ORDER BY seq LIMIT ?"""
_COUNT: Final = """
    SELECT count(*) FROM (SELECT 1 FROM rows INDEXED BY outputs
    WHERE output IS NOT NULL AND seq BETWEEN ? AND ? LIMIT ?)"""
ALL_SQL: Final = (_ROWS, _COUNT)
COUNTED_MAX: Final = 1_000_000


class Asks(Protocol):
    """Who can be asked: the projection."""

    async def ask(self, answer: Callable[[sqlite3.Connection], _T], index: int = 0) -> _T:
        """Return what `answer` finds once the projection has reached log index `index`."""


class Stretch(msgspec.Struct, frozen=True):
    """The log indexes from `from_index`, excluded, to `to_index`."""

    from_index: int
    to_index: int


async def rows_with_output(projection: Asks, stretch: Stretch, limit: int) -> list[Row]:
    """Return the oldest rows with output whose attempts ended in a stretch of the log: at least
    `limit`, if there are so many, and always all of an entry."""
    return await projection.ask(partial(_rows, stretch=stretch, limit=limit))


async def count_with_output(projection: Asks, stretch: Stretch) -> int:
    """Return how many rows with output ended in a stretch of the log, COUNTED_MAX at most."""
    return await projection.ask(partial(_count, stretch=stretch))


async def lacking(projection: Asks) -> Lacking:
    """Return what may be missing in the projection."""
    return await projection.ask(queries.lacking)


def _rows(db: sqlite3.Connection, stretch: Stretch, limit: int) -> list[Row]:
    found = list(_merged(db, stretch, limit))
    if len(found) >= limit:
        # There may be more of the last entry: an index is the finest mark that a log can keep.
        last = found[limit - 1].ended_index
        found = [row for row in found[:limit] if row.ended_index < last]
        found += _merged(db, Stretch(last - 1, last), -1)
    return found


def _merged(db: sqlite3.Connection, stretch: Stretch, limit: int) -> Iterator[Row]:
    """Yield rows of both streams in log order, the `limit` oldest of each."""
    found = [
        [(log_order(seq), body) for seq, body in db.execute(_ROWS, (*bounds, limit))]
        for bounds in _bounds(stretch)
    ]
    for _, body in heapq.merge(*found):
        yield _decode(body)


def _count(db: sqlite3.Connection, stretch: Stretch) -> int:
    counts = (
        db.execute(_COUNT, (*bounds, COUNTED_MAX)).fetchone()[0] for bounds in _bounds(stretch)
    )
    return min(sum(map(int, counts)), COUNTED_MAX)


def _bounds(stretch: Stretch) -> Iterator[tuple[int, int]]:
    """Yield the first and the last place of each stream."""
    if stretch.from_index < stretch.to_index:
        for stream in Stream:
            yield places_in(stream, stretch.from_index, stretch.to_index)

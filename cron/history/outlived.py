"""Which segments nobody needs for the number of launches that a job is to keep, as SQL.

Everything here runs in the projection's thread, on its connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

from cron.history.places import places_in
from cron.state.archive import SegmentRecord, Stream
from launcher.launch import LaunchState

_ROWS: Final = "SELECT COUNT(*) FROM rows WHERE seq BETWEEN ? AND ?"
_NEWEST: Final = "SELECT job, MAX(newest_s) FROM rows WHERE seq BETWEEN ? AND ? GROUP BY job"
# Reads no more of the index than it needs, however many rows a job has.
_LATER: Final = """
    SELECT COUNT(*) FROM (
        SELECT 1 FROM rows INDEXED BY by_job
        WHERE job = ? AND state = ? AND newest_s > ? LIMIT ?
    )"""

ALL_SQL: Final = (_LATER,)


def newest_of(db: sqlite3.Connection, record: SegmentRecord) -> list[tuple[int, int]] | None:
    """Return (job number, newest ScheduledTime) of the jobs in a segment; None where not all of its
    rows are here, so that nothing can be told."""
    places = places_in(Stream(record.stream), record.from_index, record.to_index)
    if db.execute(_ROWS, places).fetchone()[0] != record.rows:
        return None
    return [(int(job), int(newest_s)) for job, newest_s in db.execute(_NEWEST, places)]


def have_later(db: sqlite3.Connection, jobs: Iterable[tuple[int, int]], least: int) -> bool:
    """Whether each of the (job number, ScheduledTime) has at least `least` rows of later ones."""
    return all(_count_later(db, job, newest_s, least) >= least for job, newest_s in jobs)


def _count_later(db: sqlite3.Connection, job: int, newest_s: int, least: int) -> int:
    found = 0
    for state in LaunchState:
        if found >= least:
            break
        wanted = (job, int(state), newest_s, least - found)
        found += int(db.execute(_LATER, wanted).fetchone()[0])
    return found

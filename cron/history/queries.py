"""Questions to the projection, as SQL: each reads about as many entries as it returns.

Everything here runs in the projection's thread, on its connection.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterator
from typing import Final

import msgspec

from cron.errors import LimitExceeded
from cron.history.gaps import Gap
from cron.history.order import Query
from cron.history.places import in_lists, log_order
from cron.limits import HISTORY_ROWS_MAX
from cron.state.commands import SegmentKey
from cron.state.rows import Row, RowKind
from launcher.launch import LaunchState
from launcher.names import SCHEDULED_S_MAX, LaunchName

_decode = msgspec.msgpack.Decoder(Row).decode

# One search per state, merged: an index that begins with the state serves any set of states.
_OF_STATE: Final = """
    SELECT newest_s, attempt, seq, body FROM rows INDEXED BY by_state
    WHERE state = :state AND newest_s BETWEEN :since AND :until
    ORDER BY newest_s DESC, attempt DESC, seq DESC LIMIT :limit"""
_OF_JOB_AND_STATE: Final = """
    SELECT newest_s, attempt, seq, body FROM rows INDEXED BY by_job
    WHERE job = :job AND state = :state AND newest_s BETWEEN :since AND :until
    ORDER BY newest_s DESC, attempt DESC, seq DESC LIMIT :limit"""
# Ranges that begin at or before :at and end after it. CROSS JOIN: levels are the outer loop.
_RANGES_OVER: Final = """
    SELECT newest_s, attempt, seq, body FROM levels CROSS JOIN rows INDEXED BY ranges
    WHERE rows.level = levels.level AND newest_s > :at AND newest_s < :at + width_s
      AND scheduled_s <= :at AND state = :state
    ORDER BY newest_s DESC, attempt DESC, seq DESC LIMIT :limit"""
_RANGES_OF_JOB_OVER: Final = """
    SELECT newest_s, attempt, seq, body FROM levels CROSS JOIN rows INDEXED BY ranges_by_job
    WHERE job = :job AND rows.level = levels.level AND newest_s > :at AND newest_s < :at + width_s
      AND scheduled_s <= :at AND state = :state
    ORDER BY newest_s DESC, attempt DESC, seq DESC LIMIT :limit"""

_OF_ATTEMPT: Final = """
    SELECT body FROM rows INDEXED BY by_job
    WHERE job = ? AND state = ? AND newest_s = ? AND attempt = ? ORDER BY seq"""

ALL_SQL: Final = (_OF_STATE, _OF_JOB_AND_STATE, _RANGES_OVER, _RANGES_OF_JOB_OVER)

_Found = tuple[int, int, int, bytes]  # newest_s, attempt, what log_order says, body


class Counts(msgspec.Struct, frozen=True):
    """What the projection holds. `instants` counts each instant of a range of skipped ones."""

    rows: int
    instants: dict[LaunchState, int]
    amendments: int


class Lacking(msgspec.Struct, frozen=True):
    """What may be missing here: stretches of the log, oldest first, and segments whose rows are
    here though the stretch that they cover is still a gap."""

    gaps: list[Gap]
    filled: frozenset[SegmentKey]


def newest(db: sqlite3.Connection, query: Query) -> list[Row]:
    """Return the rows of `query`, newest ScheduledTime first; ties by attempt, then log order.

    Raises:
        LimitExceeded: more rows are asked for than one answer may have.
    """
    if query.limit > HISTORY_ROWS_MAX:
        raise LimitExceeded(f"limit {query.limit} is over {HISTORY_ROWS_MAX}, the most at once")
    since_s, until_s = -(-query.since_ms // 1000), query.until_ms // 1000
    found = _overlapping(db, query, since_s, until_s)
    return [_decode(body) for *_, body in heapq.nlargest(query.limit, found, key=_listed)]


def of_job(
    db: sqlite3.Connection, job: str, from_s: int, to_s: int, limit: int = HISTORY_ROWS_MAX
) -> list[Row]:
    """Return all rows of `job` with an instant in [from_s, to_s], oldest ScheduledTime first.

    Ranges of skipped instants stand at the first of them. Ties are in log order.

    Raises:
        LimitExceeded: there are more than `limit`; nothing is cut off silently.
    """
    query = Query(job, None, from_s * 1000, to_s * 1000, limit + 1)
    found = sorted(_overlapping(db, query, from_s, to_s), key=lambda item: item[2])
    if len(found) > limit:
        raise LimitExceeded(
            f"{job} has more than {limit} rows in this period", "ask for a shorter period"
        )
    return sorted((_decode(body) for *_, body in found), key=lambda row: row.scheduled_s)


def of_launch(db: sqlite3.Connection, launch: LaunchName) -> list[Row]:
    """Return all that is known of `launch` in log order: attempts, amendments, and the ranges of
    skipped instants that contain it."""
    rows = of_job(db, launch.job, launch.scheduled_s, launch.scheduled_s)
    found = [row for row in rows if row.trigger == launch.trigger]
    return sorted(found, key=lambda row: (row.ended_index, row.attempt))


def of_attempts(db: sqlite3.Connection, attempts: list[tuple[str, int, int]]) -> list[Row]:
    """Return all rows of attempts, given by job, scheduled_s and number, but for ranges."""
    states = [found[0] for found in db.execute("SELECT DISTINCT state FROM tally ORDER BY state")]
    rows = []
    for job, scheduled_s, attempt in attempts:
        number = _job_number(db, job)
        for state in states if number is not None else ():
            known = (number, state, scheduled_s, attempt)
            rows += [_decode(body) for (body,) in db.execute(_OF_ATTEMPT, known)]
    return [row for row in rows if row.kind is not RowKind.RANGE]


def last_of_each(db: sqlite3.Connection, jobs: list[str]) -> dict[str, Row]:
    """Return, by job, the row with the newest ScheduledTime; jobs without rows are left out."""
    states = [found[0] for found in db.execute("SELECT DISTINCT state FROM tally ORDER BY state")]
    bounds: dict[str, int | None] = {"since": 0, "until": SCHEDULED_S_MAX, "limit": 1}
    last = {}
    for name in jobs:
        number = _job_number(db, name)
        found = [
            one
            for state in (states if number is not None else ())
            for one in _found(db, _OF_JOB_AND_STATE, bounds | {"job": number, "state": state})
        ]
        if found:
            last[name] = _decode(max(found)[-1])
    return last


def counts(db: sqlite3.Connection) -> Counts:
    """Return how much there is, from counters that every insert keeps."""
    rows, amendments, instants = 0, 0, dict.fromkeys(LaunchState, 0)
    for kind, state, row_count, instant_count in db.execute("SELECT * FROM tally"):
        rows += row_count
        if kind == RowKind.AMENDMENT:
            amendments += row_count
        else:
            instants[LaunchState(state)] += instant_count
    return Counts(rows, {state: n for state, n in instants.items() if n}, amendments)


def gaps(db: sqlite3.Connection) -> list[Gap]:
    """Return the stretches of the log whose rows may be missing here, oldest first."""
    return [Gap(*found) for found in db.execute("SELECT * FROM gaps ORDER BY from_index")]


def lacking(db: sqlite3.Connection) -> Lacking:
    """Return what may be missing here."""
    return Lacking(gaps(db), frozenset(db.execute("SELECT lineage, number, stream FROM fills")))


def _listed(found: _Found) -> tuple[int, int, tuple[int, int, int]]:
    """What rows are listed by: within an entry the streams stand one after the other."""
    newest_s, attempt, order, _ = found
    return newest_s, attempt, in_lists(order)


def _overlapping(
    db: sqlite3.Connection, query: Query, since_s: int, until_s: int
) -> Iterator[_Found]:
    """Yield, in no order, at least the `limit` newest of the rows that overlap the period."""
    job = None if query.job is None else _job_number(db, query.job)
    if query.job is not None and job is None:
        return
    plain, over = (
        (_OF_STATE, _RANGES_OVER)
        if job is None
        else (
            _OF_JOB_AND_STATE,
            _RANGES_OF_JOB_OVER,
        )
    )
    for state in LaunchState if query.states is None else sorted(query.states):
        wanted: dict[str, int | None] = {
            "job": job, "state": int(state), "since": since_s, "until": until_s, "at": until_s,
            "limit": query.limit,
        }  # fmt: skip
        yield from _found(db, plain, wanted)
        if since_s <= until_s:
            yield from _found(db, over, wanted)


def _found(db: sqlite3.Connection, sql: str, wanted: dict[str, int | None]) -> Iterator[_Found]:
    # All rows of one state are of one stream, so that `seq` orders them; here streams meet.
    for newest_s, attempt, seq, body in db.execute(sql, wanted):
        yield newest_s, attempt, log_order(seq), body


def _job_number(db: sqlite3.Connection, name: str) -> int | None:
    found = db.execute("SELECT number FROM jobs WHERE name = ?", (name,)).fetchone()
    return None if found is None else int(found[0])

"""The projection's SQLite file: tables, indexes, opening, rebuilding.

A row is kept as the bytes that the log has of it (`body`), beside the few columns that queries
search by. `newest_s` is its ScheduledTime; of a range of skipped instants, the last of them.
`by_state` and `by_job` begin with what queries fix and end with the order they want, so that a
query of fifty rows reads fifty entries, with ten rows in the file or ten million.

Ranges that reach over an instant t have scheduled_s <= t <= last_s, which no ordinary index
finds. Their `level` is the bit length of their span: a range of level n that contains t ends in
[t, t + 2^n), and `ranges` is searched once for each level, in that bound. Spans below 2^38 s reach
from the epoch to the last year with four digits.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

SCHEMA_VERSION: Final = 3
_TABLES: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE jobs (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE rows (
    seq INTEGER PRIMARY KEY,  -- reckoned, see places.py
    job INTEGER NOT NULL,
    state INTEGER NOT NULL,
    newest_s INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    level INTEGER,            -- of ranges only
    scheduled_s INTEGER,      -- of ranges only
    output INTEGER,           -- 1 where the executor kept output, see outputs.py
    body BLOB NOT NULL
);
CREATE INDEX by_state ON rows (state, newest_s, attempt);
CREATE INDEX by_job ON rows (job, state, newest_s, attempt);
CREATE INDEX ranges ON rows (level, newest_s, scheduled_s) WHERE level IS NOT NULL;
CREATE INDEX ranges_by_job ON rows (job, level, newest_s, scheduled_s) WHERE level IS NOT NULL;
CREATE INDEX outputs ON rows (seq) WHERE output IS NOT NULL;
CREATE TABLE levels (level INTEGER PRIMARY KEY, width_s INTEGER NOT NULL);
CREATE TABLE tally (
    kind INTEGER, state INTEGER, rows INTEGER NOT NULL, instants INTEGER NOT NULL,
    PRIMARY KEY (kind, state)
) WITHOUT ROWID;
CREATE TABLE gaps (from_index INTEGER PRIMARY KEY, to_index INTEGER NOT NULL);
CREATE TABLE fills (  -- segments that are here though their stretch is still a gap
    lineage INTEGER, number INTEGER, stream INTEGER, PRIMARY KEY (lineage, number, stream)
) WITHOUT ROWID;
INSERT INTO meta VALUES ('mark', 0);
WITH RECURSIVE n(level) AS (SELECT 0 UNION ALL SELECT level + 1 FROM n WHERE level < 38)
    INSERT INTO levels SELECT level, 1 << level FROM n;
"""

# A row that is there already, though the mark and the gaps say it is not, makes the file unusable.
_DAMAGED: Final = frozenset(
    {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT}
)


class Unusable(sqlite3.DatabaseError):
    """The file is damaged, of another schema version, or of another log; it can be rebuilt."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is bad, and not the disk full or the query wrong."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte of an extended code
    is_lacking = isinstance(error, sqlite3.OperationalError) and str(error).startswith("no such")
    return code in _DAMAGED or is_lacking or isinstance(error, Unusable)


def open_file(path: Path, identity: str) -> sqlite3.Connection:
    """Return a connection to the projection at `path`, made if there is none.

    `identity` names the log that it is derived from: log indexes of another log mean nothing here.
    synchronous=NORMAL: after power loss the last transactions may be gone, and their mark with
    them, since both are in one; the log brings them again. Nothing is fsynced per batch.

    Raises:
        Unusable: it must be rebuilt, see `remove_file`.
        sqlite3.Error: it cannot be opened for another reason, such as a full disk.
    """
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA cache_size = -32768")  # KiB
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
            _create(db, identity)
        elif version != SCHEMA_VERSION:
            raise Unusable(f"schema version {version} is not {SCHEMA_VERSION}")
        _verify(db, identity)
    except sqlite3.Error as error:
        db.close()
        if is_damage(error):
            raise Unusable(str(error)) from error
        raise
    return db


def remove_file(path: Path) -> None:
    """Remove the projection at `path` with what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def read_mark(db: sqlite3.Connection) -> int:
    """Return the log index up to which all rows are here, but for the gaps.

    Raises:
        Unusable: there is none.
    """
    found = db.execute("SELECT value FROM meta WHERE key = 'mark'").fetchone()
    if found is None or not isinstance(found[0], int):
        raise Unusable("it has no mark")
    return found[0]


def _create(db: sqlite3.Connection, identity: str) -> None:
    # One transaction: a kill in between leaves an empty file, not half a schema.
    db.executescript(f"BEGIN IMMEDIATE;{_TABLES}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;")
    db.execute("INSERT INTO meta VALUES ('identity', ?)", (identity,))


def _verify(db: sqlite3.Connection, identity: str) -> None:
    found = db.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()
    if found is None or found[0] != identity:
        raise Unusable(f"it belongs to log {found and found[0]!r}, not {identity!r}")
    read_mark(db)
    # Touch what each query needs: a torn header page shows here rather than in a user's query.
    for table in ("rows", "jobs", "tally", "gaps", "fills", "levels"):
        db.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()  # noqa: S608, names are ours

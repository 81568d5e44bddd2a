"""`raftcron relay`: carries the rows of an outbox to the cell.

A turn takes some rows, submits them, deletes those that the cell has committed, and sets aside
those that it refused, with the reason. Several relays of one table are safe, and share its rows.

PostgreSQL: rows are locked with FOR UPDATE SKIP LOCKED until the turn is committed, and a
notification wakes the relay. SQLite: rows are claimed for 30 s, since a lock would stop the user's
own writes while the cell is asked; the relay looks for new rows ten times a second.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from launcher.client.carrying import Carried, Counts, End, Source, failpoints, submit_all
from launcher.client.core import Core
from launcher.client.errors import BadTask
from launcher.client.messages import Submission
from launcher.client.outbox import TABLE, channel, checked_table, read_row
from launcher.clock import wall_ms

ROWS_MAX: Final = 500
"""Rows of one turn: at 256 KiB each they stay below 128 MiB."""
BYTES_MAX: Final = 16 << 20
"""Bytes after which a turn takes no more rows."""
CLAIM_MS: Final = 30_000
_FULL_MS: Final = 2_000
"""How long a row whose queue is full lets others go first."""
_LOOK_S: Final = 0.1
_RETRY: Final = "UPDATE {} SET refused = NULL, not_before_ms = 0 WHERE refused IS NOT NULL"


class Row(NamedTuple):
    """A row that was taken."""

    id: int
    key: str
    task: str


class Verdicts(NamedTuple):
    """What becomes of rows: deleted, set aside with a reason, or tried again after a time."""

    done: list[int]
    refused: list[tuple[str, int]]
    later: list[tuple[int, int]]


class Store(Protocol):
    """A table of an outbox in some database."""

    faults: tuple[type[BaseException], ...]

    def take(self, now_ms: int) -> list[Row]:
        """Return rows that no other relay has now."""

    def settle(self, verdicts: Verdicts) -> None:
        """Write what became of the rows, in one transaction that ends here."""

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return when there may be new rows, after `seconds`, or on `stop`."""

    def retry_refused(self) -> int:
        """Let rows that were set aside be tried again; return how many."""

    def reopen(self) -> None:
        """Connect anew."""

    def close(self) -> None:
        """Close the connection; idempotent."""


class Relay(Source):
    """Carries the rows of one table."""

    def __init__(self, store: Store, core: Core, name: str = "relay") -> None:
        self.name = name
        self._store = store
        self._core = core

    def turn(self) -> Counts:
        """Carry some rows; return what became of them. As `Source.turn`."""
        rows = self._store.take(wall_ms())
        if not rows:
            return Counts()
        failpoints.hit("carry-taken")
        ends: dict[int, Carried] = {}
        made: list[tuple[int, Submission]] = []
        for row in rows:
            try:
                made.append((row.id, read_row(row.key, row.task)))
            except BadTask as error:
                ends[row.id] = Carried(End.REFUSED, f"{error.code}: {error}")
        carried = submit_all(self._core, [one for _, one in made])
        failpoints.hit("carry-submitted")
        ends |= {number: end for (number, _), end in zip(made, carried, strict=True)}
        self._store.settle(_verdicts(ends))
        failpoints.hit("carry-committed")
        each = [one.end for one in ends.values()]
        done, refused = each.count(End.DONE), each.count(End.REFUSED)
        return Counts(done, refused, len(each) - done - refused)

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return when there may be new rows. As `Source.wait`."""
        self._store.wait(seconds, stop)

    def reopen(self) -> None:
        """Connect to the database anew."""
        self._store.reopen()

    def close(self) -> None:
        """Close the connection to the database; idempotent."""
        self._store.close()

    @property
    def faults(self) -> tuple[type[BaseException], ...]:
        """Return the database's errors of connections."""
        return self._store.faults


def _verdicts(ends: dict[int, Carried]) -> Verdicts:
    now_ms = wall_ms()
    wait_ms = {End.FULL: _FULL_MS, End.KEPT: 0}
    return Verdicts(
        [number for number, one in ends.items() if one.end is End.DONE],
        [(one.reason, number) for number, one in ends.items() if one.end is End.REFUSED],
        [(now_ms + wait_ms[one.end], number) for number, one in ends.items() if one.end in wait_ms],
    )


def open_store(url: str, table: str = TABLE) -> Store:
    """Return the outbox at `postgresql://...` or `sqlite:PATH`.

    Raises:
        BadTask: the URL is of no database that is known, its file has no such table, or psycopg is
            not installed.
    """
    checked_table(table)
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite" and rest.removeprefix("///"):
        return SqliteStore(rest.removeprefix("//"), table)
    if scheme in ("postgresql", "postgres"):
        return PostgresqlStore(url, table)
    hint = "postgresql://USER@HOST/DATABASE, or sqlite:PATH"
    raise BadTask(f"{scheme}: an outbox is in PostgreSQL or SQLite", hint)


def _missing(table: str, error: Exception) -> BadTask:
    return BadTask(f"table {table} cannot be read: {error}", "`outbox.create_table` makes it")


class SqliteStore:
    """An outbox in a file of SQLite."""

    faults: tuple[type[BaseException], ...] = (sqlite3.OperationalError,)

    def __init__(self, path: str, table: str) -> None:
        self._path, self._table = path, table
        self._connection: sqlite3.Connection | None = None
        self._seen = -1
        if not os.path.exists(path):
            hint = "correct the path; `outbox.create_table` makes the table"
            raise BadTask(f"{path}: no such file", hint)
        try:
            self._opened().execute(f"SELECT key, task, refused FROM {table} LIMIT 1")  # noqa: S608
        except sqlite3.Error as error:
            self.close()
            raise _missing(table, error) from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            uri = f"file:{self._path}?mode=rw"  # a path that is misspelt is no new database
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10)
        return self._connection

    def take(self, now_ms: int) -> list[Row]:
        """Claim rows for 30 s; return them in their order."""
        taken = self._opened().execute(
            f"UPDATE {self._table} SET not_before_ms = ? WHERE id IN ("  # noqa: S608
            f"SELECT id FROM {self._table} WHERE refused IS NULL AND not_before_ms <= ? "
            f"ORDER BY id LIMIT {ROWS_MAX}) RETURNING id, key, task",
            (now_ms + CLAIM_MS, now_ms),
        )
        claimed = sorted(Row(*one) for one in taken.fetchall())
        rows = _bounded(claimed)
        self._opened().executemany(
            f"UPDATE {self._table} SET not_before_ms = ? WHERE id = ?",  # noqa: S608
            [(now_ms, row.id) for row in claimed[len(rows) :]],
        )
        return rows

    def settle(self, verdicts: Verdicts) -> None:
        """Delete, set aside and release rows in one transaction."""
        connection = self._opened()
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(
                f"DELETE FROM {self._table} WHERE id = ?",  # noqa: S608
                [(number,) for number in verdicts.done],
            )
            connection.executemany(
                f"UPDATE {self._table} SET refused = ? WHERE id = ?",  # noqa: S608
                verdicts.refused,
            )
            connection.executemany(
                f"UPDATE {self._table} SET not_before_ms = ? WHERE id = ?",  # noqa: S608
                verdicts.later,
            )
            failpoints.hit("carry-deleted")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return once another connection has changed the file, after `seconds`, or on `stop`."""
        until_s = time.monotonic() + seconds
        while not stop.is_set() and time.monotonic() < until_s:
            (version,) = self._opened().execute("PRAGMA data_version").fetchone()
            if version != self._seen:
                self._seen = version
                return
            stop.wait(_LOOK_S)

    def retry_refused(self) -> int:
        """Let rows that were set aside be tried again; return how many."""
        return self._opened().execute(_RETRY.format(self._table)).rowcount

    def reopen(self) -> None:
        """Close the connection; the next use opens another one."""
        self.close()

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresqlStore:
    """An outbox in PostgreSQL. It needs psycopg: `pip install raftcron[postgresql]`.

    It connects at its first use: a relay may be started before its database. Each use raises
    BadTask where the table is not there.
    """

    def __init__(self, url: str, table: str) -> None:
        try:
            import psycopg  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            hint = "pip install 'raftcron[postgresql]'"
            raise BadTask("PostgreSQL needs psycopg, which is not installed", hint) from error
        self._psycopg: Any = psycopg
        self.faults: tuple[type[BaseException], ...] = (
            psycopg.OperationalError,
            psycopg.InterfaceError,
        )
        self._url, self._table = url, table
        self._connection: Any = None

    def _opened(self) -> Any:
        if self._connection is None:
            # A connection that breaks while the server goes on must not hold its rows for hours.
            self._connection = self._psycopg.connect(
                self._url,
                autocommit=True,
                application_name="raftcron relay",
                connect_timeout=10,
                keepalives_idle=30,
            )
            try:
                seen = f"SELECT key, task, refused FROM {self._table} LIMIT 1"  # noqa: S608
                self._connection.execute(seen)
            except self._psycopg.errors.UndefinedTable as error:
                self.close()
                raise _missing(self._table, error) from error
            self._connection.execute(f"LISTEN {channel(self._table)}")
        return self._connection

    def take(self, now_ms: int) -> list[Row]:
        """Lock rows that no other relay has; return them in their order."""
        connection = self._opened()
        connection.execute("BEGIN")
        found = connection.execute(
            f"SELECT id, key, task FROM {self._table} "  # noqa: S608
            "WHERE refused IS NULL AND not_before_ms <= %s "
            f"ORDER BY id LIMIT {ROWS_MAX} FOR UPDATE SKIP LOCKED",
            (now_ms,),
        )
        rows = _bounded([Row(*one) for one in found.fetchall()])
        if not rows:
            connection.execute("COMMIT")
        return rows

    def settle(self, verdicts: Verdicts) -> None:
        """Delete, set aside and release rows, and end the transaction that `take` began."""
        connection = self._opened()
        if verdicts.done:
            statement = f"DELETE FROM {self._table} WHERE id = ANY(%s)"  # noqa: S608
            connection.execute(statement, (verdicts.done,))
        with connection.cursor() as cursor:
            cursor.executemany(
                f"UPDATE {self._table} SET refused = %s WHERE id = %s",  # noqa: S608
                verdicts.refused,
            )
            cursor.executemany(
                f"UPDATE {self._table} SET not_before_ms = %s WHERE id = %s",  # noqa: S608
                verdicts.later,
            )
        failpoints.hit("carry-deleted")
        connection.execute("COMMIT")

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return once rows were inserted, after `seconds`, or on `stop`."""
        until_s = time.monotonic() + seconds
        while not stop.is_set() and (left_s := until_s - time.monotonic()) > 0:
            for _ in self._opened().notifies(timeout=min(left_s, 0.5), stop_after=1):
                return

    def retry_refused(self) -> int:
        """Let rows that were set aside be tried again; return how many."""
        return int(self._opened().execute(_RETRY.format(self._table)).rowcount)

    def reopen(self) -> None:
        """Close the connection, which releases its rows; the next use opens another one."""
        self.close()

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _bounded(rows: Sequence[Row]) -> list[Row]:
    """The first rows, as many as fit into memory twice; the others are left to a later turn."""
    taken, length = list[Row](), 0
    for row in rows:
        length += len(row.task)
        if taken and length > BYTES_MAX:
            break
        taken.append(row)
    return taken

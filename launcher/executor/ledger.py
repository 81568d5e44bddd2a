"""What was started here, by name, durably: a repeated request is answered and not repeated.

Theory of operation. A row is committed and synced before the start it stands for (rule R4), so
after any crash a name without a row was never started, and a row without a result may have run.
Rows and tombstones go only when the leader has raised the floor past them and has acknowledged
their end.

SQLite in WAL mode, one transaction per batch, synchronous=FULL. Starts and acknowledgements of rows
that are there already are written without waiting for the disk: they matter after a crash of the
process, not of the host (WAL keeps their order, so a later synced commit includes them). Synced
transactions are numbered, and the number is kept beside (mark.py): SQLite alone would not tell that
the end of its log is missing.

Not thread-safe: everything happens in the thread that opened it.
"""
# ruff: noqa: S608 - all that is put into SQL text are constants and column names of this package

from __future__ import annotations

import contextlib
import operator
import secrets
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from launcher.errors import LedgerDamaged, LedgerForeign, LedgerStuck
from launcher.executor.mark import Mark
from launcher.executor.row import ACCEPTED, ENDED, INTERRUPTED, REFUSED, Row
from launcher.limits import DETAIL_CHARS_MAX, NAMES_PER_QUERY
from launcher.work import Epoch

_VERSION: Final = "4"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_VALUES: Final = operator.attrgetter(*Row.__struct_fields__)
_COLUMNS: Final = ", ".join(Row.__struct_fields__)
_PLACES: Final = ", ".join("?" for _ in Row.__struct_fields__)
_COLUMNS_OF_3: Final = ", ".join(Row.__struct_fields__[:14])
_USAGE: Final = (
    "cpu_ms INTEGER NOT NULL DEFAULT 0",
    "memory_peak_bytes INTEGER NOT NULL DEFAULT 0",
)
_LAUNCH_OF_3: Final = """
CREATE TABLE launch (
  name TEXT NOT NULL PRIMARY KEY, fate INTEGER NOT NULL,
  begun_index INTEGER NOT NULL,
  epoch TEXT NOT NULL, digest BLOB NOT NULL, pid INTEGER NOT NULL, ticks INTEGER NOT NULL,
  started_ms INTEGER NOT NULL, finished_ms INTEGER NOT NULL, exit_code INTEGER NOT NULL,
  reason INTEGER NOT NULL, detail TEXT NOT NULL, acked INTEGER NOT NULL,
  retry_after_ms INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX launch_open ON launch (begun_index, name) WHERE acked = 0;
CREATE INDEX launch_forgettable ON launch (begun_index, name) WHERE acked = 1;
"""
"""Rows lie in the order in which they came, not by name: those of a turn are then together, also
when their ends are written, and a commit takes half the pages."""
_ADD_USAGE: Final = "".join(f"ALTER TABLE launch ADD COLUMN {column};" for column in _USAGE)
_SCHEMA: Final = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
{_LAUNCH_OF_3}
{_ADD_USAGE}
CREATE TABLE worker (pid INTEGER PRIMARY KEY, ticks INTEGER NOT NULL);
"""
_UPGRADES: Final[dict[str, str]] = {
    # What handlers made necessary. An executor before them cannot read the file any more.
    "1": "ALTER TABLE launch ADD COLUMN retry_after_ms INTEGER NOT NULL DEFAULT 0;"
    "CREATE TABLE worker (pid INTEGER PRIMARY KEY, ticks INTEGER NOT NULL);",
    # Rows in the order in which they came.
    "2": "ALTER TABLE launch RENAME TO before; DROP INDEX launch_open;"
    f"DROP INDEX launch_forgettable; {_LAUNCH_OF_3}"
    f"INSERT INTO launch ({_COLUMNS_OF_3}) SELECT {_COLUMNS_OF_3} FROM before"
    " ORDER BY begun_index, name; DROP TABLE before;",
    # What control groups measured.
    "3": _ADD_USAGE,
}
"""From each version that can still be read: what makes the next one of it."""

_OF_THE_DISK: Final = frozenset(
    (
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
    )
)
"""Errors that say nothing against what is written in the file."""


class Ledger:
    """The rows, the highest epoch, the floor. `uuid` tells this ledger from any other."""

    def __init__(self, path: Path, owner: str = "") -> None:
        """Open the ledger at `path`, or make a new one with a UUID of its own. `owner` is the id of
        the executor whose it is; one without an owner becomes its.

        Raises:
            LedgerDamaged: there is one, and it cannot be read.
            LedgerForeign: it is another executor's.
            LedgerStuck: it cannot be written: the disk is full, or fails.
        """
        self.path = path
        with self._told():
            self._open()
            self._own(owner)

    def _open(self) -> None:
        self._db = sqlite3.connect(self.path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master")}
        if not tables:
            self._create()
        elif (problem := self._db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(problem)
        meta = self._upgraded(dict(self._db.execute("SELECT key, value FROM meta")))
        if meta.get("version") != _VERSION or "uuid" not in meta:
            raise sqlite3.DatabaseError(f"version {meta.get('version')!r} is not {_VERSION}")
        try:
            lineage, term, replica = meta["epoch"].split(".", 2)
            self.highest = Epoch(int(lineage), int(term), replica)
            self.floor = int(meta["floor"])
        except (KeyError, ValueError) as error:
            raise sqlite3.DatabaseError("its epoch and floor are no numbers") from error
        self.uuid = meta["uuid"]
        self._synced = int(meta.get("synced", "0"))
        self._mark = Mark(self.path)
        if (marked := self._mark.read(self.uuid)) > self._synced:
            missing = f"the newest {marked - self._synced} of {marked} writes are missing"
            raise sqlite3.DatabaseError(f"{missing}: its end is cut off, or it is an older copy")
        self.boot_id = _boot_id()
        self.is_same_boot = meta.get("boot_id") == self.boot_id
        self._set("boot_id", self.boot_id)
        newest = self._db.execute("SELECT max(begun_index) FROM launch").fetchone()[0]
        self._newest_index = max(newest or 0, self.floor)

    def _own(self, owner: str) -> None:
        found = self._db.execute("SELECT value FROM meta WHERE key = 'executor'").fetchone()
        if owner and found and found[0] != owner:
            where = self.path.parent
            raise LedgerForeign(
                f"ledger {self.path}: is that of executor {found[0]}, and this one is {owner}",
                f"give {owner} a directory of its own; if {found[0]} has got a new name, move "
                f"{where} away: the cell takes its open launches for lost",
            )
        if owner and not found:
            self._set("executor", owner)

    def _create(self) -> None:
        # A random UUID: nothing computed could tell this disk from the one it replaces.
        identity = uuid.UUID(bytes=secrets.token_bytes(16), version=4)
        # One transaction: a ledger is complete or it is not there.
        self._db.executescript(
            f"BEGIN IMMEDIATE; {_SCHEMA}"
            f"INSERT INTO meta VALUES ('version', '{_VERSION}'), ('uuid', '{identity}'),"
            " ('epoch', '0.0.'), ('floor', '0'); COMMIT;"
        )

    def _upgraded(self, meta: dict[str, str]) -> dict[str, str]:
        """Make this version of an older one, in one transaction for each step."""
        while (upgrade := _UPGRADES.get(version := meta.get("version", ""))) is not None:
            meta["version"] = str(int(version) + 1)
            self._db.executescript(
                f"BEGIN IMMEDIATE; {upgrade}"
                f"UPDATE meta SET value = '{meta['version']}' WHERE key = 'version'; COMMIT;"
            )
        return meta

    @property
    def newest_index(self) -> int:
        """The highest log index at which anything was begun that this ledger has seen."""
        return self._newest_index

    def close(self) -> None:
        """Close the file; what was committed is there."""
        self._db.close()
        self._mark.close()

    @contextlib.contextmanager
    def transaction(self, *, synced: bool = True) -> Iterator[None]:
        """All that happens inside is committed at its end, or nothing is. With `synced` it is on
        the disk then; without, it survives the process and not the host.

        Raises:
            LedgerStuck: the disk is full, or fails; nothing was committed.
            LedgerDamaged: a page of it is no page any more; nothing was committed.
        """
        with self._told():
            self._db.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
            before = (self.highest, self.floor, self._newest_index)
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                if synced:
                    self._set("synced", str(self._synced + 1))
                self._db.execute("COMMIT")
            except BaseException:
                self.highest, self.floor, self._newest_index = before
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        if synced:
            self._synced += 1
            self._mark.write(self.uuid, self._synced)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Tell what the database says in words of an executor's operator."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise  # a bug of ours
        except sqlite3.DatabaseError as error:
            raise told(self.path, error) from error

    def raise_epoch(self, epoch: Epoch) -> None:
        """Remember `epoch` if it is higher than all seen before (rule R4)."""
        if epoch > self.highest:
            self.highest = epoch
            self._set("epoch", str(epoch))

    def rows(self, names: Sequence[str]) -> dict[str, Row]:
        """Return the rows that stand under `names`; names without one are left out."""
        found: dict[str, Row] = {}
        for at in range(0, len(names), NAMES_PER_QUERY):
            some = names[at : at + NAMES_PER_QUERY]
            places = ",".join("?" * len(some))
            query = f"SELECT {_COLUMNS} FROM launch WHERE name IN ({places})"
            found.update((row.name, row) for row in self._rows(query, some))
        return found

    def insert(self, rows: Iterable[Row]) -> None:
        """Add rows under names that are not there yet; a tombstone without an index gets the
        highest that this ledger has seen."""
        values = []
        for row in rows:
            self._newest_index = max(self._newest_index, row.begun_index)
            row.begun_index = row.begun_index or self._newest_index
            row.detail = row.detail[:DETAIL_CHARS_MAX]
            values.append(_VALUES(row))
        self._db.executemany(f"INSERT INTO launch VALUES ({_PLACES})", values)

    def started(self, starts: Iterable[tuple[str, int, int, int]]) -> None:
        """Record (name, pid, ticks, started_ms) of accepted rows."""
        self._db.executemany(
            "UPDATE launch SET pid = ?2, ticks = ?3, started_ms = ?4 WHERE name = ?1 AND fate ="
            f" {ACCEPTED}",
            starts,
        )

    def ended(self, ends: Iterable[tuple[str, int, int, int, str]]) -> None:
        """Record (name, finished_ms, exit_code, reason, detail) of accepted rows."""
        self._db.executemany(
            f"UPDATE launch SET fate = {ENDED}, finished_ms = ?2, exit_code = ?3, reason = ?4,"
            f" detail = substr(?5, 1, {DETAIL_CHARS_MAX}) WHERE name = ?1 AND fate = {ACCEPTED}",
            ends,
        )

    def used(self, usages: Iterable[tuple[str, int, int]]) -> None:
        """Record (name, cpu_ms, memory_peak_bytes) of accepted rows, before their end."""
        self._db.executemany(
            f"UPDATE launch SET cpu_ms = ?2, memory_peak_bytes = ?3"
            f" WHERE name = ?1 AND fate = {ACCEPTED}",
            usages,
        )

    def done(self, ends: Iterable[tuple[str, int, int, int, str, int, int]]) -> None:
        """Record (name, finished_ms, exit_code, reason, detail, retry_after_ms, started_ms) of
        accepted rows; a start that is recorded already stays."""
        self._db.executemany(
            f"UPDATE launch SET fate = {ENDED}, finished_ms = ?2, exit_code = ?3, reason = ?4,"
            f" detail = substr(?5, 1, {DETAIL_CHARS_MAX}), retry_after_ms = ?6, started_ms ="
            f" iif(started_ms, started_ms, ?7) WHERE name = ?1 AND fate = {ACCEPTED}",
            ends,
        )

    def refused(self, refusals: Iterable[tuple[str, str]]) -> None:
        """Record (name, detail) of accepted rows that were not started after all, provably."""
        self._db.executemany(
            f"UPDATE launch SET fate = {REFUSED}, detail = substr(?2, 1, {DETAIL_CHARS_MAX})"
            f" WHERE name = ?1 AND fate = {ACCEPTED} AND started_ms = 0",
            refusals,
        )

    def interrupted(self, names: Iterable[str], now_ms: int, detail: str) -> None:
        """Record that nobody knows what became of accepted rows (rule R4)."""
        self._db.executemany(
            f"UPDATE launch SET fate = {INTERRUPTED}, finished_ms = ?2, detail = ?3"
            f" WHERE name = ?1 AND fate = {ACCEPTED}",
            [(name, now_ms, detail) for name in names],
        )

    def workers(self) -> list[tuple[int, int]]:
        """Return (pid, ticks) of the worker processes that are on record."""
        with self._told():
            return list(self._db.execute("SELECT pid, ticks FROM worker ORDER BY pid"))

    def record_workers(self, came: Iterable[tuple[int, int]], went: Iterable[int]) -> None:
        """Remember (pid, ticks) of worker processes before they are given anything (rule R4), and
        forget those with the ids `went`, which are dead. One that has an id again is another."""
        self._db.executemany("DELETE FROM worker WHERE pid = ?", [(pid,) for pid in went])
        self._db.executemany("INSERT OR REPLACE INTO worker VALUES (?, ?)", came)

    def accepted(self) -> list[Row]:
        """Return the rows without a result, oldest first."""
        return self._select(f"fate = {ACCEPTED} AND acked = 0 ORDER BY begun_index")

    def unacked(self) -> list[Row]:
        """Return the rows whose end the leader has not acknowledged, oldest first."""
        return self._select("acked = 0 ORDER BY begun_index")

    def page(self, after: tuple[int, str], until: int, count: int) -> list[Row]:
        """Return up to `count` rows that follow (begun_index, name) `after`, begun at or below log
        index `until`, in this order; acknowledged ones as well."""
        rows: list[Row] = []
        for acked in (0, 1):  # each has an index that has this order
            query = (
                f"SELECT {_COLUMNS} FROM launch WHERE acked = {acked}"
                " AND (begun_index, name) > (?, ?) AND begun_index <= ?"
                " ORDER BY begun_index, name LIMIT ?"
            )
            rows += self._rows(query, (*after, until, count))
        rows.sort(key=lambda row: (row.begun_index, row.name))
        return rows[:count]

    def ack(self, names: Iterable[str]) -> None:
        """Mark rows whose end is committed in the cell's log; open ones stay as they are."""
        self._db.executemany(
            f"UPDATE launch SET acked = 1 WHERE name = ? AND fate <> {ACCEPTED}",
            [(name,) for name in names],
        )

    def raise_floor(self, floor: int) -> int:
        """Forget acknowledged rows begun at or below `floor`; return how many. Never lowers it."""
        if floor <= self.floor:
            return 0
        self.floor = floor
        self._newest_index = max(self._newest_index, floor)
        self._set("floor", str(floor))
        query = "DELETE FROM launch WHERE acked = 1 AND begun_index <= ?"
        return self._db.execute(query, (floor,)).rowcount

    def _select(self, condition: str) -> list[Row]:
        return self._rows(f"SELECT {_COLUMNS} FROM launch WHERE {condition}")

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        with self._told():
            return [Row(*found) for found in self._db.execute(query, values)]

    def _set(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def told(path: Path, error: sqlite3.DatabaseError) -> LedgerStuck | LedgerDamaged:
    """Return what an error of the database means to who operates the executor.

    A disk that is full, or fails, is no damage: who moved the ledger away for it would make the
    cell take for lost what is known here.
    """
    kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if kind == sqlite3.SQLITE_FULL:
        hint = "make room on the disk, then start the executor again"
        return LedgerStuck(f"ledger {path}: cannot write: {error}", hint)
    if kind in _OF_THE_DISK:
        hint = f"see to the disk of {path.parent} (room, rights, health), then start it again"
        return LedgerStuck(f"ledger {path}: cannot be used: {error}", hint)
    return LedgerDamaged(
        f"ledger {path}: cannot be read: {error}",
        f"move {path.parent} away; the executor then begins a new ledger under a new UUID, "
        "and the cell takes its open launches for lost",
    )

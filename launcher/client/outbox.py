"""`raftcron.outbox`: tasks that are submitted in the user's own database transaction.

    with connection:                         # psycopg, sqlite3, or SQLAlchemy
        connection.execute("INSERT INTO orders ...")
        outbox.submit(connection, "mail.receipt", {"order": 7})

The task is a row of a table beside the user's own. It is there if the transaction commits, and
never was if it does not. `raftcron relay` carries rows to the cell, and deletes them there.

Connections are recognised by the module of their class: nothing is imported for them. A row has
the key of its task, drawn with the row, so that a relay may submit it any number of times. It is
no number that the table counts: two tables would draw the same ones, and a database that was
restored from a backup would draw some of them again, for other tasks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Unpack

import msgspec

from launcher.client.errors import BadTask
from launcher.client.messages import Submission
from launcher.client.options import HandlerName, Options, submission, tries_of
from launcher.clock import wall_ms

TABLE: Final = "raftcron_outbox"
SQLITE, POSTGRESQL = "sqlite", "postgresql"
_TABLE: Final = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]{0,39}\.)?[A-Za-z_][A-Za-z0-9_]{0,39}")

_SQLITE_DDL: Final = (
    """CREATE TABLE IF NOT EXISTS {table} (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  key TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))),
  task TEXT NOT NULL,
  created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
  not_before_ms INTEGER NOT NULL DEFAULT 0,
  refused TEXT
)""",
    "CREATE INDEX IF NOT EXISTS {index}_waiting ON {name} (not_before_ms, id) "
    "WHERE refused IS NULL",
)
_POSTGRESQL_DDL: Final = (
    """CREATE TABLE IF NOT EXISTS {table} (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key text NOT NULL DEFAULT replace(gen_random_uuid()::text, '-', ''),
  task text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  not_before_ms bigint NOT NULL DEFAULT 0,
  refused text
)""",
    "CREATE INDEX IF NOT EXISTS {name}_waiting ON {table} (not_before_ms, id) "
    "WHERE refused IS NULL",
    """CREATE OR REPLACE FUNCTION {table}_tell() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_notify('{channel}', ''); RETURN NULL; END $$""",
    "DROP TRIGGER IF EXISTS {name}_tell ON {table}",
    "CREATE TRIGGER {name}_tell AFTER INSERT ON {table} "
    "FOR EACH STATEMENT EXECUTE FUNCTION {table}_tell()",
)


class OutboxTask(NamedTuple):
    """A task that is in an outbox: the name that it has once a relay has submitted it, and its
    key."""

    name: str
    key: str


def create_table(connection: Any, table: str = TABLE) -> None:
    """Create the table of an outbox, where it is not there, in the caller's transaction.

    Raises:
        BadTask: the connection is of no kind that is known, or the table cannot have this name.
    """
    opened = _opened(connection)
    for statement in ddl(opened.dialect, table):
        opened.execute(statement, ())


def ddl(dialect: str, table: str = TABLE) -> list[str]:
    """Return the statements that create an outbox, for migrations. `dialect` is `sqlite` or
    `postgresql`.

    Raises:
        BadTask: the table cannot have this name, or there is no such dialect.
    """
    known = {SQLITE: _SQLITE_DDL, POSTGRESQL: _POSTGRESQL_DDL}
    if dialect not in known:
        raise BadTask(f"{dialect}: an outbox is in SQLite or PostgreSQL")
    name = checked_table(table).rpartition(".")[2]
    names = {"table": table, "name": name, "index": table, "channel": channel(table)}
    return [statement.format(**names) for statement in known[dialect]]


def submit(
    connection: Any,
    handler: HandlerName | None,
    payload: object = None,
    *,
    table: str = TABLE,
    **options: Unpack[Options],
) -> OutboxTask:
    """Write a task into the outbox, in the transaction that `connection` is in; return its name.

    Options are those of `Client.submit`. A `delay` counts from now, not from the commit.

    Raises:
        BadTask: the task is not valid, the connection is of no kind that is known, or it commits
            each statement by itself.
        BadPayload: the payload does not fit the type that the handler declares.
    """
    opened = _opened(connection)
    if opened.is_autocommit:
        raise BadTask(
            "the connection commits each statement by itself, so the task would be no part of a "
            "transaction",
            "begin one first: BEGIN, or `with connection.transaction():` of psycopg",
        )
    made = submission(handler, payload, options)
    marks = f"({opened.mark}, {opened.mark})"
    statement = f"INSERT INTO {checked_table(table)} (key, task) VALUES {marks}"  # noqa: S608
    opened.execute(statement, (made.key, _written(made)))
    return OutboxTask(made.task, made.key)


def read_row(key: str, task: str) -> Submission:
    """Return the submission of a row.

    Raises:
        BadTask: it is none.
    """
    try:
        fields = msgspec.json.decode(task, type=dict[str, msgspec.Raw])
        fields["key"] = msgspec.Raw(msgspec.json.encode(key))
        fields.setdefault("payload", msgspec.Raw(b"null"))
        if "retries" in fields and "tries" not in fields:
            tries = tries_of(msgspec.json.decode(fields.pop("retries")))
            fields["tries"] = msgspec.Raw(str(tries).encode())
        return msgspec.json.decode(msgspec.json.encode(fields), type=Submission)
    except (msgspec.DecodeError, UnicodeError, BadTask) as error:
        raise BadTask(f"the row is no task: {error}") from error


def checked_table(table: str) -> str:
    """Return the name of a table.

    Raises:
        BadTask: it is none, or has to be quoted.
    """
    if not isinstance(table, str) or not _TABLE.fullmatch(table):
        raise BadTask(f"table {str(table)[:80]!r} is no plain name, at most 40 characters long")
    return table


def channel(table: str) -> str:
    """Return the channel on which PostgreSQL tells of new rows."""
    return table.replace(".", "_").lower()


def _written(made: Submission) -> str:
    """The row of a task: its fields without the key. A delay becomes a time, as a row may wait."""
    if made.delay_ms:
        made = msgspec.structs.replace(made, at_ms=wall_ms() + made.delay_ms, delay_ms=0)
    fields = msgspec.json.decode(msgspec.json.encode(made), type=dict[str, msgspec.Raw])
    del fields["key"]
    return msgspec.json.encode(fields).decode()


class _Opened(NamedTuple):
    """A user's connection: how it takes statements and marks parameters, and whether a statement
    would be committed at once."""

    dialect: str
    mark: str
    execute: Callable[[str, Sequence[object]], object]
    is_autocommit: bool


def _opened(connection: Any) -> _Opened:
    kinds = {(one.__module__.partition(".")[0], one.__name__) for one in type(connection).__mro__}
    names = {name for _, name in kinds}
    for module, read in (("sqlalchemy", _sqlalchemy), ("sqlite3", _sqlite), ("psycopg", _psycopg)):
        if any(root == module for root, _ in kinds):
            if any(name.startswith(("Async", "async_")) for name in names):
                hint = "await connection.run_sync(outbox.submit, handler, payload) of SQLAlchemy"
                raise BadTask("an outbox takes no asynchronous connection", hint)
            return read(connection)
    shown = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise BadTask(
        f"{shown} is no connection that an outbox knows",
        "give it one of psycopg (3), sqlite3 or SQLAlchemy",
    )


def _sqlite(connection: Any) -> _Opened:
    owner = getattr(connection, "connection", connection)  # of a cursor
    has_own = getattr(owner, "autocommit", None)  # True and False are of Python 3.12
    commits = has_own if isinstance(has_own, bool) else owner.isolation_level is None
    return _Opened(SQLITE, "?", connection.execute, commits and not owner.in_transaction)


def _psycopg(connection: Any) -> _Opened:
    owner = getattr(connection, "connection", connection)
    is_idle = owner.info.transaction_status == 0

    def execute(statement: str, given: Sequence[object]) -> object:
        return connection.execute(statement, given or None)

    return _Opened(POSTGRESQL, "%s", execute, bool(owner.autocommit) and is_idle)


def _sqlalchemy(connection: Any) -> _Opened:
    """A Connection, or a Session or scoped session, whose connection is taken."""
    if not hasattr(connection, "exec_driver_sql"):
        taken = getattr(connection, "connection", None)
        if not callable(taken):
            raise BadTask(f"{type(connection).__name__} of SQLAlchemy is neither a connection nor "
                          "a session", "with engine.begin() as connection:")  # fmt: skip
        connection = taken()
    dialect, style = connection.dialect.name, connection.dialect.paramstyle
    if dialect not in (SQLITE, POSTGRESQL):
        raise BadTask(f"{dialect}: an outbox is in SQLite or PostgreSQL")
    marks = {"qmark": "?", "format": "%s", "pyformat": "%s"}
    if style not in marks:
        raise BadTask(f"the driver marks parameters as {style}, which an outbox cannot")

    def execute(statement: str, given: Sequence[object]) -> object:
        return connection.exec_driver_sql(statement, tuple(given) or None)

    driver = connection.connection.dbapi_connection
    root = type(driver).__module__.partition(".")[0]
    own = {"sqlite3": _sqlite, "psycopg": _psycopg}.get(root)
    commits = own(driver).is_autocommit if own else bool(getattr(driver, "autocommit", False))
    return _Opened(dialect, marks[style], execute, commits)

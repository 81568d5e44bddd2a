"""launcher.client.outbox: rows of tasks in the user's own transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec
import pytest

from launcher.client import outbox
from launcher.client.errors import BadTask
from launcher.clock import wall_ms


@pytest.fixture
def shop() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE orders (number INTEGER)")
    outbox.create_table(connection)
    connection.commit()
    yield connection
    connection.close()


def rows(connection: sqlite3.Connection, table: str = outbox.TABLE) -> list[tuple[str, str]]:
    return connection.execute(f"SELECT key, task FROM {table} ORDER BY id").fetchall()


def test_a_task_commits_with_the_users_own_rows(shop):
    with shop:
        shop.execute("INSERT INTO orders VALUES (7)")
        task = outbox.submit(shop, "mail.receipt", {"order": 7}, priority=3, labels={"a": "b"})
    ((key, text),) = rows(shop)
    assert task == outbox.OutboxTask(f"mail.receipt:{key}", key)
    made = outbox.read_row(key, text)
    assert (made.handler, made.key, made.priority) == ("mail.receipt", key, 3)
    assert msgspec.json.decode(made.payload) == {"order": 7}


def test_a_task_goes_with_the_transaction(shop):
    def fail() -> None:
        with shop:
            outbox.submit(shop, "mail.receipt", {"order": 7})
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert rows(shop) == []


def test_a_cursor_and_another_table_do_too(shop):
    outbox.create_table(shop, "mails")
    with shop:
        outbox.submit(shop.cursor(), "h", table="mails", key="mine")
    assert [key for key, _ in rows(shop, "mails")] == ["mine"]
    assert rows(shop) == []


def test_a_delay_counts_from_the_submit(shop):
    before_ms = wall_ms()
    outbox.submit(shop, "h", delay="10m")
    ((key, text),) = rows(shop)
    made = outbox.read_row(key, text)
    assert before_ms + 600_000 <= made.at_ms <= wall_ms() + 600_000
    assert made.delay_ms == 0


def test_two_tables_draw_different_keys(shop):
    for _ in range(2):
        outbox.submit(shop, "h")
    first, second = rows(shop)
    assert first[0] != second[0]


def test_rows_may_be_written_without_the_library(shop):
    shop.execute("""INSERT INTO raftcron_outbox (task) VALUES ('{"handler": "h"}')""")
    ((key, text),) = rows(shop)
    assert len(key) == 32
    assert outbox.read_row(key, text).task == f"h:{key}"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"handler": 7}', '{"handler": "h", "at_ms": ""}'])
def test_a_row_that_is_no_task_is_said(text):
    with pytest.raises(BadTask, match="the row is no task"):
        outbox.read_row("k", text)


def test_a_connection_that_commits_each_statement_is_refused(shop):
    shop.isolation_level = None
    with pytest.raises(BadTask, match="commits each statement"):
        outbox.submit(shop, "h")
    shop.execute("BEGIN")
    outbox.submit(shop, "h")
    shop.execute("ROLLBACK")
    assert rows(shop) == []


@pytest.mark.parametrize("connection", [object(), None, "sqlite:x.db"])
def test_what_is_no_connection_is_refused(connection):
    with pytest.raises(BadTask, match="no connection"):
        outbox.submit(connection, "h")


@pytest.mark.parametrize("table", ["a b", "a;b", "", "x" * 41, "a.b.c", 'a"'])
def test_a_table_has_a_plain_name(shop, table):
    with pytest.raises(BadTask, match="plain name"):
        outbox.submit(shop, "h", table=table)
    with pytest.raises(BadTask, match="plain name"):
        outbox.create_table(shop, table)


def test_a_bad_option_writes_nothing(shop):
    with pytest.raises(BadTask):
        outbox.submit(shop, "h", delay=-1)
    assert rows(shop) == []


def test_connections_and_sessions_of_sqlalchemy_do_too():
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.pool.StaticPool)
    with engine.begin() as connection:
        outbox.create_table(connection)
        outbox.submit(connection, "h", key="connection")
    with Session(engine) as session:
        outbox.submit(session, "h", key="rolled back")
        session.rollback()
        outbox.submit(session, "h", key="session")
        session.commit()
    with engine.connect() as connection:
        found = connection.execute(sqlalchemy.text("SELECT key FROM raftcron_outbox ORDER BY id"))
        assert [key for (key,) in found] == ["connection", "session"]
    with engine.connect() as connection:
        own = connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(BadTask, match="commits each statement"):
            outbox.submit(own, "h")
    engine.dispose()


@pytest.mark.parametrize(
    ("module", "name"),
    [("sqlalchemy.ext.asyncio.session", "AsyncSession"), ("psycopg", "AsyncConnection")],
)
def test_an_asynchronous_connection_is_refused_with_the_way_out(module, name):
    kind = type(name, (), {"__module__": module})
    with pytest.raises(BadTask, match="asynchronous") as caught:
        outbox.submit(kind(), "h")
    assert "run_sync" in caught.value.hint


def test_a_row_of_another_language_may_say_retries() -> None:
    made = outbox.read_row("k", '{"handler": "mail.send", "retries": 4}')
    assert made.tries == 5
    made = outbox.read_row("k", '{"handler": "mail.send", "retries": "unlimited"}')
    assert made.tries == 999_999_999
    with pytest.raises(BadTask, match="is no task"):
        outbox.read_row("k", '{"handler": "mail.send", "retries": "4"}')

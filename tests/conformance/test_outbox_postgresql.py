"""The outbox in a real PostgreSQL: rows are neither lost nor doubled, whoever is killed."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.client import outbox
from launcher.client.cell import Cell, Place
from launcher.client.core import Core, Settings
from launcher.client.errors import BadTask
from launcher.client.relay import Relay, Row, Verdicts, open_store
from tests.fakes.postgresql import PostgresqlServer, postgresql
from tests.fakes.task_cell import TaskCell, task_cell
from tests.unit.relay_rig import POINTS, numbers, run, start

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.nightly

ROWS = 10_000


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    with postgresql() as server:
        yield server


@pytest.fixture
def database(server: PostgresqlServer) -> Iterator[Any]:
    """A connection to a database with an empty outbox."""
    with psycopg.connect(server.url) as connection:
        connection.execute("DROP TABLE IF EXISTS raftcron_outbox")
        outbox.create_table(connection)
        connection.commit()
        yield connection


@pytest.fixture
def cell() -> Iterator[TaskCell]:
    with task_cell() as cell:
        yield cell


def count(connection: Any) -> int:
    (found,) = connection.execute("SELECT count(*) FROM raftcron_outbox").fetchone()
    connection.rollback()
    return int(found)


def test_a_task_commits_with_the_users_own_rows(database):
    with database.transaction():
        outbox.submit(database, "h", 1)
        raise psycopg.Rollback
    assert count(database) == 0
    with database.transaction():
        task = outbox.submit(database.cursor(), "h", {"a": "it's"}, key="k")
    assert task.name == "h:k"
    ((key, text),) = database.execute("SELECT key, task FROM raftcron_outbox").fetchall()
    assert outbox.read_row(key, text).task == "h:k"


def test_a_connection_that_commits_each_statement_is_refused(server, database):
    with psycopg.connect(server.url, autocommit=True) as connection:
        with pytest.raises(BadTask, match="commits each statement"):
            outbox.submit(connection, "h")
        with connection.transaction():
            outbox.submit(connection, "h")
    assert count(database) == 1


def test_connections_of_sqlalchemy_do_too(server, database):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        outbox.create_table(connection)
        outbox.submit(connection, "h", {"percent": "100%"})
    engine.dispose()
    assert count(database) == 1


def test_rows_may_be_written_without_the_library(database):
    database.execute("""INSERT INTO raftcron_outbox (task) VALUES ('{"handler": "h"}')""")
    ((key, text),) = database.execute("SELECT key, task FROM raftcron_outbox").fetchall()
    assert len(key) == 32
    assert outbox.read_row(key, text).task == f"h:{key}"


def test_relays_share_the_rows(server, database):
    for number in range(600):
        outbox.submit(database, "h", number)
    database.commit()
    first, second = (open_store(server.url) for _ in range(2))
    now_ms = time.time_ns() // 1_000_000
    taken: list[list[Row]] = [one.take(now_ms) for one in (first, second)]
    assert [len(one) for one in taken] == [500, 100]
    first.close()  # it dies: its rows are free again
    second.settle(Verdicts([], [], []))
    assert len(second.take(now_ms)) == 500
    second.close()


def test_a_database_without_an_outbox_is_said(server, database, cell):
    line = ("relay", server.url, "--table", "nothing", "--server", cell.servers)
    done = run(*line)
    assert done.returncode == 2
    assert "outbox.create_table" in done.stderr


def test_a_database_that_is_down_is_said(cell):
    url = "postgresql://shop:secret@127.0.0.1:1/shop"
    done = run("relay", url, "--once", "--server", cell.servers)
    assert done.returncode == 5
    assert "secret" not in done.stderr


def test_a_notification_wakes_a_relay(server, database):
    store = open_store(server.url)
    timer = threading.Timer(0.3, lambda: (outbox.submit(database, "h"), database.commit()))
    timer.start()
    start_s = time.monotonic()
    store.wait(60, threading.Event())
    assert time.monotonic() - start_s < 30
    timer.join()
    store.close()


def test_bad_rows_are_set_aside_with_their_reasons(server, database, cell):
    database.execute("INSERT INTO raftcron_outbox (task) VALUES ('{')")
    outbox.submit(database, "h", {"number": 1})
    database.commit()
    core = Core(Cell(Place([cell.servers], None, "")), Settings(5.0))
    relay = Relay(open_store(server.url), core)
    assert relay.turn() == (1, 1, 0)
    ((refused,),) = database.execute("SELECT refused FROM raftcron_outbox").fetchall()
    assert "the row is no task" in refused
    relay.close()
    core.close()


class Shop:
    """Writes tasks in transactions, some of which are rolled back; `committed` are the numbers of
    those that are there. A commit without an answer is looked up, as a careful shop does."""

    def __init__(self, server: PostgresqlServer, drawn: random.Random) -> None:
        self._server, self._random = server, drawn
        self.committed: set[int] = set()

    def write(self) -> None:
        number = 0
        connection: Any = None
        while number < ROWS:
            some = range(number, min(ROWS, number + self._random.randint(1, 60)))
            try:
                if connection is None:
                    connection = psycopg.connect(self._server.url, connect_timeout=5)
                    connection.execute("CREATE TABLE IF NOT EXISTS orders (number int PRIMARY KEY)")
                    connection.commit()
                    self.committed = {n for (n,) in connection.execute("SELECT * FROM orders")}
                    connection.commit()
                    number = max(number, *self.committed, -1)
                    some = range(number, some.stop)
                if self._random.random() < 0.1:
                    self._add(connection, [ROWS + one for one in some])
                    connection.rollback()
                fresh = [one for one in some if one not in self.committed]
                self._add(connection, fresh)
                connection.commit()
            except psycopg.OperationalError:
                connection = None
                time.sleep(0.05)
                continue
            self.committed |= set(fresh)
            number = some.stop
        connection.close()

    def _add(self, connection: Any, some: list[int]) -> None:
        for number in some:
            connection.execute("INSERT INTO orders VALUES (%s)", (number,))
            outbox.submit(connection, "h", {"number": number})


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1])
def test_ten_thousand_rows_are_carried_whoever_is_killed(server, database, cell, seed):
    """Two relays are killed at every step, again and again, and PostgreSQL three times, while a
    shop writes orders with their tasks."""
    database.execute("DROP TABLE IF EXISTS orders")
    database.commit()
    database.close()
    drawn = random.Random(seed)
    shop = Shop(server, drawn)
    writer = threading.Thread(target=shop.write)
    writer.start()
    line = ("relay", server.url, "--server", cell.servers)
    kills = dict.fromkeys(POINTS, 0)
    relays: list[subprocess.Popen[str] | None] = [None, None]
    points: list[str] = ["", ""]
    crashes = [2_000, 5_000, 8_000]
    until_s = time.monotonic() + 600
    while writer.is_alive() or min(kills.values()) < 2:
        assert time.monotonic() < until_s, kills
        if not writer.is_alive():
            _write_more(server, shop)
        for at, process in enumerate(relays):
            if process is None or process.poll() is not None:
                if process is not None:
                    ends = process.communicate()
                    assert process.returncode == -9, ends
                    kills[points[at]] += process.returncode == -9
                points[at] = POINTS[drawn.randrange(len(POINTS))]
                relays[at] = start(*line, failpoint=f"{points[at]}=kill@{drawn.randint(1, 3)}")
        if crashes and len(shop.committed) > crashes[0]:
            crashes.pop(0)
            server.kill()
            server.start()
        time.sleep(0.05)
    for process in relays:
        assert process is not None
        process.kill()
        process.communicate()
    writer.join()
    done = run(*line, "--once")
    assert done.returncode == 0, done.stderr
    assert not crashes
    assert numbers(cell) == sorted(shop.committed)
    assert set(range(ROWS)) <= shop.committed
    with psycopg.connect(server.url) as connection:
        assert count(connection) == 0


def _write_more(server: PostgresqlServer, shop: Shop) -> None:
    """Write one more order, so that relays reach the points that they have not reached yet."""
    number = max(shop.committed) + 1
    with psycopg.connect(server.url) as connection:
        outbox.submit(connection, "h", {"number": number})
    shop.committed.add(number)

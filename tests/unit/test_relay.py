"""launcher.client.relay with SQLite: rows are carried, set aside, and neither lost nor doubled."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cron.api.tasks import SubmitVerdict, TaskError
from cron.cli import exits
from cron.errors import NotAllowed
from launcher.client import outbox, relay
from launcher.client.cell import Cell, Place
from launcher.client.core import Core, Settings
from launcher.client.errors import BadTask, Denied
from launcher.client.relay import Relay, open_store
from tests.fakes.task_cell import TaskCell, task_cell
from tests.unit.https_rig import HttpsSite
from tests.unit.relay_rig import POINTS, numbers, run, run_killed, shop, start


@pytest.fixture
def cell() -> Iterator[TaskCell]:
    with task_cell() as cell:
        yield cell


@pytest.fixture
def core(cell: TaskCell) -> Iterator[Core]:
    core = Core(Cell(Place([cell.servers], None, "")), Settings(5.0))
    yield core
    core.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def carrier(file: Path, core: Core) -> Iterator[Relay]:
    shop(file, range(0))
    carrier = Relay(open_store(f"sqlite:{file}"), core)
    yield carrier
    carrier.close()


def add(file: Path, text: str, key: str = "k") -> None:
    connection = sqlite3.connect(file)
    with connection:
        connection.execute("INSERT INTO raftcron_outbox (key, task) VALUES (?, ?)", (key, text))
    connection.close()


def test_rows_become_tasks_and_are_deleted(cell, file, carrier):
    rows = shop(file, range(3))
    assert carrier.turn() == (3, 0, 0)
    assert numbers(cell) == [0, 1, 2]
    assert rows() == []
    assert carrier.turn() == (0, 0, 0)


def test_bad_rows_are_set_aside_with_their_reasons(cell, file, carrier):
    rows = shop(file, range(1))
    add(file, "{")
    add(file, '{"handler": "h", "payload": {"number": 9}}', key="not a key")
    problem = TaskError("unknown_handler", "no worker serves x")
    cell.judge = lambda one: SubmitVerdict(task=one.name, error=problem) if one.key == "x" else None
    add(file, '{"handler": "h"}', key="x")
    counts = carrier.turn()
    assert (counts.done, counts.refused) == (1, 3)
    reasons = [refused for _, refused in rows()]
    assert ["the row is no task" in reasons[0], "not a plain word" in reasons[1]] == [True, True]
    assert reasons[2] == "unknown_handler: h:x: no worker serves x"
    assert carrier.turn().total == 0, "what is set aside stops nothing"


def test_rows_that_were_set_aside_can_be_tried_again(cell, file, carrier):
    cell.judge = lambda one: SubmitVerdict(task=one.name, error=TaskError("unknown_handler", "no"))
    rows = shop(file, range(2))
    carrier.turn()
    cell.judge = lambda one: None
    store = open_store(f"sqlite:{file}")
    assert store.retry_refused() == 2
    store.close()
    assert carrier.turn().done == 2
    assert rows() == []


def test_a_full_queue_lets_other_rows_go_first(cell, file, core):
    shop(file, range(2))
    full = TaskError("queue_full", "queue h is full")
    cell.judge = lambda one: (
        SubmitVerdict(task=one.name, error=full, retry_after_ms=60_000)
        if msgspec.json.decode(one.payload) == {"number": 0}
        else None
    )
    carrier = Relay(open_store(f"sqlite:{file}"), core)
    assert carrier.turn() == (1, 0, 1)
    assert carrier.turn().total == 0
    carrier.close()


def test_rows_stay_while_no_replica_can_act(cell, file, carrier, core):
    rows = shop(file, range(2))
    cell.leader = -1
    core.settings = Settings(0.3)
    assert carrier.turn() == (0, 0, 2)
    assert len(rows()) == 2
    cell.leader = 0
    core.settings = Settings(5.0)
    assert carrier.turn().done == 2


def test_rows_are_not_set_aside_for_a_relay_that_may_not_submit(cell, file, carrier):
    rows = shop(file, range(2))

    def refuse(method: str, request: object) -> None:
        raise NotAllowed("the token may not submit")

    cell.before = refuse
    with pytest.raises(Denied):
        carrier.turn()
    assert [refused for _, refused in rows()] == [None, None]


def test_a_row_that_another_relay_has_is_left_to_it(file, core):
    shop(file, range(2))
    first, second = (open_store(f"sqlite:{file}") for _ in range(2))
    now_ms = relay.wall_ms()
    assert len(first.take(now_ms)) == 2
    assert second.take(now_ms) == []
    assert len(second.take(now_ms + relay.CLAIM_MS)) == 2, "the first one died"
    first.close()
    second.close()


def test_a_turn_takes_a_bounded_number_of_bytes(cell, file, carrier, monkeypatch):
    monkeypatch.setattr(relay, "BYTES_MAX", 100)
    shop(file, range(5))
    turns = 0
    while carrier.turn().total:
        turns += 1
    assert numbers(cell) == [0, 1, 2, 3, 4]
    assert turns > 1


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://x", "PostgreSQL or SQLite"),
        ("sqlite:", "PostgreSQL or SQLite"),
        ("sqlite:{file}", "nothing.db: no such file"),
    ],
)
def test_a_url_that_names_no_outbox_is_refused(tmp_path, url, problem):
    with pytest.raises(BadTask, match=problem):
        open_store(url.format(file=tmp_path / "nothing.db"))
    assert not (tmp_path / "nothing.db").exists()


def test_a_file_without_an_outbox_is_refused(tmp_path):
    sqlite3.connect(tmp_path / "empty.db").close()
    (tmp_path / "empty.db").touch()
    with pytest.raises(
        BadTask, match="table raftcron_outbox cannot be read: no such table"
    ) as caught:
        open_store(f"sqlite:{tmp_path / 'empty.db'}")
    assert "create_table" in caught.value.hint


@pytest.mark.parametrize("point", POINTS)
def test_a_relay_that_is_killed_loses_and_doubles_nothing(cell, file, monkeypatch, point):
    rows = shop(file, range(20))
    line = ("relay", f"sqlite:{file}", "--once", "--server", cell.servers, "-o", "json")
    run_killed(*line, failpoint=f"{point}=kill")
    connection = sqlite3.connect(file)
    with connection:  # as if the claim of the dead relay were over
        connection.execute("UPDATE raftcron_outbox SET not_before_ms = 0")
    connection.close()
    done = run(*line)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "submitted": 0 if point == "carry-committed" else 20,
        "refused": 0,
        "left": 0,
    }
    assert numbers(cell) == list(range(20))
    assert rows() == []


def test_relays_wait_for_rows_and_stop_at_a_signal(cell, file):
    rows = shop(file, range(30))
    line = ("relay", f"sqlite:{file}", "--server", cell.servers)
    both = [start(*line) for _ in range(2)]
    for process in both:  # also that one for which the other leaves nothing to do
        assert process.stderr is not None
        assert "started" in process.stderr.readline()
    until_s = time.monotonic() + 60
    while len(cell.tasks) < 30 and time.monotonic() < until_s:
        time.sleep(0.05)
    connection = sqlite3.connect(file)
    with connection:
        outbox.submit(connection, "h", {"number": 30})
    connection.close()
    while rows() and time.monotonic() < until_s:
        time.sleep(0.05)
    for process in both:
        process.send_signal(signal.SIGTERM)
    ends = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert numbers(cell) == list(range(31))


@pytest.mark.parametrize("scheme", ["", "https://"])
async def test_a_relay_with_a_token_alone_carries_over_https(tmp_path, file, monkeypatch, scheme):
    door = HttpsSite(tmp_path)
    rows = shop(file, range(3))
    monkeypatch.setenv("RAFTCRON_TOKEN", door.token)
    line = ("relay", f"sqlite:{file}", "--once", "--tls", str(door.folder), "--server")
    async with door.serves() as one:
        done = await asyncio.to_thread(run, *line, f"{scheme}127.0.0.1:{one.port}")
    assert (done.returncode, done.stdout) == (0, "3 submitted, 0 refused, 0 left\n"), done.stderr
    assert [payload["number"] for payload in door.payloads()] == [0, 1, 2]
    assert rows() == []


async def test_a_relay_whose_token_is_unknown_over_https_sets_no_row_aside(
    tmp_path, file, monkeypatch
):
    door = HttpsSite(tmp_path)
    rows = shop(file, range(1))
    before = rows()
    monkeypatch.setenv("RAFTCRON_TOKEN", "rct_unknown")
    line = ("relay", f"sqlite:{file}", "--once", "--tls", str(door.folder), "--server")
    async with door.serves() as one:
        done = await asyncio.to_thread(run, *line, f"https://127.0.0.1:{one.port}")
    assert (done.returncode, door.payloads()) == (exits.NOT_ALLOWED, []), done.stderr
    assert rows() == before


def test_what_is_left_is_said(file):
    shop(file, range(1))
    line = ("relay", f"sqlite:{file}", "--once", "--server", "127.0.0.1:1", "--timeout", "300ms")
    done = run(*line)
    assert done.returncode == 5
    assert "0 submitted, 0 refused, 1 left" in done.stdout
    done = run("relay", f"sqlite:{file}x", "--once")
    assert done.returncode == 2
    assert "outbox.create_table" in done.stderr

"""examples/webshop: orders and their tasks are one transaction, and the tasks run."""

from __future__ import annotations

import importlib
import io
import sqlite3
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import launcher.worker.facade as raftcron
from launcher.client.cell import Cell, Place
from launcher.client.client import Client
from launcher.client.core import Core, Settings
from launcher.client.relay import Relay, open_store
from launcher.worker import testing
from tests.style.tree import ROOT

FOLDER = ROOT / "examples" / "webshop"
FILES = ("examples/webshop/shop.py", "examples/webshop/mails.py")
NEWSLETTER = "examples/webshop/send_newsletter.py"
MODULES = ("mails", "shop", "send_newsletter")


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The modules of the example, with a database of their own."""
    monkeypatch.setenv("SHOP_DATABASE", str(tmp_path / "shop.db"))
    monkeypatch.setitem(sys.modules, "raftcron", raftcron)
    monkeypatch.syspath_prepend(FOLDER)
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture
def shop(modules: dict[str, ModuleType]) -> Any:
    modules["shop"].create_tables()
    return modules["shop"]


def post(shop: Any, body: bytes) -> tuple[str, Any]:
    """What the shop answers to a request: status and JSON."""
    said: list[str] = []
    environ = {"CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}
    answer = b"".join(shop.application(environ, lambda status, headers: said.append(status)))
    return said[0], msgspec.json.decode(answer)


def rows(shop: Any, table: str) -> int:
    connection = sqlite3.connect(shop.DATABASE)
    (found,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    connection.close()
    return int(found)


def test_an_order_is_confirmed(shop):
    for _ in range(2):
        status, order = post(shop, b'{"customer": "ada@example.com", "cents": 4200}')
        assert status == "201 Created"
    assert (rows(shop, "orders"), rows(shop, "raftcron_outbox")) == (2, 2)
    with testing.cell() as cell:
        core = Core(Cell(Place(["127.0.0.1:1"], None, "")), Settings())
        relay = Relay(open_store(f"sqlite:{shop.DATABASE}"), core)
        assert relay.turn().done == 2
        cell.run_all()
        task = cell.tasks[f"default/shop.confirm:order-{order['number']}"]
        relay.close()
        core.close()
    assert (task.state, task.result) == ("succeeded", "confirmed order 2")
    assert rows(shop, "raftcron_outbox") == 0


@pytest.mark.parametrize("body", [b"", b"{", b'{"customer": 1}', b'{"customer":"a","cents":0}'])
def test_an_order_that_is_refused_leaves_nothing(shop, body):
    status, answer = post(shop, body)
    assert status == "400 Bad Request"
    assert answer["error"]
    assert (rows(shop, "orders"), rows(shop, "raftcron_outbox")) == (0, 0)


def test_the_newsletter_goes_once_to_each_customer(shop, modules):
    for customer in ("ada@example.com", "bob@example.com", "ada@example.com"):
        post(shop, b'{"customer": "%b", "cents": 1}' % customer.encode())
    at = datetime(2030, 1, 1, 9, tzinfo=UTC)
    with testing.cell() as cell, Client("127.0.0.1:1") as client:
        for _ in range(2):
            assert modules["send_newsletter"].send(client, "news-1", at) == 2
        assert {task.state for task in cell.tasks.values()} == {"waiting"}
        cell.run_all()
        sent = sorted(str(task.result) for task in cell.tasks.values())
    assert sent == ["sent to ada@example.com", "sent to bob@example.com"]

"""The Python blocks of docs/clients.md and docs/handlers.md run as they are written, in order,
with tasks that run in process.

Only what the pages call the reader's own is added: functions, rows, handlers of other modules.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import raftcron

from launcher.worker import testing
from launcher.worker.local_cell import LocalCell
from launcher.worker.registry import REGISTRY
from tests.style.tree import ROOT

_HANDLER: Final = re.compile(r'^@handler\("([\w.]+)"', re.MULTILINE)
HANDLERS: Final = (
    *("billing.invoice", "mail.send", "mail.receipt", "import.row", "import.done"),
    *("report.fetch", "report.build", "report.publish", "report.cleanup"),
)
"""Handlers that a worker of the reader's serves."""


def blocks(document: str, language: str = "python") -> list[tuple[int, str]]:
    """The programs of a document, each with the line at which it begins."""
    text = (ROOT / "docs" / document).read_text()
    block = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    found = [(text[: one.start(1)].count("\n"), one[1]) for one in block.finditer(text)]
    assert found
    return found


def works(payload: Any) -> str:
    return f"did {payload}"


def place_order(number: int) -> None:
    raftcron.Client().submit("mail.send", {"order": number}, key=f"order-{number}")


class Reader:
    """Somebody who types the programs of a document one after the other."""

    def __init__(self, document: str, **own: Any) -> None:
        self._document = document
        self._known: dict[str, Any] = {"__name__": "__main__", **own}

    def types(self, line: int, program: str) -> None:
        """Run a program with all that those before it have named; it may await. A handler that it
        declares takes the place of the one that is served elsewhere."""
        for name in _HANDLER.findall(program):
            REGISTRY._handlers.pop(name, None)
        padded = "\n" * line + program  # so that a failure names the document's own line
        code = compile(
            padded, self._document, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        ran = eval(code, self._known)
        if inspect.iscoroutine(ran):
            asyncio.run(ran)

    def __getitem__(self, name: str) -> Any:
        return self._known[name]


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCell]:
    monkeypatch.chdir(tmp_path)
    before = dict(REGISTRY._handlers)
    REGISTRY._handlers.clear()
    for name in HANDLERS:
        raftcron.handler(name)(works)
    with testing.cell() as one:
        yield one
    REGISTRY._handlers.clear()
    REGISTRY._handlers.update(before)


def test_the_programs_of_the_page_for_clients_do_what_it_says(cell: LocalCell) -> None:
    with sqlite3.connect("shop.db") as shop:
        shop.execute("CREATE TABLE orders (number INTEGER)")
    reader = Reader(
        "docs/clients.md",
        **{"pay": lambda payload: f"paid {payload.cents}", "place_order": place_order},
        **{"customers": ["ada", "bea"], "rows": [{"row": 1}, {"row": 2}]},
        AsyncClient=raftcron.AsyncClient,
    )
    for line, program in blocks("clients.md"):
        reader.types(line, program)
    reader["test_an_order_sends_a_mail"]()
    states = Counter((one.handler, one.state) for one in cell.tasks.values())
    assert cell.tasks["default/billing.invoice:invoice-7"].result == "paid 4200"
    assert states["billing.invoice", "waiting"] == 1, "that of the first program, in 10 minutes"
    assert states["mail.send", "succeeded"] == 2 + 1
    assert states["import.row", "succeeded"] == 2
    steps = ("import.done", "report.fetch", "report.build", "report.publish", "report.cleanup")
    assert [states[step, "succeeded"] for step in steps] == [1] * len(steps)
    assert len(cell.tasks) == sum(states.values()) == 1 + 1 + 3 + 2 + len(steps)
    [(_, statement)] = blocks("clients.md", "sql")
    with sqlite3.connect("shop.db") as shop:
        shop.executescript(statement)
        carried = [json.loads(task) for (task,) in shop.execute("SELECT task FROM raftcron_outbox")]
    assert [(one["handler"], one["payload"]) for one in carried] == [
        ("mail.receipt", {"order": 7})
    ] * 2


def test_the_programs_of_the_page_for_handlers_do_what_it_says(cell: LocalCell) -> None:
    open_banks = [True]
    reader = Reader(
        "docs/handlers.md",
        bank_is_open=lambda: open_banks[0],
        pay=lambda payload, key: f"paid {payload.cents} as {key}",
    )
    for line, program in blocks("handlers.md"):
        reader.types(line, program)
    paid = {"customer": "acme", "cents": 4200}
    assert testing.run(reader["invoice"], paid).detail.startswith("paid 4200 as default/test@")
    open_banks.clear()
    open_banks.append(False)
    closed = testing.run(reader["invoice"], paid)
    assert (closed.outcome, closed.after) == (testing.Result.RETRY, 60)

"""The commands about tasks and handlers in README.md and docs run in a cell as they are written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell
from tests.cluster.test_examples import served
from tests.style.tree import ROOT

pytestmark = pytest.mark.timeout(280)

OWN: Final = (
    "\n\ndef bank_is_open():\n    return True\n\n\ndef pay(payload, key):\n    return key\n"
)
"""What docs/handlers.md leaves to the reader."""


def block(document: str, before: str) -> str:
    """The first block of a document behind some words."""
    text = (ROOT / document).read_text()
    found = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL).search(
        text, text.index(before)
    )
    assert found is not None
    return found[1]


def types(cell: Cell, lines: str) -> dict[str, str]:
    """Run each line and return what it printed."""
    said = {}
    for line in lines.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "raftcron"
        said[line] = cell.cli(*arguments).stdout
    return said


def test_the_handler_of_the_page_serves_the_tasks_of_the_readme(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    program = block("docs/handlers.md", "This is `tasks.py`")
    (tmp_path / "tasks.py").write_text(program + OWN)
    cell = make_cell(replica_extra=PATIENT)
    with served(cell, tmp_path, "billing.invoice", "tasks"):
        said = types(cell, block("README.md", "## Tasks of programs"))
        assert len(said) == 2
        [task] = cell.rows("task", "list")
        assert (task["task"], task["state"]) == ("default/billing.invoice:i-4711", "cancelled")
        cell.apply(block("docs/handlers.md", "A crontab line names the handler"))
        cell.cli("trigger", "billing/invoices", "--wait")
        [launch] = cell.history("billing/invoices")
        assert launch.detail.startswith("billing/invoices@")


def test_the_commands_to_try_tasks_and_handlers_work(make_cell: Callable[..., Cell]) -> None:
    cell = make_cell(replica_extra=PATIENT)
    with served(cell, ROOT / "examples" / "handlers", "shop.invoice", "tasks"):
        cell.cli("apply", str(ROOT / "examples" / "shop.toml"))
        types(cell, block("docs/handlers.md", "In a third one"))
        said = types(cell, block("docs/tasks.md", "In a third one"))
        assert len(said) == 10
        states = {row["task"]: row["state"] for row in cell.rows("task", "list")}
        assert states.pop("default/shop.ping:ping-1") in ("due", "running", "succeeded")
        assert states.pop("default/shop.ping:ping-2") == "cancelled"
        assert list(states.values()) == ["succeeded"], "the invoice, which was waited for"

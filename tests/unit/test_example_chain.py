"""examples/chain: three steps, each with the results of those before it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import launcher.worker.facade as raftcron
from launcher.client.client import Client
from launcher.worker import testing
from tests.style.tree import ROOT
from tests.unit.service_cell import ServiceCell

FILES = ("examples/chain/report.py", "examples/chain/run_report.py", "examples/chain/sales.csv")
MODULES = ("report", "run_report")
DAY = "2026-11-20"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The modules of the example, with a folder of their own."""
    monkeypatch.setenv("REPORTS", str(tmp_path / "reports"))
    monkeypatch.setitem(sys.modules, "raftcron", raftcron)
    monkeypatch.syspath_prepend(ROOT / "examples" / "chain")
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        del sys.modules[name]


def test_each_step_works_with_the_results_of_earlier_ones(modules, tmp_path):
    report = modules["report"]
    results: dict[str, str] = {}
    for name in ("fetch", "total", "publish"):
        ran = testing.run(getattr(report, name), DAY, results=results)
        assert ran.succeeded, ran
        results[f"default/report.{name}:{DAY}"] = ran.detail
    assert ran.detail == f"{DAY}.txt"
    assert (tmp_path / "reports" / f"{DAY}.txt").read_text().splitlines() == [
        f"Sales of {DAY}",
        "Berlin: 1250.50 EUR",
        "Hamburg: 999.00 EUR",
        "Leipzig: 0.50 EUR",
        "all: 2250.00 EUR",
    ]


def test_a_day_without_sales_fails_for_good(modules):
    assert testing.run(modules["report"].fetch, "2020-01-01").outcome is testing.Result.FATAL


def test_the_steps_come_one_after_the_other_and_may_be_submitted_again(modules):
    cell = ServiceCell()
    cell.world.serve("report.fetch", "report.total", "report.publish")
    with Client(cell=cell, timeout=60) as client:
        for _ in range(2):
            last = modules["run_report"].submit(client, DAY)
        found = {task.key + " " + task.handler: task.after for task in client.list()}
    assert last.name == f"default/report.publish:{DAY}"
    fetched, summed = f"default/report.fetch:{DAY}", f"default/report.total:{DAY}"
    assert found == {
        f"{DAY} report.fetch": [],
        f"{DAY} report.total": [fetched],
        f"{DAY} report.publish": [fetched, summed],
    }

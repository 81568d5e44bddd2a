"""Handlers as people use them: a job file, `raftcron worker`, and the command line's answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell, wait_until
from tests.cluster.worker_rig import Shop, handler_job

pytestmark = pytest.mark.timeout(180)

GREET = """
@handler("greet")
def greet(payload: dict, context: Context):
    with Witnessed(context):
        context.log(f"hello {payload['name']}, try {context.attempt}")
    return "greeted"
"""


def test_a_handlers_launch_runs_and_every_answer_tells_of_it(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with Shop(make_cell(replica_extra=PATIENT), tmp_path, GREET) as shop:
        cell = shop.cell
        shop.apply(handler_job("hello", "greet", 'payload = { name = "ada" }', 'deadline = "10m"'))
        (waits,) = shop.trigger("hello")
        (row,) = cell.rows("queue", "hello")
        assert row["waiting"] == "no executor serves handler greet", row
        assert row["pool"] == "greet"
        shop.serve()
        assert shop.wait_row(waits, "succeeded").attempt == 1, "it waited, and was not lost"
        assert cell.cli("trigger", "hello", "--wait").returncode == 0
        assert "hello ada, try 1" in cell.cli("logs", waits).stdout
        show = cell.cli("show", waits).stdout
        for words in ("succeeded", "log point 1", "log point 2", "executor-1", "hello ada"):
            assert words in show, f"{words} is not in\n{show}"
        history = cell.cli("history", "hello").stdout
        assert history.count("succeeded") == 2, history
        groups = cell.rows("executors")[0]["groups"]
        assert [group["handlers"] for group in groups] == [["greet", "hold", "work"]]
        assert shop.wrong() == []


def test_what_nobody_serves_is_ended_by_its_deadline(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with Shop(make_cell(replica_extra=PATIENT), tmp_path) as shop:
        cell = shop.cell
        shop.apply(handler_job("orphan", "nobody", 'deadline = "1s"'))
        (name,) = shop.trigger("orphan")
        row = shop.wait_row(name, "skipped")
        assert (row.reason, row.attempt) == ("deadline", 0), row
        assert "deadline" in cell.cli("history", "orphan").stdout
        wait_until(lambda: cell.rows("queue", "orphan") == [], what="an empty queue")
        assert shop.runs() == []
        assert shop.wrong() == []

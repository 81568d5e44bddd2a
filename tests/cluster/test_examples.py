"""examples/chain and examples/thumbnails with a real cell: workers of theirs, and the programs that
hand over the tasks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell, wait_until
from tests.cluster.worker_rig import HOST, WITHIN_S, Worker
from tests.style.tree import ROOT

pytestmark = pytest.mark.timeout(280)

DAY = "2026-11-20"
COUNT = 10_000


@contextmanager
def served(cell: Cell, folder: Path, handler: str, app: str, **variables: str) -> Iterator[None]:
    """Start a cell, and a worker for the app of an example; end the worker afterwards."""
    cell.start()
    cell.leader()
    cell.wait_connected()
    socket = cell.folder / HOST / "workers.sock"
    argv = ["-P", "-m", "cron.main", "worker", app, "--threads", "4", "--executor", str(socket)]
    worker = Worker(HOST, argv, folder, cell.folder / "worker.log", variables)
    try:
        is_served = lambda: handler in cell.cli("executors").stdout  # noqa: E731
        wait_until(is_served, WITHIN_S, "the worker")
        yield
    finally:
        worker.close()


def run(cell: Cell, folder: Path, *program: str, expect: int = 0) -> str:
    """Run a program of an example to its end; return what it printed."""
    servers = {"RAFTCRON_SERVER": ",".join(cell.ports.servers), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *program],
        cwd=folder,
        env=os.environ | servers,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


def test_the_steps_of_a_chain_get_the_results_of_earlier_ones(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell, folder = make_cell(replica_extra=PATIENT), ROOT / "examples" / "chain"
    with served(cell, folder, "report.fetch", "report", REPORTS=str(tmp_path / "reports")):
        for _ in range(2):  # again: the same tasks
            said = run(cell, folder, "run_report.py", DAY)
            assert said == f"default/report.publish:{DAY} succeeded: {DAY}.txt\n"
        assert (tmp_path / "reports" / f"{DAY}.txt").read_text().endswith("all: 2250.00 EUR\n")
        assert len(cell.rows("task", "list")) == 3
        said = run(cell, folder, "run_report.py", "2020-01-01", expect=1)
        assert said.startswith("default/report.publish:2020-01-01 cancelled: predecessor")


def test_ten_thousand_thumbnails_are_a_group_and_their_page_is_made_once(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell, folder = make_cell(replica_extra=PATIENT), ROOT / "examples" / "thumbnails"
    made = tmp_path / "thumbnails"
    with served(cell, folder, "thumbnails.make", "pictures", THUMBNAILS=str(made)):
        said = run(cell, folder, "make_thumbnails.py", "album", "--count", str(COUNT))
        assert said.splitlines() == [
            f"{COUNT} done, 0 failed, 0 dropped",
            f"default/thumbnails.index:album.complete succeeded: {COUNT} thumbnails",
        ]
        assert len(list(made.glob("*.png"))) == COUNT
        assert (made / "index.html").read_text().count("<img") == COUNT
        (group,) = cell.rows("group", "show", "album")
        assert (group["state"], group["done"]) == ("complete", COUNT)
        (audit,) = cell.rows("audit")
        assert audit["ok"], audit

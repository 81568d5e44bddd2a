"""An executor that is drained finishes what it has, leaves, and comes back; nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cron.api import table
from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell, wait_until
from tests.cluster.worker_rig import WITHIN_S, Shop, command_job, handler_job, wait_exit_code

pytestmark = pytest.mark.timeout(180)

OLD, NEW = "executor-1", "executor-2"
JOBS = ("handler", "command")
EACH = 8
"""Launches of each job that are under way, on both executors, when the drain begins."""


def jobs(folder: Path) -> str:
    """A handler and a command that end when they are let go; then nobody may try them again."""
    options = ('deadline = "1h"',)
    body = "while [ ! -e go ]; do sleep 0.05; done"
    return handler_job("handler", "hold", 'payload = "go"', *options) + command_job(
        "command", folder, body, *options
    )


def executors_of(shop: Shop, names: list[str]) -> set[str]:
    """Where launches ran."""
    return {row.executor for row in shop.history() if row.launch in names}


def is_drained(shop: Shop, host: str) -> bool:
    """Whether somebody has said that it gets no more work."""
    rows = shop.ask(lambda: shop.cell.client.ask(table.EXECUTORS)).executors
    return any(row.id == host and row.drained_by for row in rows)


def test_a_drained_executor_ends_with_nothing_lost_and_works_again_when_it_is_back(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(replica_extra=PATIENT, executors=2)
    with Shop(cell, tmp_path) as shop:
        shop.apply(jobs(shop.folder))
        for host in (OLD, NEW):
            shop.serve(host, threads=2 * EACH)
        first = shop.trigger(*JOBS, times=EACH)
        shop.wait_running(*JOBS, number=EACH)
        assert executors_of(shop, first) == {OLD, NEW}, "both have something to finish"

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(cell.cli, "executor", "drain", OLD, "--wait")
            wait_until(lambda: is_drained(shop, OLD), WITHIN_S, "the drain")
            second = shop.trigger(*JOBS, times=EACH)
            wait_until(lambda: set(second) <= {run.launch for run in shop.runs()}, WITHIN_S, "all")
            assert executors_of(shop, second) == {NEW}
            still = cell.cli("executor", "drain", OLD, "--wait", "--timeout", "3s", expect=None)
            assert still.returncode == 6, f"{OLD} has something to finish:\n{still}"
            assert not waiting.done()
            assert not cell.is_down(OLD)
            shop.make("go")
            assert f"{OLD} has finished and left" in waiting.result(WITHIN_S).stdout
        assert wait_exit_code(cell.pid(OLD)) == 0
        again = cell.cli("executor", "drain", OLD, "--wait")
        assert "has left already: drained by" in again.stdout
        rows = shop.wait_over()
        assert {(row.state, row.attempt) for row in rows} == {("succeeded", 1)}
        assert {row.launch for row in rows} == {*first, *second}

        cell.start(OLD)
        shop.wait_served(OLD)
        third = shop.trigger(*JOBS, times=4 * EACH)
        rows = shop.wait_over()
        assert {(row.state, row.attempt) for row in rows} == {("succeeded", 1)}
        assert {(row.executor, row.job) for row in rows if row.launch in third} >= {
            (OLD, job) for job in JOBS
        }, "it works again"
        assert shop.wrong() == []

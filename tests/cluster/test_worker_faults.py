"""Workers that are stopped, hang, or are told to stop, and what becomes of their launches."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.failover import IMPATIENT, PATIENT
from tests.cluster.harness import Cell, wait_gone
from tests.cluster.worker_rig import (
    HOST,
    PERIOD_S,
    Load,
    Shop,
    handler_job,
    send,
)

pytestmark = pytest.mark.timeout(180)

OTHER = "executor-2"
EACH = 4
DEAF = """
@handler("deaf")
def deaf(payload: str, context: Context):
    with Witnessed(context):
        while not (FOLDER / payload).exists():
            time.sleep(0.01)
"""
SOON = 'deadline = "1h"'


@pytest.mark.parametrize("with_workers", [False, True], ids=["alone", "with its workers"])
def test_what_a_frozen_executors_workers_run_is_over_before_others_try_it_again(
    make_cell: Callable[..., Cell], tmp_path: Path, with_workers: bool
) -> None:
    cell = make_cell(replica_extra=IMPATIENT, executors=2)
    with Shop(cell, tmp_path, DEAF) as shop:
        options = ('payload = "go"', 'on-lost = "retry"', SOON)
        shop.apply(handler_job("deaf", "deaf", *options))
        worker = shop.serve(HOST, processes=2)
        names = shop.trigger("deaf", times=EACH)
        shop.wait_running("deaf", number=EACH)
        first = {run.pid for run in shop.runs()}
        cell.stop(HOST)
        if with_workers:
            send(signal.SIGSTOP, *worker.children())
        shop.serve(OTHER, processes=2)
        shop.wait_runs(2 * EACH, "deaf")
        for pid in first:
            wait_gone(pid, within_s=0.0)
        cell.wake(HOST)
        shop.make("go")
        rows = shop.wait_over()
        ends = {(row.attempt, row.state, row.executor) for row in rows}
        assert ends >= {(1, "lost", HOST), (2, "succeeded", OTHER)}, ends
        assert {row.launch for row in rows if row.state == "succeeded"} == set(names)
        assert shop.wrong() == []


def test_a_handler_that_is_killed_is_over_before_it_is_said_and_nobody_tries_it_again(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(replica_extra=PATIENT, executor_extra="term_grace_ms = 300")
    with Shop(cell, tmp_path, DEAF) as shop:
        policy = ("retries = 5", 'backoff = "1s"', SOON)
        shop.apply(
            handler_job("held", "hold", 'payload = "go"', *policy)
            + handler_job("deaf", "deaf", 'payload = "go"', *policy)
        )
        shop.serve(threads=4)
        (polite,) = shop.trigger("held")
        shop.wait_running("held")
        cell.cli("kill", polite)
        assert shop.wait_row(polite, "cancelled").reason == "killed"
        (deaf, beside) = (*shop.trigger("deaf"), *shop.trigger("held"))
        shop.wait_running("deaf", "held")
        (run,) = shop.runs(["deaf"])
        said = cell.cli("kill", deaf, "--wait").stdout
        assert f"{deaf.removeprefix('default/')} cancelled (killed)" in said
        wait_gone(run.pid, within_s=0.0)
        assert shop.wait_row(deaf, "cancelled").reason == "killed"
        shop.make("go")
        assert shop.wait_row(beside, "succeeded").attempt == 2
        assert [one.reason for one in shop.attempts(beside)] == ["worker-died", ""]
        assert [len(shop.attempts(name)) for name in (polite, deaf)] == [1, 1]
        assert cell.rows("dead", "list") == []
        assert shop.wrong() == []


def test_a_worker_that_is_replaced_under_load_ends_with_code_0_and_breaks_nothing_off(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with Shop(make_cell(replica_extra=PATIENT), tmp_path) as shop:
        shop.apply(handler_job("busy", "work", f"payload = {5 * PERIOD_S}", SOON))
        old = shop.serve(processes=2)
        with Load(shop, "busy") as load:
            load.wait_more()
            new = shop.serve(processes=2)
            load.wait_more()
            assert old.end() == 0
            done = len(shop.runs())
            load.wait_more()
            since = {run.pid for run in shop.runs()[done:]}
            assert since <= {*new.children()}, "the new one alone works"
        rows = shop.wait_over()
        assert {row.launch for row in rows} == set(load.names)
        assert {row.state for row in rows} == {"succeeded"}
        assert len(shop.runs()) == len(rows), "each ran once"
        assert shop.wrong() == []


def test_when_the_last_worker_is_killed_its_launches_wait_for_the_next_one(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with Shop(make_cell(replica_extra=PATIENT), tmp_path) as shop:
        policy = ("retries = 5", 'backoff = "1s"', SOON)
        shop.apply(handler_job("held", "hold", 'payload = "go"', *policy))
        worker = shop.serve(threads=2)
        names = shop.trigger("held", times=3 * EACH)
        shop.wait_running("held", number=2)
        children = worker.children()
        worker.close()
        for child in children:
            wait_gone(child)
        shop.make("go")
        shop.workers.remove(worker)
        shop.serve()
        rows = shop.wait_over()
        assert {row.launch for row in rows if row.state == "succeeded"} == set(names)
        assert sum(row.reason == "worker-died" for row in rows) == 2
        assert {row.state for row in rows} == {"succeeded", "failed"}
        assert shop.wrong() == []

"""Handlers that leak: their processes are renewed under load, and nothing is lost or run twice."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.failover import IMPATIENT, PATIENT
from tests.cluster.harness import Cell, is_gone, wait_gone, wait_until
from tests.cluster.worker_rig import HOST, PERIOD_S, WITHIN_S, Load, Shop, handler_job, send

pytestmark = pytest.mark.timeout(180)

LEAKS = """
kept = []

@handler("leak")
def leak(payload: int, context: Context):
    with Witnessed(context):
        if len(kept) < 18:  # enough to be renewed; too little to be killed where that takes long
            kept.append(b"x" * (payload << 20))
        context.cancelled.wait(0.05)

@handler("burst")
def burst(payload: int, context: Context):
    with Witnessed(context):
        while True:
            kept.append(b"x" * (payload << 20))
            time.sleep(0.02)
"""
SOON = 'deadline = "1h"'


def used(shop: Shop) -> set[int]:
    """The processes that have run launches."""
    return {run.pid for run in shop.runs()}


@pytest.mark.parametrize(
    ("processes", "bound"),
    [(1, ("--renew-after", "12")), (2, ("--memory-max", "120MiB"))],
    ids=["one alone, by launches", "two, by memory"],
)
def test_processes_that_leak_are_renewed_under_load_and_each_launch_runs_once(
    make_cell: Callable[..., Cell], tmp_path: Path, processes: int, bound: tuple[str, str]
) -> None:
    with Shop(make_cell(replica_extra=PATIENT), tmp_path, LEAKS) as shop:
        shop.apply(handler_job("leak", "leak", "payload = 6", SOON))
        worker = shop.serve(processes=processes, more=bound)
        with Load(shop, "leak") as load:
            wait_until(lambda: len(used(shop)) >= 5, WITHIN_S, "several lives")
        rows = shop.wait_over()
        assert {row.launch for row in rows} == set(load.names)
        assert {row.state for row in rows} == {"succeeded"}
        assert len(shop.runs()) == len(rows), "each ran once"
        assert shop.wrong() == []
        said = worker.log.read_text()
        assert said.count("renews process") >= 3, said
        renewed = {int(line.split(":")[1].split()[-1]) for line in lines(said)}
        assert renewed == set(range(1, processes + 1))


def lines(said: str) -> list[str]:
    return [line for line in said.splitlines() if "renews process" in line]


def test_what_outgrows_its_bound_at_once_is_killed_and_ends_as_a_dead_letter_that_says_memory(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with Shop(make_cell(replica_extra=PATIENT), tmp_path, LEAKS) as shop:
        policy = ("retries = 1", 'backoff = "1s"', SOON)
        shop.apply(
            handler_job("burst", "burst", "payload = 8", *policy)
            + handler_job("busy", "work", f"payload = {5 * PERIOD_S}", "retries = 9", SOON)
        )
        shop.serve(processes=2, more=("--memory-max", "100MiB"))
        (burst,) = shop.trigger("burst")
        shop.wait_running("burst")
        others = shop.trigger("busy", times=10)
        wait_until(lambda: shop.cell.rows("dead", "list"), WITHIN_S, "a dead letter")
        tries = shop.attempts(burst)
        assert [row.reason for row in tries] == ["worker-died", "worker-died"]
        for row in tries:
            assert "of memory, half over its bound of 100 MiB" in row.detail
        assert "half over its bound of 100 MiB" in shop.cell.cli("dead", "show", burst).stdout
        rows = shop.wait_over()
        assert {row.launch for row in rows if row.state == "succeeded"} == set(others)
        assert shop.wrong() == []


def test_a_new_ledger_in_place_of_a_damaged_one_begins_nothing_beside_what_still_lives(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    # The worker's processes stand still, so that none of them sees its executor's end: what they
    # run is alive until their parent kills it, at the end of the lease.
    cell = make_cell(replica_extra=IMPATIENT)
    with Shop(cell, tmp_path) as shop:
        options = ('payload = "go"', 'on-lost = "retry"', SOON)
        shop.apply(handler_job("held", "hold", *options))
        worker = shop.serve(threads=2)
        names = shop.trigger("held", times=2)
        shop.wait_running("held", number=2)
        (first,) = worker.children()
        send(signal.SIGSTOP, first)
        cell.kill(HOST)
        assert not is_gone(first)
        data = cell.folder / HOST
        journal = data / "journal"
        content = bytearray(journal.read_bytes())
        content[len(content) // 2] ^= 1
        journal.write_bytes(content)
        cell.start(HOST)
        cell.wait_down(HOST)
        assert "journal: cannot be read: " in cell.log(HOST)
        data.rename(data.with_name("damaged"))
        cell.start(HOST)
        shop.serve()  # beside the old one, whose process may still stand
        runs = shop.wait_runs(4, "held")
        assert [run.pid for run in runs].count(first) == 2
        wait_gone(first, within_s=0.0)
        shop.make("go")
        rows = shop.wait_over()
        assert {row.launch for row in rows if row.state == "succeeded"} == set(names)
        assert {row.reason for row in rows if row.state == "lost"} == {"executor-lost"}
        assert shop.wrong() == []

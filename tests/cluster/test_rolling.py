"""A whole cell is upgraded under load, in the order that README.md says: no launch is the worse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell, wait_until
from tests.cluster.worker_rig import WITHIN_S, Load, Shop, command_job, handler_job, wait_exit_code

pytestmark = pytest.mark.timeout(180)

JOBS = ("handler", "command")
TAKES_S = 0.3
"""Long enough that each end of a process finds launches of both kinds under way."""


def restart_replica(shop: Shop, replica: str) -> None:
    """Stop a replica with SIGTERM, start it again, and return once it is level: before that the
    next one must not be stopped."""
    cell = shop.cell
    cell.terminate(replica)
    cell.start(replica)
    reached = max(row.applied for row in wait_until(cell.status, WITHIN_S, "an answer"))

    def is_level() -> bool:
        return any(
            row.id == replica and row.role in ("leader", "follower") and row.applied >= reached
            for row in cell.status()
        )

    wait_until(is_level, WITHIN_S, f"{replica} to be level")


def replace_executor(shop: Shop, executor: str) -> None:
    """Drain an executor, start it again once it has left, and return once it serves."""
    cell = shop.cell
    cell.cli("executor", "drain", executor, "--wait")
    assert wait_exit_code(cell.pid(executor)) == 0
    cell.start(executor)
    shop.wait_served(executor)


def test_replicas_and_then_executors_are_replaced_and_no_launch_is_the_worse(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(replica_extra=PATIENT, executors=2)
    with Shop(cell, tmp_path) as shop:
        shop.apply(
            handler_job("handler", "work", f"payload = {TAKES_S}", 'deadline = "1h"')
            + command_job("command", shop.folder, f"sleep {TAKES_S}", 'deadline = "1h"')
        )
        for executor in cell.executors:
            shop.serve(executor)
        before = {name: cell.pid(name) for name in cell.members}
        leaders = set()
        with Load(shop, *JOBS) as load:
            for replica in cell.replicas:
                load.wait_more()
                leaders.add(cell.leader())
                restart_replica(shop, replica)
            for executor in cell.executors:
                load.wait_more()
                replace_executor(shop, executor)
            load.wait_more()
        rows = shop.wait_over()
        assert all(cell.pid(name) != pid for name, pid in before.items()), "all are new"
        assert len(leaders) > 1, "leadership went from hand to hand"
        assert {row.launch for row in rows} == set(load.names), "none is lost"
        assert Counter((row.state, row.attempt) for row in rows) == {
            ("succeeded", 1): len(load.names)
        }
        runs = [run.launch for run in shop.runs()]
        assert sorted(runs) == sorted(load.names), "each ran once"
        assert {run.job for run in shop.runs()} == {f"default/{job}" for job in JOBS}
        assert shop.wrong() == []

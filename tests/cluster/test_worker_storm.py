"""One fault after the other on two executors, their workers and the leader, while launches come in.

The witness must see no two attempts of a launch at once, none lost under `on-lost = retry`, and
none repeated under `skip`.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cron.api import table
from tests.cluster.failover import IMPATIENT, Property
from tests.cluster.harness import Cell, wait_until
from tests.cluster.worker_rig import WITHIN_S, Load, Shop, Worker, command_job, handler_job, send

pytestmark = pytest.mark.timeout(240)

HOSTS = ("executor-1", "executor-2")
RETRIED = ("retry-handler", "retry-command")
SKIPPED = ("skip-handler", "skip-command")


def jobs(folder: Path) -> str:
    """A handler and a command of each policy."""
    text = ""
    for policy in ("retry", "skip"):
        options = (f'on-lost = "{policy}"', 'deadline = "1h"', "retries = 30", 'backoff = "1s"')
        text += handler_job(f"{policy}-handler", "work", "payload = 0.3", *options)
        text += command_job(f"{policy}-command", folder, "sleep 0.3", *options)
    return text


def freeze_until_lost(shop: Shop, host: str) -> None:
    """Stop an executor for longer than its lease, and wake it."""
    row = next(
        row
        for row in shop.ask(lambda: shop.cell.client.ask(table.EXECUTORS)).executors
        if row.id == host
    )
    shop.cell.stop(host)
    wait_until(lambda: not connected(shop, row.id, row.connected_since_ms), WITHIN_S, "its end")
    shop.cell.wake(host)


def kill_busy(shop: Shop, worker: Worker) -> None:
    """Kill one of a worker's processes while it runs a handler."""

    def busy() -> list[int]:
        return list({run.pid for run in shop.runs() if run.end < 0} & {*worker.children()})

    send(signal.SIGKILL, wait_until(busy, WITHIN_S, "a busy worker")[0])


def connected(shop: Shop, host: str, since_ms: int) -> bool:
    """Whether an executor's connection of that time is there."""
    rows = shop.ask(lambda: shop.cell.client.ask(table.EXECUTORS)).executors
    return any((row.id, row.connected_since_ms) == (host, since_ms) for row in rows)


def test_a_storm_of_faults_repeats_nothing_and_loses_nothing_under_retry(
    make_cell: Callable[..., Cell], tmp_path: Path, record_property: Property
) -> None:
    cell = make_cell(replica_extra=IMPATIENT, executors=2)
    with Shop(cell, tmp_path) as shop:
        shop.apply(jobs(shop.folder))
        workers = {host: shop.serve(host, processes=2, threads=4) for host in HOSTS}
        with Load(shop, *RETRIED, *SKIPPED) as load:
            load.wait_more()
            for host in HOSTS:
                cell.kill(host)
                load.wait_more()
                cell.start(host)
                shop.wait_served(host)
                freeze_until_lost(shop, host)
                shop.wait_served(host)
                kill_busy(shop, workers[host])
                load.wait_more()
            leader = cell.leader()
            cell.kill(leader)
            load.wait_more()
            cell.start(leader)
            leader = cell.leader()
            cell.stop(leader)
            cell.leader(but=leader)
            load.wait_more()
            cell.wake(leader)
            load.wait_more()
        rows = shop.wait_over()
        ends = Counter((row.state, row.reason) for row in rows)
        print(f"{len(load.names)} launches, {len(shop.runs())} runs: {dict(ends)}")
        record_property("launches", len(load.names))
        assert shop.wrong() == []
        done = {row.launch for row in rows if row.state == "succeeded"}
        wanted = [name for name in load.names if "/retry-" in name]
        assert [name for name in wanted if name not in done] == [], "lost under retry"
        lost = {row.launch: row.attempt for row in rows if row.state == "lost"}
        ran = {(run.launch, run.attempt) for run in shop.runs()}
        # One that failed with its worker was tried again, as its retries say, and was lost then.
        again = {one for one in ran if "/skip-" in one[0] and one[1] > lost.get(one[0], one[1])}
        assert again == set(), "repeated under skip"
        assert set(load.names) <= {row.launch for row in rows}
        assert ends["failed", "worker-died"] >= 1
        assert any("/retry-" in name for name in lost)
        assert any("/skip-" in name for name in lost)

"""The library for programs with a real cell: leaders die while programs submit."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.client import outbox
from launcher.client.client import Client
from launcher.client.errors import OtherContent, UnknownHandler
from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell, wait_until
from tests.cluster.worker_rig import WITHIN_S, Shop
from tests.unit import relay_rig

pytestmark = pytest.mark.timeout(240)

PROGRAMS = 4
TASKS = 40
"""Of each program, one after the other: some of them before, during and after the failover."""


def test_a_client_loses_and_doubles_nothing_over_the_death_of_the_leader(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with Shop(make_cell(replica_extra=PATIENT), tmp_path) as shop:
        cell = shop.cell
        shop.serve()
        servers = ",".join(cell.ports.servers)
        with Client(servers, timeout=120) as client:
            with pytest.raises(UnknownHandler):
                client.submit("nobody")
            task = client.submit("work", 0.0, key="first")
            assert client.wait(task, timeout=60).state == "succeeded"
            with pytest.raises(OtherContent):
                client.submit("work", 1.0, key="first")
            names, tenth = _submit_over_failover(cell, client)
            waiting = client.submit("work", 0.0, key="never", delay="1h")
            assert waiting.cancel().state == "cancelled"
        expected = {f"default/work:p{p}-{n}" for p in range(PROGRAMS) for n in range(TASKS)}
        assert tenth.is_set()
        assert sorted(names) == sorted(expected)
        wait_until(
            lambda: len({run.job for run in shop.runs()} & expected) == len(expected),
            WITHIN_S,
            "all tasks to run",
        )
        ran = [run.job for run in shop.runs() if ":p" in run.job]
        assert sorted(ran) == sorted(expected), "each of them once"
        (audit,) = cell.rows("audit")
        assert audit["ok"], audit
        assert shop.wrong() == []


def _submit_over_failover(cell: Cell, client: Client) -> tuple[list[str], threading.Event]:
    """Submit from several threads, and kill the leader meanwhile; return the names of the tasks."""
    names: list[str] = []
    tenth = threading.Event()

    def program(number: int) -> None:
        for each in range(TASKS):
            names.append(client.submit("work", 0.0, key=f"p{number}-{each}").name)
            if each == TASKS // 4:
                tenth.set()

    threads = [threading.Thread(target=program, args=(number,)) for number in range(PROGRAMS)]
    for thread in threads:
        thread.start()
    assert tenth.wait(60)
    first = cell.leader()
    cell.kill(first)
    for thread in threads:
        thread.join(150)
    assert cell.leader(but=first) != first
    return names, tenth


@pytest.mark.nightly
def test_a_relay_that_dies_with_the_leader_loses_and_doubles_nothing(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with Shop(make_cell(replica_extra=PATIENT), tmp_path) as shop:
        cell = shop.cell
        shop.serve()
        file = tmp_path / "shop.db"
        connection = sqlite3.connect(file)
        outbox.create_table(connection)
        with connection:
            tasks = [outbox.submit(connection, "work", 0.0) for _ in range(200)]
        servers = ",".join(cell.ports.servers)
        line = ("relay", f"sqlite:{file}", "--server", servers, "--once")
        for point in relay_rig.POINTS[:3]:
            relay_rig.run_killed(*line, failpoint=f"{point}=kill")
            with connection:  # as if the claim of the dead relay were over
                connection.execute("UPDATE raftcron_outbox SET not_before_ms = 0")
        cell.kill(cell.leader())
        done = relay_rig.run(*line, "--timeout", "60s")
        assert done.returncode == 0, done.stderr
        expected = {f"default/{task.name}" for task in tasks}
        wait_until(
            lambda: {run.job for run in shop.runs()} >= expected, WITHIN_S, "all tasks to run"
        )
        assert sorted(run.job for run in shop.runs()) == sorted(expected)
        assert connection.execute("SELECT count(*) FROM raftcron_outbox").fetchone() == (0,)
        connection.close()
        assert shop.wrong() == []

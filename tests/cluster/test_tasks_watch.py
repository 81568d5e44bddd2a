"""`raftcron task watch` over real gRPC, while the leader that it watches is killed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.client.client import Client
from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell, wait_until
from tests.cluster.worker_rig import WITHIN_S

pytestmark = [pytest.mark.timeout(240), pytest.mark.nightly]

TASKS = 40
WATCH = ("task", "watch", "--queue", "later", "-o", "json")
QUEUE = '[[queue]]\nname = "later"\nhandler = "work"\nunknown-handler = "wait"\n'


def seen_in(file: Path) -> list[dict[str, Any]]:
    """The rows that were printed so far, but for one that is not whole yet."""
    lines = file.read_bytes().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def test_a_watch_sees_each_change_over_the_deaths_of_two_leaders(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell = make_cell(replica_extra=PATIENT).start("r1", "r2", "r3")
    queues, printed = tmp_path / "queues.toml", tmp_path / "watched"
    queues.write_text(QUEUE)
    first = cell.leader(within_s=150)
    cell.cli("queue", "apply", str(queues))
    with (
        printed.open("wb") as out,
        Client(",".join(cell.ports.servers), timeout=120) as client,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "cron.main", *WATCH],
            env={**os.environ, "RAFTCRON_SERVER": ",".join(cell.ports.servers)},
            stdout=out,
        ) as watch,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(watch.kill)
        probes = map("probe{}".format, itertools.count())

        def is_watching() -> bool:
            client.submit("work", queue="later", key=next(probes), delay="1h")
            return bool(seen_in(printed))

        wait_until(is_watching, WITHIN_S, "the watch to see a task")
        tasks = []
        for number in range(TASKS):
            tasks.append(client.submit("work", number, queue="later", key=f"k{number}", delay="1h"))
            if number == TASKS // 2:
                cell.kill(first)
        cell.restart(first)
        second = cell.leader(but=first)
        for number, task in enumerate(tasks):
            assert client.cancel(task).state == "cancelled"
            if number == TASKS // 2:
                cell.kill(second)

        def newest() -> dict[str, tuple[str, int]]:
            rows = [row for row in seen_in(printed) if not row["key"].startswith("probe")]
            return {row["key"]: (row["state"], row["revision"]) for row in rows}

        expected = {f"k{number}": "cancelled" for number in range(TASKS)}
        wait_until(
            lambda: {key: state for key, (state, _) in newest().items()} == expected,
            WITHIN_S,
            "the watch to see that all are cancelled",
        )
        assert watch.poll() is None
        views = [client.get(task) for task in tasks]
        revisions = {view.key: view.revision for view in views}
        assert {key: revision for key, (_, revision) in newest().items()} == revisions
    positions = [row["position"] for row in seen_in(printed)]
    assert len(positions) == len(set(positions)), "no change twice"

"""Reads of a cell without a majority: an error by default, what a replica has with --stale."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cron.api import table
from cron.api.client import Client
from cron.errors import Unavailable
from tests.cluster.harness import SHORT_TIMES, Cell, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

UNAVAILABLE = 5
SLOW_ELECTION = SHORT_TIMES.replace("min_ms = 600", "min_ms = 5000").replace(
    "max_ms = 1200", "max_ms = 9000"
)
"""A leader that is cut off believes in itself for four seconds."""


def test_a_cut_off_leader_answers_no_read_but_a_stale_one(tmp_path: Path) -> None:
    with Cell(tmp_path, executors=1, replica_extra=SLOW_ELECTION) as cell:
        cell.start()
        cell.wait_connected()
        cell.apply("#: name=tick\n@every 1s true\n")
        cell.wait_launches(1, "tick")
        leader = cell.leader()
        followers = [name for name in cell.replicas if name != leader]
        row = next(row for row in cell.status() if row.id == leader)
        follower = next(one.address for one in cell.status() if one.id == followers[0])
        ages = []
        with Client([follower], 10_000, on_behind=ages.append) as client:
            assert [job.name for job in client.ask(table.JOBS)] == ["default/tick"]
            assert ages[0].replica == followers[0]
            assert ages[0].age_ms is not None

        cell.stop(*followers)
        with Client([row.address], 1_500) as client, pytest.raises(Unavailable):
            client.ask(table.JOBS)
        done = cell.cli("jobs", "--timeout", "3s", expect=UNAVAILABLE)
        assert "--stale" in done.stderr
        for command in (["jobs"], ["history"], ["next", "tick"], ["why", "tick", "1m"]):
            done = cell.cli(*command, "--stale", "--server", row.address)
            found = re.search(rf"stale: from {leader}, ([0-9.]+) s behind", done.stderr)
            assert found, done.stderr
        before = float(found[1])
        wait_until(lambda: age_of(cell, row.address) > before, what="the answer to grow older")
        cell.cli("status", expect=1)
        cell.wake(*followers)
        cell.wait_connected()
        assert cell.rows("jobs")


def age_of(cell: Cell, address: str) -> float:
    done = cell.cli("jobs", "--stale", "--server", address)
    found = re.search(r"([0-9.]+) s behind", done.stderr)
    assert found, done.stderr
    return float(found[1])

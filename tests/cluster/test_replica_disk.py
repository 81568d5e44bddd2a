"""Replicas whose disk fails, or was damaged: what their logs tell the operator."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consensus.engine.storage.segments import segment_name, segment_numbers
from cron import endings
from tests.cluster.engine_disks import Syncs
from tests.cluster.harness import Cell

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def last_of(cell: Cell, name: str) -> dict[str, Any]:
    """The last line of a replica's log, which is JSON as all others are."""
    found: dict[str, Any] = json.loads(cell.log(name).splitlines()[-1])
    return found


def test_a_sync_that_fails_ends_a_replica_with_a_hint_and_no_traceback(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell, disk = make_cell(), Syncs(tmp_path)
    disk.let("r1", "true")
    cell.variables["r1"] = disk.environment("r1")
    cell.start()
    cell.wait_connected()
    cell.apply("@every 1s true\n")
    disk.let("r1", "fail")
    cell.wait_down("r1")
    last = last_of(cell, "r1")
    assert (last["event"], last["code"]) == ("replica.failed", endings.FAILED)
    assert last["error"] == f"{cell.folder / 'r1' / 'raft'}: input/output error"
    assert "dmesg" in last["hint"]

    cell.start("r1")  # its disk fails once more
    cell.wait_down("r1")
    last = last_of(cell, "r1")
    assert last["event"] in ("replica.refused", "replica.failed")
    assert "dmesg" in last["hint"]
    assert "Traceback" not in cell.log("r1")
    assert "exc_info" not in cell.log("r1")


@pytest.mark.nightly
def test_two_damaged_journals_propose_what_works_without_a_leader(
    make_cell: Callable[..., Cell],
) -> None:
    cell = make_cell()
    cell.start()
    cell.wait_connected()
    cell.apply("@every 1s true\n")
    cell.wait_launches(2)
    cell.kill(*cell.replicas)
    for name in ("r1", "r2"):
        raft = cell.folder / name / "raft"
        journal = raft / segment_name(segment_numbers(os.listdir(raft))[0])
        content = bytearray(journal.read_bytes())
        content[len(content) // 3] ^= 0xFF
        journal.write_bytes(content)
    cell.start("r1", "r2", "r3")
    for name in ("r1", "r2"):
        cell.wait_down(name)
        last = last_of(cell, name)
        assert last["event"] == "replica.refused"
        assert "while the other replicas have a leader" in last["hint"]
    refused = cell.cli("replica", "replace", "r1", "--timeout", "3s", expect=5)
    assert "no leader" in refused.stderr

    # The way out that the hint names.
    cell.kill("r3")
    for name in ("r1", "r2"):
        shutil.rmtree(cell.folder / name)
    (cell.folder / "r3").rename(cell.folder / "left")
    config = str(cell.members["r1"].config)
    cell.cli("restore", "--config", config, "--yes", "--from-data", str(cell.folder / "left"))
    cell.start()
    cell.wait_connected()
    cell.wait_launches(len(cell.history(states=["succeeded"])) + 2)

"""`raftcron dev --object-storage URL --restore`: what was stored is there again, and goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cron.api import table
from cron.api.snapshots import SaveRequest, SnapshotsRequest
from cron.errors import OutcomeUnknown, Unavailable
from tests.cluster.harness import wait_until
from tests.cluster.test_dev_cell import Dev
from tests.cluster.test_dev_cell import crontab as crontab
from tests.cluster.test_dev_cell import start as start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


def save(dev: Dev) -> None:
    """Return once a snapshot, taken now, is in the store."""
    report = dev.client.ask(table.SAVE_SNAPSHOT, SaveRequest(by="ada"))

    def is_stored() -> bool:
        try:
            views = dev.client.ask(table.SNAPSHOTS, SnapshotsRequest(is_remote=True)).snapshots
        except (Unavailable, OutcomeUnknown):
            return False
        return any(view.index >= report.index for view in views)

    wait_until(is_stored, 30, "a stored snapshot")


def ran(dev: Dev) -> set[tuple[str, int]]:
    return {(view.launch, view.attempt) for view in dev.history() if view.state == "succeeded"}


def test_a_cell_whose_folders_are_lost_begins_from_its_store(
    start: Callable[..., Dev], crontab: str, tmp_path: Path
) -> None:
    data, url = tmp_path / "data", (tmp_path / "store").as_uri()
    arguments = (crontab, "--data", str(data), "--object-storage", url)
    dev = start(*arguments)
    wait_until(lambda: len(ran(dev)) >= 3, 30, "launches")
    before = ran(dev)
    save(dev)
    dev.interrupt()
    assert dev.end() == 0
    refused = start(*arguments, "--restore")
    assert refused.end() == 2, "the cell is not lost"
    assert "it is not empty" in refused.output
    for name in ("r1", "r2", "r3"):
        shutil.rmtree(data / name)
    again = start(*arguments, "--restore")
    again.read_until(r"new generation +2\n")
    again.read_until(r"writes the replica's disk")
    wait_until(lambda: len(ran(again) - before) >= 3, 60, "launches of the new life")
    assert before <= ran(again)
    assert {row.term for row in again.status().values() if row.id in ("r1", "r2", "r3")}
    again.interrupt()
    assert again.end() == 0

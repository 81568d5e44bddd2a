"""The disk of a replica is put back to an older copy, and elected with one that lags: the cell
stops once an executor connects, says which disk is old, and the way out that it names works.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import SHORT_TIMES, Cell, wait_until
from tests.cluster.test_restore import check, folder_of, restore, wait_resolved
from tests.cluster.witness import read_runs, witnessed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def crontab(file: Path) -> str:
    lines = [f"#: name=tick-{n}\n@every 1s {witnessed(file)}\n" for n in range(3)]
    return "".join(
        [*lines, f"#: name=slow overlap=forbid\n@every 2s {witnessed(file, 'sleep 3')}\n"]
    )


def more_runs(file: Path, count: int) -> None:
    before = len(read_runs(file))
    wait_until(lambda: len(read_runs(file)) >= before + count, 60, f"{count} more launches")


def outdated(cell: Cell) -> Any:
    """The row of the replica that leads and says that its disk is old."""
    return next((row for row in cell.status() if row.role == "outdated"), None)


def told(cell: Cell, newest: str) -> bool:
    """Whether the replica with the newest disk follows nobody, is followed, or has stopped."""
    rows = {row.id: row for row in cell.status()}
    heard = newest in rows and rows[newest].role != "unreachable"
    return heard or any("was put back to an older copy" in cell.log(one) for one in cell.replicas)


def set_back(cell: Cell, file: Path, tmp_path: Path) -> tuple[str, str]:
    """Put the disk of one replica back and start it with one that lags; return its name, and the
    name of the replica that has the newest disk and is down."""
    cell.start()
    cell.wait_connected()
    cell.apply(crontab(file))
    more_runs(file, 5)
    lagging = cell.follower()
    cell.kill(lagging)
    more_runs(file, 3)
    old = next(name for name in cell.replicas if name not in (lagging, cell.leader()))
    newest = cell.leader()
    cell.kill(old)
    shutil.copytree(folder_of(cell, old), tmp_path / "copy")
    cell.start(old)
    more_runs(file, 10)
    cell.kill(old, newest)
    shutil.rmtree(folder_of(cell, old))
    shutil.copytree(tmp_path / "copy", folder_of(cell, old))
    cell.start(old, lagging)
    return old, newest


def test_a_disk_that_was_put_back_stops_the_cell_and_the_newest_disk_restores_it(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    cell, file = make_cell(replica_extra=SHORT_TIMES), tmp_path / "witness"
    _, newest = set_back(cell, file, tmp_path)
    row = wait_until(lambda: outdated(cell), 60, "a replica that says that its disk is old")
    assert f"the disk of {row.id} is old" in row.note
    ran = len(read_runs(file))
    verdict = cell.cli("status", expect=1).stdout
    assert f"no leader: the disk of {row.id} is old" in verdict
    refused = cell.cli("trigger", "tick-1", "--timeout", "3s", expect=None)
    assert refused.returncode != 0
    assert "is old" in refused.stderr
    assert "restore --from-data" in refused.stderr
    assert "leader.outdated" in cell.log(row.id)
    time.sleep(3.0)  # nothing runs meanwhile, of what is due three times a second
    assert len(read_runs(file)) == ran

    # The newest disk comes back. Whoever wins: what it knows is committed is not cut off.
    cell.start(newest)
    wait_until(lambda: told(cell, newest), 60, "the newest disk to be heard")
    cell.kill(*[name for name in cell.replicas if not cell.is_down(name)])
    left = tmp_path / "left"
    folder_of(cell, newest).rename(left)
    for name in cell.replicas:
        shutil.rmtree(folder_of(cell, name), ignore_errors=True)
    restore(cell, "--from-data", str(left))
    cell.start()
    wait_resolved(cell)
    more_runs(file, 5)
    check(cell, file)
    cell.cli("audit")

"""A replica that has no room for what it keeps beside the log, and one whose index of history goes:
launches go on, it says so, and what is missing comes back."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cron.api.snapshots import KeepingView
from snapshots.disk import list_snapshots, verify_snapshot
from snapshots.segments import list_segments, verify_segment
from tests.cluster.engine_disks import Mounts, why_no_mounts
from tests.cluster.harness import Cell, wait_until
from tests.cluster.test_snapshots_local import CRONTAB, SMALL, check_same, wait_seals

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a few files."""
    if reason := why_no_mounts(tmp_path / "trial"):
        pytest.skip(reason)
    mounts = Mounts(tmp_path / "mounts")
    yield mounts.small("small", "40k")
    mounts.close()


def view_of(cell: Cell, name: str) -> KeepingView:
    rows = [row for row in cell.status() if row.id == name]
    view = rows[0].keeping if rows else None
    return view if isinstance(view, KeepingView) else KeepingView()


def test_a_disk_with_no_room_to_keep_anything_stops_no_launch_and_is_told(
    make_cell: Callable[..., Cell], small: Path
) -> None:
    cell = make_cell(replica_extra=SMALL)
    data = cell.members["r2"].config.with_name("r2")
    data.mkdir(parents=True)
    for folder in ("segments", "snapshots"):
        (small / folder).mkdir()
        (data / folder).symlink_to(small / folder)
    cell.start()
    cell.wait_connected()
    cell.apply(CRONTAB)
    told = wait_until(lambda: view_of(cell, "r2").failing, 60, "word of the full disk")
    assert "No space left" in told
    before = len(cell.history(states=["succeeded"]))
    cell.wait_launches(before + 40)
    assert not any(map(cell.is_down, cell.replicas))

    cell.terminate("r2")
    for path in list_segments(small / "segments"):
        verify_segment(path, "default")
    for path in list_snapshots(small / "snapshots"):
        verify_snapshot(path, "default")
    for folder in ("segments", "snapshots"):
        (data / folder).unlink()
        shutil.copytree(small / folder, data / folder)
    cell.start("r2")
    wait_seals(cell, 1)
    assert view_of(cell, "r2").failing == ""
    check_same(cell)

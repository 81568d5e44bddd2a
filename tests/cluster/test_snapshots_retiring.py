"""Replicas that are killed while the log is shortened, and while history is let go: nothing that is
to stay is lost, and what is to go goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.harness import Cell, wait_until
from tests.cluster.test_snapshots_local import CRONTAB, SMALL, files, folder_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

RETIRING = SMALL + "keep_runs = 3\n"
POINTS = {"dump-piece": 3, "log-shortened": 2, "segments-retired": 1}
"""Where replicas are killed, and at which time."""


def names(cell: Cell, name: str) -> set[str]:
    """The segments of a replica; some may go while one looks."""
    return {path.name for path in folder_of(cell, name).rglob("*.seg")}


def wait_retired(cell: Cell) -> None:
    """Return once segments have left all disks, and all have the same ones."""

    def is_same() -> bool:
        kept = [names(cell, name) for name in cell.replicas]
        seals = max((int(one.split("-")[1]) for one in kept[0]), default=0)
        have_gone = all(len(one) < 2 * seals for one in kept)  # a Seal makes two
        return have_gone and all(one == kept[0] for one in kept)

    wait_until(is_same, 60, "segments that went")


@pytest.mark.parametrize("point", POINTS)
def test_a_replica_killed_while_the_log_or_history_is_let_go_goes_on(
    make_cell: Callable[..., Cell], tmp_path: Path, point: str
) -> None:
    cell = make_cell(replica_extra=RETIRING)
    for name in cell.replicas:
        cell.failpoints[name] = f"{point}=kill@{POINTS[point]}+file:{tmp_path / 'once'}"
    cell.start()
    cell.wait_connected()
    cell.apply(CRONTAB)
    wait_until(lambda: any(map(cell.is_down, cell.replicas)), 60, "a death")
    (dead,) = [name for name in cell.replicas if cell.is_down(name)]
    cell.start(dead)
    before = len(cell.history())
    cell.wait_launches(before + 60)
    wait_retired(cell)
    for name in cell.replicas:
        assert "Traceback" not in cell.log(name), name

    def same_digest() -> bool:
        rows = [row for row in cell.status() if row.id in cell.replicas]
        return len({(row.applied, row.digest) for row in rows}) == 1 and len(rows) == 3

    wait_until(same_digest, 30, "equal digests")
    cell.terminate(*cell.replicas)
    kept = [files(cell, name, "seg") for name in cell.replicas]
    shared = set.intersection(*(set(one) for one in kept))
    assert shared
    for name in shared:
        assert len({one[name] for one in kept}) == 1, f"{name} differs"

"""What three replicas keep on their disks: the same bytes, through kills and a lost disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cron.api import table
from cron.dev.files import Member
from snapshots.disk import verify_snapshot
from snapshots.segments import verify_segment
from tests.cluster.harness import SHORT_TIMES, Cell, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CRONTAB = "".join(f"#: name=tick-{n}\n@every 1s true\n" for n in range(8)) + (
    "#: name=fails\n@every 1s false\n"
)
SMALL = f"""{SHORT_TIMES}
[snapshots]
interval_s = 1
local = 100

[history]
segment_rows = 30
segment_age_s = 3
"""
LARGE = "".join(f"#: name=large-{n}\n@yearly : {'x' * 60_000}\n" for n in range(90))
"""More than the log keeps behind a dump, so that an empty disk cannot have all from the log."""
POINTS = {"snapshot-taken": 5, "snapshot-piece": 12, "snapshot-written": 5, "segment-written": 3}
"""Where replicas are killed, and at which time: some launches are over by then."""


class Joins(Member, frozen=True):
    """A replica whose empty disk replaces a lost one."""

    @property
    def argv(self) -> list[str]:
        """The command that starts it."""
        return [word.replace("--bootstrap", "--join") for word in super().argv]


@pytest.fixture
def cell(make_cell: Callable[..., Cell]) -> Cell:
    """A cell that seals every three seconds and takes a snapshot every second, not started."""
    return make_cell(replica_extra=SMALL)


def begin(cell: Cell) -> Cell:
    cell.start()
    cell.wait_connected()
    cell.apply(CRONTAB)
    return cell


def folder_of(cell: Cell, name: str) -> Path:
    return cell.members[name].config.with_name(name)


def files(cell: Cell, name: str, kind: str) -> dict[str, bytes]:
    """Segments (`seg`) or snapshots (`snap`) of a replica by file name; some may go meanwhile."""
    found = {}
    for path in folder_of(cell, name).rglob(f"*.{kind}"):
        with suppress(FileNotFoundError):
            found[path.name] = path.read_bytes()
    return found


def numbers(cell: Cell, name: str) -> set[int]:
    """Numbers of the Seals of which a replica has segments."""
    return {int(path.name.split("-")[1]) for path in folder_of(cell, name).rglob("*.seg")}


def wait_seals(cell: Cell, more: int) -> None:
    """Return once all replicas have segments of so many more Seals, and nothing is missing."""
    newest = max((max(numbers(cell, name), default=0) for name in cell.replicas), default=0)
    wait_until(
        lambda: all(max(numbers(cell, one), default=0) >= newest + more for one in cell.replicas),
        60,
        f"{more} more seals after {newest}",
    )

    def is_complete() -> bool:
        rows = [row for row in cell.status() if row.id in cell.replicas and row.keeping]
        kept = [row.keeping for row in rows if row.keeping is not None]
        return len(kept) == 3 and not any(one.segments_missing or one.filling for one in kept)

    wait_until(is_complete, 30, "complete histories")


def shared(cell: Cell, kind: str) -> set[str]:
    """The names of files that all replicas have."""
    return set.intersection(*(set(files(cell, name, kind)) for name in cell.replicas))


def check_same(cell: Cell) -> None:
    """End the cell and compare all that its replicas keep, byte by byte."""
    report = cell.client.ask(table.AUDIT)
    assert [one.message for one in report.violations] == []
    wait_until(lambda: min(len(shared(cell, kind)) for kind in ("seg", "snap")) >= 3, 60, "files")
    cell.terminate(*cell.replicas)
    name_of_cell = "default"
    for kind, verify in (("seg", verify_segment), ("snap", verify_snapshot)):
        kept = [files(cell, name, kind) for name in cell.replicas]
        assert len(shared(cell, kind)) >= 2, f"{[sorted(one) for one in kept]}"
        for name in shared(cell, kind):
            assert len({one[name] for one in kept}) == 1, f"{name} differs"
        for path in folder_of(cell, "r1").rglob(f"*.{kind}"):
            verify(path, name_of_cell)


def test_segments_and_snapshots_are_the_same_bytes_on_all_replicas(cell: Cell) -> None:
    begin(cell)
    wait_seals(cell, 4)
    check_same(cell)


@pytest.mark.parametrize("point", POINTS)
def test_a_replica_killed_at_any_step_of_keeping_loses_nothing(
    cell: Cell, tmp_path: Path, point: str
) -> None:
    for name in cell.replicas:
        cell.failpoints[name] = f"{point}=kill@{POINTS[point]}+file:{tmp_path / 'once'}"
    begin(cell)
    wait_until(lambda: any(map(cell.is_down, cell.replicas)), 60, "a death")
    (dead,) = [name for name in cell.replicas if cell.is_down(name)]
    before = {row.launch for row in cell.history() if row.state in ("succeeded", "failed")}
    cell.start(dead)
    wait_seals(cell, 2)
    after = {row.launch for row in cell.history()}
    assert before
    assert before <= after
    assert "Traceback" not in cell.log(dead)
    check_same(cell)


def test_a_deleted_disk_comes_back_with_all_segments_and_the_same_digest(cell: Cell) -> None:
    begin(cell)
    wait_seals(cell, 1)
    cell.apply(LARGE, name="large")
    wait_seals(cell, 1)
    name = cell.follower()
    kept = files(cell, name, "seg")
    cell.kill(name)
    shutil.rmtree(folder_of(cell, name))
    cell.cli("replica", "replace", name)
    member = cell.members[name]
    cell.members[name] = Joins(member.id, member.kind, member.config, member.log)
    cell.start(name)
    wait_seals(cell, 2)
    again = files(cell, name, "seg")
    assert kept.items() <= again.items()
    assert kept
    assert "history.fetched" in cell.log(name)

    def same_digest() -> bool:
        rows = [row for row in cell.status() if row.id in cell.replicas]
        return len({(row.applied, row.digest) for row in rows}) == 1 and len(rows) == 3

    wait_until(same_digest, 30, "equal digests")
    check_same(cell)

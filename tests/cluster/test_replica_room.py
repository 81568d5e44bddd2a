"""A replica on a full disk ends with its exit code, waits for room when started, and goes on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cron.api.members import StatusRow
from cron.endings import DISK_FULL
from tests.cluster.engine_disks import Mounts, why_no_mounts
from tests.cluster.harness import Cell, wait_until

NAME = "r2"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if reason := why_no_mounts(tmp_path / "trial"):
        pytest.skip(reason)
    mounts = Mounts(tmp_path / "mounts")
    yield mounts.small("small", "40m")
    mounts.close()


class OnDisk:
    """r2 of a cell on a disk of its own, started by hand."""

    def __init__(self, cell: Cell, disk: Path) -> None:
        self.cell = cell
        self.disk = disk
        self.log = cell.folder / "on-disk.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        argv = [*self.cell.members[NAME].argv, "--data", str(self.disk / NAME)]
        argv.remove("--die-with-parent")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        return self.process

    def events(self) -> list[str]:
        lines = self.log.read_text().splitlines()
        rows: list[dict[str, Any]] = [json.loads(one) for one in lines if one.startswith("{")]
        return [str(row["event"]) for row in rows]

    def fill(self, name: str = "ballast") -> None:
        """Leave not a byte of room."""
        with (self.disk / name).open("ab", buffering=0) as ballast:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while ballast.write(b"x" * size):
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        for ballast in self.disk.glob("ballast*"):
            ballast.unlink()

    def row(self) -> StatusRow:
        rows = [row for row in self.cell.status() if row.id == NAME]
        return rows[0] if rows else StatusRow(kind="replica", id=NAME)


@pytest.fixture
def on_disk(make_cell: Callable[..., Cell], disk: Path) -> Iterator[OnDisk]:
    one = OnDisk(make_cell(), disk)
    yield one
    if one.process is not None:
        one.process.kill()
        one.process.wait()


@pytest.mark.timeout(120)
def test_a_full_disk_ends_a_replica_which_then_waits_for_room_and_catches_up(
    on_disk: OnDisk,
) -> None:
    cell = on_disk.cell
    cell.start("r1", "r3", "executor-1")
    process = on_disk.start()
    cell.leader()
    wait_until(lambda: on_disk.row().role in ("leader", "follower"), what=f"{NAME} to take part")
    cell.apply("#: name=tick\n@every 1s true\n")

    on_disk.fill()
    # Its journal has room in the segment that is open; a large crontab takes that.
    number = 0
    while process.poll() is None:
        number += 1
        lines = "".join(f"#: name=b{n}\n0 0 1 1 * {'x' * 900} {number}\n" for n in range(2_000))
        cell.apply(lines, name="big", expect=None)  # maybe it led, and cannot say what became of it
        on_disk.fill("ballast-2")
        assert number < 20, "the disk is not full"
    assert process.returncode == DISK_FULL
    said = on_disk.log.read_text()
    assert "disk full" in said
    assert "make room; the replica goes on where it was" in said
    assert "Traceback" not in said
    cell.wait_launches(2, "default/tick")

    process = on_disk.start()
    wait_until(lambda: "disk.full" in on_disk.events(), what="its word that the disk is full")
    assert process.poll() is None
    assert "replica.started" not in on_disk.events()
    wait_until(lambda: on_disk.row().role == "waiting", what="status of the others to tell")
    assert "waits for room on its disk" in on_disk.row().note
    assert "waits for room on its disk" in on_disk.log.read_text()
    on_disk.free()
    wait_until(lambda: "replica.started" in on_disk.events(), what="its start")
    assert on_disk.events().count("disk.full") == 1
    assert "disk.has_room" in on_disk.events()

    def is_level() -> bool:
        rows = {row.id: row for row in cell.status()}
        ours = rows.get(NAME)
        return ours is not None and any(
            ours.applied and (ours.applied, ours.digest) == (row.applied, row.digest)
            for name, row in rows.items()
            if name != NAME
        )

    wait_until(is_level, 60, f"{NAME} to be level with the others")


def test_a_replica_that_waits_for_room_ends_when_it_is_told_to(on_disk: OnDisk) -> None:
    on_disk.fill()
    process = on_disk.start()
    wait_until(lambda: "disk.full" in on_disk.events(), what="its word that the disk is full")
    process.terminate()
    assert process.wait(60) == 0

"""What leaders put into object storage while they are killed, cut off from it, and superseded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cron.api import table
from cron.api.snapshots import KeepingView
from cron.endings import SUPERSEDED
from snapshots.backup_store import BackupStore
from snapshots.directory import DirectoryStore
from snapshots.manifest import Generation, Manifest
from tests.cluster.harness import SHORT_TIMES, Cell, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CRONTAB = "".join(f"#: name=tick-{n}\n@every 1s true\n" for n in range(6)) + (
    "#: name=fails\n@every 1s false\n"
)
POINTS = {"segment-stored": 5, "snapshot-stored": 4, "store-pruned": 1}
"""Where leaders are killed, and at which time: some things are stored by then."""


class Backed:
    """A cell with a store, which seals every three seconds and takes a snapshot every second."""

    def __init__(self, make_cell: Callable[..., Cell], folder: Path) -> None:
        self.folder = folder / "store"
        extra = (
            f'{SHORT_TIMES}\n[object_storage]\nurl = "{self.folder.as_uri()}"\n'
            "[snapshots]\ninterval_s = 1\nremote_newest = 100\n"
            "[history]\nsegment_rows = 30\nsegment_age_s = 3\n"
        )
        self.cell = make_cell(replica_extra=extra)
        self.backup_store = BackupStore(DirectoryStore(self.folder), "default")
        self.fetched = folder / "fetched"
        self.fetched.mkdir()

    def begin(self) -> Cell:
        self.cell.start()
        self.cell.wait_connected()
        self.cell.apply(CRONTAB)
        return self.cell

    def told(self) -> KeepingView:
        """What the leader says of the store, once there is a leader."""

        def found() -> KeepingView | None:
            rows = [row for row in self.cell.status() if row.role == "leader"]
            return rows[0].keeping if len(rows) == 1 else None

        view = wait_until(found, what="a leader that says what it keeps")
        assert isinstance(view, KeepingView)
        return view

    def wait_stored(self, more: int = 1) -> None:
        """Return once a snapshot of now, and so many more segments, are in the store."""
        segments = len(self.backup_store.segments()) + more
        index = max(row.applied for row in self.cell.status())
        wait_until(
            lambda: (
                self.told().stored_index > index and len(self.backup_store.segments()) >= segments
            ),
            60,
            f"a stored snapshot after {index} and {segments} segments",
        )

    def verified(self) -> list[Manifest]:
        """All snapshots in the store, each read whole with all that it names."""
        manifests, damaged = self.backup_store.manifests()
        assert damaged == []
        names = {one.name for manifest in manifests for one in manifest.segments}
        for manifest in manifests:
            self.backup_store.fetch_snapshot(manifest, self.fetched)
        for name in names:
            self.backup_store.fetch_segment(name, self.fetched)
        return manifests

    def check_same(self) -> None:
        """What is stored is what the replicas have, byte by byte."""
        assert [one.message for one in self.cell.client.ask(table.AUDIT).violations] == []
        manifests = self.verified()
        assert manifests[0].segments
        compared = 0
        for name in self.cell.replicas:
            for path in self.cell.members[name].config.with_name(name).rglob("*.s*"):
                other = self.fetched / path.name
                if path.suffix not in (".seg", ".snap") or not other.exists():
                    continue
                with suppress(FileNotFoundError):  # the replica runs, and lets go of old ones
                    assert path.read_bytes() == other.read_bytes(), path
                    compared += 1
        assert compared >= 6


@pytest.fixture
def backed(make_cell: Callable[..., Cell], tmp_path: Path) -> Backed:
    """A cell with a store that is not started."""
    return Backed(make_cell, tmp_path)


def test_what_a_leader_stored_the_next_goes_on_with(backed: Backed) -> None:
    cell = backed.begin()
    backed.wait_stored()
    first = cell.leader()
    cell.kill(first)
    assert cell.leader(but=first)
    backed.wait_stored()
    cell.start(first)
    backed.wait_stored()
    assert backed.told().failing == ""
    assert {one.replica for one in backed.verified()} >= {first}
    (marker,) = backed.backup_store.generations()
    assert (marker.generation, marker.by) == (1, first)
    backed.check_same()


@pytest.mark.parametrize("point", POINTS)
def test_a_leader_killed_between_the_store_and_the_log_loses_nothing(
    backed: Backed, tmp_path: Path, point: str
) -> None:
    cell = backed.cell
    for name in cell.replicas:
        cell.failpoints[name] = f"{point}=kill@{POINTS[point]}+file:{tmp_path / 'once'}"
    backed.begin()
    wait_until(lambda: any(map(cell.is_down, cell.replicas)), 60, "a death")
    (dead,) = [name for name in cell.replicas if cell.is_down(name)]
    newest = backed.verified()[0].index
    cell.start(dead)
    backed.wait_stored(2)
    assert backed.verified()[0].index > newest
    assert "Traceback" not in cell.log(dead)
    backed.check_same()


def test_launches_go_on_without_the_store_and_the_backlog_follows(backed: Backed) -> None:
    cell = backed.begin()
    backed.wait_stored()
    aside = backed.folder.with_name("aside")
    backed.folder.rename(aside)
    backed.folder.write_text("this is no directory")
    wait_until(lambda: backed.told().failing, what="word of the failure")
    told = backed.told()
    assert told.failing_since_ms > 0
    assert backed.folder.as_uri() in told.failing
    before = len(cell.history(states=["succeeded"]))
    cell.wait_launches(before + 60)
    later = backed.told()
    assert later.segments_waiting >= 2
    assert later.failing_since_ms == told.failing_since_ms
    assert later.snapshot_index > later.stored_index

    backed.folder.unlink()
    aside.rename(backed.folder)
    backed.wait_stored()
    wait_until(lambda: not backed.told().failing, what="the end of the failure")
    assert backed.told().segments_waiting <= 2, "what was sealed just now"
    backed.check_same()


def test_a_cell_that_was_restored_elsewhere_ends_replica_by_replica(backed: Backed) -> None:
    cell = backed.begin()
    backed.wait_stored()
    first = cell.leader()
    backed.backup_store.claim_generation(
        Generation(cell="default", generation=2, id="restore", by="ada")
    )
    cell.wait_down(first, 60)
    # The third may lead while the second is still ending; then it ends as well.
    wait_until(lambda: sum(map(cell.is_down, cell.replicas)) >= 2, 60, "the second leader's end")
    ended = [name for name in cell.replicas if cell.is_down(name)]
    assert first in ended
    for name in cell.replicas:
        assert "Traceback" not in cell.log(name)
    for name in ended:
        said = cell.log(name)
        assert f'"code": {SUPERSEDED}' in said
        assert "cell default was restored elsewhere" in said
        assert "this cell must never run again" in said
    assert all(one.generation == 1 for one in backed.verified())

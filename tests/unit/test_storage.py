"""Storage: the parts that keep and store, put together for one replica, and what status says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from consensus.errors import QueueFull
from consensus.leadership import Position
from cron.config import PeerAddresses, ReplicaConfig
from cron.errors import ConfigError
from cron.history.store import RowStore
from cron.keeping_config import SnapshotsConfig, StorageConfig
from cron.service.snapshots import Saving, keeping_view
from cron.state import commands as c
from cron.state.imaging import Imaging
from cron.storage.history_backfill import PeerSource, StoreSource
from cron.storage.snapshot_writer import SnapshotWriter
from cron.storage.storage import ReplicaParts, Storage, open_backup_store
from cron.storage.uploader import Trouble
from snapshots.disk import SnapshotFile
from tests.unit.backup_rig import CELL, Rig, keeping
from tests.unit.disk_rig import until


class Log:
    """A log that counts how often it is shortened; `error` is what it raises."""

    def __init__(self) -> None:
        self.shortened = self.running = self.most = 0
        self.error: BaseException | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def snapshot(self) -> Position:
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.wait()
        self.running -= 1
        self.shortened += 1
        if self.error is not None:
            raise self.error
        return Position(1, 1)


def config_of(data: Path, url: str = "", **fields: Any) -> ReplicaConfig:
    address = PeerAddresses("127.0.0.1:1", "127.0.0.1:2")
    made = ReplicaConfig("r1", str(data), {"r1": address}, cell=CELL)
    return msgspec.structs.replace(made, object_storage=StorageConfig(url), **fields)


class Deaf:
    """Replicas that are not asked."""

    async def segment(self, *_: Any) -> Any:
        raise AssertionError


class Kept:
    """Storage of r1 of a rig, with a disk and a row store of its own."""

    def __init__(self, rig: Rig, url: str, **fields: Any) -> None:
        self.rig = rig
        data = rig.folder / "archives"
        data.mkdir()
        self.log = Log()
        self.superseded: list[BaseException] = []
        config = config_of(data, url, **fields)
        self.writer = SnapshotWriter(
            data, CELL, snapshots_kept=config.snapshots.local, on_snapshot=self._told
        )
        self.row_store = RowStore(self.writer)
        self.told: list[int] = []
        one = rig["r1"]
        self.storage = Storage(
            config,
            ReplicaParts(one.leader, one.applier, self.log, self.row_store, self.writer),
            rig.clock,
            release="0.1.0",
            peers=PeerSource(Deaf(), list),
            superseded=self.superseded.append,
        )
        self.saving = Saving(one.leader, one.applier, self.writer, self.storage.backup_store, data)

    def _told(self, file: SnapshotFile) -> None:
        self.storage.shorten_log(file)
        self.told.append(file.header.index)

    @property
    def view(self) -> Any:
        return keeping_view(self.storage, "")

    async def snapshot(self) -> int:
        """Take a snapshot onto this disk; return its index once storage was told of it."""
        await self.rig["r1"].leader.append(c.SnapshotAt())
        state = self.rig["r1"].state
        self.writer.snapshot(state, Imaging.begin(state))
        index = state.history.taken.index
        await until(lambda: self.told[-1:] == [index])
        return index


@asynccontextmanager
async def kept(tmp_path: Path, url: str = "", **fields: Any) -> AsyncIterator[Kept]:
    async with keeping(tmp_path, store="") as rig:
        made = Kept(rig, url, **fields)
        made.writer.start()
        try:
            yield made
        finally:
            made.saving.close()
            made.storage.stop()
            made.row_store.stop()


# --- what is put together


async def test_what_runs_depends_on_whether_there_is_a_store(tmp_path: Path) -> None:
    names = []
    for number, url in enumerate(("", (tmp_path / "store").as_uri())):
        async with kept(tmp_path / str(number), url) as one:
            tasks = one.storage.tasks()
            names.append([name for name, _ in tasks])
            for _, task in tasks:
                task.close()
    assert names == [["history-backfill", "backup"], ["history-backfill", "backup", "outputs"]]
    assert not (tmp_path / "store").exists(), "nothing is asked of it before there is a leader"


async def test_missing_segments_come_from_peers_first_then_from_the_store(tmp_path: Path) -> None:
    kinds = []
    for number, url in enumerate(("", (tmp_path / "store").as_uri())):
        async with kept(tmp_path / str(number), url) as one:
            kinds.append([type(source) for source in one.storage.backfill.sources])
    assert kinds == [[PeerSource], [PeerSource, StoreSource]]


def test_a_store_that_cannot_be_is_told_when_the_replica_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    assert open_backup_store(config_of(tmp_path)) is None
    with pytest.raises(ConfigError, match=r"object_storage\.url: ftp://x") as caught:
        open_backup_store(config_of(tmp_path, "ftp://x"))
    assert caught.value.hint
    backup_store = open_backup_store(config_of(tmp_path, "file:///store"))
    assert backup_store is not None
    assert (backup_store.cell, backup_store.store.url) == (CELL, "file:///store")


# --- the log is let go


async def test_the_log_is_shortened_once_a_snapshot_is_on_the_disk(tmp_path: Path) -> None:
    async with kept(tmp_path) as one:
        await one.snapshot()
        await until(lambda: one.log.shortened == 1)
        await one.snapshot()
        await until(lambda: one.log.shortened == 2)


async def test_one_shortening_is_under_way_at_a_time(tmp_path: Path) -> None:
    async with kept(tmp_path) as one:
        one.log.gate.clear()
        await one.snapshot()
        await until(lambda: one.log.running == 1)
        for _ in range(3):
            await one.snapshot()
        one.log.gate.set()
        await until(lambda: one.log.shortened == 2)
        await one.snapshot()
        await until(lambda: one.log.shortened == 3)
        assert one.log.most == 1


async def test_status_tells_of_the_store_and_of_the_disk(tmp_path: Path) -> None:
    async with kept(tmp_path, (tmp_path / "store").as_uri()) as one:
        one.writer._trouble = "No space left on device"
        assert (one.view.failing, one.view.failing_since_ms) == ("No space left on device", 0)
        backup: Any = one.storage.backup
        backup._uploader._failed = Trouble(77, "the store is away")
        text = "the store is away; No space left on device"
        assert (one.view.failing, one.view.failing_since_ms) == (text, 77)


@pytest.mark.parametrize("error", [QueueFull("full"), OSError(28, "No space left on device")])
async def test_a_log_that_cannot_be_shortened_is_told_and_tried_with_the_next(
    tmp_path: Path, error: Exception
) -> None:
    async with kept(tmp_path) as one:
        one.log.error = error
        with structlog.testing.capture_logs() as logs:
            await one.snapshot()
            await until(lambda: any(line["event"] == "log.not_shortened" for line in logs))
        one.log.error = None
        await one.snapshot()
        await until(lambda: one.log.shortened == 2)


# --- status


async def test_status_says_what_is_here_and_what_is_stored(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    async with kept(tmp_path, url) as one:
        assert (one.view.snapshot_index, one.view.stored_index, one.view.store) == (0, 0, url)
        rig = one.rig
        await rig.launch(3)
        assert one.view.open_rows == 3
        await rig["r1"].submit(c.Seal(1))
        index = await one.snapshot()
        view = one.view
        assert (view.snapshot_index, view.snapshot_at_ms) == (index, rig.clock.ms)
        assert (view.segments, view.open_rows, view.segments_waiting) == (1, 0, 1)
        (key,) = rig["r1"].state.history.segments
        await rig["r1"].submit(c.BackedUp(url, (key,), 1, 1, index, 77, claim="x"))
        view = one.view
        assert (view.stored_index, view.stored_at_ms, view.segments_waiting) == (index, 77, 0)


async def test_what_is_in_another_store_is_not_in_this_one(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    async with kept(tmp_path, url) as one:
        rig = one.rig
        await rig.launch(3)
        await rig["r1"].submit(c.Seal(1))
        (key,) = rig["r1"].state.history.segments
        await rig["r1"].submit(c.BackedUp("s3://before", (key,), 1, 1, 5, 77, claim="x"))
        assert (one.view.stored_index, one.view.stored_at_ms) == (0, 0)
        assert one.view.segments_waiting == 1


async def test_without_a_store_nothing_waits_for_one(tmp_path: Path) -> None:
    async with kept(tmp_path) as one:
        await one.rig.launch(3)
        await one.rig["r1"].submit(c.Seal(1))
        view = one.view
        assert (view.segments, view.segments_waiting, view.store) == (1, 0, "")
        assert view.outputs_waiting is None


async def test_so_many_snapshots_stay_on_the_disk_as_are_configured(tmp_path: Path) -> None:
    async with kept(tmp_path, snapshots=SnapshotsConfig(local=2)) as one:
        indexes = [await one.snapshot() for _ in range(4)]
        writer = one.writer
        await until(lambda: len(writer.snapshots()) == 2)
        assert [file.header.index for file in writer.snapshots()] == indexes[:1:-1]

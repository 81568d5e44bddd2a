"""A cell of three leaders-to-be in memory, each with a disk, and one object storage for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from cron.job import Schedule
from cron.leader.applier import StateApplier
from cron.leader.leader import Leader, LeaderSettings
from cron.state import commands as c
from cron.state.archive import History, Sealed, SegmentRecord
from cron.state.imaging import Imaging
from cron.state.outcome import Verdict
from cron.state.state import State
from cron.storage.backup import Backup
from cron.storage.folders import Folders, name_of
from cron.storage.retention_planner import RetentionSettings
from cron.storage.uploader import Uploader
from cron.storage.uploads import Uploads
from launcher.pool.lease import LeaseTimes
from launcher.pool.pool import Pool
from launcher.protocol.status import Reason
from snapshots.backup_store import BackupStore
from snapshots.disk import SnapshotFile, write_snapshot
from snapshots.errors import SnapshotError
from snapshots.format import SnapshotHeader
from snapshots.manifest import Manifest
from snapshots.retention import SnapshotPolicy
from snapshots.segments import list_segments
from tests.fakes.memory_log import MemoryCell
from tests.fakes.memory_store import MemoryStore
from tests.unit.state_rig import T0, job

CELL = "prod"
URL = "memory://test"
SETTINGS = RetentionSettings(store=URL, interval_ms=60_000, segment_rows=3)
NEVER = Schedule("0 0 1 1 *", "0 0 1 1 *")


class Clocks:
    """Clocks that a test turns."""

    def __init__(self) -> None:
        self.ms = T0 * 1000

    def wall_ms(self) -> int:
        return self.ms

    def mono_ms(self) -> int:
        return self.ms - T0 * 1000 + 1


class NoHistory:
    """A history that keeps nothing, and counts what a test says."""

    def __init__(self) -> None:
        self.asked: list[SegmentRecord] = []
        self.is_outlived = False

    def follow(self, history: History) -> None: ...

    async def outlived(self, record: SegmentRecord, newer: int) -> bool:
        assert newer > 0
        self.asked.append(record)
        return self.is_outlived


class SegmentFiles:
    """A snapshot writer that writes at once. `missing`: segments that are not on this disk."""

    def __init__(self, data: Path) -> None:
        self.folders = Folders(data, CELL)
        self.folders.open()
        self.files: list[SnapshotFile] = []
        self.missing: set[str] = set()

    def keep(self, sealed: Sequence[Sealed]) -> None:
        for one in sealed:
            self.folders.write(one)

    def snapshot(self, state: State, imaging: Imaging) -> None:
        taken = state.history.taken
        header = SnapshotHeader(
            CELL, state.epoch.generation, taken.term, taken.index, state.digest, taken.at_ms
        )
        self.files.insert(0, write_snapshot(self.folders.snapshots, header, imaging.pieces()))

    def catalog(self, history: History) -> None:
        wanted = {name_of(one) for one in history.segments.values() if one.is_local}
        self.folders.remove_segments(self.folders.retired(wanted, history.newest()))

    def wait_durable(self) -> None: ...

    def segment_path(self, name: str) -> Path | None:
        path = self.folders.segments / name
        return path if path.exists() and name not in self.missing else None

    def read(self, record: SegmentRecord) -> bytes:
        try:
            return self.folders.read(record)
        except SnapshotError:
            self.folders.set_aside(self.folders.segments / name_of(record))
            raise

    def snapshots(self) -> list[SnapshotFile]:
        return self.files

    def segments(self) -> set[str]:
        return {path.name for path in list_segments(self.folders.segments)}


class Replica:
    """One replica, with its archive. `superseded` has what it was told."""

    def __init__(self, rig: Rig, name: str) -> None:
        self.rig = rig
        self.name = name
        self.failures: list[BaseException] = []
        self.superseded: list[BaseException] = []
        self.history = NoHistory()
        self.segment_files = SegmentFiles(rig.folder / name)
        row_store: Any = self.history
        self.applier = StateApplier(row_store, self.segment_files)
        self.log = rig.cell.log(name, self.applier)
        pool = Pool(
            cell=CELL,
            lease=LeaseTimes(),
            mono_ms=rig.clock.mono_ms,
            wall_ms=rig.clock.wall_ms,
            on_event=lambda event: self.leader.on_event(event),  # noqa: PLW0108 - made later
        )
        self.leader = Leader(
            log=self.log,
            applier=self.applier,
            pool=pool,
            clock=rig.clock,
            settings=LeaderSettings(turn_ms=1, housekeeping_ms=5, append_timeout_ms=60_000),
            about=c.Claim("2026b", "0.1.0", c.FORMAT),
            on_failure=self.failures.append,
        )
        self.backup, self.uploader = self.with_backup()

    def with_backup(
        self, settings: RetentionSettings | None = None
    ) -> tuple[Backup, Uploader | None]:
        """Give it a new archive, as after a restart with another configuration."""
        settings = settings or self.rig.settings
        uploader = None
        if settings.store:
            self.rig.drawn += 1
            drawn = f"claim-{self.rig.drawn}"
            backup_store = BackupStore(self.rig.stores[settings.store], CELL)
            uploads = Uploads(
                backup_store, settings.store, self.rig.policy, lambda: drawn, self.name, "0.1.0"
            )
            uploader = Uploader(
                self.leader, self.applier, self.rig.clock, self.segment_files, uploads
            )
        self.backup = Backup(
            self.leader,
            self.applier,
            self.rig.clock,
            settings=settings,
            uploader=uploader,
            census=self.history,
            superseded=self.superseded.append,
        )
        self.uploader = uploader
        return self.backup, uploader

    @property
    def state(self) -> State:
        return self.applier.state

    async def look(self) -> None:
        """What happens once a second, up to its end."""
        await self.backup.look()
        await self.backup.finish_turn()

    async def submit(self, *commands: c.Command) -> None:
        _, results = await self.leader.append(*commands)
        assert all(result.verdict is Verdict.ACCEPTED for result in results), results


class Rig:
    """The cell; `r1` leads at first."""

    def __init__(self, folder: Path, settings: RetentionSettings) -> None:
        self.folder = folder
        self.settings = settings
        self.clock = Clocks()
        self.policy = SnapshotPolicy(3, 0)
        self.store = MemoryStore()
        self.stores = {URL: self.store}
        self.drawn = 0
        self.cell = MemoryCell(("r1", "r2", "r3"))
        self.replicas = {name: Replica(self, name) for name in self.cell.replicas}

    def __getitem__(self, name: str) -> Replica:
        return self.replicas[name]

    @property
    def leader(self) -> Replica:
        return next(one for one in self.replicas.values() if one.leader.epoch is not None)

    @property
    def backup_store(self) -> BackupStore:
        return BackupStore(self.store, CELL)

    def later(self, seconds: float) -> None:
        """Turn the clock on."""
        self.clock.ms += int(seconds * 1000)
        self.store.now_ms = self.clock.ms

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait for it to be so, a minute at most."""
        async with asyncio.timeout(60):
            while not is_so():
                assert not any(one.failures for one in self.replicas.values())
                await asyncio.sleep(0.001)

    async def elect(self, name: str) -> Replica:
        """Make a replica the leader."""
        self.cell.elect(name)
        one = self.replicas[name]
        await self.until(lambda: one.leader.epoch is not None)
        others = [other for other in self.replicas.values() if other is not one]
        await self.until(lambda: all(other.leader.epoch is None for other in others))
        return one

    async def launch(self, count: int = 1) -> None:
        """Let so many launches come to an end, a second apart."""
        leader = self.leader
        for _ in range(count):
            self.later(1)
            second = self.clock.ms // 1000
            await leader.submit(c.Trigger("default/backup", f"request-{second}", "anna"))
            item = c.CancelItem((1, second, 1), Reason.KILLED, "anna")
            await leader.submit(c.Cancel((item,)))

    async def look(self) -> None:
        """Let the leader look after its archive, a second later."""
        self.later(1)
        await self.leader.look()

    def manifests(self) -> list[Manifest]:
        """What can be restored, newest first: verified down to the last segment."""
        manifests, damaged = self.backup_store.manifests()
        assert not damaged
        stored = self.backup_store.segments()
        folder = self.folder / "fetched"
        folder.mkdir(exist_ok=True)
        for manifest in manifests:
            self.backup_store.fetch_snapshot(manifest, folder)
            for segment in manifest.segments:
                assert segment.name in stored
                self.backup_store.fetch_segment(segment.name, folder)
        return manifests

    def puts(self) -> list[str]:
        """The names that were written, without the cell's prefix, markers and trials left out."""
        names = [name for operation, name in self.store.calls if operation == "put"]
        return [
            name.removeprefix(f"cells/{CELL}/")
            for name in names
            if "/snapshots/" in name or "/segments/" in name
        ]


@asynccontextmanager
async def keeping(folder: Path, **fields: Any) -> AsyncIterator[Rig]:
    """A cell that has a job; `fields` change its settings."""
    rig = Rig(folder, msgspec.structs.replace(SETTINGS, **fields))
    for one in rig.replicas.values():
        await one.log.start()
    for one in rig.replicas.values():
        one.leader.start()
    await rig.until(lambda: rig["r1"].leader.epoch is not None)
    put = c.PutJobs("crontab", 0, T0, (job(schedule=NEVER),))
    await rig["r1"].leader.append(put, changes_jobs=True)
    try:
        yield rig
    finally:
        for one in rig.replicas.values():
            one.backup.close()
            await one.leader.stop()
            await one.log.stop()

"""What one replica keeps on its disk and in object storage, put together."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import structlog

from consensus.errors import ConsensusError
from consensus.leadership import Position
from cron import failpoints
from cron.clock import Clock
from cron.config import ReplicaConfig
from cron.errors import ConfigError
from cron.history.store import RowStore
from cron.storage.backup import Backup
from cron.storage.history_backfill import HistoryBackfill, Source, StoreSource
from cron.storage.leading import Applier
from cron.storage.outputs import OutputLeader, Outputs, OutputSettings
from cron.storage.retention_planner import RetentionSettings
from cron.storage.snapshot_writer import SnapshotWriter
from cron.storage.uploader import Storing, Trouble, Uploader
from cron.storage.uploads import About
from snapshots.backup_store import BackupStore
from snapshots.disk import SnapshotFile
from snapshots.errors import StoreError
from snapshots.retention import SnapshotPolicy
from snapshots.urls import open_store

_log = structlog.get_logger()
DAY_MS: Final = 86_400_000


class Compacts(Protocol):
    """The replicated log, as far as it is asked to let go of what a snapshot has."""

    async def snapshot(self) -> Position:
        """Let the log before now go."""


class ReplicaParts(NamedTuple):
    """The parts of one replica that storage works for."""

    leader: OutputLeader
    applier: Applier
    log: Compacts
    row_store: RowStore
    writer: SnapshotWriter


class Storage:
    """Snapshots, segments and outputs of the replica that `config` describes.

    `peers` gives segments that other replicas have. `superseded` is called once, with the reason,
    when another life of the cell was begun in object storage. `backup_store` and `outputs` are None
    where no object storage is configured.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        parts: ReplicaParts,
        clock: Clock,
        *,
        release: str,
        peers: Source,
        superseded: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._log = parts.log
        self._compacting: asyncio.Task[None] | None = None
        self._is_long = False  # the log holds what a snapshot on the disk has
        self.leader, self.applier, self.writer = parts.leader, parts.applier, parts.writer
        self.backup_store = open_backup_store(config)
        self.backfill = HistoryBackfill(self.writer, [peers])
        self.outputs: Outputs | None = None
        uploader: Uploader | None = None
        if self.backup_store is not None:
            self.backfill.sources.append(StoreSource(self.backup_store))
            storing = _storing(config, self.backup_store, release)
            uploader = Uploader(self.leader, self.applier, clock, self.writer, storing)
            settings = output_settings_of(config)
            place = uploader
            self.outputs = Outputs(
                self.leader, self.applier, parts.row_store, clock, storing, settings,
                may_store=lambda: place.has_place,
            )  # fmt: skip
        self.backup = Backup(
            self.leader,
            self.applier,
            clock,
            settings=settings_of(config),
            uploader=uploader,
            census=parts.row_store,
            superseded=superseded,
        )

    @property
    def store(self) -> str:
        """The URL of object storage, "" for none."""
        return self._config.object_storage.url

    def told(self) -> tuple[Trouble, int | None]:
        """Return since when and why nothing, or no output, gets into object storage; and how many
        outputs are to be stored yet, None where none are, or another replica knows."""
        trouble = self.backup.trouble
        if self.outputs is None:
            return trouble, None
        waiting, of_outputs = self.outputs.told()
        is_on = self._config.object_storage.output and self.leader.epoch is not None
        return trouble if trouble.text else of_outputs, waiting if is_on else None

    def tasks(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """Return what runs for as long as the replica does, by name."""
        tasks = [("history-backfill", self.backfill.run()), ("backup", self.backup.run())]
        if self.outputs is not None:
            tasks.append(("outputs", self.outputs.run()))
        return tasks

    def stop(self) -> None:
        """End the threads."""
        self.backup.close()
        if self.outputs is not None:
            self.outputs.close()
        self.writer.stop()

    def shorten_log(self, _file: SnapshotFile) -> None:
        """Let the log before a snapshot go, now that the snapshot is on the disk."""
        self._is_long = True  # also where an earlier one is being shortened: then once more
        if self._compacting is None or self._compacting.done():
            self._compacting = asyncio.get_running_loop().create_task(self._shorten())

    async def _shorten(self) -> None:
        while self._is_long:
            self._is_long = False
            try:
                await self._log.snapshot()
                failpoints.hit("log-shortened")
            except (ConsensusError, OSError) as error:
                _log.warning("log.not_shortened", error=str(error))


def _storing(config: ReplicaConfig, backup_store: BackupStore, release: str) -> Storing:
    return Storing(
        backup_store=backup_store,
        store=config.object_storage.url,
        policy=SnapshotPolicy(config.snapshots.remote_newest, config.snapshots.remote_daily),
        about=About(config.id, release, socket.gethostname()),
        draw=lambda: secrets.token_hex(16),
    )


def output_settings_of(config: ReplicaConfig) -> OutputSettings:
    """Return what storing outputs goes by: outputs are kept as long as is said, or else as
    the longest part of the history."""
    storage, history = config.object_storage, config.history
    longest = max(history.keep_days, history.keep_failed_days) if history.keep_days else 0
    days = storage.output_days or longest
    return OutputSettings(days * DAY_MS, Path(config.data) / "outputs")


def settings_of(config: ReplicaConfig) -> RetentionSettings:
    """Return what the retention planner goes by."""
    snapshots, history = config.snapshots, config.history
    return RetentionSettings(
        store=config.object_storage.url,
        interval_ms=snapshots.interval_s * 1000,
        entries=snapshots.entries,
        segment_rows=history.segment_rows,
        segment_bytes=history.segment_bytes,
        segment_age_ms=history.segment_age_s * 1000,
        keep_ms=history.keep_days * DAY_MS,
        keep_failed_ms=history.keep_failed_days * DAY_MS,
        local_ms=history.local_days * DAY_MS,
        keep_runs=history.keep_runs,
    )


def open_backup_store(config: ReplicaConfig) -> BackupStore | None:
    """Return the backup store of the configured store; nothing is asked of it yet.

    Raises:
        ConfigError: there can be no such store.
    """
    if not config.object_storage.url:
        return None
    try:
        return BackupStore(open_store(config.object_storage.url), config.cell)
    except StoreError as error:
        raise ConfigError(f"object_storage.url: {error}", error.hint) from error

"""Constructs the parts that keep a replica's data on its disk and in object storage."""

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
from cron.storage.trust import trust_of
from cron.storage.uploader import Trouble, Uploader
from cron.storage.uploads import Uploads
from launcher.renewal import Current
from snapshots.backup_store import BackupStore
from snapshots.disk import SnapshotFile
from snapshots.errors import StoreError
from snapshots.retention import SnapshotPolicy
from snapshots.signed import Trust
from snapshots.urls import open_store

_log = structlog.get_logger()
DAY_MS: Final = 86_400_000


class Compacts(Protocol):
    """The replicated log, which drops entries that a snapshot covers."""

    async def snapshot(self) -> Position:
        """Drop the entries before the present one."""


class ReplicaParts(NamedTuple):
    """The parts of one replica that storage uses."""

    leader: OutputLeader
    applier: Applier
    log: Compacts
    row_store: RowStore
    writer: SnapshotWriter


class Storage:
    """Snapshots, segments and outputs of the replica that `config` describes; `credentials` are
    its certificate, with which it signs what it stores.

    `peers` fetches segments from other replicas. `superseded` is called once, with the reason, when
    a newer generation of the cell was begun in object storage. `backup_store` and `outputs` are
    None without object storage.
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
        credentials: Current | None = None,
    ) -> None:
        self._config = config
        self._log = parts.log
        self._compacting: asyncio.Task[None] | None = None
        self._is_long = False  # the log has entries that a snapshot on the disk covers
        self.leader, self.applier, self.writer = parts.leader, parts.applier, parts.writer
        trust: Trust | None = None
        if credentials is not None:
            # What an older release has stored is not signed; a restore is stricter.
            applier = self.applier  # a list is made at once, whatever the loop's thread does
            trust = trust_of(
                config.cell, credentials, clock,
                revoked=lambda: list(applier.state.access.revoked), takes_unsigned=True,
            )  # fmt: skip
        self.backup_store = open_backup_store(config, trust)
        self.backfill = HistoryBackfill(self.writer, [peers])
        self.outputs: Outputs | None = None
        uploader: Uploader | None = None
        if self.backup_store is not None:
            self.backfill.sources.append(StoreSource(self.backup_store))
            uploads = Uploads(
                backup_store=self.backup_store,
                url=config.object_storage.url,
                policy=SnapshotPolicy(
                    config.snapshots.remote_newest, config.snapshots.remote_daily
                ),
                draw=lambda: secrets.token_hex(16),
                replica=config.id,
                release=release,
                host=socket.gethostname(),
            )
            uploader = Uploader(self.leader, self.applier, clock, self.writer, uploads)
            settings = output_settings_of(config)
            place = uploader
            self.outputs = Outputs(
                self.leader, self.applier, parts.row_store, clock, self.backup_store, settings,
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

    def status(self) -> tuple[Trouble, int | None]:
        """Return since when and why nothing, or no output, can be stored; and how many outputs
        wait, None if none are stored or this replica does not lead.
        """
        trouble = self.backup.trouble
        if self.outputs is None:
            return trouble, None
        waiting, of_outputs = self.outputs.status()
        is_on = self._config.object_storage.output and self.leader.epoch is not None
        return trouble if trouble.text else of_outputs, waiting if is_on else None

    def tasks(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """Return the tasks that run as long as the replica, by name."""
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
        """Drop the log before a snapshot that is on the disk."""
        self._is_long = True  # if the log is being shortened now: once more
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


def output_settings_of(config: ReplicaConfig) -> OutputSettings:
    """Return the settings for outputs: they are kept for `output_days`, or else as long as the
    longest part of the history.
    """
    storage, history = config.object_storage, config.history
    longest = max(history.keep_days, history.keep_failed_days) if history.keep_days else 0
    days = storage.output_days or longest
    return OutputSettings(days * DAY_MS, Path(config.data) / "outputs")


def settings_of(config: ReplicaConfig) -> RetentionSettings:
    """Return the settings of the retention planner."""
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


def open_backup_store(config: ReplicaConfig, trust: Trust | None = None) -> BackupStore | None:
    """Return the configured backup store, without connecting to it; None if there is none. With
    `trust`, manifests and markers are signed.

    Raises:
        ConfigError: the URL or a setting is not valid.
    """
    if not config.object_storage.url:
        return None
    try:
        return BackupStore(open_store(config.object_storage.url), config.cell, trust)
    except StoreError as error:
        raise ConfigError(f"object_storage.url: {error}", error.hint) from error

"""What one replica keeps, and what it puts into object storage, put together."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import structlog

from consensus.errors import ConsensusError
from consensus.leadership import Position
from cron import failpoints
from cron.api.snapshot_views import KeepingView
from cron.backup.archivist import ArchiveSettings
from cron.backup.backup import Backup
from cron.backup.courier import Courier, Storing
from cron.backup.outputs import Outputs, OutputSettings
from cron.backup.uploads import About
from cron.clock import Clock
from cron.config import ReplicaConfig
from cron.errors import ConfigError
from cron.history.store import RowStore
from cron.keeper.filler import Filler
from cron.keeper.keeper import Keeper
from cron.keeper.sources import Fetching, PeerSource, StoreSource
from cron.leader.applier import StateApplier
from cron.leader.leader import Leader
from cron.service.saving import Saving
from snapshots.disk import SnapshotFile
from snapshots.errors import StoreError
from snapshots.retention import SnapshotPolicy
from snapshots.urls import open_store
from snapshots.vault import Vault

_log = structlog.get_logger()
DAY_MS: Final = 86_400_000


class Compacts(Protocol):
    """The replicated log, as far as it is asked to let go of what a snapshot has."""

    async def snapshot(self) -> Position:
        """Let the log before now go."""


class Archives:
    """Keeper, vault and backup of the replica that `config` describes."""

    def __init__(self, config: ReplicaConfig, row_store: RowStore, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._log: Compacts | None = None
        self._compacting: asyncio.Task[None] | None = None
        self._is_long = False  # the log holds what a snapshot on the disk has
        self.keeper = Keeper(
            Path(config.data),
            config.cell,
            snapshots_kept=config.snapshots.local,
            on_snapshot=self._compact,
        )
        self.vault = _vault(config)
        self._row_store = row_store
        row_store.shelf = self.keeper
        self._filler: Filler | None = None
        self._applier: StateApplier | None = None
        self._backup: Backup | None = None
        self._outputs: Outputs | None = None
        self._saving: Saving | None = None
        self._leader: Leader | None = None

    def attach(
        self,
        leader: Leader,
        applier: StateApplier,
        log: Compacts,
        *,
        release: str,
        superseded: Callable[[BaseException], None],
    ) -> Saving:
        """Learn of the other parts; return what answers people."""
        config = self._config
        self._leader, self._applier, self._log = leader, applier, log
        self._filler = Filler(self.keeper)
        storing = self._storing(release)
        self._backup = Backup(
            leader,
            applier,
            self._clock,
            settings=settings_of(config),
            courier=self._courier(leader, applier, storing),
            census=self._row_store,
            superseded=superseded,
        )
        if storing is not None:
            settings = output_settings_of(config)
            self._outputs = Outputs(
                leader, applier, self._row_store, self._clock, storing, settings
            )
        self._saving = Saving(leader, applier, self.keeper, self.vault, Path(config.data))
        return self._saving

    def _storing(self, release: str) -> Storing | None:
        if self.vault is None:
            return None
        config = self._config
        return Storing(
            vault=self.vault,
            store=config.object_storage.url,
            policy=SnapshotPolicy(config.snapshots.remote_newest, config.snapshots.remote_daily),
            about=About(config.id, release, socket.gethostname()),
            draw=lambda: secrets.token_hex(16),
        )

    def _courier(
        self, leader: Leader, applier: StateApplier, storing: Storing | None
    ) -> Courier | None:
        if storing is None:
            return None
        return Courier(leader, applier, self._clock, self.keeper, storing)

    def fetch_from(self, ask: Fetching, addresses: Callable[[], list[str]]) -> None:
        """Fetch segments that are missing from the other replicas, then from the store."""
        if self._filler is not None:
            self._filler.sources = [PeerSource(ask, addresses)]
            if self.vault is not None:
                self._filler.sources.append(StoreSource(self.vault))

    def tasks(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """Return what runs for as long as the replica does, by name."""
        tasks: list[tuple[str, Coroutine[Any, Any, None]]] = []
        if self._filler is not None:
            tasks.append(("filler", self._filler.run()))
        if self._backup is not None:
            tasks.append(("archive", self._backup.run()))
        if self._outputs is not None:
            tasks.append(("outputs", self._outputs.run()))
        return tasks

    def stop(self) -> None:
        """End the threads."""
        if self._backup is not None:
            self._backup.close()
        if self._outputs is not None:
            self._outputs.close()
        if self._saving is not None:
            self._saving.close()
        self.keeper.stop()

    def _compact(self, file: SnapshotFile) -> None:
        """Let the log before a snapshot go, now that it is on the disk."""
        self._is_long = True  # also where an earlier one is being shortened: then once more
        if self._compacting is None or self._compacting.done():
            self._compacting = asyncio.get_running_loop().create_task(self._shorten())

    async def _shorten(self) -> None:
        while self._is_long and self._log is not None:
            self._is_long = False
            try:
                await self._log.snapshot()
                failpoints.hit("log-shortened")
            except (ConsensusError, OSError) as error:
                _log.warning("log.not_shortened", error=str(error))

    # ---- status

    def view(self) -> KeepingView | None:
        """Return what `status` shows of it."""
        applier, leader, backup = self._applier, self._leader, self._backup
        if applier is None or leader is None or backup is None:
            return None
        state = applier.state
        newest = next((file.header for file in self.keeper.snapshots()), None)
        stored = state.history.backup
        store = self._config.object_storage.url
        is_there = bool(store) and stored.store == store
        waiting = sum(not (one.is_stored and is_there) for one in state.history.segments.values())
        trouble = backup.trouble
        view = KeepingView(
            snapshot_index=newest.index if newest else 0,
            snapshot_at_ms=newest.taken_ms if newest else 0,
            segments=len(state.history.segments),
            segments_missing=len(self.keeper.missing()),
            open_rows=state.history.open_rows,
            failing=self.keeper.trouble,
            filling=self._filler.progress if self._filler else "",
            store=store,
            stored_index=stored.index if is_there else 0,
            stored_at_ms=stored.taken_ms if is_there else 0,
            segments_waiting=waiting if store else 0,
            resolving=leader.resolving,
            outputs_waiting=self._outputs_waiting(leader),
        )
        if not trouble.text and self._outputs is not None:
            trouble = self._outputs.trouble
        if leader.epoch is None or not trouble.text:
            return view
        text = "; ".join(one for one in (trouble.text, view.failing) if one)
        return msgspec.structs.replace(view, failing_since_ms=trouble.since_ms, failing=text)

    def _outputs_waiting(self, leader: Leader) -> int | None:
        """How many outputs are to be stored yet; None where none are, or another one knows."""
        is_on = self._config.object_storage.output and leader.epoch is not None
        return self._outputs.waiting if self._outputs is not None and is_on else None


def output_settings_of(config: ReplicaConfig) -> OutputSettings:
    """Return what the courier of outputs goes by: outputs are kept as long as is said, or else as
    the longest part of the history."""
    storage, history = config.object_storage, config.history
    longest = max(history.keep_days, history.keep_failed_days) if history.keep_days else 0
    days = storage.output_days or longest
    return OutputSettings(storage.output, days * DAY_MS, Path(config.data) / "outputs")


def settings_of(config: ReplicaConfig) -> ArchiveSettings:
    """Return what the archivist goes by."""
    snapshots, history = config.snapshots, config.history
    return ArchiveSettings(
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


def _vault(config: ReplicaConfig) -> Vault | None:
    """Return the vault of the configured store; nothing is asked of it yet.

    Raises:
        ConfigError: there can be no such store.
    """
    if not config.object_storage.url:
        return None
    try:
        return Vault(open_store(config.object_storage.url), config.cell)
    except StoreError as error:
        raise ConfigError(f"object_storage.url: {error}", error.hint) from error

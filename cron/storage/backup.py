"""The leader's backup: it seals segments, takes snapshots, retires old history, and runs the
uploader.

It looks once a second while this replica leads. The commands that the retention planner returns are
appended to the log like any change. The uploader's turns run beside it, one at a time, so a store
that is slow or unreachable delays nothing here. If the store knows a newer generation of this cell,
this one ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Protocol

import structlog

from consensus.errors import ConsensusError
from cron.clock import Clock
from cron.errors import CronError, Superseded
from cron.state import commands as c
from cron.state.archive import SegmentRecord
from cron.state.commands import SegmentKey
from cron.state.outcome import Outcome
from cron.storage.leading import Applier, Leader
from cron.storage.retention_planner import LogPlace, RetentionSettings, due
from cron.storage.uploader import Trouble, Uploader

_log = structlog.get_logger()

LOOK_S: Final = 1.0
COUNT_MS: Final = 10_000
"""How often one segment is checked, in turn: has each of its rows enough newer ones? A check costs
50 ms of the history's thread."""

_KEEPING: Final = (c.Seal, c.SnapshotAt, c.BackedUp, c.Retire, c.Claim)
"""Commands that a restore does not need: no snapshot is taken for them alone."""


class Census(Protocol):
    """The part of history that counts launches."""

    async def outlived(self, record: SegmentRecord, newer: int) -> bool:
        """Return whether each row of a segment has at least `newer` later ones of its job; False if
        that is unknown. Raises CronError while history cannot be read.
        """


class Backup:
    """The backup of one replica; it works while the replica leads.

    `uploader` is None without object storage. `superseded` is called once, with the reason, when a
    newer generation of the cell was begun.
    """

    def __init__(
        self,
        leader: Leader,
        applier: Applier,
        clock: Clock,
        *,
        settings: RetentionSettings,
        uploader: Uploader | None,
        census: Census,
        superseded: Callable[[BaseException], None],
    ) -> None:
        self._leader = leader
        self._applier = applier
        self._clock = clock
        self._settings = settings
        self._uploader = uploader
        self._census = census
        self._superseded = superseded
        self._turn: asyncio.Task[None] | None = None
        self._is_over = False
        self._applied = -1
        self._changed = 0
        self._counted: SegmentKey | None = None
        self._count_at_ms = 0
        applier.subscribe(self._note)

    async def run(self) -> None:
        """Look once a second until cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                await self.look()
        finally:
            if self._turn is not None:
                self._turn.cancel()

    def close(self) -> None:
        """End the uploader's thread; do not wait for an upload in progress."""
        if self._uploader is not None:
            self._uploader.close()

    @property
    def trouble(self) -> Trouble:
        """Since when and why nothing gets into object storage."""
        return self._uploader.trouble if self._uploader is not None else Trouble()

    async def look(self) -> None:
        """Append what is due, and start a turn of the uploader if none runs: once a second."""
        self._take_result()
        epoch = self._leader.epoch
        if self._uploader is not None:
            self._uploader.lead(epoch)
        if epoch is None or self._is_over:
            return
        await self._append_due()
        if self._uploader is not None and self._turn is None and not self._uploader.is_resting:
            self._turn = asyncio.create_task(self._uploader.turn(), name="upload")

    async def finish_turn(self) -> None:
        """Wait until the uploader's turn has ended, and take its result."""
        if self._turn is not None:
            await asyncio.wait([self._turn])
        self._take_result()

    def _take_result(self) -> None:
        """Take the result of an uploader's turn that has ended; raise an unexpected error."""
        if self._turn is None or not self._turn.done():
            return
        turn, self._turn = self._turn, None
        try:
            turn.result()
        except Superseded as error:
            self._is_over = True
            self._superseded(error)

    # ---- what is due

    def _note(self, index: int, outcome: Outcome) -> None:
        """Record the newest entry that a snapshot is taken for; called after every entry."""
        is_known = index == self._applied + 1
        self._applied = index
        if not is_known or not all(isinstance(one, _KEEPING) for one in outcome.commands):
            self._changed = index

    async def _append_due(self) -> None:
        state = self._applier.state
        if state.is_resolving:
            return
        now_ms = self._leader.now_ms()
        # The entries of a dump were not seen here, so any of them may have changed something.
        changed = self._changed if self._applied == state.index else state.index
        restored = state.restored.index if state.restored is not None else 0
        log = LogPlace(state.index, changed, restored)
        outlived = await self._outlived()
        commands = due(state.history, now_ms, log, self._settings, outlived)
        if not commands:
            return
        try:
            await self._leader.append(*commands)
        except (CronError, ConsensusError) as error:
            _log.debug("archive.refused", error=str(error))  # the next look checks

    async def _outlived(self) -> Collection[SegmentKey]:
        """Return the next segment, in turn, if it is on the disks and all its launches have enough
        newer ones."""
        now_ms, newer = self._clock.mono_ms(), self._settings.keep_runs
        if not newer or now_ms < self._count_at_ms:
            return ()
        self._count_at_ms = now_ms + COUNT_MS
        segments = self._applier.state.history.segments
        keys = [record.key for record in segments.values() if record.is_history]
        later = [key for key in keys if self._counted is None or key > self._counted]
        self._counted = next(iter(later or keys), None)
        record = segments[self._counted] if self._counted is not None else None
        if record is None or not record.is_local:
            return ()
        try:
            is_outlived = await self._census.outlived(record, newer)
        except CronError as error:
            _log.debug("archive.not_counted", error=str(error))
            return ()
        return (record.key,) if is_outlived else ()

"""The leader's backup: it seals, takes snapshots, lets history go, and runs the uploader.

Theory of operation. One look a second while this replica leads. What the retention planner says is
due goes into the log like any change. The uploader's turns run beside it, one at a time: a store
that is slow or away holds up nothing here, least of all a launch. A store that knows a newer life
of this cell ends this one.
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
from cron.state.state import State
from cron.storage.leading import Applier, Leader
from cron.storage.retention_planner import Progress, RetentionSettings, due
from cron.storage.uploader import Trouble, Uploader

_log = structlog.get_logger()

LOOK_S: Final = 1.0
COUNT_MS: Final = 10_000
"""How often a segment is looked at, in turn, whether each of its rows has enough newer ones: 50 ms
of the history's thread."""

_KEEPING: Final = (c.Seal, c.SnapshotAt, c.BackedUp, c.Retire, c.Claim)
"""What a restore can do without: no snapshot is taken for it alone."""


class Census(Protocol):
    """Who can count launches: history."""

    async def outlived(self, record: SegmentRecord, newer: int) -> bool:
        """Whether each row of a segment has at least `newer` later ones of its job; False where
        that cannot be told. Raises CronError while it cannot be asked."""


class Backup:
    """The archive of one replica; it works while the replica leads.

    `uploader` is None where no object storage is configured. `superseded` is called once, with the
    reason, when another life of the cell was begun.
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
        """Look after the archive for ever; nothing but a bug ends it."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                await self.look()
        finally:
            if self._turn is not None:
                self._turn.cancel()

    def close(self) -> None:
        """End the uploader's thread; an upload that is under way is left to itself."""
        if self._uploader is not None:
            self._uploader.close()

    @property
    def trouble(self) -> Trouble:
        """Since when and why nothing gets into object storage."""
        return self._uploader.trouble if self._uploader is not None else Trouble()

    async def look(self) -> None:
        """Append what is due, and send the uploader if it is there and rested: once a second."""
        self._hear()
        epoch = self._leader.epoch
        if self._uploader is not None:
            self._uploader.lead(epoch)
        if epoch is None or self._is_over:
            return
        await self._append_due()
        if self._uploader is not None and self._turn is None and not self._uploader.is_resting:
            self._turn = asyncio.create_task(self._uploader.turn(), name="upload")

    async def settled(self) -> None:
        """Wait until the uploader is back; what it found is heard."""
        if self._turn is not None:
            await asyncio.wait([self._turn])
        self._hear()

    def _hear(self) -> None:
        """Take note of how the uploader's turn has ended; bugs go on from here."""
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
        """Remember the newest entry that matters; after every one that is applied."""
        is_known = index == self._applied + 1
        self._applied = index
        if not is_known or not all(isinstance(one, _KEEPING) for one in outcome.commands):
            self._changed = index

    def _progress(self, state: State) -> Progress:
        # What a dump brought was not seen: it may be anything.
        changed = self._changed if self._applied == state.index else state.index
        restored = state.restored.index if state.restored is not None else 0
        return Progress(state.index, changed, restored)

    async def _append_due(self) -> None:
        state = self._applier.state
        if state.is_resolving:
            return
        now_ms = self._leader.now_ms()
        progress = self._progress(state)
        outlived = await self._outlived()
        commands = due(state.history, now_ms, progress, self._settings, outlived)
        if not commands:
            return
        try:
            await self._leader.append(*commands)
        except (CronError, ConsensusError) as error:
            _log.debug("archive.refused", error=str(error))  # the next look sees what became of it

    async def _outlived(self) -> Collection[SegmentKey]:
        """Ask about the next segment, in turn, whether its launches are not among the newest."""
        now_ms, newer = self._clock.mono_ms(), self._settings.keep_runs
        if not newer or now_ms < self._count_at_ms:
            return ()
        self._count_at_ms = now_ms + COUNT_MS
        record = self._next_counted()
        if record is None:
            return ()
        try:
            is_outlived = await self._census.outlived(record, newer)
        except CronError as error:
            _log.debug("archive.not_counted", error=str(error))
            return ()
        return (record.key,) if is_outlived else ()

    def _next_counted(self) -> SegmentRecord | None:
        """The next segment that is on the disks, from the oldest to the newest and again."""
        keys = [record.key for record in self._applier.state.history.segments.values()]
        later = [key for key in keys if self._counted is None or key > self._counted]
        self._counted = next(iter(later or keys), None)
        segments = self._applier.state.history.segments
        record = segments[self._counted] if self._counted is not None else None
        return record if record is not None and record.is_local else None

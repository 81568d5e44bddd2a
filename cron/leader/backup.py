"""The leader's archive: it seals, takes snapshots, and carries both into object storage.

Theory of operation. One task, one look a second while this replica leads. What the archivist says
is due goes into the log like any change. Then the backlog: segments that the log does not know to
be stored, then the newest snapshot whose segments are; one upload at a time, in a thread, so that
nothing of it is ever in the way of a launch. What the store has is told to the log (`BackedUp`):
for the next leader, for floors (rule R4) and for people.

A store that is away is tried again, later and later, up to once a minute; the backlog waits on the
disks. A store that knows a newer life of this cell ends this one: it was restored elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

import msgspec
import structlog

from consensus.errors import ConsensusError
from cron.clock import Clock
from cron.errors import CronError, Superseded
from cron.leader import uploads
from cron.leader.applier import StateApplier
from cron.leader.archivist import ArchiveSettings, due
from cron.leader.leader import Leader
from cron.leader.requests import appending
from cron.leader.uploads import About, Shelf, name_of
from cron.state import commands as c
from cron.state.archive import History
from cron.state.commands import SegmentKey
from snapshots.disk import SnapshotFile
from snapshots.errors import SnapshotError, StoreError
from snapshots.retention import SnapshotPolicy
from snapshots.vault import Vault

_log = structlog.get_logger()
_T = TypeVar("_T")

LOOK_S: Final = 1.0
REST_MIN_MS: Final = 1_000
REST_MAX_MS: Final = 60_000
CLAIM_MS: Final = 30_000
"""How often the store is asked whether the cell was restored elsewhere."""
PRUNE_MS: Final = 600_000
TOLD_SEGMENTS: Final = 100
"""Segments that one entry tells of: after an outage there may be thousands."""


class Trouble(msgspec.Struct):
    """Since when (wall clock) and why nothing gets into object storage; how far an upload is."""

    since_ms: int = 0
    text: str = ""
    doing: str = ""


class Storing(msgspec.Struct, frozen=True):
    """Where things go, when, and for how long. `vault` is None where no object storage is
    configured; `draw` returns a new random identity."""

    vault: Vault | None
    settings: ArchiveSettings
    policy: SnapshotPolicy
    about: About
    draw: Callable[[], str]


class Backup:
    """The archive of one replica; it works while the replica leads.

    `superseded` is called, with the reason, when another life of the cell was begun.
    """

    def __init__(
        self,
        leader: Leader,
        applier: StateApplier,
        clock: Clock,
        *,
        shelf: Shelf,
        storing: Storing,
        superseded: Callable[[BaseException], None],
    ) -> None:
        self._leader = leader
        self._applier = applier
        self._clock = clock
        self._shelf = shelf
        self._vault = storing.vault
        self._settings = storing.settings
        self._policy = storing.policy
        self._about = storing.about
        self._draw = storing.draw
        self._superseded = superseded
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="backup")
        self._reign = 0
        self._claim_at_ms = 0
        self._prune_at_ms = 0
        self._try_at_ms = 0
        self._rest_ms = REST_MIN_MS
        self.trouble = Trouble()

    async def run(self) -> None:
        """Look after the archive for ever; nothing but a bug ends it."""
        while True:
            await asyncio.sleep(LOOK_S)
            epoch = self._leader.epoch
            if epoch is None or self._applier.state.is_resolving:
                self.trouble = Trouble()
                continue
            if epoch.term != self._reign:
                self._reign, self._claim_at_ms, self._try_at_ms = epoch.term, 0, 0
            await self.step()

    def close(self) -> None:
        """End the thread; an upload that is under way is left to itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def _history(self) -> History:
        return self._applier.state.history

    async def step(self) -> None:
        """Do what is due now: once a second."""
        state = self._applier.state
        commands = due(state.history, self._leader.now_ms(), state.index, self._settings)
        if commands:
            await self._submit(*commands)
        vault = self._vault
        if vault is None or self._clock.mono_ms() < self._try_at_ms:
            return
        try:
            await self._claim(vault)
            await self._store_segments(vault)
            await self._store_snapshot(vault)
            await self._prune(vault)
        except (StoreError, SnapshotError, OSError) as error:
            self._fail(error)
        else:
            self._rest_ms, self.trouble = REST_MIN_MS, Trouble()

    def _fail(self, error: Exception) -> None:
        now_ms = self._clock.wall_ms()
        if str(error) != self.trouble.text:
            _log.warning("backup.failed", error=str(error), hint=getattr(error, "hint", ""))
        self.trouble = Trouble(self.trouble.since_ms or now_ms, str(error))
        self._try_at_ms = self._clock.mono_ms() + self._rest_ms
        self._rest_ms = min(2 * self._rest_ms, REST_MAX_MS)

    async def _submit(self, *commands: c.Command) -> bool:
        """Append commands; False if they may not be in the log: the next look sees."""
        try:
            await self._leader.submit(appending(*commands))
        except (CronError, ConsensusError) as error:
            _log.debug("archive.refused", error=str(error))
            return False
        return True

    async def _work(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    # ---- whose place in the store it is

    async def _claim(self, vault: Vault) -> None:
        now_ms = self._clock.mono_ms()
        backup, store = self._history.backup, self._settings.store
        if backup.store != store or not backup.claim:
            # In the log before it is in the store: the next leader must find it to be ours.
            await self._submit(c.BackedUp(store, claim=self._draw()))
            self._claim_at_ms = 0
            backup = self._history.backup
            if backup.store != store or not backup.claim:
                return
        if now_ms < self._claim_at_ms:
            return
        lineage = self._applier.state.epoch.lineage
        work = partial(uploads.claim, vault, lineage, backup.claim, self._about)
        newest = await self._work(work)
        self._claim_at_ms = now_ms + CLAIM_MS
        if newest > lineage:
            text = (
                f"cell {vault.cell} was restored elsewhere: {vault.store.url} knows lineage "
                f"{newest}, this one is {lineage}"
            )
            self._superseded(Superseded(text, "this cell must not run any more; use the new one"))

    @property
    def _is_ours(self) -> bool:
        backup = self._history.backup
        return backup.store == self._settings.store and bool(backup.claim)

    # ---- what goes there

    async def _store_segments(self, vault: Vault) -> None:
        """Store all segments that are not, oldest first."""
        if not self._is_ours:
            return
        done: list[SegmentKey] = []
        waiting = [one for one in self._history.segments.values() if not one.is_stored]
        try:
            for number, record in enumerate(waiting, 1):
                path = self._shelf.segment_path(name_of(record))
                if path is None:
                    continue  # not on this disk yet
                self.trouble.doing = f"stores segment {number} of {len(waiting)}"
                await self._work(partial(vault.put_segment, path))
                done.append(record.key)
                if len(done) >= TOLD_SEGMENTS:
                    done = await self._tell_segments(done)
        finally:
            self.trouble.doing = ""
            await self._tell_segments(done)

    async def _tell_segments(self, done: list[SegmentKey]) -> list[SegmentKey]:
        if done:
            await self._submit(c.BackedUp(self._settings.store, tuple(done)))
        return []

    async def _store_snapshot(self, vault: Vault) -> None:
        """Store the newest snapshot, once all segments that it names are stored."""
        file = self._next_snapshot()
        if file is None or not self._is_ours:
            return
        wanted = {name_of(one): one for one in self._history.segments.values()}
        work = partial(uploads.describe, file, wanted.keys(), self._about)
        manifest, records = await self._work(work)
        missing = [one for one in records if not wanted[name_of(one)].is_stored]
        if missing:
            return
        # Who restored this cell since must win: nothing of ours may look newer than theirs.
        self._claim_at_ms = 0
        await self._claim(vault)

        def tell(done: int) -> None:
            self.trouble.doing = f"stores a snapshot: {done:,} of {file.file_bytes:,} bytes"

        try:
            await self._work(partial(vault.put_snapshot, file, manifest, tell))
        finally:
            self.trouble.doing = ""
        header = file.header
        told = c.BackedUp(
            self._settings.store, (), header.lineage, header.term, header.index, header.taken_ms
        )
        if await self._submit(told):
            _log.info("snapshot.stored", index=header.index, bytes=file.file_bytes)

    def _next_snapshot(self) -> SnapshotFile | None:
        backup = self._history.backup
        lineage = self._applier.state.epoch.lineage
        for file in self._shelf.snapshots():
            header = file.header
            newer = (header.lineage, header.index) > (backup.lineage, backup.index)
            if newer and header.lineage == lineage:
                return file
        return None

    async def _prune(self, vault: Vault) -> None:
        now_ms = self._clock.mono_ms()
        if now_ms < self._prune_at_ms or not self._history.backup.index:
            return
        self._prune_at_ms = now_ms + PRUNE_MS
        catalog = list(self._history.segments.values())
        work = partial(uploads.prune, vault, self._policy, self._clock.wall_ms(), catalog)
        pruned = await self._work(work)
        if pruned.snapshots or pruned.segments:
            _log.info(
                "backup.pruned", snapshots=len(pruned.snapshots), segments=len(pruned.segments)
            )

"""The leader's uploader of outputs: what finished attempts wrote goes from executors into object
storage, in log order, a few at a time.

Theory of operation. Rows with output are read from history behind a mark, a log index that
State keeps (`History.outputs_index`): what ended up to there is stored, or given up. So the next
leader goes on where this one was; what was stored and not told is stored again, which does no harm.
An executor that is away holds up its own outputs for a while, and no others; the mark waits for the
oldest. A store that is away holds up all, and nothing is given up meanwhile.

Nothing waits for any of this: each transfer has a thread of its own, beside those of the backup.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from consensus.errors import ConsensusError
from cron.clock import Clock
from cron.errors import CronError, Shutdown
from cron.lane import Lane
from cron.state import commands as c
from cron.state.archive import History
from cron.storage import uploads
from cron.storage.leading import Applier, Leader
from cron.storage.output_transfer import Executors, ExecutorSilent, OutputGone, Transfer
from cron.storage.output_window import Rows, Waiting, Window
from cron.storage.uploader import REST_MAX_MS, REST_MIN_MS, SILENT_MS, WATCH_MS, Storing, Trouble
from launcher.work import Epoch
from snapshots.errors import SnapshotError, StoreAway, StoreError

_log = structlog.get_logger()

LOOK_S: Final = 1.0
TRANSFERS: Final = 4
OF_ONE_EXECUTOR: Final = 2
"""Transfers from one executor at once: one that answers slowly leaves places for others."""
GIVE_UP_MS: Final = 600_000
"""How long after its end an output is asked for."""
GRACE_MS: Final = 60_000
"""And how long an executor must have been silent: one that is restarted loses no old outputs, which
a store that was away has left with it."""
DAY_MS: Final = 86_400_000
PRUNE_MS: Final = 600_000
"""How soon a pruning that failed is tried again; one that did not is done for the day."""
PRUNED_AT_ONCE: Final = 10_000


class OutputSettings(msgspec.Struct, frozen=True):
    """`is_on`: outputs are stored. `keep_ms`: and deleted so long after the day of their end, 0 for
    never. `folder`: for files under way."""

    is_on: bool = True
    keep_ms: int = 0
    folder: Path = Path("outputs")


class OutputLeader(Leader, Protocol):
    """A leader with a pool of executors."""

    @property
    def pool(self) -> Executors:
        """The executors that are connected."""


class Outputs:
    """What one replica does for outputs while it leads."""

    def __init__(
        self,
        leader: OutputLeader,
        applier: Applier,
        row_store: Rows,
        clock: Clock,
        storing: Storing,
        settings: OutputSettings,
        pool: Executors | None = None,
    ) -> None:
        self._leader = leader
        self._applier = applier
        self._clock = clock
        self._storing = storing
        self._settings = settings
        self._pool: Executors = pool or leader.pool
        self._lane = Lane("outputs")
        self._window = Window(applier, row_store, clock)
        self._transfers = [
            Transfer(f"output-{n}", self._pool, storing.vault, settings.folder, clock)
            for n in range(TRANSFERS)
        ]
        self._free = list(self._transfers)
        self._running: dict[asyncio.Task[None], Waiting] = {}
        self._chore: asyncio.Task[None] | None = None
        self._chore_since_ms = 0
        self._bug: BaseException | None = None
        self._epoch: Epoch | None = None
        self._begin_reign(None)

    async def run(self) -> None:
        """Look after outputs for ever; nothing but a bug ends it."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                await self.look()
        finally:
            self._stop()

    def close(self) -> None:
        """End the threads; calls that are under way are left to themselves."""
        self._stop()  # or the end of one transfer would begin the next
        self._lane.close()
        for transfer in self._transfers:
            transfer.close()

    @property
    def waiting(self) -> int:
        """How many outputs are yet to be stored; 0 where this replica does not lead."""
        return self._window.waiting if self._epoch is not None else 0

    @property
    def trouble(self) -> Trouble:
        """Since when and why no output gets into the store: what failed, or does not return."""
        asked = [self._chore_since_ms, *(one.storing_since_ms for one in self._transfers)]
        now_ms = self._clock.mono_ms()
        silent_ms = max(now_ms - since_ms for since_ms in [*filter(None, asked), now_ms])
        if self._failed.text or silent_ms < SILENT_MS:
            return self._failed if self._failed.text else self._not_pruned
        text = f"{self._storing.store}: no answer yet: stores outputs"
        return Trouble(self._clock.wall_ms() - silent_ms, text)

    # ---- a reign

    def _begin_reign(self, epoch: Epoch | None) -> None:
        self._stop()
        self._epoch = epoch
        self._failed = self._not_pruned = Trouble()
        self._rest_ms = REST_MIN_MS
        self._try_at_ms = self._watch_at_ms = self._prune_at_ms = 0
        self._pruned_day = -1
        self._is_ours = False  # the place in the store, when it was looked at last
        self._is_put_failing = False
        self._has_news = False
        self._window.clear(self._history.outputs_index)

    def _stop(self) -> None:
        for task in [*self._running, *([self._chore] if self._chore else [])]:
            task.cancel()
        self._running.clear()
        self._chore, self._chore_since_ms = None, 0
        self._free = list(self._transfers)

    @property
    def _history(self) -> History:
        return self._applier.state.history

    def _may(self) -> bool:
        """Whether there is anything to do for a leader here; a place in the store, above all."""
        backup = self._history.backup
        is_known = backup.store == self._storing.store and bool(backup.claim)
        is_asked = self._settings.is_on or self._settings.keep_ms > 0
        may_ask = self._epoch is not None and not self._applier.state.is_resolving
        return is_asked and is_known and may_ask

    # ---- a look

    async def look(self) -> None:
        """Read what has ended, begin what can be begun, tell the log how far it is: once a
        second."""
        if self._bug is not None:
            raise self._bug
        if self._leader.epoch != self._epoch:
            self._begin_reign(self._leader.epoch)
        if not self._may():
            return
        self._begin_chore()
        if not self._settings.is_on:
            return
        await self._window.read()
        self._give_up()
        self._begin()
        await self._tell()

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        while tasks := [*self._running, *([self._chore] if self._chore else [])]:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # what follows from their ends is done then

    async def _tell(self) -> None:
        """Tell the log how far it is, if anything was stored or given up since."""
        mark = self._window.mark
        if not self._has_news or mark <= self._history.outputs_index:
            return
        command = c.OutputsStored(self._storing.store, mark)
        self._has_news = False
        try:
            await self._leader.append(command)
        except (CronError, ConsensusError) as error:
            self._has_news = True
            _log.debug("outputs.refused", error=str(error))

    # ---- transfers

    def _begin(self) -> None:
        """Begin as many transfers as there are places and outputs for."""
        now_ms = self._clock.mono_ms()
        if not self._is_ours or now_ms < self._try_at_ms:
            return
        while self._free:
            one = self._window.next(now_ms, OF_ONE_EXECUTOR)
            if one is None:
                return
            transfer = self._free.pop()
            task = asyncio.create_task(self._carry(transfer, one), name="output")
            self._running[task] = one
            task.add_done_callback(partial(self._carried, transfer))

    async def _carry(self, transfer: Transfer, one: Waiting) -> None:
        """Store one output; what comes of it is noted."""
        try:
            size = await transfer.run(one.wanted)
        except OutputGone as error:
            self._drop(one, str(error))
        except ExecutorSilent as error:
            self._window.put_back(one, self._clock.mono_ms(), str(error))
        except (StoreError, SnapshotError, OSError) as error:
            self._window.put_back(one)
            self._is_put_failing = True
            self._fail(error)
        except Shutdown:
            self._window.put_back(one)
        else:
            _log.debug("output.stored", launch=str(one.wanted.name), bytes=size)
            self._window.done(one)
            self._has_news = True
            self._succeed()

    def _carried(self, transfer: Transfer, task: asyncio.Task[None]) -> None:
        """Give the place to the next output."""
        self._note_bug(task)
        if self._running.pop(task, None) is None:
            return  # of a reign that is over: all was begun anew
        self._free.append(transfer)
        self._begin()

    def _note_bug(self, task: asyncio.Task[None]) -> None:
        """What a task does not expect is a bug, which the next look raises: the replica stops."""
        if not task.cancelled() and task.exception() is not None:
            self._bug = task.exception()

    # ---- giving up

    def _give_up(self) -> None:
        """Give up what is over its time and whose executor is away, or does not give it."""
        now_ms = self._clock.mono_ms()
        self._window.note_connected({one.executor for one in self._pool.sessions()}, now_ms)
        if self._failed.text:
            return
        before_ms = self._leader.now_ms() - GIVE_UP_MS
        for one, why in self._window.overdue(before_ms, now_ms - GRACE_MS):
            self._drop(one, why)

    def _drop(self, one: Waiting, why: str) -> None:
        _log.warning("output.not_stored", launch=str(one.wanted.name), error=why)
        self._window.done(one)
        self._has_news = True

    # ---- the store

    def _fail(self, error: Exception) -> None:
        is_away = isinstance(error, StoreAway)
        hint = getattr(error, "hint", "")
        text = str(error) if is_away or not hint else f"{error}: {hint}"
        if text != self._failed.text:
            (_log.warning if is_away else _log.error)("outputs.failed", error=text)
        self._failed = Trouble(self._failed.since_ms or self._clock.wall_ms(), text)
        now_ms = self._clock.mono_ms()
        if now_ms >= self._try_at_ms:  # several may fail at once
            self._try_at_ms = now_ms + self._rest_ms
            self._rest_ms = min(2 * self._rest_ms, REST_MAX_MS)
        self._is_ours, self._watch_at_ms = False, 0  # looked at again before anything else

    def _succeed(self) -> None:
        if self._failed.text:
            self._window.forgive()
        self._failed, self._rest_ms, self._is_put_failing = Trouble(), REST_MIN_MS, False

    def _begin_chore(self) -> None:
        """Look whose place in the store it is, and delete what is over its time."""
        now_ms = self._clock.mono_ms()
        if self._chore is None and now_ms >= max(self._watch_at_ms, self._try_at_ms):
            self._chore_since_ms = now_ms
            self._chore = asyncio.create_task(self._look_at_store(), name="outputs")
            self._chore.add_done_callback(self._looked)

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._note_bug(task)
        if task is self._chore:
            self._chore, self._chore_since_ms = None, 0
            if self._settings.is_on:
                self._begin()

    async def _look_at_store(self) -> None:
        storing = self._storing
        claim, lineage = self._history.backup.claim, self._applier.state.epoch.lineage
        look = partial(uploads.claim, storing.vault, lineage, claim, storing.about)
        try:
            newest = await self._lane.work(look)
            # A newer life of the cell has its own leader; the backup's uploader ends this one.
            self._is_ours = newest <= lineage
            self._watch_at_ms = self._clock.mono_ms() + WATCH_MS
            if self._is_ours:
                await self._prune()
        except (StoreError, SnapshotError, OSError) as error:
            self._fail(error)
        except Shutdown:
            return
        else:
            if not self._is_put_failing:
                self._succeed()

    async def _prune(self) -> None:
        """Delete what is over its time, a day at once: so once a day is enough."""
        keep_ms, now_ms = self._settings.keep_ms, self._clock.mono_ms()
        before_ms = self._leader.now_ms() - keep_ms
        if not keep_ms or now_ms < self._prune_at_ms or before_ms // DAY_MS <= self._pruned_day:
            return
        prune = partial(self._storing.vault.prune_outputs, before_ms, PRUNED_AT_ONCE)
        try:
            count = await self._lane.work(prune)
        except StoreError as error:  # who may not delete may still store
            _log.warning("outputs.not_pruned", error=str(error))
            since_ms = self._not_pruned.since_ms or self._clock.wall_ms()
            self._not_pruned = Trouble(since_ms, str(error))
            self._prune_at_ms = now_ms + PRUNE_MS
            return
        self._not_pruned = Trouble()
        if count < PRUNED_AT_ONCE:  # else the rest goes with the next look at the store
            self._pruned_day = before_ms // DAY_MS
        if count:
            _log.info("outputs.pruned", count=count)

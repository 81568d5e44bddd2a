"""The uploader: stores segments and snapshots in object storage, deletes what nobody needs any
more, and detects that the cell was restored elsewhere.

A turn does all pending work: it stores segments, oldest first, then the newest snapshot, once all
segments that it names are stored. The calls run one after the other in a thread of their own. A
crash after any call is safe: the uploader reports to the log (`BackedUp`) what the store has only
after it is there, and the next turn, or the next leader, continues from what log and store say.
Repeating a call does no harm, because the bytes are the same on every replica.

First, and every half minute, the uploader checks which cell owns the place in the store. The cell's
claim is in the log before it is in the store, so every leader recognises it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import structlog

from consensus.errors import ConsensusError
from cron.call_thread import CallThread
from cron.clock import Clock
from cron.errors import CronError, Superseded
from cron.state import commands as c
from cron.state.archive import History, SegmentRecord
from cron.state.commands import SegmentKey
from cron.storage.folders import name_of
from cron.storage.leading import Applier, Leader
from cron.storage.snapshot_writer import SnapshotWriter
from cron.storage.uploads import Outline, Uploads, outline_of
from launcher.protocol.work import Epoch
from snapshots.disk import SnapshotFile
from snapshots.errors import SnapshotError, StoreAway, StoreError

_log = structlog.get_logger()
_T = TypeVar("_T")

REST_MIN_MS: Final = 1_000
REST_MAX_MS: Final = 60_000
WATCH_MS: Final = 30_000
"""How often the store is asked whether the cell was restored elsewhere."""
PRUNE_MS: Final = 600_000
SILENT_MS: Final = 6_000
"""A call without progress for so long is reported, so that `status` names it within 10 s: the store
may hang. The call itself goes on: boto3 tries four times, which takes a minute."""
HELD_MS: Final = 600_000
"""How long the snapshots of a leadership term wait for a segment that should be on the disks and is
not."""
REPORTED_SEGMENTS: Final = 100
"""Segments that one entry reports: after an outage there may be thousands."""


class Trouble(msgspec.Struct, frozen=True):
    """Since when (wall clock) and why nothing gets into object storage; 0 and "" if it does."""

    since_ms: int = 0
    text: str = ""


class Deposed(Exception):
    """This replica does not lead any more; the next leader continues."""


class MissingObjects:
    """The segments that are neither in the store nor on this disk, and how long backups wait for
    them; in one leadership term.

    A segment may be on its way from a peer. But it may also be lost: on all disks, or in an earlier
    store that is not configured any more. If the store has damaged bytes under its name, only a
    person can remove them. Snapshots must not wait for old history forever, so after a while they
    are stored without naming the missing segments.

    `refused` are segments of this disk whose name in the store has other bytes.
    """

    def __init__(self, local: SnapshotWriter, mono_ms: Callable[[], int]) -> None:
        self._local = local
        self._mono_ms = mono_ms
        self._held_ms: int | None = None  # since when, on the clock that counts on
        self.refused: frozenset[SegmentKey] = frozenset()

    def forget(self) -> None:
        """Begin a leadership term, with a new waiting time."""
        self._held_ms = None

    def of(self, records: Iterable[SegmentRecord]) -> list[SegmentRecord]:
        """Return those of `records` that are not stored, and that this replica cannot store now."""
        return [
            one
            for one in records
            if not one.is_stored
            and (one.key in self.refused or self._local.segment_path(name_of(one)) is None)
        ]

    def look(self, records: Iterable[SegmentRecord]) -> None:
        """Record since when segments are missing that should be on the disks."""
        if not any(one.is_local for one in self.of(records)):
            self._held_ms = None
        elif self._held_ms is None:
            self._held_ms = self._mono_ms()

    def given_up(self, records: Iterable[SegmentRecord]) -> list[SegmentRecord]:
        """Return those of `records` for which backups do not wait any more; call `look` before."""
        held_ms = self._held_ms
        is_over = held_ms is not None and self._mono_ms() - held_ms >= HELD_MS
        return [one for one in self.of(records) if is_over or not one.is_local]


class Uploader:
    """Stores what one replica keeps in object storage, while it leads."""

    def __init__(
        self,
        leader: Leader,
        applier: Applier,
        clock: Clock,
        local: SnapshotWriter,
        uploads: Uploads,
    ) -> None:
        self._leader = leader
        self._applier = applier
        self._clock = clock
        self._local = local
        self._uploads = uploads
        self._call_thread = CallThread("backup")
        self._epoch: Epoch | None = None
        self._try_at_ms = 0
        self._rest_ms = REST_MIN_MS
        self._watch_at_ms = 0
        self.has_place = False
        """Whether the store answered when it was asked last, and the place there is this cell's."""
        self._prune_at_ms = 0
        self._failed = Trouble()
        self._doing = ""
        self._silent = (0, 0)  # since when the store has not answered: monotonic and wall clock
        self._outlines: dict[Path, Outline] = {}
        self._missing = MissingObjects(local, clock.mono_ms)
        self._lacks = Trouble()
        self._copies_at_ms = 0

    def close(self) -> None:
        """End the thread; do not wait for an upload in progress."""
        self._call_thread.close()

    def lead(self, epoch: Epoch | None) -> None:
        """Begin a leadership term, or end it (None); forget the failures of earlier terms."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._try_at_ms, self._rest_ms = 0, REST_MIN_MS
            self._watch_at_ms, self._prune_at_ms, self._copies_at_ms = 0, 0, 0
            self.has_place = False
            self._failed, self._lacks, self._outlines = Trouble(), Trouble(), {}
            self._missing.forget()

    @property
    def is_resting(self) -> bool:
        """Whether the store failed recently, and is tried again later."""
        return self._clock.mono_ms() < self._try_at_ms

    @property
    def trouble(self) -> Trouble:
        """The problem to report: a failure that lasts, a call that does not return, or segments
        that cannot be stored.
        """
        mono_ms, wall_ms = self._silent
        if self._failed.text or not mono_ms or self._clock.mono_ms() - mono_ms < SILENT_MS:
            return self._failed if self._failed.text else self._lacks
        return Trouble(wall_ms, f"{self._uploads.url}: no answer yet: {self._doing}")

    async def turn(self) -> None:
        """Do all pending work. If the store fails, `trouble` says why, and the next turn is due
        after a rest.

        Raises:
            Superseded: the cell was restored elsewhere.
        """
        refused: Exception | None = None
        try:
            await self._watch()
            if self._is_ours and not self._applier.state.is_resolving:
                refused = await self._store_segments()
                await self._find_copies()
                await self._store_snapshot()
                refused = await self._prune() or refused
        except (StoreError, SnapshotError, OSError) as error:
            self.has_place &= not isinstance(error, StoreError)
            self._fail(error)
        except Deposed:
            pass
        else:
            if refused is not None:
                self._fail(refused)
            else:
                self._rest_ms, self._failed = REST_MIN_MS, Trouble()

    def _fail(self, error: Exception) -> None:
        is_away = isinstance(error, StoreAway)
        hint = getattr(error, "hint", "")
        text = str(error) if is_away or not hint else f"{error}: {hint}"
        if text != self._failed.text:
            log = _log.warning if is_away else _log.error
            log("backup.failed", error=text)
        self._failed = Trouble(self._failed.since_ms or self._clock.wall_ms(), text)
        self._try_at_ms = self._clock.mono_ms() + self._rest_ms
        self._rest_ms = min(2 * self._rest_ms, REST_MAX_MS)
        self._watch_at_ms = 0  # so that the next turn asks the store, whatever else there is to do

    # ---- what is asked of others

    @property
    def _history(self) -> History:
        return self._applier.state.history

    @property
    def _is_ours(self) -> bool:
        """Whether the log has a claim of the configured store."""
        backup = self._history.backup
        return backup.store == self._uploads.url and bool(backup.claim)

    async def _submit(self, *commands: c.Command) -> bool:
        """Append commands; return False if they may not be in the log: the next turn checks."""
        try:
            await self._leader.append(*commands)
        except (CronError, ConsensusError) as error:
            _log.debug("backup.refused", error=str(error))
            return False
        return True

    async def _work(self, doing: str, call: Callable[[], _T]) -> _T:
        """Run a call of the store in its thread. Raises Deposed if this replica does not lead."""
        if self._leader.epoch is None or self._leader.epoch != self._epoch:
            raise Deposed
        self._doing = doing
        self._note_answer()
        try:
            return await self._call_thread.work(call)
        finally:
            self._doing, self._silent = "", (0, 0)

    def _note_answer(self) -> None:
        self._silent = (self._clock.mono_ms(), self._clock.wall_ms())

    # ---- whose place in the store it is

    async def _watch(self) -> None:
        """Claim the place in the store, and check whether a newer generation was begun there."""
        uploads = self._uploads
        if not self._is_ours and not self._applier.state.is_resolving:
            # In the log before it is in the store: the next leader must find it to be ours.
            await self._submit(c.BackedUp(uploads.url, claim=uploads.draw()))
        now_ms = self._clock.mono_ms()
        if now_ms < self._watch_at_ms:
            return
        identity = self._history.backup.claim if self._is_ours else ""
        generation = self._applier.state.epoch.generation
        look = partial(self._uploads.claim, generation, identity)
        newest = await self._work("looks whose place it is", look)
        self._watch_at_ms = now_ms + WATCH_MS
        self.has_place = bool(identity) and newest <= generation
        if newest > generation:
            text = (
                f"cell {uploads.backup_store.cell} was restored elsewhere: {uploads.url} knows "
                f"generation {newest}, this one is {generation}"
            )
            hint = "this cell must never run again; use the restored one"
            raise Superseded(text, hint)

    # ---- what goes there

    async def _store_segments(self) -> SnapshotError | None:
        """Store all segments that are not stored yet, oldest first. Return the error of the first
        segment that the store has with other bytes; the others do not wait for it.
        """
        done: list[SegmentKey] = []
        refused: dict[SegmentKey, SnapshotError] = {}
        waiting = [one for one in self._records() if not one.is_stored]
        try:
            for number, record in enumerate(waiting, 1):
                path = self._local.segment_path(name_of(record))
                if path is None or record.key not in self._history.segments:
                    continue  # not on this disk yet, or retired meanwhile
                doing = f"stores segment {number} of {len(waiting)}"
                put = partial(self._uploads.put_segment, self._local, record, path)
                try:
                    await self._work(doing, put)
                except SnapshotError as error:
                    refused[record.key] = error
                    continue
                done.append(record.key)
                if len(done) >= REPORTED_SEGMENTS:
                    await self._report_segments(done)
                    done = []
        except (StoreError, OSError):
            await self._report_segments(done)
            raise
        await self._report_segments(done)
        self._missing.refused = frozenset(refused)
        return next(iter(refused.values()), None)

    async def _report_segments(self, done: list[SegmentKey]) -> None:
        if done:
            await self._submit(c.BackedUp(self._uploads.url, tuple(done)))

    async def _find_copies(self) -> None:
        """Check now and then whether a person has copied missing segments to the store, and report
        those that are missing for good.
        """
        self._missing.look(self._records())
        now_ms = self._clock.mono_ms()
        if now_ms >= self._copies_at_ms and (missing := self._missing.of(self._records())):
            there = await self._work("looks for what it lacks", self._uploads.backup_store.segments)
            done: list[SegmentKey] = []
            for record in (one for one in missing if name_of(one) in there):
                look = partial(self._uploads.is_stored, record)
                if await self._work(f"reads segment {record.number} there", look):
                    done.append(record.key)
            await self._report_segments(done)
            self._copies_at_ms = now_ms + PRUNE_MS
        self._lacks = self._lacks_now()

    def _records(self) -> list[SegmentRecord]:
        return list(self._history.segments.values())

    def _lacks_now(self) -> Trouble:
        """Return since when segments are missing for which backups do not wait any more."""
        missing = self._missing.given_up(self._records())
        if not missing:
            return Trouble()
        text = (
            f"{self._uploads.url}: {len(missing)} segments of history, such as "
            f"{name_of(missing[0])}, are not there and on no disk here: backups go on without "
            "them; copy them there if an older store has them"
        )
        if not self._lacks.text:
            _log.error("backup.incomplete", error=text)
        return Trouble(self._lacks.since_ms or self._clock.wall_ms(), text)

    async def _store_snapshot(self) -> None:
        """Store the newest snapshot whose segments are all stored or given up, of those of this
        generation that are newer than the store's. If history is sealed faster than it is stored,
        the newest of all is never ready."""
        backup, generation = self._history.backup, self._applier.state.epoch.generation
        stored = (backup.generation, backup.index)
        ours = [one for one in self._local.snapshots() if one.header.generation == generation]
        # Newest first: the first one that is ready is stored, and ends this.
        for file in [one for one in ours if (generation, one.header.index) > stored]:
            outline = await self._outline_of(file)
            named = [one for one in self._records() if name_of(one) in outline.segments]
            waits_for = [record for record in named if not record.is_stored]
            if len(waits_for) <= len(self._missing.given_up(waits_for)):
                if not await self._find_lost():
                    await self._put_snapshot(outline)
                return

    async def _find_lost(self) -> bool:
        """Report to the log the stored segments that the store lost, and return whether there are
        any: a rule of the bucket, or a person, may have deleted them. They are stored again before
        a snapshot names them.
        """
        stored = [record for record in self._records() if record.is_stored]
        if not stored:
            return False
        there = await self._work("looks what it has", self._uploads.backup_store.segments)
        lost = [record for record in stored if name_of(record) not in there]
        if lost:
            names = name_of(lost[0])
            _log.error("backup.lost", store=self._uploads.url, segments=len(lost), first=names)
            keys = tuple(record.key for record in lost)
            await self._submit(c.BackedUp(self._uploads.url, missing=keys))
        return bool(lost)

    async def _put_snapshot(self, outline: Outline) -> None:
        # A restore that claimed the cell meanwhile must win: store nothing after its claim.
        self._watch_at_ms = 0
        await self._watch()
        header = outline.file.header
        doing = f"stores the snapshot at {header.index}: {outline.file.file_bytes:,} bytes"
        catalog = {name_of(record): record.is_stored for record in self._records()}
        put = partial(
            self._uploads.put_snapshot, outline, catalog, lambda _done: self._note_answer()
        )
        await self._work(doing, put)
        stored = c.BackedUp(
            self._uploads.url, (), header.generation, header.term, header.index, header.taken_ms
        )
        if await self._submit(stored):
            _log.info("snapshot.stored", index=header.index, bytes=outline.file.file_bytes)

    async def _outline_of(self, file: SnapshotFile) -> Outline:
        """Return the outline of a snapshot, which is read only once."""
        present = {one.path for one in self._local.snapshots()}
        self._outlines = {path: one for path, one in self._outlines.items() if path in present}
        outline = self._outlines.get(file.path)
        if outline is None or outline.file != file:
            outline = await self._work("reads its snapshot", partial(outline_of, file))
            self._outlines[file.path] = outline
        return outline

    async def _prune(self) -> StoreError | None:
        """Delete now and then what nobody needs. Return the error if the store refuses deletes; it
        may accept all other calls.
        """
        now_ms = self._clock.mono_ms()
        if now_ms < self._prune_at_ms or not self._history.backup.index:
            return None
        # A restore may need objects that we do not; the turn may have begun long ago.
        self._watch_at_ms = 0
        await self._watch()
        catalog, generation = self._records(), self._applier.state.epoch.generation
        wanted = frozenset(map(name_of, catalog))
        work = partial(self._uploads.prune, self._leader.now_ms(), wanted, generation)
        try:
            pruned = await self._work("deletes what nobody needs", work)
        except StoreError as error:
            if isinstance(error, StoreAway):
                raise
            return error
        self._prune_at_ms = now_ms + PRUNE_MS
        for damage in pruned.skipped:
            _log.error("manifest.damaged", error=str(damage))
        if pruned.snapshots or pruned.segments:
            _log.info(
                "backup.pruned", snapshots=len(pruned.snapshots), segments=len(pruned.segments)
            )
        return None

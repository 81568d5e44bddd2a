"""The snapshot writer: one thread that writes segments and snapshots to this replica's disk.

The event loop passes sealed segments, and the image of a snapshot, to the thread and never waits.
The thread writes, syncs and reads back. Segments come first, also between the pieces of a snapshot,
because a dump of the log waits for them (`wait_durable`): before the log drops an entry, the rows
that were sealed there are on the disk. A segment that the disk refuses stays in memory and is tried
again. One that does not fit into memory is fetched from a peer later (`history_backfill`), and
until then the log keeps its entries. So a kill at any moment loses nothing: either the file is
complete, or the log contains the same Seal, which gives the same bytes.

One snapshot is being written and one may wait; a newer one replaces the waiting one. A snapshot
that the disk refuses is given up, because its image can be read only once; the leader requests
another one later.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog

from cron import failpoints
from cron.errors import Unavailable
from cron.history.segment import Segment
from cron.history.task_segment import HeldSections, TaskSegment, task_sections
from cron.pace import paced
from cron.state.archive import History, Sealed, SegmentRecord
from cron.state.imaging import Imaging
from cron.state.spilled import SpilledRows
from cron.state.state import State
from cron.storage.folders import Folders, name_of, open_rows, open_tasks
from launcher.disk_errors import hint_of
from snapshots import disk
from snapshots.disk import SnapshotFile
from snapshots.errors import SnapshotError, SnapshotMissing
from snapshots.format import SnapshotHeader
from snapshots.layout import parse_snapshot_name

_log = structlog.get_logger()

DURABLE_S: Final = 10.0
"""How long a dump waits for segments before it fails; the log tries it again."""
RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 30.0
PENDING_BYTES_MAX: Final = 256 << 20
"""The size of all segments that wait in memory for the disk: thirty of the usual size."""


class _Stopped(BaseException):
    """Ends the thread in the middle of a snapshot, because `stop` was called."""


class _Shot(msgspec.Struct):
    """A snapshot to be written."""

    header: SnapshotHeader
    imaging: Imaging


class SnapshotWriter:
    """Keeps segments and snapshots of `cell` below `data`; the `Keeping` of an applier.

    `on_snapshot` is called on the event loop with each snapshot once it is durable. The newest
    `snapshots_kept` snapshots stay on this disk, at least one. `changed` is set for the backfill
    when something was written or is missing; `version` counts the changes of what is here.
    """

    def __init__(
        self,
        data: Path,
        cell: str,
        *,
        snapshots_kept: int = 3,
        on_snapshot: Callable[[SnapshotFile], None] | None = None,
    ) -> None:
        self.folders = Folders(data, cell)
        self._snapshots_kept = max(snapshots_kept, 1)
        self._on_snapshot = on_snapshot
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.changed = asyncio.Event()
        self._lock = threading.Condition()  # guards all below
        self.version = 0
        self._is_stopping = False
        self._wanted: dict[str, SegmentRecord] = {}
        self._newest: dict[str, int] | None = (
            None  # None until the catalog is known: then nothing is removed
        )
        self._present: set[str] = set()
        self._pending: dict[str, Sealed] = {}
        self._owed: set[str] = set()  # passed to `keep`, and not on the disk yet
        self._shot: _Shot | None = None
        self._snapshots: list[SnapshotFile] = []
        self._newest_index = 0
        self._must_sweep = False
        self._retry_s = RETRY_S
        self._retry_at_s = 0.0
        self._trouble = ""

    # ---- life

    def start(self) -> None:
        """List the files here and start the thread; call it on the running event loop.

        Raises:
            Unavailable: the folders cannot be made.
        """
        try:
            self._present = self.folders.open()
            newest = disk.list_snapshots(self.folders.snapshots)
        except OSError as error:
            text = f"{self.folders.segments.parent}: {error.strerror or error}"
            raise Unavailable(text, hint_of(error) or "look at the disk") from error
        named = parse_snapshot_name(newest[0].name) if newest else None
        self._newest_index = named[1] if named else 0
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="snapshot-writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current write, and wait for it; idempotent. Segments that were
        not written come again from the log.
        """
        with self._lock:
            self._is_stopping = True
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # ---- in: on the loop's thread

    def keep(self, sealed: Sequence[Sealed]) -> None:
        """Write newly sealed segments."""
        with self._lock:
            self.version += 1
            for one in sealed:
                name = name_of(one.record)
                self._wanted[name] = one.record
                if name in self._present:
                    continue
                self._owed.add(name)
                waiting = sum(other.record.size for other in self._pending.values())
                if waiting + one.record.size <= PENDING_BYTES_MAX:
                    self._pending[name] = one
                else:
                    _log.error("segment.dropped", segment=name, error="the disk takes nothing")
                    self.changed.set()
            self._lock.notify_all()

    def snapshot(self, state: State, imaging: Imaging) -> None:
        """Write the snapshot of the present State, whose image has begun, unless it is here."""
        taken = state.history.taken
        at = (state.epoch.generation, taken.term, taken.index)
        header = SnapshotHeader(self.folders.cell, *at, state.digest, taken.at_ms)
        failpoints.hit("snapshot-taken")
        with self._lock:
            given_up: _Shot | None = _Shot(header, imaging)
            if taken.index > self._newest_index and not self._is_stopping:
                given_up, self._shot = self._shot, given_up
            self._lock.notify_all()
        if given_up is not None:
            given_up.imaging.close()

    def catalog(self, history: History) -> None:
        """Set the segments that should be on this disk; others are removed."""
        records = [record for record in history.segments.values() if record.is_local]
        with self._lock:
            self._wanted = {name_of(record): record for record in records}
            self._newest = history.newest()
            self._owed &= self._wanted.keys()
            for name in self._pending.keys() - self._wanted.keys():
                del self._pending[name]
            self._must_sweep = True
            self.version += 1
            self._lock.notify_all()
        self.changed.set()

    # ---- out: in any thread

    def wait_durable(self) -> None:
        """Return once all segments passed to `keep` are on the disk. Blocks.

        Raises:
            OSError: the disk refuses, or is too slow.
        """
        with self._lock:
            self._lock.wait_for(lambda: not self._owed or self._is_stopping, DURABLE_S)
            if self._owed:
                raise OSError(f"history cannot be kept: {self._trouble or 'the disk is slow'}")

    def snapshots(self) -> list[SnapshotFile]:
        """Return the snapshots on this disk, verified, newest first."""
        with self._lock:
            return list(self._snapshots)

    def segment_path(self, name: str) -> Path | None:
        """Return where the segment of this file name is, durably, None if it is not here."""
        with self._lock:
            return self.folders.segments / name if name in self._present else None

    def missing(self) -> list[SegmentRecord]:
        """Return the segments that are to be on this disk and neither are nor wait to be written,
        newest first."""
        with self._lock:
            found = [
                record
                for name, record in self._wanted.items()
                if name not in self._present and name not in self._pending
            ]
        return sorted(found, key=lambda record: record.key, reverse=True)

    def wants(self, record: SegmentRecord) -> bool:
        """Whether a segment is to be on this disk."""
        with self._lock:
            return name_of(record) in self._wanted

    @property
    def trouble(self) -> str:
        """Why a file could not be written or removed, "" if all is well."""
        return self._trouble

    # ---- for questions and for the backfill: in any thread

    def holdings(
        self, records: Iterable[SegmentRecord]
    ) -> tuple[list[SegmentRecord], list[Sealed]]:
        """Return those of `records` that are files here, and the segments that wait."""
        with self._lock:
            here = [record for record in records if name_of(record) in self._present]
            return here, list(self._pending.values())

    def open_rows(self, record: SegmentRecord) -> Segment:
        """Return a segment that is here; raises as `folders.open_rows`."""
        return open_rows(self.folders.segments / name_of(record), self.folders.cell, record)

    def is_here(self, record: SegmentRecord) -> bool:
        """Whether a segment is a file here."""
        with self._lock:
            return name_of(record) in self._present

    def tasks(self, record: SegmentRecord) -> TaskSegment:
        """Return a segment of tasks that is here, or waits to be written.

        Raises:
            SnapshotError: it is damaged, or not here. RowsDamaged, OSError: it cannot be read.
        """
        name = name_of(record)
        with self._lock:
            waiting = self._pending.get(name)
        if waiting is not None and isinstance(waiting.tail, SpilledRows):
            return TaskSegment(record, HeldSections(task_sections(waiting.tail)))
        return open_tasks(self.folders.segments / name, self.folders.cell, record)

    def read(self, record: SegmentRecord) -> bytes:
        """Return the rows of a segment that is here, in log order. A damaged segment is set aside,
        and is missing from then on.

        Raises:
            SnapshotError: it is damaged, or not here.
            OSError: the disk refuses.
        """
        try:
            return self.folders.read(record)
        except SnapshotError as error:
            self.distrust(record, error)
            raise

    def distrust(self, record: SegmentRecord, error: Exception) -> None:
        """Set aside a damaged segment: it is missing from now on. If its file is gone, others may
        be gone too: all of them are missing from now on, and one log line reports them.
        """
        name = name_of(record)
        gone = {name}
        if isinstance(error, SnapshotMissing):
            with self._lock, contextlib.suppress(OSError):
                gone |= self._present - self.folders.listed()
            _log.error("segments.missing", segments=len(gone), error=str(error))
        else:
            _log.error("segment.damaged", segment=name, error=str(error))
        with self._lock:
            self._present -= gone
            self.version += 1
        self.folders.set_aside(self.folders.segments / name)
        self._on_loop(self.changed.set)

    def admit(self, record: SegmentRecord) -> None:
        """Keep a segment that was fetched into `folders.incoming`, if it is the one in the catalog.
        Raises as `Folders.admit`.
        """
        self.folders.admit(record)
        self._note_here(name_of(record))

    # ---- the thread

    def _run(self) -> None:
        try:
            self._try(self._look_at_snapshots)
            while self._wait():
                self._try(self._turn)
        except _Stopped:
            pass
        finally:
            with self._lock:
                shot, self._shot = self._shot, None
            if shot is not None:
                shot.imaging.close()

    def _look_at_snapshots(self) -> None:
        try:
            for file in self.folders.verified_snapshots():
                self._write_segments()
                with self._lock:
                    self._snapshots.append(file)
        except OSError as error:
            self._fail(error, "snapshots cannot be read")
            return
        self._newest_index = self._snapshots[0].header.index if self._snapshots else 0

    def _wait(self) -> bool:
        """Wait for work; return False once the thread should end."""
        with self._lock:
            while not self._is_stopping:
                rests_s = self._retry_at_s - time.monotonic()
                has_work = self._pending or self._must_sweep
                if self._shot is not None or (has_work and rests_s <= 0):
                    return True
                self._lock.wait(max(rests_s, 0.0) if has_work else None)
            return False

    def _try(self, step: Callable[[], None]) -> None:
        """Run `step`. An unexpected error costs a snapshot and does not end the thread: otherwise
        the log would grow until the disk is full.
        """
        try:
            step()
        except Exception as error:  # noqa: BLE001 - top of the thread
            _log.exception("snapshot_writer.failed")
            self._fail(error, "the snapshot writer has failed, see the log")

    def _turn(self) -> None:
        self._write_segments()
        with self._lock:
            shot, self._shot = self._shot, None
        if shot is not None:
            self._write_snapshot(shot)
        if self._must_sweep and self._may_write():
            self._sweep()

    def _may_write(self) -> bool:
        return time.monotonic() >= self._retry_at_s

    def _write_segments(self) -> None:
        while self._pending and self._may_write():
            with self._lock:
                if self._is_stopping or not self._pending:
                    return
                name, sealed = next(iter(self._pending.items()))
            try:
                self.folders.write(sealed)
            except (OSError, SnapshotError) as error:
                self._fail(error, f"segment {name} cannot be kept")
                return
            failpoints.hit("segment-written")
            self._well()
            self._note_here(name)

    def _note_here(self, name: str) -> None:
        with self._lock:
            self.version += 1
            self._pending.pop(name, None)
            self._owed.discard(name)
            if name in self._wanted:
                self._present.add(name)
            else:
                self._must_sweep = True  # it was retired meanwhile
            self._lock.notify_all()
        self._on_loop(self.changed.set)

    def _write_snapshot(self, shot: _Shot) -> None:
        header = shot.header
        try:
            file = disk.write_snapshot(self.folders.snapshots, header, self._pieces(shot.imaging))
        except (OSError, SnapshotError) as error:
            self._fail(error, f"snapshot {header.index} cannot be kept")
            return
        finally:
            shot.imaging.close()
        failpoints.hit("snapshot-written")
        self._well()
        _log.info("snapshot.taken", index=header.index, bytes=file.file_bytes)
        with self._lock:
            files = sorted([file, *self._snapshots], key=lambda one: one.header.index, reverse=True)
            self._snapshots = files[: self._snapshots_kept]
            self._newest_index = files[0].header.index
        self.folders.remove_snapshots(files[self._snapshots_kept :])
        if self._on_snapshot is not None:
            self._on_loop(partial(self._on_snapshot, file))

    def _pieces(self, imaging: Imaging) -> Iterator[bytes]:
        """Yield the pieces of an image; write new segments before each piece."""
        for piece in paced(imaging.pieces()):
            self._write_segments()
            if self._is_stopping:
                raise _Stopped
            failpoints.hit("snapshot-piece")
            yield piece

    def _sweep(self) -> None:
        """Remove the files of segments that are not wanted any more."""
        with self._lock:
            self._must_sweep = False
            wanted, newest = set(self._wanted), self._newest
        if newest is None:
            return
        try:
            names = self.folders.retired(wanted, newest)
            with self._lock:
                self._present -= set(names)
                self.version += 1
            if names:
                failpoints.hit("segments-retired")
                self.folders.remove_segments(names)
        except OSError as error:
            self._must_sweep = True
            self._fail(error, "segments cannot be removed")
            return
        self._well()
        if names:
            _log.info("segments.retired", segments=len(names))

    def _fail(self, error: Exception, what: str) -> None:
        text = f"{what}: {getattr(error, 'strerror', None) or error}"
        if text != self._trouble:
            _log.error("snapshot_writer.refused", error=text, segments=len(self._pending))
        self._trouble = text
        self._retry_at_s = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)
        self._on_loop(self.changed.set)

    def _well(self) -> None:
        self._trouble, self._retry_s, self._retry_at_s = "", RETRY_S, 0.0

    def _on_loop(self, call: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

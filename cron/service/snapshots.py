"""Snapshots as people ask about them: save one, list them, read them back."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cron.api.snapshots import (
    KeepingView,
    SaveReport,
    SegmentPiece,
    SegmentRequest,
    SnapshotsReport,
    SnapshotView,
)
from cron.api.stored import DAMAGED, of_manifest, of_unreadable, read_back
from cron.call_thread import CallThread
from cron.errors import (
    Conflict,
    InvalidInput,
    InvariantViolated,
    NotFound,
    StorageAway,
    Unavailable,
)
from cron.leader.applier import StateApplier
from cron.leader.leader import Leader
from cron.service.outputs import StoredOutputs
from cron.state import commands as c
from cron.state.image import decode_state
from cron.storage.archived_rows import ArchivedRows, remove_left
from cron.storage.snapshot_writer import SnapshotWriter
from cron.storage.storage import Storage
from cron.storage.uploader import Trouble
from snapshots.backup_store import BackupStore
from snapshots.disk import SnapshotFile, read_snapshot
from snapshots.errors import SnapshotError, StoreAway, StoreError
from snapshots.manifest import Manifest

_T = TypeVar("_T")

LIST_S: Final = 5.0
"""How long a store may take to say what it has; a client waits for ten."""
LOCAL: Final = "local"
FOLDER: Final = "verify-"
"""How the names of folders begin into which snapshots are fetched for a look."""


class Saving:
    """Answers for one replica. `backup_store` is None where no object storage is configured."""

    def __init__(
        self,
        leader: Leader,
        applier: StateApplier,
        local: SnapshotWriter,
        backup_store: BackupStore | None,
        data: Path,
    ) -> None:
        self._leader = leader
        self._applier = applier
        self._local = local
        self._backup_store = backup_store
        self._data = data
        remove_left(data, FOLDER)
        self._call_thread = CallThread("snapshots")
        self.archive = ArchivedRows(backup_store, data)
        self.outputs = (
            StoredOutputs(backup_store, data / "outputs" / "read") if backup_store else None
        )

    def close(self) -> None:
        """End the threads; calls that are under way are left to themselves."""
        self._call_thread.close()
        if self.outputs is not None:
            self.outputs.close()

    @property
    def _store(self) -> str:
        return self._backup_store.store.url if self._backup_store is not None else ""

    async def save(self) -> SaveReport:
        """Have every replica take a snapshot, and return where."""
        await self._leader.append(c.SnapshotAt())
        taken = self._applier.state.history.taken
        generation = self._applier.state.epoch.generation
        return SaveReport(
            generation=generation, term=taken.term, index=taken.index, store=self._store
        )

    async def list(self, *, is_remote: bool) -> SnapshotsReport:
        """Return what there is, newest first."""
        views = [] if is_remote else [of_file(file) for file in self._local.snapshots()]
        problems: list[str] = []
        if self._backup_store is not None:
            try:
                manifests, skipped = await self._manifests(self._backup_store)
            except StorageAway as error:
                if is_remote:
                    raise
                manifests, skipped, problems = (), (), [str(error)]
            views += [of_manifest(manifest) for manifest in manifests]
            problems += [str(error) for error in skipped]
        elif is_remote:
            raise InvalidInput("no object storage is configured", "see [object_storage] url")
        views.sort(key=lambda view: (view.generation, view.index), reverse=True)
        return SnapshotsReport(snapshots=views, problems=problems, store=self._store)

    async def _manifests(
        self, backup_store: BackupStore
    ) -> tuple[Iterable[Manifest], Iterable[SnapshotError]]:
        """Ask the store what it has; it may be one that hangs.

        Raises:
            StorageAway: it does not answer soon. Conflict: it refuses.
        """
        try:
            async with asyncio.timeout(LIST_S):
                return await _in_thread(backup_store.manifests, self._call_thread.work)
        except TimeoutError as error:
            text = f"{backup_store.store.url}: no answer within {LIST_S:g} s"
            raise StorageAway(text, "`raftcron status` says since when backups fail") from error

    async def verify(self, name: str, *, is_remote: bool) -> AsyncIterator[SnapshotView]:
        """Yield each snapshot once all of it was read."""
        found = False
        for file in [] if is_remote else self._local.snapshots():
            if name in ("", file.path.name):
                view = of_file(file)
                try:
                    await _in_thread(partial(_check, file.path, file.header.cell))
                    view = msgspec.structs.replace(view, state="verified")
                except (SnapshotError, InvariantViolated) as error:
                    view = msgspec.structs.replace(view, state=DAMAGED, problem=str(error))
                if view.state != DAMAGED or file in self._local.snapshots():
                    found = True
                    yield view
        if self._backup_store is not None:
            async for view in self._verify_stored(self._backup_store, name):
                found = True
                yield view
        if name and not found:
            raise NotFound(f"there is no snapshot {name}", "`raftcron snapshot list` shows all")

    async def _verify_stored(
        self, backup_store: BackupStore, name: str
    ) -> AsyncIterator[SnapshotView]:
        """Yield the stored ones, those with a manifest that cannot be read first, without those
        that are deleted meanwhile."""
        manifests, skipped = await self._manifests(backup_store)
        for view in map(of_unreadable, skipped):
            if name in ("", view.name):
                yield view
        for manifest in manifests:
            if name in ("", of_manifest(manifest).name):
                read = partial(self._read, backup_store, manifest)
                found = await _in_thread(partial(read_back, backup_store, manifest, read))
                if found is not None:
                    yield found

    def _read(self, backup_store: BackupStore, manifest: Manifest) -> None:
        """Fetch a snapshot, and read it."""
        folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=self._data))
        try:
            _check(backup_store.fetch_snapshot(manifest, folder).path, backup_store.cell)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def segment(self, request: SegmentRequest) -> SegmentPiece:
        """Return a piece of a segment."""
        path = self._local.segment_path(request.name)
        if path is None:
            raise NotFound(f"segment {request.name} is not on this disk")

        def read() -> SegmentPiece:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(request.offset)
                return SegmentPiece(content=file.read(request.limit), size=size)

        try:
            return await asyncio.to_thread(read)
        except FileNotFoundError as error:
            raise NotFound(f"segment {request.name} is not on this disk any more") from error


def keeping_view(storage: Storage, resolving: str) -> KeepingView:
    """Return what `status` shows of what a replica keeps; `resolving` tells how far a restored cell
    has come."""
    history = storage.applier.state.history
    newest = next((file.header for file in storage.writer.snapshots()), None)
    is_there = bool(storage.store) and history.backup.store == storage.store
    waiting = sum(not (one.is_stored and is_there) for one in history.segments.values())
    trouble, outputs_waiting = storage.status()
    if storage.leader.epoch is None:
        trouble = Trouble()
    failing = [trouble.text, storage.writer.trouble]
    return KeepingView(
        snapshot_index=newest.index if newest else 0,
        snapshot_at_ms=newest.taken_ms if newest else 0,
        segments=len(history.segments),
        segments_missing=len(storage.writer.missing()),
        open_rows=history.open_rows,
        failing_since_ms=trouble.since_ms,
        failing="; ".join(filter(None, failing)),
        filling=storage.backfill.progress,
        store=storage.store,
        stored_index=history.backup.index if is_there else 0,
        stored_at_ms=history.backup.taken_ms if is_there else 0,
        segments_waiting=waiting if storage.store else 0,
        resolving=resolving,
        outputs_waiting=outputs_waiting,
    )


def of_file(file: SnapshotFile) -> SnapshotView:
    """Return a snapshot of this disk as the API shows it."""
    return SnapshotView.of(
        file.header,
        name=file.path.name,
        place=LOCAL,
        size=file.file_bytes,
        content_size=file.content_bytes,
        digest=file.header.digest.hex(),
    )


def _check(path: Path, cell: str) -> None:
    """Read a snapshot whole, and make a State of it.

    Raises:
        SnapshotError, InvariantViolated: it is damaged.
    """
    file, pieces = read_snapshot(path, cell)
    state = decode_state(pieces)
    if state.digest != file.header.digest or state.index != file.header.index:
        raise SnapshotError(path.name, "the state in it is not that of its header")


async def _in_thread(
    call: Callable[[], _T],
    work: Callable[[Callable[[], _T]], Awaitable[_T]] = asyncio.to_thread,
) -> _T:
    """Run `call` in a thread; what store and disk say becomes what a client is told. A disk that is
    full says nothing of what is read."""
    try:
        return await work(call)
    except StoreAway as error:
        raise StorageAway(str(error), error.hint) from error
    except StoreError as error:
        raise Conflict(str(error), error.hint) from error
    except OSError as error:
        text = f"{error.filename or 'the disk'}: {error.strerror or error}"
        raise Unavailable(f"the leader cannot read it: {text}", "look at its disk") from error

"""Restores a cell: finds a state, claims a generation, and writes the first replica's disk."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from consensus.engine.salvage import Salvage, Salvaged
from cron.clock import Clock, SystemClock
from cron.errors import ConfigError, Conflict, InvariantViolated, NotFound
from cron.failpoints import hit
from cron.limits import LIVES_MAX
from cron.state.archive import Sealed, SegmentRecord
from cron.state.commands import SegmentKey
from cron.state.image import decode_state
from cron.state.machine import Machine
from cron.state.state import State
from cron.storage.folders import Folders, content_of, name_of
from cron.storage.new_generation import NewGeneration, begin_generation
from cron.storage.restore_target import Note, Target
from launcher.protocol.names import format_time
from snapshots.backup_store import BackupStore
from snapshots.disk import read_snapshot
from snapshots.errors import (
    GenerationTaken,
    NotConditional,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotUnsupported,
    SnapshotUntrusted,
)
from snapshots.layout import generation_object, snapshot_object
from snapshots.manifest import Generation, Manifest
from snapshots.signed import Trust

EVERY_MS: Final = 1_000
_T = TypeVar("_T")
Say = Callable[[str], None]
"""Shows a line of progress to the person who restores."""


class Choices(msgspec.Struct, frozen=True):
    """What a person has decided. `abandon` is a generation that was begun, has stored nothing, and
    is given up; `unconditional` accepts a store without conditional writes; `trust` says whose
    snapshots count.
    """

    by: str
    now_ms: int
    at_ms: int | None = None
    abandon: int = 0
    unconditional: bool = False
    trust: Trust | None = None


class Report(msgspec.Struct, kw_only=True):
    """What was found or restored. Times in epoch ms."""

    source: str
    cell: str
    generation: int
    new_generation: int
    index: int
    taken_ms: int
    jobs: int
    open_launches: int
    executors: int
    segments: int
    rows: int
    missing: list[str] = []
    passed_over: list[str] = []
    data: str = ""
    is_done: bool = False


Agree = Callable[[Report], bool]
"""Shown what was found; returns whether to continue."""


class _Found(msgspec.Struct, kw_only=True):
    """A state that can be restored, in memory, and the errors of newer ones.

    `newest` is the highest generation that was begun, `known` are those that have snapshots.
    `stored` are the segments of the history that the store has, `missing` those that nobody has,
    `wanted` those to fetch.
    """

    state: State
    source: str
    passed_over: list[str] = []
    newest: int
    known: set[int]
    stored: list[SegmentRecord]
    missing: list[SegmentRecord]
    wanted: list[SegmentRecord] = []
    manifest: Manifest | None = None


def restore(
    target: Target,
    choices: Choices,
    draw: str,
    agree: Agree,
    say: Say,
    *,
    backup_store: BackupStore | None,
    data: Path | None = None,
) -> Report:
    """Restore a cell into `target`: from `data`, the folder of a stopped replica, when the others'
    disks are lost; without it from the newest snapshot in `backup_store`.

    Raises:
        NotFound, ConfigError: nothing to restore from.
        Conflict, GenerationTaken, NotConditional: it was restored already, or nobody can tell.
        NoData, LogDamaged, DataInUse: the folder cannot be read.
        StoreError, SnapshotError, OSError: see there.
    """
    try:
        note = target.open(draw)
        work = _Restore(target, choices, say, backup_store)
        if data is not None:
            found = work.find_on_disk(data)
        elif backup_store is not None:
            found = work.find_in_store(backup_store)
        else:
            raise ConfigError(
                "no source to restore from is given", "give --from URL, or --from-data"
            )
        report = work.report(found, work.generation(note, found))
        if not agree(report):
            return report
        if not (note.generation and target.is_done):
            work.write(found, note, report)
        target.clear()
        report.is_done = True
        return report
    finally:
        target.leave()


class _Restore:
    """One restore into `target`. `store` is None without object storage."""

    def __init__(
        self, target: Target, choices: Choices, say: Say, store: BackupStore | None
    ) -> None:
        self._target, self._choices, self._say, self._store = target, choices, say, store

    def report(self, found: _Found, generation: int) -> Report:
        """Return what was found, before anything is changed."""
        state, history = found.state, found.state.history
        rows = sum(one.rows for one in history.segments.values()) + history.open_rows
        return Report(
            source=found.source,
            cell=self._target.cell,
            generation=state.epoch.generation or 1,
            new_generation=generation,
            index=state.index,
            taken_ms=state.at_ms,
            jobs=sum(one.job is not None for one in state.by_number.values()),
            open_launches=len(state.due) + len(state.active),
            executors=len(state.executors),
            segments=len(history.segments),
            rows=rows - sum(one.rows for one in found.missing),
            missing=[name_of(one) for one in found.missing],
            passed_over=found.passed_over,
            data=str(self._target.data),
        )

    def generation(self, note: Note, found: _Found) -> int:
        """Return the generation to begin: one above all earlier ones, or the one with which a
        restore that died here continues.

        Raises:
            Conflict: a restore that died here had written everything, and somebody has begun
                another generation since; or somebody has begun a generation of which nothing is
                known, so it may be running.
        """
        newest, store, target = found.newest, self._store, self._target
        if note.generation >= newest:
            return note.generation  # whose it is, the store knows
        if note.generation and target.is_done:
            text = f"{target.data} was restored as generation {note.generation}, and {newest}"
            text += " was begun since"
            raise Conflict(text, "join the newest, or remove the folder to restore once more")
        if store is None:
            return newest + 1
        if newest not in found.known and self._choices.abandon != newest:
            marker = next((one for one in store.generations() if one.generation == newest), None)
            if marker is not None and marker.id == note.claim:
                return newest  # our own, from before we died
            who = f" by {marker.by} on {marker.host}" if marker is not None else ""
            text = f"cell {store.cell} was restored already: generation {newest} was begun{who}"
            hint = f"if that cell never ran, or is given up: --abandon {newest}"
            raise Conflict(text, hint)
        if newest >= LIVES_MAX:
            # History has no place for more: only a strange file can be the reason.
            text = f"{store.store.url} knows generation {newest}, and a cell has {LIVES_MAX} lives"
            stored = generation_object(store.cell, newest)
            raise Conflict(f"{text} at most", f"remove {stored} there if no restore has begun it")
        return newest + 1

    def write(self, found: _Found, note: Note, report: Report) -> None:
        """Claim the generation of the report, and write the disk. Damaged segments are added to the
        report.
        """
        one, store, target, choices = found.manifest, self._store, self._target, self._choices
        marker = Generation(
            cell=note.cell,
            generation=report.new_generation,
            id=note.claim,
            from_snapshot=f"{one.generation}/{one.index}" if one is not None else found.source,
            from_index=found.state.index,
            claimed_ms=choices.now_ms,
            by=choices.by,
            host=socket.gethostname(),
        )
        # The note is kept before the store gets the marker: a restore that dies between the two
        # finds its own claim, or none.
        target.keep(msgspec.structs.replace(note, generation=marker.generation))
        try:
            if store is not None:
                store.claim_generation(marker, unconditional=choices.unconditional)
        except GenerationTaken:
            target.keep(msgspec.structs.replace(note, generation=0))  # the next try looks again
            raise
        except NotConditional:
            target.keep(note)
            raise
        hit("restore-claimed")
        wanted = reported(found.wanted, self._say, "fetches history: {} segments")
        lost = [record for record in wanted if not self._fetch_segment(record)]
        gone = frozenset(record.key for record in (*found.missing, *lost))
        new = NewGeneration(report.new_generation, choices.now_ms, choices.by, lost=gone)
        if store is not None:
            new = msgspec.structs.replace(
                new,
                store=store.store.url,
                claim=note.claim,
                stored=frozenset(record.key for record in found.stored),
                snapshot=(*one.place, one.taken_ms) if one is not None else None,
            )
        self._say("writes the replica's disk")
        position = begin_generation(found.state, new)
        target.finish(found.state, position)
        report.missing += [name_of(record) for record in lost]
        report.rows -= sum(record.rows for record in lost)

    def _fetch_segment(self, record: SegmentRecord) -> bool:
        """Fetch a segment that belongs on the disk; return False if the store does not have it."""
        if self._store is None:
            return False
        try:
            self._store.fetch_segment(name_of(record), self._target.folders.incoming)
            self._target.folders.admit(record)
        except SnapshotError as error:
            self._say(f"left out: {error}")
            return False
        return True

    # --- from object storage

    def find_in_store(self, store: BackupStore) -> _Found:
        """Return the newest snapshot that can be restored, and was not taken after the chosen time.

        Raises:
            NotFound: there is none. StoreError: the store does not answer.
        """
        at_ms = self._choices.at_ms
        self._say(f"looks for snapshots of cell {store.cell} in {store.store.url}")
        manifests, skipped = store.manifests()
        passed_over = [*skipped]
        wanted = [one for one in manifests if at_ms is None or one.taken_ms <= at_ms]
        for manifest in wanted:
            try:
                state = self._fetch_state(store, manifest)
            except SnapshotError as error:
                passed_over.append(error)
                self._say(f"passed over: {error}")
                continue
            there = store.segments()
            records = list(state.history.segments.values())
            stored = [record for record in records if name_of(record) in there]
            return _Found(
                state=state,
                source=store.store.url,
                passed_over=[str(error) for error in passed_over],
                newest=max(store.newest_generation(), manifest.generation),
                known={one.generation for one in manifests},
                stored=stored,
                missing=[record for record in records if name_of(record) not in there],
                wanted=[record for record in stored if record.is_local],
                manifest=manifest,
            )
        what, hint = "no snapshot", "check cell name and URL"
        if manifests and not wanted:
            what += " that is old enough"
            oldest_s = min(one.taken_ms for one in manifests) // 1000
            hint = f"the oldest that can be read is of {format_time(oldest_s)}"
        elif passed_over:
            first = passed_over[0]
            hint = f"{len(passed_over)} cannot be used: {first}"
            is_helped = isinstance(first, SnapshotUnsupported | SnapshotUntrusted)
            hint += f"; {first.hint}" if is_helped else ""
        raise NotFound(f"{store.store.url} has {what} of cell {store.cell}", hint)

    def _fetch_state(self, store: BackupStore, manifest: Manifest) -> State:
        """Return the State in a snapshot, compared with header and manifest."""
        size = manifest.file_bytes
        self._say(f"fetches the snapshot at index {manifest.index}: {size:,} bytes")
        file = store.fetch_snapshot(manifest, self._target.work)
        _, pieces = read_snapshot(file.path, store.cell)
        name = snapshot_object(store.cell, *manifest.place)
        try:
            state = decode_state(self._count_bytes(pieces))
        except InvariantViolated as error:
            raise SnapshotUnsupported(name, str(error)) from error
        header = file.header
        is_it = (state.index, state.digest) == (header.index, header.digest)
        if not is_it or header.digest.hex() != manifest.state_digest:
            raise SnapshotCorrupt(file.path.name, "the state in it is not that of its manifest")
        file.path.unlink()
        return state

    def _count_bytes(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        done = 0
        for number, piece in enumerate(pieces, 1):
            done += len(piece)
            if number % 64 == 0:
                self._say(f"reads the snapshot: {done:,} bytes")
            yield piece

    # --- from the one disk that is left

    def find_on_disk(self, source: Path) -> _Found:
        """Return the state in the data folder of a stopped replica, and copy its segments."""
        store = self._store
        state = self._salvage(source)
        there = store.segments() if store is not None else {}
        records = list(state.history.segments.values())
        stored = [one for one in records if one.is_stored and name_of(one) in there]
        missing = self._copy_segments(source, records, {one.key for one in stored})
        generation = state.epoch.generation or 1
        return _Found(
            state=state,
            source=str(source),
            newest=max(generation, store.newest_generation() if store is not None else 0),
            known={generation},
            stored=stored,
            missing=[one for one in missing if not self._fetch_segment(one)],
        )

    def _salvage(self, source: Path) -> State:
        """Return the State on a disk.

        Raises:
            NoData, LogDamaged, DataInUse, Conflict: it cannot be read, or not by this release.
        """
        salvage = Salvage(source / "raft")
        try:
            self._say(f"reads {source}")
            salvaged = salvage.read()
            if salvaged.cell != self._target.cell:
                text = f"{source} is of cell {salvaged.cell}, not {self._target.cell}"
                raise Conflict(text, "give the configuration of that cell")
            return self._replay(salvage, salvaged)
        except InvariantViolated as error:
            hint = "use the release that wrote it, or a newer one"
            raise Conflict(f"{source}: {error}", hint) from error
        finally:
            salvage.close()

    def _replay(self, salvage: Salvage, salvaged: Salvaged) -> State:
        """Return the State at the last entry; write the segments that were sealed on the way."""
        state = decode_state(salvage.pieces()) if salvaged.dump is not None else State()
        machine = Machine(state)
        for one in salvaged.entries:
            outcome = machine.apply(one.position.term, one.position.index, one.entry)
            for sealed in outcome.sealed:
                self._target.folders.write(sealed)
        state = machine.state
        state.term = max(state.term, salvaged.term)
        state.index = max(state.index, salvaged.last.index)
        return state

    def _copy_segments(
        self, source: Path, records: list[SegmentRecord], stored: set[SegmentKey]
    ) -> list[SegmentRecord]:
        """Copy the segments that are there and whole. Return the others, unless they are `stored`
        according to the log: those are fetched later.
        """
        target = self._target
        old = Folders(source, target.cell)
        missing = []
        wanted = [one for one in records if one.is_local or one.key not in stored]
        for record in reported(wanted, self._say, "copies history: {} segments"):
            try:
                with contextlib.suppress(SnapshotError):
                    target.folders.read(record)  # sealed just now, or copied by a restore that died
                    continue
                target.folders.write(Sealed(record, content_of(record, old.read(record))))
            except SnapshotError as error:
                if record.key not in stored:
                    self._say(f"not on this disk: {error}")
                    missing.append(record)
        return missing


def reported(items: Sequence[_T], say: Say, text: str, clock: Clock | None = None) -> Iterator[_T]:
    """Yield `items`. Say `text`, with `3 of 10` for its `{}`, before the first item, then once a
    second, and before the last item.
    """
    clock, next_ms = clock or SystemClock(), 0
    for number, item in enumerate(items, 1):
        now_ms = clock.mono_ms()
        if number == len(items) or now_ms >= next_ms:
            next_ms = now_ms + EVERY_MS
            say(text.format(f"{number} of {len(items)}"))
        yield item

"""Restores a cell: looks, claims a new generation, fetches, and writes the first replica's disk."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

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
from cron.state.tail import Tail
from cron.storage.folders import Folders
from cron.storage.new_life import NewLife, begin_life
from cron.storage.restore_target import Note, Target
from cron.storage.segments import name_of
from launcher.protocol.names import format_time
from snapshots.backup_store import BackupStore
from snapshots.disk import read_snapshot
from snapshots.errors import GenerationTaken, NotConditional, SnapshotCorrupt, SnapshotError
from snapshots.layout import generation_object
from snapshots.manifest import Generation, Manifest

EVERY_MS: Final = 1_000

Tell = Callable[[str], None]


class Choices(msgspec.Struct, frozen=True):
    """What a person has decided. `abandon` is a generation that was begun, has stored nothing, and
    is given up; `unconditional` takes the risk of a store that cannot tell who is first."""

    by: str
    now_ms: int
    at_ms: int | None = None
    abandon: int = 0
    unconditional: bool = False


class Report(msgspec.Struct, kw_only=True):
    """What was found, or done. Times in epoch ms."""

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
"""Shown what was found; returns whether to go on."""


class _Found(msgspec.Struct, kw_only=True):
    """A state that can be restored, whole in memory, and what was passed over for it.

    `newest` is the highest life that anybody has begun, `known` are those of which something can be
    restored. `stored` are the segments of its history that the store has, `missing` those that
    nobody has, `wanted` those that are to be fetched.
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


class Progress:
    """Tells `what: 3 of 10 things` at the first step, then once a second, and at the last one."""

    def __init__(self, tell: Tell, total: int, text: str, clock: Clock | None = None) -> None:
        """`text` has a `{}` for `3 of 10`."""
        self._tell = tell
        self._total = total
        self._text = text
        self._clock = clock or SystemClock()
        self._next_ms = 0

    def at(self, number: int) -> None:
        """Tell of step `number`, which counts from 1, if it is time to."""
        now_ms = self._clock.mono_ms()
        if number < self._total and now_ms < self._next_ms:
            return
        self._next_ms = now_ms + EVERY_MS
        self._tell(self._text.format(f"{number} of {self._total}"))


def restore(
    target: Target,
    choices: Choices,
    draw: str,
    agree: Agree,
    tell: Tell,
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
        if data is not None:
            found = _from_disk(data, backup_store, target, tell)
        elif backup_store is not None:
            found = _from_store(backup_store, target, choices.at_ms, tell)
        else:
            raise ConfigError(
                "no source to restore from is given", "give --from URL, or --from-data"
            )
        generation = _generation(backup_store, target, note, found, choices)
        report = _report(found, generation, target)
        if not agree(report):
            return report
        if not (note.generation and target.is_done):
            _restore(found, backup_store, target, note, choices, report, tell)
        target.clear()
        report.is_done = True
        return report
    finally:
        target.leave()


def _restore(
    found: _Found,
    backup_store: BackupStore | None,
    target: Target,
    note: Note,
    choices: Choices,
    report: Report,
    tell: Tell,
) -> None:
    """Claim the generation of the report and write the disk; what is damaged goes into the
    report."""
    one, index = found.manifest, found.state.index
    marker = Generation(
        cell=note.cell,
        generation=report.new_generation,
        id=note.claim,
        from_snapshot=f"{one.generation}/{one.index}" if one is not None else found.source,
        from_index=index,
        claimed_ms=choices.now_ms,
        by=choices.by,
        host=socket.gethostname(),
    )
    # Which generation is ours is known here before the store knows it: a restore that dies between
    # the two finds its own claim, or none. Where there is no store, nobody can be asked.
    target.keep(msgspec.structs.replace(note, generation=marker.generation))
    try:
        if backup_store is not None:
            backup_store.claim_generation(marker, unconditional=choices.unconditional)
    except GenerationTaken:
        target.keep(msgspec.structs.replace(note, generation=0))  # the next try looks again
        raise
    except NotConditional:
        target.keep(note)
        raise
    hit("restore-claimed")
    progress = Progress(tell, len(found.wanted), "fetches history: {} segments")
    lost = []
    for number, record in enumerate(found.wanted, 1):
        progress.at(number)
        if not _is_fetched(backup_store, target, record, tell):
            lost.append(record)
    life = NewLife(report.new_generation, choices.now_ms, choices.by)
    if backup_store is not None:
        life = msgspec.structs.replace(
            life,
            store=backup_store.store.url,
            claim=note.claim,
            stored=frozenset(record.key for record in found.stored),
            snapshot=(one.generation, one.term, one.index, one.taken_ms)
            if one is not None
            else None,
        )
    gone = frozenset(record.key for record in (*found.missing, *lost))
    tell("writes the replica's disk")
    position = begin_life(found.state, msgspec.structs.replace(life, lost=gone))
    target.finish(found.state, position)
    report.missing += [name_of(record) for record in lost]
    report.rows -= sum(record.rows for record in lost)


def _generation(
    backup_store: BackupStore | None, target: Target, note: Note, found: _Found, choices: Choices
) -> int:
    """Return the generation to begin, one above all that were, or that with which a restore that
    died here goes on.

    Raises:
        Conflict: a restore that died here had written everything, and somebody has begun another
            life since; or somebody has begun a life of which nothing is known: it may be running.
    """
    newest = found.newest
    if note.generation >= newest:
        return note.generation  # whose it is, the store knows
    if note.generation and target.is_done:
        text = (
            f"{target.data} was restored as generation {note.generation}, and {newest} was begun "
            "since"
        )
        raise Conflict(text, "join the newest, or remove the folder to restore once more")
    if backup_store is None:
        return newest + 1
    if newest not in found.known and choices.abandon != newest:
        marker = next((one for one in backup_store.generations() if one.generation == newest), None)
        if marker is not None and marker.id == note.claim:
            return newest  # our own, from before we died
        who = f" by {marker.by} on {marker.host}" if marker is not None else ""
        text = f"cell {backup_store.cell} was restored already: generation {newest} was begun{who}"
        hint = f"if that cell never ran, or is given up: --abandon {newest}"
        raise Conflict(text, hint)
    if newest >= LIVES_MAX:  # history has no place for more: only a strange file can be the reason
        text = (
            f"{backup_store.store.url} knows generation {newest}, and a cell has {LIVES_MAX} lives "
            "at most"
        )
        stored = generation_object(backup_store.cell, newest)
        hint = f"remove {stored} there if no restore has begun it"
        raise Conflict(text, hint)
    return newest + 1


def _report(found: _Found, generation: int, target: Target) -> Report:
    state, history = found.state, found.state.history
    rows = sum(one.rows for one in history.segments.values()) + history.open_rows
    return Report(
        source=found.source,
        cell=target.cell,
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
        data=str(target.data),
    )


def _is_fetched(
    backup_store: BackupStore | None, target: Target, record: SegmentRecord, tell: Tell
) -> bool:
    """Whether the store has a segment that belongs on the disks, and it is there now."""
    if backup_store is None:
        return False
    try:
        backup_store.fetch_segment(name_of(record), target.folders.incoming)
        target.folders.admit(record)
    except SnapshotError as error:
        tell(f"left out: {error}")
        return False
    return True


# --- from object storage


def _from_store(backup_store: BackupStore, target: Target, at_ms: int | None, tell: Tell) -> _Found:
    """Return the newest snapshot (not taken after `at_ms`, if given) that can be restored.

    Raises:
        NotFound: there is none. StoreError: the store does not answer.
    """
    tell(f"looks for snapshots of cell {backup_store.cell} in {backup_store.store.url}")
    manifests, skipped = backup_store.manifests()
    passed_over = [str(error) for error in skipped]
    wanted = [one for one in manifests if at_ms is None or one.taken_ms <= at_ms]
    for manifest in wanted:
        try:
            state = _fetch(backup_store, manifest, target.work, tell)
        except (SnapshotError, InvariantViolated) as error:
            passed_over.append(str(error))
            tell(f"passed over: {error}")
            continue
        there = backup_store.segments()
        records = list(state.history.segments.values())
        stored = [record for record in records if name_of(record) in there]
        return _Found(
            state=state,
            source=backup_store.store.url,
            passed_over=passed_over,
            newest=max(backup_store.newest_generation(), manifest.generation),
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
        hint = f"{len(passed_over)} cannot be used: {passed_over[0]}"
    raise NotFound(f"{backup_store.store.url} has {what} of cell {backup_store.cell}", hint)


def _fetch(backup_store: BackupStore, manifest: Manifest, folder: Path, tell: Tell) -> State:
    """Return the State in a snapshot, checked against all that is said of it."""
    size = manifest.file_bytes
    tell(f"fetches the snapshot at index {manifest.index}: {size:,} bytes")
    file = backup_store.fetch_snapshot(manifest, folder)
    _, pieces = read_snapshot(file.path, backup_store.cell)
    state = decode_state(_told(pieces, tell))
    header = file.header
    is_it = (state.index, state.digest) == (header.index, header.digest)
    if not is_it or header.digest.hex() != manifest.state_digest:
        raise SnapshotCorrupt(file.path.name, "the state in it is not that of its manifest")
    file.path.unlink()
    return state


def _told(pieces: Iterator[bytes], tell: Tell) -> Iterator[bytes]:
    done = 0
    for number, piece in enumerate(pieces, 1):
        done += len(piece)
        if number % 64 == 0:
            tell(f"reads the snapshot: {done:,} bytes")
        yield piece


# --- from the one disk that is left


def _from_disk(
    source: Path, backup_store: BackupStore | None, target: Target, tell: Tell
) -> _Found:
    """Return what the data folder of a stopped replica knows; its segments are copied."""
    state = _salvage(source, target, tell)
    there = backup_store.segments() if backup_store is not None else {}
    records = list(state.history.segments.values())
    stored = [one for one in records if one.is_stored and name_of(one) in there]
    missing = _copy_segments(source, records, {one.key for one in stored}, target, tell)
    life = state.epoch.generation or 1
    return _Found(
        state=state,
        source=str(source),
        newest=max(life, backup_store.newest_generation() if backup_store is not None else 0),
        known={life},
        stored=stored,
        missing=[one for one in missing if not _is_fetched(backup_store, target, one, tell)],
    )


def _salvage(source: Path, target: Target, tell: Tell) -> State:
    """Return the State that a disk knows.

    Raises:
        NoData, LogDamaged, DataInUse, Conflict: it cannot be read, or not by this release.
    """
    salvage = Salvage(source / "raft")
    try:
        tell(f"reads {source}")
        salvaged = salvage.read()
        if salvaged.cell != target.cell:
            text = f"{source} is of cell {salvaged.cell}, not {target.cell}"
            raise Conflict(text, "give the configuration of that cell")
        return _replay(salvage, salvaged, target)
    except InvariantViolated as error:
        hint = "use the release that wrote it, or a newer one"
        raise Conflict(f"{source}: {error}", hint) from error
    finally:
        salvage.close()


def _replay(salvage: Salvage, salvaged: Salvaged, target: Target) -> State:
    """Return the State at the last entry; what is sealed on the way is kept."""
    state = decode_state(salvage.pieces()) if salvaged.dump is not None else State()
    machine = Machine(state)
    for one in salvaged.entries:
        outcome = machine.apply(one.position.term, one.position.index, one.entry)
        for sealed in outcome.sealed:
            target.folders.write(sealed)
    state = machine.state
    state.term = max(state.term, salvaged.term)
    state.index = max(state.index, salvaged.last.index)
    return state


def _copy_segments(
    source: Path,
    records: list[SegmentRecord],
    stored: set[SegmentKey],
    target: Target,
    tell: Tell,
) -> list[SegmentRecord]:
    """Copy the segments that are there and whole; return those that are not, and of which the log
    does not know that they are `stored`: the others are fetched later."""
    old = Folders(source, target.cell)
    missing = []
    wanted = [one for one in records if one.is_local or one.key not in stored]
    progress = Progress(tell, len(wanted), "copies history: {} segments")
    for number, record in enumerate(wanted, 1):
        progress.at(number)
        try:
            with contextlib.suppress(SnapshotError):
                target.folders.read(record)  # sealed just now, or copied by a restore that died
                continue
            target.folders.write(Sealed(record, Tail.of(old.read(record))))
        except SnapshotError as error:
            if record.key not in stored:
                tell(f"not on this disk: {error}")
                missing.append(record)
    return missing

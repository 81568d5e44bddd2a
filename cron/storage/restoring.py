"""Restores a cell: looks, claims a new lineage, fetches, and writes the first replica's disk."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from consensus.engine.salvage import Salvage, Salvaged
from cron.clock import Clock, SystemClock
from cron.errors import Conflict, InvariantViolated
from cron.failpoints import hit
from cron.limits import LIVES_MAX
from cron.state.archive import Sealed, SegmentRecord
from cron.state.image import decode_state
from cron.state.machine import Machine
from cron.state.state import State
from cron.state.tail import Tail
from cron.storage.folders import Folders
from cron.storage.new_life import NewLife, begin_life
from cron.storage.restore_source import Found, Tell, look
from cron.storage.restore_target import Note, Target
from cron.storage.segments import name_of
from snapshots.errors import LineageTaken, NotConditional, SnapshotError
from snapshots.layout import lineage_object
from snapshots.manifest import Lineage
from snapshots.vault import Vault

EVERY_MS: Final = 1_000


class Choices(msgspec.Struct, frozen=True):
    """What a person has decided. `abandon` is a lineage that was begun, has stored nothing, and is
    given up; `unconditional` takes the risk of a store that cannot tell who is first."""

    by: str
    now_ms: int
    at_ms: int | None = None
    abandon: int = 0
    unconditional: bool = False


class Report(msgspec.Struct, kw_only=True):
    """What was found, or done. Times in epoch ms."""

    source: str
    cell: str
    lineage: int
    new_lineage: int
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


class Progress:
    """Tells `what: 3 of 10 things` at the first step, then once a second, and at the last one."""

    def __init__(
        self, tell: Callable[[str], None], total: int, text: str, clock: Clock | None = None
    ) -> None:
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


def restore_from_store(
    vault: Vault, target: Target, choices: Choices, draw: str, agree: Agree, tell: Tell
) -> Report:
    """Restore `vault`'s cell into `target`.

    Raises:
        NotFound: nothing to restore from. Conflict, LineageTaken, NotConditional: it was restored
            already, or nobody can tell. StoreError, SnapshotError, OSError: see there.
    """
    try:
        note = target.open(draw)
        found = look(vault, target.work, choices.at_ms, tell)
        newest = max(found.newest_lineage, found.manifest.lineage)
        lineage = _begun(target, note, newest)
        if not lineage:
            stored = {one.lineage for one in vault.manifests()[0]} | {found.manifest.lineage}
            lineage = _next_lineage(vault, newest, stored, note, choices)
        report = _report(found, vault.store.url, lineage, target)
        if not agree(report):
            return report
        if not _is_over(target, note):
            _restore_found(vault, target, note, found, choices, report, tell)
        target.clear()
        report.is_done = True
        return report
    finally:
        target.leave()


def _restore_found(
    vault: Vault,
    target: Target,
    note: Note,
    found: Found,
    choices: Choices,
    report: Report,
    tell: Tell,
) -> None:
    """Claim the lineage of the report and write the disk; what is damaged goes into the report."""
    from_snapshot = f"{found.manifest.lineage}/{found.manifest.index}"
    marker = _marker(note, report.new_lineage, from_snapshot, found.manifest.index, choices)
    _claim(vault, target, note, marker, unconditional=choices.unconditional)
    hit("restore-claimed")
    lost = _fetch_segments(vault, target, found, tell)
    one = found.manifest
    life = NewLife(
        report.new_lineage,
        choices.now_ms,
        choices.by,
        vault.store.url,
        note.claim,
        frozenset(one.key for one in found.stored),
        frozenset(one.key for one in (*found.missing, *lost)),
        (one.lineage, one.term, one.index, one.taken_ms),
    )
    tell("writes the replica's disk")
    position = begin_life(found.state, life)
    target.finish(found.state, position)
    report.missing += [name_of(one) for one in lost]
    report.rows -= sum(one.rows for one in lost)


def _is_over(target: Target, note: Note) -> bool:
    """Whether a restore that died here had written everything."""
    return bool(note.lineage) and target.is_done


def _begun(target: Target, note: Note, newest: int) -> int:
    """Return the lineage with which a restore that died here goes on, 0 for none.

    Raises:
        Conflict: it had written everything, and somebody has begun another life since.
    """
    if note.lineage >= newest:
        return note.lineage  # whose it is, the store knows
    if _is_over(target, note):
        text = f"{target.data} was restored as lineage {note.lineage}, and {newest} was begun since"
        raise Conflict(text, "join the newest, or remove the folder to restore once more")
    return 0


def _next_lineage(
    vault: Vault, newest: int, known: Collection[int], note: Note, choices: Choices
) -> int:
    """Return the lineage to begin, one above all that were.

    Raises:
        Conflict: somebody has begun a life that is none of those `known`: it may be running.
    """
    if newest not in known and choices.abandon != newest:
        marker = next((one for one in vault.lineages() if one.lineage == newest), None)
        if marker is not None and marker.id == note.claim:
            return newest  # our own, from before we died
        who = f" by {marker.by} on {marker.host}" if marker is not None else ""
        text = f"cell {vault.cell} was restored already: lineage {newest} was begun{who}"
        hint = f"if that cell never ran, or is given up: --abandon {newest}"
        raise Conflict(text, hint)
    _check_room(vault, newest)
    return newest + 1


def _check_room(vault: Vault, newest: int) -> None:
    """Refuse what history would have no place for: only a strange file can be the reason."""
    if newest >= LIVES_MAX:
        text = f"{vault.store.url} knows lineage {newest}, and a cell has {LIVES_MAX} lives at most"
        hint = f"remove {lineage_object(vault.cell, newest)} there if no restore has begun it"
        raise Conflict(text, hint)


def _marker(note: Note, lineage: int, source: str, index: int, choices: Choices) -> Lineage:
    return Lineage(
        cell=note.cell,
        lineage=lineage,
        id=note.claim,
        from_snapshot=source,
        from_index=index,
        claimed_ms=choices.now_ms,
        by=choices.by,
        host=socket.gethostname(),
    )


def _claim(
    vault: Vault | None, target: Target, note: Note, marker: Lineage, *, unconditional: bool
) -> None:
    """Claim a lineage; where there is no store, nobody can be asked."""
    # Which lineage is ours is known here before the store knows it: a restore that dies between
    # the two finds its own claim, or none.
    target.keep(msgspec.structs.replace(note, lineage=marker.lineage))
    if vault is None:
        return
    try:
        vault.claim_lineage(marker, unconditional=unconditional)
    except LineageTaken:
        target.keep(msgspec.structs.replace(note, lineage=0))  # the next try looks again
        raise
    except NotConditional:
        target.keep(note)
        raise


def _fetch_segments(vault: Vault, target: Target, found: Found, tell: Tell) -> list[SegmentRecord]:
    """Fetch the segments that belong on the disks; return those that are damaged."""
    lost = []
    wanted = [one for one in found.stored if one.is_local]
    progress = Progress(tell, len(wanted), "fetches history: {} segments")
    for number, record in enumerate(wanted, 1):
        progress.at(number)
        if not _is_fetched(vault, target, record, tell):
            lost.append(record)
    return lost


def _report(found: Found, source: str, lineage: int, target: Target) -> Report:
    return _report_of(found.state, source, lineage, target, found.missing, found.passed_over)


def _report_of(
    state: State,
    source: str,
    lineage: int,
    target: Target,
    missing: list[SegmentRecord],
    passed_over: list[str],
) -> Report:
    history = state.history
    rows = sum(one.rows for one in history.segments.values()) + history.open_rows
    return Report(
        source=source,
        cell=target.cell,
        lineage=state.epoch.lineage or 1,
        new_lineage=lineage,
        index=state.index,
        taken_ms=state.at_ms,
        jobs=sum(one.job is not None for one in state.by_number.values()),
        open_launches=len(state.due) + len(state.active),
        executors=len(state.executors),
        segments=len(history.segments),
        rows=rows - sum(one.rows for one in missing),
        missing=[name_of(one) for one in missing],
        passed_over=passed_over,
        data=str(target.data),
    )


# --- from the one disk that is left


def restore_from_disk(
    source: Path,
    vault: Vault | None,
    target: Target,
    choices: Choices,
    draw: str,
    agree: Agree,
    tell: Tell,
) -> Report:
    """Restore from the data folder of a stopped replica, when the others' disks are lost.

    Raises:
        NoData, LogDamaged, DataInUse: the folder cannot be read. Others as `restore_from_store`.
    """
    try:
        note = target.open(draw)
        state = _salvage(source, target, tell)
        stored = frozenset(vault.segments()) if vault is not None else frozenset()
        missing = _copy_segments(source, state, target, tell, stored)
        missing = [one for one in missing if not _is_fetched(vault, target, one, tell)]
        life = state.epoch.lineage or 1
        newest = max(life, vault.newest_lineage() if vault is not None else 0)
        lineage = _begun(target, note, newest) or (
            newest + 1 if vault is None else _next_lineage(vault, newest, (life,), note, choices)
        )
        report = _report_of(state, str(source), lineage, target, missing, [])
        if not agree(report):
            return report
        if not _is_over(target, note):
            marker = _marker(note, lineage, str(source), state.index, choices)
            _claim(vault, target, note, marker, unconditional=choices.unconditional)
            hit("restore-claimed")
            new_life = _life_of_disk(state, vault, marker, choices, stored, missing)
            tell("writes the replica's disk")
            target.finish(state, begin_life(state, new_life))
        target.clear()
        report.is_done = True
        return report
    finally:
        target.leave()


def _life_of_disk(
    state: State,
    vault: Vault | None,
    marker: Lineage,
    choices: Choices,
    stored: frozenset[str],
    missing: list[SegmentRecord],
) -> NewLife:
    lost = frozenset(one.key for one in missing)
    if vault is None:
        return NewLife(marker.lineage, choices.now_ms, choices.by, lost=lost)
    records = state.history.segments.values()
    there = frozenset(one.key for one in records if _is_stored(one, stored))
    store = vault.store.url
    return NewLife(marker.lineage, choices.now_ms, choices.by, store, marker.id, there, lost)


def _is_stored(record: SegmentRecord, stored: Collection[str]) -> bool:
    """Whether the log knows a segment to be stored, and the store that is given has it."""
    return record.is_stored and name_of(record) in stored


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
    source: Path, state: State, target: Target, tell: Tell, stored: Collection[str]
) -> list[SegmentRecord]:
    """Copy the segments that are there and whole; return those that are not, and of which the log
    does not know that they are stored: the others are fetched later."""
    old = Folders(source, target.cell)
    missing = []
    records = state.history.segments.values()
    wanted = [one for one in records if one.is_local or not _is_stored(one, stored)]
    progress = Progress(tell, len(wanted), "copies history: {} segments")
    for number, record in enumerate(wanted, 1):
        is_safe = _is_stored(record, stored)
        progress.at(number)
        try:
            if not _is_here(target, record):
                target.folders.write(Sealed(record, Tail.of(old.read(record))))
        except SnapshotError as error:
            if not is_safe:
                tell(f"not on this disk: {error}")
                missing.append(record)
    return missing


def _is_fetched(vault: Vault | None, target: Target, record: SegmentRecord, tell: Tell) -> bool:
    """Whether the store has a segment that belongs on the disks, and it is there now."""
    if vault is None:
        return False
    try:
        vault.fetch_segment(name_of(record), target.folders.incoming)
        target.folders.admit(record)
    except SnapshotError as error:
        tell(f"left out: {error}")
        return False
    return True


def _is_here(target: Target, record: SegmentRecord) -> bool:
    """Whether a segment was sealed just now, or copied by a restore that died."""
    try:
        target.folders.read(record)
    except SnapshotError:
        return False
    return True

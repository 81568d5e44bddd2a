"""Restores a cell: looks, claims a new lineage, fetches, and writes the first replica's disk."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from consensus.engine.salvage import Salvage, Salvaged
from cron.errors import Conflict
from cron.failpoints import hit
from cron.keeper.shelf import Folders
from cron.leader.uploads import name_of
from cron.restore.looking import Found, Tell, look
from cron.restore.newlife import NewLife, begin_life
from cron.restore.target import Note, Target
from cron.state.archive import SegmentRecord
from cron.state.image import decode_state
from cron.state.machine import Machine
from cron.state.state import State
from snapshots.errors import SnapshotError
from snapshots.manifest import Lineage
from snapshots.vault import Vault


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


def restore_from_store(
    vault: Vault, target: Target, choices: Choices, draw: str, agree: Agree, tell: Tell
) -> Report:
    """Restore `vault`'s cell into `target`.

    Raises:
        NotFound: nothing to restore from. Conflict, LineageTaken, NotConditional: it was restored
            already, or nobody can tell. StoreError, SnapshotError, OSError: see there.
    """
    note = target.open(draw)
    found = look(vault, target.work, choices.at_ms, tell)
    lineage = note.lineage or _next_lineage(vault, found, note, choices)
    report = _report(found, vault.store.url, lineage, target)
    if _is_over(target, note):
        target.clear()
        return msgspec.structs.replace(report, is_done=True)
    if not agree(report):
        return report
    _claim(vault, target, note, found, lineage, choices)
    hit("restore-claimed")
    lost = _fetch_segments(vault, target, found, tell)
    life = NewLife(
        lineage,
        choices.now_ms,
        choices.by,
        vault.store.url,
        note.claim,
        frozenset(one.key for one in found.stored),
        frozenset(one.key for one in (*found.missing, *lost)),
    )
    tell("writes the replica's disk")
    position = begin_life(found.state, life)
    target.finish(found.state, position)
    report.missing += [name_of(one) for one in lost]
    report.is_done = True
    return report


def _is_over(target: Target, note: Note) -> bool:
    """Whether a restore that died here had written everything."""
    return bool(note.lineage) and target.is_done


def _next_lineage(vault: Vault, found: Found, note: Note, choices: Choices) -> int:
    """Return the lineage to begin, one above all that were.

    Raises:
        Conflict: somebody has begun a life that has stored nothing yet: it may be running.
    """
    newest = max(found.newest_lineage, found.manifest.lineage)
    stored = {one.lineage for one in vault.manifests()[0]}
    if newest > found.manifest.lineage and newest not in stored:
        markers = {one.lineage: one for one in vault.lineages()}
        marker = markers.get(newest)
        if marker is not None and marker.id == note.claim:
            return newest  # our own, from before we died
        if choices.abandon != newest:
            who = f" by {marker.by} on {marker.host}" if marker is not None else ""
            text = f"cell {vault.cell} was restored already: lineage {newest} was begun{who}"
            hint = f"if that cell never ran, or is given up: --abandon {newest}"
            raise Conflict(text, hint)
    return newest + 1


def _claim(
    vault: Vault, target: Target, note: Note, found: Found, lineage: int, choices: Choices
) -> None:
    # Which lineage is ours is known here before the store knows it: a restore that dies between
    # the two finds its own claim, or none.
    target.keep(msgspec.structs.replace(note, lineage=lineage))
    marker = Lineage(
        cell=vault.cell,
        lineage=lineage,
        id=note.claim,
        from_snapshot=f"{found.manifest.lineage}/{found.manifest.index}",
        from_index=found.manifest.index,
        claimed_ms=choices.now_ms,
        by=choices.by,
        host=socket.gethostname(),
    )
    try:
        vault.claim_lineage(marker, unconditional=choices.unconditional)
    except SnapshotError:
        target.keep(note)  # it is not ours: the next try looks again
        raise


def _fetch_segments(vault: Vault, target: Target, found: Found, tell: Tell) -> list[SegmentRecord]:
    """Fetch the segments that belong on the disks; return those that are damaged."""
    lost = []
    wanted = [one for one in found.stored if one.is_local]
    for number, record in enumerate(wanted, 1):
        tell(f"fetches history: {number} of {len(wanted)} segments")
        try:
            vault.fetch_segment(name_of(record), target.folders.incoming)
            target.folders.admit(record)
        except SnapshotError as error:
            tell(f"left out: {error}")
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
    note = target.open(draw)
    salvage = Salvage(source / "raft")
    try:
        tell(f"reads {source}")
        salvaged = salvage.read()
        if salvaged.cell != target.cell:
            text = f"{source} is of cell {salvaged.cell}, not {target.cell}"
            raise Conflict(text, "give the configuration of that cell")
        state = _replay(salvage, salvaged, target)
    finally:
        salvage.close()
    missing = _copy_segments(source, state, target, tell, has_store=vault is not None)
    newest = vault.newest_lineage() if vault is not None else 0
    lineage = note.lineage or max(newest, state.epoch.lineage or 1) + 1
    report = _report_of(state, str(source), lineage, target, missing, [])
    if _is_over(target, note):
        target.clear()
        return msgspec.structs.replace(report, is_done=True)
    if not agree(report):
        return report
    marker = Lineage(
        cell=target.cell,
        lineage=lineage,
        id=note.claim,
        from_snapshot=str(source),
        from_index=state.index,
        claimed_ms=choices.now_ms,
        by=choices.by,
        host=socket.gethostname(),
    )
    _claim_disk(vault, target, note, marker, unconditional=choices.unconditional)
    hit("restore-claimed")
    life = _life_of_disk(state, vault, note, lineage, choices, missing)
    tell("writes the replica's disk")
    target.finish(state, begin_life(state, life))
    report.is_done = True
    return report


def _life_of_disk(
    state: State,
    vault: Vault | None,
    note: Note,
    lineage: int,
    choices: Choices,
    missing: list[SegmentRecord],
) -> NewLife:
    lost = frozenset(one.key for one in missing)
    if vault is None:
        return NewLife(lineage, choices.now_ms, choices.by, lost=lost)
    stored = frozenset(one.key for one in state.history.segments.values() if one.is_stored)
    store = vault.store.url
    return NewLife(lineage, choices.now_ms, choices.by, store, note.claim, stored, lost)


def _claim_disk(
    vault: Vault | None, target: Target, note: Note, marker: Lineage, *, unconditional: bool
) -> None:
    """Claim a lineage that goes on from a disk; where there is no store, nobody can be asked."""
    target.keep(msgspec.structs.replace(note, lineage=marker.lineage))
    if vault is not None:
        vault.claim_lineage(marker, unconditional=unconditional)


def _replay(salvage: Salvage, salvaged: Salvaged, target: Target) -> State:
    """Return the State at the last entry; what is sealed on the way is kept."""
    state = decode_state(salvage.pieces()) if salvaged.dump is not None else State()
    machine = Machine(state)
    for one in salvaged.entries:
        outcome = machine.apply(one.position.term, one.position.index, one.entry)
        for sealed in outcome.sealed:
            target.folders.write(sealed.record, sealed.content)
    state = machine.state
    state.term = max(state.term, salvaged.term)
    state.index = max(state.index, salvaged.last.index)
    return state


def _copy_segments(
    source: Path, state: State, target: Target, tell: Tell, *, has_store: bool
) -> list[SegmentRecord]:
    """Copy the segments that are there and whole; return those that nobody has."""
    old = Folders(source, target.cell)
    missing = []
    wanted = [one for one in state.history.segments.values() if one.is_local]
    for number, record in enumerate(wanted, 1):
        tell(f"copies history: {number} of {len(wanted)} segments")
        if (target.folders.segments / name_of(record)).exists():
            continue
        try:
            target.folders.write(record, old.read(record))
        except SnapshotError as error:
            if record.is_stored and has_store:
                continue  # it is fetched from the store later
            tell(f"left out: {error}")
            missing.append(record)
    return missing

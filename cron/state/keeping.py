"""How commands about segments and snapshots change State: rule R12, one function each."""

from __future__ import annotations

import msgspec

from cron.state import commands as c
from cron.state.archive import Backup, Stream, Taken
from cron.state.commands import SegmentKey
from cron.state.context import Context
from cron.state.outcome import Result, Verdict
from cron.state.spilled import SLOTS


def seal(context: Context, command: c.Seal) -> Result:
    """Have the tails of history closed: each that has rows becomes a segment.

    That happens at the end of the entry, whatever else is in it: the rows of one entry are never
    on both sides of a Seal, since all of them have its index.
    """
    history = context.state.history
    if command.number <= history.seals or context.seals:
        return Result(Verdict.ALREADY, number=history.seals)
    if command.number != history.seals + 1 or not history.open_rows:
        return Result(Verdict.WRONG_STATE, number=history.seals)
    context.seals = True
    return Result(Verdict.ACCEPTED, number=command.number)


def snapshot_at(context: Context, _command: c.SnapshotAt) -> Result:
    """Note that a snapshot of State is taken once this entry is applied."""
    state = context.state
    state.history.taken = Taken(state.term, context.index, context.at_ms)
    return Result(Verdict.ACCEPTED)


def backed_up(context: Context, command: c.BackedUp) -> Result:
    """Mark segments as stored; remember the newest snapshot that is in object storage.

    Another store than before has nothing of what the old one has; the claim is the cell's, and
    stays.
    """
    history = context.state.history
    if command.store != history.backup.store:
        history.backup = Backup(command.store, claim=history.backup.claim)
        for key, record in history.segments.items():
            history.segments[key] = msgspec.structs.replace(record, is_stored=False)
    for keys, is_stored in ((command.missing, False), (command.segments, True)):
        for key in keys:
            known = history.segments.get(key)
            if known is not None:
                history.segments[key] = msgspec.structs.replace(known, is_stored=is_stored)
    newer = (command.generation, command.index) > (history.backup.generation, history.backup.index)
    if command.index and newer:
        history.backup = Backup(
            command.store,
            command.generation,
            command.term,
            command.index,
            command.taken_ms,
            context.at_ms,
            history.backup.claim,
        )
    if command.claim and not history.backup.claim:
        history.backup = msgspec.structs.replace(history.backup, claim=command.claim)
    return Result(Verdict.ACCEPTED)


def retire(context: Context, command: c.Retire) -> Result:
    """Let go of segments: of those in `local` on the replicas' disks, which only what is stored
    elsewhere may leave, and of those in `gone` altogether. An item each, `local` first."""
    history = context.state.history
    segments = history.segments
    items = []
    for key in command.local:
        known = segments.get(key)
        if known is None:
            items.append(Verdict.UNKNOWN_SEGMENT)
        elif not known.is_local:
            items.append(Verdict.ALREADY)
        elif not known.is_stored:
            items.append(Verdict.NOT_STORED)
        else:
            segments[key] = msgspec.structs.replace(known, is_local=False)
            items.append(Verdict.ACCEPTED)
    for key in command.gone:
        if key[-1] == Stream.TASKS:
            items.append(_retire_tasks(context, key))
            continue
        found = segments.pop(key, None)
        if found is not None:
            history.retired = max(history.retired, found.number)
        items.append(Verdict.UNKNOWN_SEGMENT if found is None else Verdict.ACCEPTED)
    return Result(Verdict.ACCEPTED, tuple(items))


def _retire_tasks(context: Context, key: SegmentKey) -> Verdict:
    """Let go of a segment of tasks of which nothing is left."""
    history = context.state.history
    if key not in history.segments:
        return Verdict.UNKNOWN_SEGMENT
    slot = key[1] % SLOTS
    if history.spilled[slot].left:
        return Verdict.STILL_OPEN
    del history.segments[key], history.spilled[slot]
    return Verdict.ACCEPTED

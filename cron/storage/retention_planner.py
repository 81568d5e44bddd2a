"""Decides when to seal, to take a snapshot, and to retire history, from State's history and a time.
Pure.

With object storage, no segment leaves the disks before it is stored there. No segment is deleted
before its time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from cron.state import commands as c
from cron.state.archive import History, SegmentRecord, Stream
from cron.state.commands import SegmentKey

DAY_MS: Final = 86_400_000
RETIRED_AT_ONCE: Final = 1_000
"""Segments that one entry retires, 20 KiB; the rest waits for the next look."""


class RetentionSettings(msgspec.Struct, frozen=True):
    """The settings of `cron.keeping_config`, in the leader's units. `store` is "" for none."""

    store: str = ""
    interval_ms: int = 600_000
    entries: int = 200_000
    segment_rows: int = 65_536
    segment_bytes: int = 8 << 20
    segment_age_ms: int = DAY_MS
    keep_ms: int = 0
    keep_failed_ms: int = 0
    local_ms: int = 0
    keep_runs: int = 0


class LogPlace(msgspec.Struct, frozen=True):
    """The index of the log's newest entry. `changed` is the index of the newest entry that did more
    than keep things, `restored` that of the snapshot with which this generation of the cell began,
    0 for none.
    """

    index: int
    changed: int
    restored: int = 0


def due(
    history: History,
    now_ms: int,
    log: LogPlace,
    settings: RetentionSettings,
    outlived: Collection[SegmentKey] = (),
) -> list[c.Command]:
    """Return the commands to append now. `outlived` are segments whose rows all have enough newer
    rows.
    """
    commands: list[c.Command] = []
    if must_seal(history, now_ms, settings):
        commands.append(c.Seal(history.seals + 1))
    retired = retire(history, now_ms, settings, outlived)
    if retired is not None:
        commands.append(retired)
    if emptied := emptied_segments(history, settings):
        commands.append(c.Retire(gone=emptied))
    if must_snapshot(history, now_ms, log, settings):
        commands.append(c.SnapshotAt())
    return commands


def must_seal(history: History, now_ms: int, settings: RetentionSettings) -> bool:
    """Return whether the open rows are many or old enough for a segment."""
    if not history.open_rows:
        return False
    return (
        history.open_rows >= settings.segment_rows
        or history.open_bytes >= settings.segment_bytes
        or now_ms - history.opened_at_ms >= settings.segment_age_ms
    )


def must_snapshot(
    history: History, now_ms: int, log: LogPlace, settings: RetentionSettings
) -> bool:
    """Return whether enough entries came since the last snapshot, or enough time passed. A new
    generation of the cell takes one at once, so that it has one of its own.
    """
    taken = history.taken
    if log.changed <= taken.index:
        return False
    if taken.index <= log.restored:
        return True
    return (
        log.index - taken.index >= settings.entries or now_ms - taken.at_ms >= settings.interval_ms
    )


def retire(
    history: History,
    now_ms: int,
    settings: RetentionSettings,
    outlived: Collection[SegmentKey] = (),
) -> c.Retire | None:
    """Return the command that retires segments, oldest first; None if none is due."""
    if not (outlived or settings.keep_ms or settings.local_ms):
        return None
    local: list[SegmentKey] = []
    gone: list[SegmentKey] = []
    is_there = bool(settings.store) and history.backup.store == settings.store
    for record in history.segments.values():
        if len(local) + len(gone) >= RETIRED_AT_ONCE:
            break
        if not record.is_history:
            continue
        is_stored = is_there and record.is_stored
        if settings.store and not is_stored and record.is_local:
            continue  # it waits for its backup, whatever its age, unless no disk has it
        age_ms = now_ms - record.sealed_at_ms
        if _is_over(record, age_ms, settings, outlived):
            gone.append(record.key)
        elif record.is_local and is_stored and 0 < settings.local_ms < age_ms:
            local.append(record.key)
    return c.Retire(tuple(local), tuple(gone)) if local or gone else None


def emptied_segments(history: History, settings: RetentionSettings) -> tuple[SegmentKey, ...]:
    """Return segments of tasks of which nothing is on disk any more. With object storage they stay
    until a snapshot is there that was taken after their last task came back: a restore from an
    older one needs them.
    """
    backup = history.backup
    is_there = bool(settings.store) and backup.store == settings.store
    stored_to = backup.index if is_there else 0
    found = [
        (one.generation, one.number, int(Stream.TASKS))
        for one in history.spilled.values()
        if not one.left and (not settings.store or one.emptied_index < stored_to)
    ]
    return tuple(found[:RETIRED_AT_ONCE])


def _is_over(
    record: SegmentRecord,
    age_ms: int,
    settings: RetentionSettings,
    outlived: Collection[SegmentKey],
) -> bool:
    """Return whether no row of a segment needs to be kept: by age, because it was sealed after its
    last row ended; or by count, but failures not before their own time.
    """
    is_failures = record.stream == Stream.FAILURES
    failed_ms = settings.keep_failed_ms if is_failures else 0
    if record.key in outlived and age_ms > failed_ms:
        return True
    keep_ms = settings.keep_ms
    return bool(keep_ms) and age_ms > max(keep_ms, failed_ms)

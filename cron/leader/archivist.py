"""When to seal, to take a snapshot, and to let history go: pure, given State's history and a time.

Nothing leaves the disks before it is stored elsewhere, if there is an elsewhere; nothing leaves
altogether before its time.
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


class ArchiveSettings(msgspec.Struct, frozen=True):
    """What `cron.keeping_config` says, as the leader needs it. `store`: the URL, "" for none."""

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


def due(
    history: History,
    now_ms: int,
    index: int,
    settings: ArchiveSettings,
    outlived: Collection[SegmentKey] = (),
) -> list[c.Command]:
    """Return what to append now. `outlived`: segments of which every row has enough newer ones."""
    commands: list[c.Command] = []
    if must_seal(history, now_ms, settings):
        commands.append(c.Seal(history.seals + 1))
    retired = retire(history, now_ms, settings, outlived)
    if retired is not None:
        commands.append(retired)
    if must_snapshot(history, now_ms, index, settings):
        commands.append(c.SnapshotAt())
    return commands


def must_seal(history: History, now_ms: int, settings: ArchiveSettings) -> bool:
    """Whether the rows that are open are enough, or old enough, for a segment."""
    if not history.open_rows:
        return False
    return (
        history.open_rows >= settings.segment_rows
        or history.open_bytes >= settings.segment_bytes
        or now_ms - history.opened_at_ms >= settings.segment_age_ms
    )


def must_snapshot(history: History, now_ms: int, index: int, settings: ArchiveSettings) -> bool:
    """Whether enough has come, or enough time has passed with anything in it, since the last."""
    taken = history.taken
    came = index - taken.index
    if came <= IDLE_ENTRIES and taken.index:
        return False
    return came >= settings.entries or now_ms - taken.at_ms >= settings.interval_ms


IDLE_ENTRIES: Final = 3
"""What a snapshot itself brings into the log: itself, its backup, a claim. A cell in which nothing
happens takes none."""


def retire(
    history: History,
    now_ms: int,
    settings: ArchiveSettings,
    outlived: Collection[SegmentKey] = (),
) -> c.Retire | None:
    """Return the segments to let go of, oldest first; None for none."""
    local: list[SegmentKey] = []
    gone: list[SegmentKey] = []
    for record in history.segments.values():
        if len(local) + len(gone) >= RETIRED_AT_ONCE:
            break
        age_ms = now_ms - record.sealed_at_ms
        if _is_over(record, age_ms, settings) or (
            record.key in outlived and record.stream == Stream.RUNS
        ):
            gone.append(record.key)
        elif record.is_local and record.is_stored and 0 < settings.local_ms < age_ms:
            local.append(record.key)
    return c.Retire(tuple(local), tuple(gone)) if local or gone else None


def _is_over(record: SegmentRecord, age_ms: int, settings: ArchiveSettings) -> bool:
    """Whether all rows of a segment have been over for as long as they are kept: it was sealed
    after the last of them ended."""
    keep_ms = settings.keep_ms
    if record.stream == Stream.FAILURES:
        keep_ms = max(keep_ms, settings.keep_failed_ms) if keep_ms else 0
    return bool(keep_ms) and age_ms > keep_ms

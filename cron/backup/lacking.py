"""Segments that no disk here has and the configured store has not: how long backups wait for them.

A segment may be on its way from a peer. One that left the disks for another store than the one that
is configured now comes from nowhere, nor does one that all disks have lost; and where damage stands
under its name in the store, only a person can make room. State must not stay without a backup for
the sake of old history: then snapshots are stored that do not name it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from cron.segments import Shelf, name_of
from cron.state.archive import SegmentRecord
from cron.state.commands import SegmentKey

HELD_MS: Final = 600_000
"""How long the snapshots of a reign wait for a segment that is to be on the disks and is not."""


class Lacking:
    """What one reign lacks. `refused`: what is here, and has something in its way in the store."""

    def __init__(self, shelf: Shelf, mono_ms: Callable[[], int]) -> None:
        self._shelf = shelf
        self._mono_ms = mono_ms
        self._held_ms: int | None = None  # since when, on the clock that counts on
        self.refused: frozenset[SegmentKey] = frozenset()

    def forget(self) -> None:
        """A reign begins, and waits anew."""
        self._held_ms = None

    def of(self, records: Iterable[SegmentRecord]) -> list[SegmentRecord]:
        """Return those of `records` that are not stored, and cannot be by this replica now."""
        return [one for one in records if not one.is_stored and not self._can_store(one)]

    def _can_store(self, record: SegmentRecord) -> bool:
        is_here = self._shelf.segment_path(name_of(record)) is not None
        return is_here and record.key not in self.refused

    def look(self, records: Iterable[SegmentRecord]) -> None:
        """Note since when segments are missing that are to be on the disks."""
        if not any(one.is_local for one in self.of(records)):
            self._held_ms = None
        elif self._held_ms is None:
            self._held_ms = self._mono_ms()

    def given_up(self, records: Iterable[SegmentRecord]) -> list[SegmentRecord]:
        """Return those of `records` without which backups go on; `look` came before."""
        held_ms = self._held_ms
        is_over = held_ms is not None and self._mono_ms() - held_ms >= HELD_MS
        return [one for one in self.of(records) if is_over or not one.is_local]

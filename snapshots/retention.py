"""Which snapshots and segments a store may lose. Pure; nothing is deleted here.

The newest snapshot is always kept, whatever clock and policy say, and with it every segment that it
names: retention must never delete what a restore would need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from snapshots.layout import parse_segment_name
from snapshots.manifest import Manifest

DAY_MS: Final = 86_400_000
GRACE_MS: Final = DAY_MS
"""A segment that no snapshot names may be on its way: uploaded by a leader whose next entry or
snapshot is still to come."""


class SnapshotPolicy(msgspec.Struct, frozen=True):
    """How many snapshots a store keeps: the newest ones, and the last of each day."""

    newest: int = 24
    daily: int = 7


class StoredSegment(msgspec.Struct, frozen=True):
    """A segment in a listing: its file name, and the store's time of it."""

    name: str
    modified_ms: int


def snapshots_to_delete(
    manifests: Iterable[Manifest],
    policy: SnapshotPolicy,
    broken: Collection[tuple[int, int, int]] = (),
) -> list[Manifest]:
    """Return the manifests of what may go, oldest first.

    Of each day (UTC, by when it was taken) the last is kept, for as many of the newest days as the
    policy says; a clock that was wrong costs a day's place and never the newest. Those whose
    positions are in `broken` take no place of a whole one, and go when they would go if whole.
    """
    ordered = sorted(manifests, key=lambda one: one.position, reverse=True)
    whole = [one for one in ordered if one.position not in broken]
    kept = _kept(whole, policy)
    kept |= {position for position in _kept(ordered, policy) if position in broken}
    return [one for one in reversed(ordered) if one.position not in kept]


def _kept(ordered: Sequence[Manifest], policy: SnapshotPolicy) -> set[tuple[int, int, int]]:
    """Return the positions of what the policy keeps of `ordered`, newest first."""
    kept = {one.position for one in ordered[: max(policy.newest, 1)]}
    last_of_day: dict[int, Manifest] = {}
    for one in ordered:
        last_of_day.setdefault(one.taken_ms // DAY_MS, one)
    for day in sorted(last_of_day, reverse=True)[: max(policy.daily, 0)]:
        kept.add(last_of_day[day].position)
    return kept


def segments_to_delete(
    stored: Sequence[StoredSegment],
    kept: Iterable[Manifest],
    wanted: Collection[str],
    now_ms: int,
) -> list[str]:
    """Return the names of segments that nobody needs any more.

    `kept` are the manifests of all snapshots that stay, `wanted` the names in the cell's catalog.
    What does not parse is not ours. Without any manifest nothing is deleted.
    """
    manifests = list(kept)
    if not manifests:
        return []
    named = {segment.name for manifest in manifests for segment in manifest.segments}
    return [
        one.name
        for one in stored
        if parse_segment_name(one.name) is not None
        and one.name not in named
        and one.name not in wanted
        and one.modified_ms < now_ms - GRACE_MS
    ]

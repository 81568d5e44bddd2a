"""Which snapshots and segments a store may delete. Pure; nothing is deleted here.

The newest snapshot and its segments are always kept, whatever clock and policy say: retention must
never delete what a restore would need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from snapshots.layout import parse_segment_name
from snapshots.manifest import Manifest

DAY_MS: Final = 86_400_000
GRACE_MS: Final = DAY_MS
"""How long a segment is kept that no snapshot names: a leader may have uploaded it, and not yet
stored the snapshot that names it."""


class SnapshotPolicy(msgspec.Struct, frozen=True):
    """How many snapshots a store keeps: the newest ones, and the last one of each day."""

    newest: int = 24
    daily: int = 7


def snapshots_to_delete(
    manifests: Iterable[Manifest],
    policy: SnapshotPolicy,
    broken: Collection[tuple[int, int, int]] = (),
) -> list[Manifest]:
    """Return the manifests of snapshots that may be deleted, oldest first.

    The last snapshot of each UTC day is kept, for as many of the newest days as the policy says. A
    wrong clock can displace a day's snapshot, but never the newest one. Snapshots whose places are
    in `broken` do not count towards these numbers, and are deleted as if they were intact.
    """
    ordered = sorted(manifests, key=lambda one: one.position, reverse=True)
    whole = [one for one in ordered if one.place not in broken]
    kept = _kept(whole, policy)
    kept |= {place for place in _kept(ordered, policy) if place in broken}
    return [one for one in reversed(ordered) if one.place not in kept]


def _kept(ordered: Sequence[Manifest], policy: SnapshotPolicy) -> set[tuple[int, int, int]]:
    """Return the places of the snapshots in `ordered` (newest first) that the policy keeps."""
    kept = {one.place for one in ordered[: max(policy.newest, 1)]}
    last_of_day: dict[int, Manifest] = {}
    for one in ordered:
        last_of_day.setdefault(one.taken_ms // DAY_MS, one)
    for day in sorted(last_of_day, reverse=True)[: max(policy.daily, 0)]:
        kept.add(last_of_day[day].place)
    return kept


def segments_to_delete(
    stored: Mapping[str, int],
    kept: Iterable[Manifest],
    wanted: Collection[str],
    now_ms: int,
) -> list[str]:
    """Return the names of segments in `stored` that are not needed any more.

    `stored` are the segments in the store by name, with their modification times in ms. `kept` are
    the manifests of all snapshots that are kept, `wanted` the names in the cell's catalog. Names
    that do not parse are never returned. Without a manifest, nothing is returned.
    """
    manifests = list(kept)
    if not manifests:
        return []
    named = {segment.name for manifest in manifests for segment in manifest.segments}
    return [
        name
        for name, modified_ms in stored.items()
        if parse_segment_name(name) is not None
        and name not in named
        and name not in wanted
        and modified_ms < now_ms - GRACE_MS
    ]

"""Deletes unneeded objects of a store: manifests first, then snapshots, then segments.

Whenever a pruning is interrupted, the remaining snapshots can be restored."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from snapshots import layout
from snapshots.errors import SnapshotError
from snapshots.manifest import Manifest
from snapshots.retention import (
    GRACE_MS,
    SnapshotPolicy,
    StoredSegment,
    segments_to_delete,
    snapshots_to_delete,
)
from snapshots.store import ObjectEntry

if TYPE_CHECKING:
    from snapshots.vault import Vault

Place = tuple[int, int, int]
"""(lineage, term, index), as in the names of objects."""


class Pruned(msgspec.Struct, frozen=True):
    """The names of deleted snapshots and segments.

    `skipped` are the errors of unreadable manifests; while there are any, no segment is deleted.
    """

    snapshots: list[str] = []
    segments: list[str] = []
    skipped: list[SnapshotError] = []


def prune(
    vault: Vault,
    policy: SnapshotPolicy,
    now_ms: int,
    wanted: Collection[str],
    is_over: Callable[[], bool],
) -> Pruned:
    """Delete what `Vault.prune` describes. `is_over` is called before each deletion, because a call
    may hang; once it returns True, nothing more is deleted.
    """
    manifests, skipped = vault.manifests()
    stored = _snapshots(vault)
    broken = {one.position for one in manifests if not _is_whole(one, stored)}
    old = snapshots_to_delete(manifests, policy, broken)
    if is_over():
        return Pruned(skipped=skipped)
    names = _delete_snapshots(vault, old)
    if skipped or is_over():
        return Pruned(names, skipped=skipped)
    _delete_orphans(vault, stored, manifests, now_ms)
    gone = {one.position for one in old}
    kept = [one for one in manifests if one.position not in gone]
    found = [StoredSegment(name, entry.modified_ms) for name, entry in vault.segments().items()]
    segments = segments_to_delete(found, kept, wanted, now_ms)
    if is_over():
        return Pruned(names)
    vault.store.delete([layout.segment_object(vault.cell, name) for name in segments])
    return Pruned(names, segments)


def _delete_snapshots(vault: Vault, old: list[Manifest]) -> list[str]:
    at = [(vault.cell, one.lineage, one.term, one.index) for one in old]
    vault.store.delete([layout.manifest_object(*one) for one in at])
    vault.store.delete([layout.snapshot_object(*one) for one in at])
    return [layout.snapshot_object(*one).rpartition("/")[2] for one in at]


def _snapshots(vault: Vault) -> dict[Place, ObjectEntry]:
    """Return the stored snapshots, with a manifest or without."""
    listed = vault.store.list(layout.snapshots_prefix(vault.cell))
    placed = ((layout.parse_snapshot_object(entry.name), entry) for entry in listed)
    return {at: entry for at, entry in placed if at is not None}


def _delete_orphans(
    vault: Vault, stored: dict[Place, ObjectEntry], manifests: Collection[Manifest], now_ms: int
) -> None:
    """Delete snapshots without a manifest: an upload or a pruning was interrupted."""
    named = {(one.lineage, one.term, one.index) for one in manifests}
    old_ms = now_ms - GRACE_MS
    orphans = [at for at, one in stored.items() if at not in named and one.modified_ms < old_ms]
    vault.store.delete([layout.snapshot_object(vault.cell, *at) for at in orphans])


def _is_whole(manifest: Manifest, stored: dict[Place, ObjectEntry]) -> bool:
    entry = stored.get((manifest.lineage, manifest.term, manifest.index))
    return entry is not None and entry.size == manifest.file_bytes

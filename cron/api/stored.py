"""Snapshots in object storage, as the API shows them: to the leader and to who has only a URL."""

from __future__ import annotations

from typing import Final

from cron.api.snapshots import SnapshotView
from snapshots import layout
from snapshots.errors import SnapshotError
from snapshots.manifest import Manifest
from snapshots.vault import Vault

REMOTE: Final = "remote"


def of_manifest(manifest: Manifest) -> SnapshotView:
    """Return a stored snapshot as the API shows it."""
    at = (manifest.lineage, manifest.term, manifest.index)
    return SnapshotView(
        name=_name(at),
        place=REMOTE,
        lineage=manifest.lineage,
        term=manifest.term,
        index=manifest.index,
        taken_ms=manifest.taken_ms,
        size=manifest.file_bytes,
        content_size=manifest.content_bytes,
        segments=len(manifest.segments),
        digest=manifest.state_digest,
    )


def of_unreadable(error: SnapshotError) -> SnapshotView:
    """Return a stored snapshot whose manifest cannot be read: nobody can restore from it."""
    at = layout.parse_manifest_object(error.name)
    if at is None:
        return SnapshotView(name=error.name, place=REMOTE, state="damaged", problem=str(error))
    lineage, term, index = at
    return SnapshotView(
        name=_name(at),
        place=REMOTE,
        lineage=lineage,
        term=term,
        index=index,
        state="damaged",
        problem=str(error),
    )


def is_pruned(vault: Vault, manifest: Manifest) -> bool:
    """Whether retention has deleted a snapshot since it was listed: its manifest goes first."""
    at = (vault.cell, manifest.lineage, manifest.term, manifest.index)
    return vault.store.head(layout.manifest_object(*at)) is None


def check_segments(vault: Vault, manifest: Manifest) -> None:
    """Look whether all history that a snapshot names is stored.

    Raises:
        SnapshotError: some is not, and it has not been deleted together with the snapshot.
    """
    stored = vault.segments()
    missing = [one.name for one in manifest.segments if one.name not in stored]
    if missing:
        text = f"{len(missing)} of its segments are not in the store, such as {missing[0]}"
        raise SnapshotError(_name((manifest.lineage, manifest.term, manifest.index)), text)


def _name(at: tuple[int, int, int]) -> str:
    return layout.snapshot_object("cell", *at).rpartition("/")[2]

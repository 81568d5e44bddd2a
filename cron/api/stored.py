"""Snapshots in object storage as the API shows them: to a leader, and to a command with a URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from cron.api.snapshots import SnapshotView
from cron.errors import InvariantViolated
from snapshots import layout
from snapshots.backup_store import BackupStore
from snapshots.errors import SnapshotError
from snapshots.manifest import Manifest

REMOTE: Final = "remote"
DAMAGED: Final = "damaged"


def of_manifest(manifest: Manifest) -> SnapshotView:
    """Return a stored snapshot as the API shows it."""
    at = (manifest.generation, manifest.term, manifest.index)
    return SnapshotView.of(
        manifest,
        name=_name(at),
        place=REMOTE,
        size=manifest.file_bytes,
        content_size=manifest.content_bytes,
        segments=len(manifest.segments),
        digest=manifest.state_digest,
    )


def of_unreadable(error: SnapshotError) -> SnapshotView:
    """Return a stored snapshot whose manifest cannot be read: nobody can restore from it."""
    at = layout.parse_manifest_object(error.name)
    if at is None:
        return SnapshotView(name=error.name, place=REMOTE, state=DAMAGED, problem=str(error))
    generation, term, index = at
    return SnapshotView(
        name=_name(at),
        place=REMOTE,
        generation=generation,
        term=term,
        index=index,
        state=DAMAGED,
        problem=str(error),
    )


def read_back(
    backup_store: BackupStore, manifest: Manifest, read: Callable[[], object]
) -> SnapshotView | None:
    """Return a stored snapshot after `read` has read all of it: verified where that went well and
    all history that it names is stored, else damaged. None where retention has deleted it since it
    was listed: its manifest goes first."""
    view = of_manifest(manifest)
    try:
        read()
        stored = backup_store.segments()
        missing = [one.name for one in manifest.segments if one.name not in stored]
        if missing:
            text = f"{len(missing)} of its segments are not in the store, such as {missing[0]}"
            raise SnapshotError(view.name, text)
    except (SnapshotError, InvariantViolated) as error:
        at = (backup_store.cell, manifest.generation, manifest.term, manifest.index)
        if backup_store.store.head(layout.manifest_object(*at)) is None:
            return None
        return msgspec.structs.replace(view, state=DAMAGED, problem=str(error))
    return msgspec.structs.replace(view, state="verified")


def _name(at: tuple[int, int, int]) -> str:
    return layout.snapshot_object("cell", *at).rpartition("/")[2]

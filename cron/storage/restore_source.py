"""Looks for what a cell can be restored from, and shows it before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from cron.errors import InvariantViolated, NotFound
from cron.state.archive import SegmentRecord
from cron.state.image import decode_state
from cron.state.state import State
from cron.storage.new_life import split
from cron.storage.segments import name_of
from launcher.names import format_time
from snapshots.disk import read_snapshot
from snapshots.errors import SnapshotCorrupt, SnapshotError
from snapshots.manifest import Manifest
from snapshots.vault import Vault

Tell = Callable[[str], None]


class Found(msgspec.Struct):
    """A snapshot that can be restored, whole in memory, and what was passed over for it.

    `newest_lineage` is the highest life that anybody has begun, `stored` and `missing` are the
    segments of its history that the store has and has not.
    """

    manifest: Manifest
    state: State
    passed_over: list[str]
    newest_lineage: int
    stored: list[SegmentRecord]
    missing: list[SegmentRecord]


def look(vault: Vault, folder: Path, at_ms: int | None, tell: Tell) -> Found:
    """Return the newest snapshot (not taken after `at_ms`, if given) that can be restored.

    Raises:
        NotFound: there is none. StoreError: the store does not answer.
    """
    tell(f"looks for snapshots of cell {vault.cell} in {vault.store.url}")
    manifests, skipped = vault.manifests()
    passed_over = [str(error) for error in skipped]
    wanted = [one for one in manifests if at_ms is None or one.taken_ms <= at_ms]
    for manifest in wanted:
        try:
            state = _fetch(vault, manifest, folder, tell)
        except (SnapshotError, InvariantViolated) as error:
            passed_over.append(str(error))
            tell(f"passed over: {error}")
            continue
        stored = vault.segments()
        records = list(state.history.segments.values())
        available = {record.key for record in records if name_of(record) in stored}
        there, missing = split(records, available)
        return Found(manifest, state, passed_over, vault.newest_lineage(), there, missing)
    raise _nothing(vault, manifests if not wanted else [], passed_over)


def _nothing(vault: Vault, later: list[Manifest], passed_over: list[str]) -> NotFound:
    """Return the error where nothing can be restored; `later` are those after the time wanted."""
    what, hint = "no snapshot", "check cell name and URL"
    if later:
        what += " that is old enough"
        oldest_s = min(one.taken_ms for one in later) // 1000
        hint = f"the oldest that can be read is of {format_time(oldest_s)}"
    elif passed_over:
        hint = f"{len(passed_over)} cannot be used: {passed_over[0]}"
    return NotFound(f"{vault.store.url} has {what} of cell {vault.cell}", hint)


def _fetch(vault: Vault, manifest: Manifest, folder: Path, tell: Tell) -> State:
    """Return the State in a snapshot, checked against all that is said of it."""
    size = manifest.file_bytes
    tell(f"fetches the snapshot at index {manifest.index}: {size:,} bytes")
    file = vault.fetch_snapshot(manifest, folder)
    _, pieces = read_snapshot(file.path, vault.cell)
    state = decode_state(_told(pieces, tell))
    header = file.header
    is_it = (state.index, state.digest) == (header.index, header.digest)
    if not is_it or header.digest.hex() != manifest.state_digest:
        raise SnapshotCorrupt(file.path.name, "the state in it is not that of its manifest")
    file.path.unlink()
    return state


def _told(pieces: Iterator[bytes], tell: Tell) -> Iterator[bytes]:
    done = 0
    for number, piece in enumerate(pieces, 1):
        done += len(piece)
        if number % 64 == 0:
            tell(f"reads the snapshot: {done:,} bytes")
        yield piece

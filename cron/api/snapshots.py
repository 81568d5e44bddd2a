"""Snapshots and segments: what is kept of them, listed, read back and fetched."""

from __future__ import annotations

from typing import Annotated, Final

from cron.api.checks import FileName, Person, bound
from cron.api.rpc import TIMEOUT_MS, Request, View

PIECE_BYTES_MAX: Final = 1 << 20


class SaveRequest(Request, frozen=True, kw_only=True):
    """Take a snapshot."""

    by: Person = ""


class SnapshotsRequest(Request, frozen=True, kw_only=True):
    """List snapshots, or read them back: `name` alone, "" for all. With `is_remote` those in object
    storage alone, else those on the leader's disk, too."""

    name: FileName = ""
    is_remote: bool = False

    def timeout_ms(self) -> int:
        """Return how long to wait. A read is asked elsewhere after a third of its time, and that is
        longer than a store may take to say what it has."""
        return 2 * TIMEOUT_MS


class SegmentRequest(Request, frozen=True, kw_only=True):
    """A piece of a segment of history on a replica's disk; `limit` is in bytes."""

    name: FileName
    offset: Annotated[int, bound(0, 1 << 62, "offset")] = 0
    limit: Annotated[int, bound(1, PIECE_BYTES_MAX, "limit")] = PIECE_BYTES_MAX


class SegmentPiece(View, frozen=True, kw_only=True):
    """A piece of a segment; `size` is that of the whole file."""

    content: bytes = b""
    size: int = 0


class KeepingView(View, frozen=True, kw_only=True):
    """What a replica keeps of snapshots and history, and how far object storage is behind.

    `snapshot_*` is the newest on its own disk, `stored_*` the newest in `store` ("" for none), by
    when each was taken. `segments` of history are in the catalog; `segments_missing` are to be on
    this disk and are not, `segments_waiting` are not in the store yet; `open_rows` are in none.
    `outputs_waiting` of finished launches are not there yet, None where none are to be.
    `failing` says since when, and why, the leader cannot upload. `filling` and `resolving` tell
    how far the history's index, and a restored cell, have come; "" when there is nothing to tell.
    """

    snapshot_index: int = 0
    snapshot_at_ms: int = 0
    segments: int = 0
    segments_missing: int = 0
    open_rows: int = 0
    store: str = ""
    stored_index: int = 0
    stored_at_ms: int = 0
    segments_waiting: int = 0
    failing_since_ms: int = 0
    failing: str = ""
    filling: str = ""
    resolving: str = ""
    outputs_waiting: int | None = None


class SnapshotView(View, frozen=True, kw_only=True):
    """One snapshot. `place` is `local` (the leader's disk) or `remote`. `size` is that of the
    file, `content_size` of what is in it. `state` is `present`, `verified` or `damaged`, `problem`
    says how; `digest` is that of the State in it."""

    name: str
    place: str
    generation: int = 0
    term: int = 0
    index: int = 0
    taken_ms: int = 0
    size: int = 0
    content_size: int = 0
    segments: int = 0
    state: str = "present"
    problem: str = ""
    digest: str = ""


class SnapshotsReport(View, frozen=True, kw_only=True):
    """The snapshots that there are, newest first; `problems` says of what cannot be read."""

    snapshots: list[SnapshotView] = []
    problems: list[str] = []
    store: str = ""


class SaveReport(View, frozen=True, kw_only=True):
    """Where a snapshot is taken. It is safe once one of at least this index is in `store`."""

    generation: int = 0
    term: int = 0
    index: int = 0
    store: str = ""

"""Errors of snapshots and what they tell an operator.

SnapshotError             .code (stable), .hint (what the operator can do, or "")
├ SnapshotCorrupt(name)   its bytes are not what was written; another one must be used
├ SnapshotUnsupported     written by a newer release; its bytes may be fine
├ SnapshotForeign         it belongs to another cell
└ SnapshotMissing         there is none under that name
InvariantViolated         a bug. Not a SnapshotError, never caught: the replica stops
"""

from __future__ import annotations


class SnapshotError(Exception):
    """Base of what snapshots report. `name` is the snapshot's file name."""

    code = "snapshot"
    hint = ""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class SnapshotCorrupt(SnapshotError):
    """Bytes are damaged, cut off, or more than were written."""

    code = "snapshot_corrupt"
    hint = "an older snapshot and the log after it, or another replica's, can take its place"


class SnapshotUnsupported(SnapshotError):
    """Format or codec is not known to this release."""

    code = "snapshot_unsupported"
    hint = "use the release that wrote it, or a newer one"


class SnapshotForeign(SnapshotError):
    """The snapshot is whole, and of another cell."""

    code = "snapshot_foreign"
    hint = "check the data directory of this replica"


class SnapshotMissing(SnapshotError):
    """No such snapshot."""

    code = "snapshot_missing"


class InvariantViolated(Exception):
    """Something that cannot be, is. The replica stops."""


def invariant(condition: bool, message: str) -> None:
    """Stop with `message` unless `condition` holds; never removed by `python -O`."""
    if not condition:
        raise InvariantViolated(message)

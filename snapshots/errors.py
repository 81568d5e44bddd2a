"""Errors of snapshots, segments and object storage, and what they tell an operator.

SnapshotError             .code (stable), .hint (what the operator can do, or ""), .name
├ SnapshotCorrupt(name)   its bytes are not what was written; another one must be used
│ └ OutputDamaged         a stored output; there is no other one
├ SnapshotUnsupported     written by another release; its bytes may be fine
├ SnapshotForeign         it belongs to another cell
├ SnapshotMissing         there is none under that name
├ SnapshotRefused         the store has it, and does not let us read it
├ SegmentClash            object storage has other bytes under that name
├ LineageTaken(lineage)   somebody else has begun this life of the cell
└ NotConditional          the store cannot tell who was first
StoreError                .code, .hint, .store (its URL)
├ StoreAway               cannot be reached, or fails; trying again later is right
├ StoreRefused            credentials, permission, bucket: a person must act
├ ObjectMissing(name)     no such object
├ ObjectDamaged(name)     fewer bytes than promised, or another checksum
└ BadStoreUrl             the URL cannot be meant
InvariantViolated         a bug. Not a SnapshotError, never caught: the replica stops
"""

from __future__ import annotations

from typing import Any


class SnapshotError(Exception):
    """Base of what snapshots and segments report. `name` is the file's or object's name."""

    code = "snapshot"
    hint = ""

    def __init__(self, name: str, message: str, hint: str = "") -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.hint = hint or type(self).hint


class SnapshotCorrupt(SnapshotError):
    """Bytes are damaged, cut off, or more than were written."""

    code = "snapshot_corrupt"
    hint = "an older snapshot and the log after it, or another replica's, can take its place"


class OutputDamaged(SnapshotCorrupt):
    """A stored output is not what was stored."""

    code = "output_damaged"
    hint = "it is not shown; its executor may still have it, once it is connected"


class SnapshotUnsupported(SnapshotError):
    """Its format is not known to this release."""

    code = "snapshot_unsupported"
    hint = (
        "use the release that wrote it; this one begins with an empty data directory and an empty "
        "prefix in object storage"
    )


class SnapshotForeign(SnapshotError):
    """It is whole, and of another cell."""

    code = "snapshot_foreign"
    hint = "check the cell's name, and the data directory or the prefix in the store"


class SnapshotMissing(SnapshotError):
    """No such snapshot or segment."""

    code = "snapshot_missing"


class SnapshotRefused(SnapshotError):
    """The store has it and does not let us read it: this one, perhaps no other."""

    code = "snapshot_refused"
    hint = "check permissions, keys, and rules that move objects to an archive"


class SegmentClash(SnapshotError):
    """The store has another segment under this name."""

    code = "segment_clash"
    hint = (
        "if two cells write to one prefix, give each a prefix or a cell name of its own; if the "
        "object was damaged, remove it, and it is stored again"
    )


class LineageTaken(SnapshotError):
    """Somebody else has begun this lineage; `lineage` is what their marker says."""

    code = "lineage_taken"
    hint = "the cell was restored already: join it, or restore again from what it has stored"

    def __init__(self, name: str, message: str, lineage: Any = None) -> None:
        super().__init__(name, message)
        self.lineage = lineage


class NotConditional(SnapshotError):
    """The store does not honour conditional writes, so two restores at once would both succeed."""

    code = "not_conditional"
    hint = "make sure that nobody else restores this cell, then say --unconditional"


class StoreError(Exception):
    """Base of what object storage reports. `store` is its URL, without secrets."""

    code = "store"
    hint = ""

    def __init__(self, store: str, message: str, hint: str = "") -> None:
        super().__init__(f"{store}: {message}")
        self.store = store
        self.hint = hint or type(self).hint


class StoreAway(StoreError):
    """It cannot be reached, or fails; trying again later is right."""

    code = "store_away"
    hint = "it is tried again; look at the network and at the store's own state"


class StoreRefused(StoreError):
    """It does not let us: a person must act."""

    code = "store_refused"
    hint = "check credentials, permissions, bucket and region"


class ObjectMissing(StoreError):
    """No such object."""

    code = "object_missing"

    def __init__(self, store: str, name: str) -> None:
        super().__init__(store, f"there is no object {name}")
        self.name = name


class ObjectDamaged(StoreError):
    """Fewer bytes than promised, more than allowed, or another checksum."""

    code = "object_damaged"

    def __init__(self, store: str, name: str, message: str) -> None:
        super().__init__(store, f"object {name}: {message}")
        self.name = name


class BadStoreUrl(StoreError):
    """The URL cannot be meant."""

    code = "bad_store_url"
    hint = "s3://BUCKET/PREFIX?region=… or file:///DIRECTORY"


class InvariantViolated(Exception):
    """Something that cannot be, is. The replica stops."""


def invariant(condition: bool, message: str) -> None:
    """Stop with `message` unless `condition` holds; never removed by `python -O`."""
    if not condition:
        raise InvariantViolated(message)

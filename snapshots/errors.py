"""Errors of snapshots, segments and object storage, and what they tell an operator.

SnapshotError             .code (stable), .hint (what the operator can do, or ""), .name
├ SnapshotCorrupt(name)   the bytes are not those that were written; use another file
│ └ OutputDamaged         a stored output is damaged; there is no other copy
├ SnapshotUntrusted       its signature is not that of a replica of the cell
│ └ SnapshotUnsigned      it has no signature, and one is wanted
├ SnapshotUnsupported     another release wrote the file; its bytes may be intact
├ SnapshotForeign         the file belongs to another cell
├ SnapshotMissing         there is no file of that name
├ SnapshotRefused         the store has the object, and does not permit reading it
├ SegmentClash            object storage has other bytes under that name
├ GenerationTaken         another restore has begun this generation of the cell
└ NotConditional          the store does not honour conditional writes
StoreError                .code, .hint
├ StoreAway               the store cannot be reached, or fails; retry later
├ StoreRefused            credentials, permission or bucket are wrong; the operator must act
├ ObjectMissing(name)     no such object
├ ObjectDamaged(name)     fewer bytes than announced, or a wrong checksum
└ BadStoreUrl             the URL is not valid
InvariantViolated         a bug. Not a SnapshotError, never caught: the replica stops
"""

from __future__ import annotations


class SnapshotError(Exception):
    """Base class of errors of snapshots and segments. `name` is the file's or object's name."""

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
    """A stored output is damaged."""

    code = "output_damaged"
    hint = "it is not shown; its executor may still have it, once it is connected"


class SnapshotUntrusted(SnapshotError):
    """A manifest or marker that no replica of the cell has written like this."""

    code = "snapshot_untrusted"
    hint = (
        "somebody else can write the store; or ca.pem lacks the authority of that time, which can "
        "be appended"
    )


class SnapshotUnsigned(SnapshotUntrusted):
    """A manifest or marker without a signature."""

    code = "snapshot_unsigned"
    hint = (
        "a release without signatures, or a cell without certificates, wrote it, or somebody else "
        "did: `raftcron restore --unsigned` takes it"
    )


class SnapshotUnsupported(SnapshotError):
    """Its format is not known to this release."""

    code = "snapshot_unsupported"
    hint = (
        "use the release that wrote it; this one begins with an empty data directory and an empty "
        "prefix in object storage"
    )


class SnapshotForeign(SnapshotError):
    """The file is intact and belongs to another cell."""

    code = "snapshot_foreign"
    hint = "check the cell's name, and the data directory or the prefix in the store"


class SnapshotMissing(SnapshotError):
    """No such snapshot or segment."""

    code = "snapshot_missing"


class SnapshotRefused(SnapshotError):
    """The store does not permit reading this object; others may be readable."""

    code = "snapshot_refused"
    hint = "check permissions, keys, and rules that move objects to an archive"


class SegmentClash(SnapshotError):
    """The store has another segment under this name."""

    code = "segment_clash"
    hint = (
        "if two cells write to one prefix, give each a prefix or a cell name of its own; if the "
        "object was damaged, remove it, and it is stored again"
    )


class GenerationTaken(SnapshotError):
    """Another restore has begun this generation."""

    code = "generation_taken"
    hint = "the cell was restored already: join it, or restore again from what it has stored"


class NotConditional(SnapshotError):
    """The store does not honour conditional writes, so two restores at once would both succeed."""

    code = "not_conditional"
    hint = "make sure that nobody else restores this cell, then say --unconditional"


class StoreError(Exception):
    """Base class of errors of object storage. The message begins with its URL, without secrets."""

    code = "store"
    hint = ""

    def __init__(self, store: str, message: str, hint: str = "") -> None:
        super().__init__(f"{store}: {message}")
        self.hint = hint or type(self).hint


class StoreAway(StoreError):
    """The store cannot be reached, or fails; retry later."""

    code = "store_away"
    hint = "it is tried again; look at the network and at the store's own state"


class StoreRefused(StoreError):
    """The store refuses access; the operator must act."""

    code = "store_refused"
    hint = "check credentials, permissions, bucket and region"


class ObjectMissing(StoreError):
    """No such object."""

    code = "object_missing"

    def __init__(self, store: str, name: str) -> None:
        super().__init__(store, f"there is no object {name}")


class ObjectDamaged(StoreError):
    """The object has fewer bytes than announced, more than allowed, or a wrong checksum."""

    code = "object_damaged"

    def __init__(self, store: str, name: str, message: str) -> None:
        super().__init__(store, f"object {name}: {message}")


class BadStoreUrl(StoreError):
    """The URL is not valid."""

    code = "bad_store_url"
    hint = "s3://BUCKET/PREFIX?region=… or file:///DIRECTORY"


class InvariantViolated(Exception):
    """An invariant does not hold. The replica stops."""


def invariant(condition: bool, message: str) -> None:
    """Stop with `message` unless `condition` holds; never removed by `python -O`."""
    if not condition:
        raise InvariantViolated(message)

"""The envelope of an entry in the engine's log: its kind, and which append it belongs to.

An append is answered when its own envelope is applied from the log, never by a callback of the
library, which can be lost or wrong. The origin is the replica, a number drawn by each process, and
a counter, so an entry of an earlier process is never confused with one of this process.

Layout: `0x00 | kind u8 | incarnation u64 | counter u64 | id length u8 | id | entry`. The first byte
is the engine's own: 0 for a command, 1 for its no-op.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from consensus.errors import UnknownFormat, invariant

COMMAND: Final = 0
ENTRY: Final = 0
BARRIER: Final = 1
MEMBERS: Final = 2
_HEAD: Final = struct.Struct(">BBQQB")


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Which append of which process an entry is."""

    replica: str
    incarnation: int
    counter: int


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """An entry with its kind and origin."""

    kind: int
    origin: Origin
    entry: bytes


def seal(kind: int, origin: Origin, entry: bytes) -> bytes:
    """Return the bytes that go into the engine's log."""
    name = origin.replica.encode()
    head = _HEAD.pack(COMMAND, kind, origin.incarnation, origin.counter, len(name))
    return head + name + entry


def content(command: bytes) -> bytes | None:
    """Return the entry of an append; None for every other command in the engine's log."""
    if len(command) < _HEAD.size or command[0] != COMMAND or command[1] != ENTRY:
        return None
    return command[_HEAD.size + command[_HEAD.size - 1] :]


def changes_members(command: bytes) -> bool:
    """Return whether an entry of the log is a change of members."""
    return command[:2] == bytes((COMMAND, MEMBERS))


def unseal(command: bytes) -> Envelope | None:
    """Return the envelope in `command`, or None for an entry of the engine itself.

    Raises:
        InvariantViolated: it is neither; the log is not of this engine. UnknownFormat: a newer
        version wrote it.
    """
    if command[:1] == b"\x01":
        return None
    invariant(len(command) >= _HEAD.size and command[0] == COMMAND, "a log entry has no envelope")
    _, kind, incarnation, counter, name_bytes = _HEAD.unpack_from(command)
    start = _HEAD.size + name_bytes
    if kind not in (ENTRY, BARRIER, MEMBERS):
        raise UnknownFormat(f"a log entry is of kind {kind}, which this version does not know")
    name = command[_HEAD.size : start].decode()
    return Envelope(kind, Origin(name, incarnation, counter), command[start:])

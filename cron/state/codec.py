"""Entries to bytes and back: the only place that knows how the log is encoded (msgpack)."""

from __future__ import annotations

import msgspec

from cron.errors import InvariantViolated
from cron.state.commands import ENTRY_VERSION, Command, Entry
from launcher.protocol.work import Epoch, WorkSpec


class _Versioned(msgspec.Struct, array_like=True, gc=False):
    """The one field of an entry that every version of this program can read."""

    version: int


class _Timed(msgspec.Struct, array_like=True, gc=False):
    """Version and time of an entry."""

    version: int
    at_ms: int


_encoder = msgspec.msgpack.Encoder()
_versions = msgspec.msgpack.Decoder(_Versioned)
_timed = msgspec.msgpack.Decoder(_Timed)
_decoder = msgspec.msgpack.Decoder(Entry)


def encode_entry(at_ms: int, epoch: Epoch, commands: tuple[Command, ...]) -> bytes:
    """Return the bytes of one entry."""
    return _encoder.encode(Entry(ENTRY_VERSION, at_ms, epoch, commands))


def decode_entry(data: bytes) -> Entry:
    """Return the entry.

    Raises:
        InvariantViolated: it is of an unknown version or cannot be read. Better dead than
            divergent: a replica that skipped it would disagree with the others for ever.
    """
    try:
        version = _versions.decode(data).version
        if version != ENTRY_VERSION:
            raise InvariantViolated(
                f"log entry has version {version}, this program knows {ENTRY_VERSION}: "
                "upgrade this replica"
            )
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvariantViolated(f"log entry cannot be read: {error}") from error


def time_of(data: bytes) -> int:
    """Return the leader's time of an entry, in ms; 0 where this program cannot read it."""
    try:
        return _timed.decode(data).at_ms
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0


def encode_work(work: WorkSpec) -> bytes:
    """Return the bytes of a WorkSpec; equal specs have equal bytes."""
    return _encoder.encode(work)

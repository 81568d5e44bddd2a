"""Errors of the replicated log.

ConsensusError            .code (stable), .hint (what the operator can do, or "")
├ NotLeader(leader)       this replica does not lead; the entry was not and will not be committed
├ OutcomeUnknown          the entry may or may not commit. Never retried blindly
├ EntryTooBig             refused before anything happened
├ QueueFull               refused before anything happened
├ Stopped                 the log is closed
├ BadConfig               a setting is refused; the message says which and what to write
├ DataInUse(path)         another process works in this data directory
└ LogDamaged(path)        what is on the disk cannot be trusted; the replica does not start
InvariantViolated         a bug. Not a ConsensusError, never caught: the replica stops
"""

from __future__ import annotations


class ConsensusError(Exception):
    """Base of what the replicated log reports."""

    code = "consensus"
    hint = ""


class NotLeader(ConsensusError):
    """Only the leader appends; `leader` is its id, if known. Nothing happened."""

    code = "not_leader"

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"this replica does not lead; leader: {leader or 'unknown'}")
        self.leader = leader


class OutcomeUnknown(ConsensusError):
    """The entry may be committed now, later or never; look before trying again."""

    code = "outcome_unknown"


class EntryTooBig(ConsensusError):
    """The entry is over the limit; nothing happened."""

    code = "entry_too_big"


class QueueFull(ConsensusError):
    """Too many appends are waiting; nothing happened."""

    code = "queue_full"


class Stopped(ConsensusError):
    """The log is closed; nothing happened."""

    code = "stopped"


class BadConfig(ConsensusError):
    """A setting of the engine is refused; nothing was started."""

    code = "bad_config"


class DataInUse(ConsensusError):
    """Another process works in the data directory at `path`."""

    code = "data_in_use"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: another process works in this data directory; stop it first")
        self.path = path


class LogDamaged(ConsensusError):
    """The journal or dump at `path` cannot be read back."""

    code = "log_damaged"

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


class InvariantViolated(Exception):
    """Something that cannot be, is. The replica stops."""


def invariant(condition: bool, message: str) -> None:
    """Stop with `message` unless `condition` holds; never removed by `python -O`."""
    if not condition:
        raise InvariantViolated(message)

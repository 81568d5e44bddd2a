"""Errors of the replicated log.

ConsensusError            .code (stable), .hint (what the operator can do, or "")
├ NotLeader(leader)       this replica does not lead; the entry was not and will not be committed
├ OutcomeUnknown          the entry may or may not commit. Never retried blindly
├ EntryTooBig             refused before anything happened
├ QueueFull               refused before anything happened
├ Stopped                 the log is closed
├ BadConfig               a setting is refused; the message says which and what to write
├ FileError               names a file or directory
│ ├ DataInUse             another process works in this data directory
│ ├ NoData                the data directory is empty, and neither bootstrap nor join was given
│ ├ NotEmpty              the directory must be empty and is not
│ ├ DiskFull              no space for the journal; the replica stops until there is some
│ └ LogDamaged            the files are damaged; the replica does not start
├ UnknownFormat(what)     written by a newer version; the replica stops until it is upgraded
├ ChangeRefused           the change of members is not possible now; nothing happened
└ Replaced                another disk has replaced this one, which must never take part again
InvariantViolated         a bug, or a disk that was put back. Never caught: the replica stops
└ OtherLog(index, term)   a leader's log contradicts a committed entry; also a ConsensusError
"""

from __future__ import annotations

from typing import Final

LOST_DISK: Final = (
    "while the other replicas have a leader (`raftcron status`), `raftcron replica replace ID`"
    " allows a new disk, which starts in an empty directory with --join; without a leader that is"
    " refused: stop all replicas, and `raftcron restore` begins the cell anew, from a disk that is"
    " left (--from-data) or from object storage"
)
"""The ways out for who sees one disk only: it cannot know how many others are well."""
ALONE: Final = (
    "it is the only replica of its cell, so there is none to --join: `raftcron restore` begins the"
    " cell anew, from object storage or from a copy of its disk (--from-data)"
)


class ConsensusError(Exception):
    """Base class of errors of the replicated log."""

    code = "consensus"
    hint = ""


class NotLeader(ConsensusError):
    """Only the leader appends; `leader` is its id, if known. Nothing happened."""

    code = "not_leader"

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"this replica does not lead; leader: {leader or 'unknown'}")
        self.leader = leader


class OutcomeUnknown(ConsensusError):
    """The entry may be committed now, later or never; check before you retry."""

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


class FileError(ConsensusError):
    """Base class of errors of the file or directory at `path`."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")


class DataInUse(FileError):
    """Another process works in the data directory."""

    code = "data_in_use"

    def __init__(self, path: str) -> None:
        super().__init__(path, "another process works in this data directory; stop it first")


class NotEmpty(FileError):
    """The directory is not empty; nothing was written."""

    code = "not_empty"
    hint = "name another directory, or move what is there away"

    def __init__(self, path: str, what: str) -> None:
        super().__init__(path, f"it is not empty: {what}")


class LogDamaged(FileError):
    """The journal or dump cannot be read back."""

    code = "log_damaged"
    hint = f"what this disk acknowledged may be lost, so it must not take part again; {LOST_DISK}"


class NoData(FileError):
    """The directory is empty, and neither bootstrap nor join was given."""

    code = "no_data"
    hint = (
        "--bootstrap if this is a new cell that has never run; --join if its disk was lost, after"
        " `raftcron replica replace ID` while the others have a leader; `raftcron restore` if all"
        " were, or so many that there is no leader"
    )

    def __init__(self, path: str, *, is_alone: bool = False) -> None:
        super().__init__(path, "empty; an id that forgot its votes could undo what was agreed")
        if is_alone:
            self.hint = f"--bootstrap if this is a new cell that has never run; else {ALONE}"


class DiskFull(FileError):
    """There is no free space; nothing that was acknowledged is lost."""

    code = "disk_full"
    hint = "make room; the replica goes on where it was"

    def __init__(self, path: str, what: str) -> None:
        super().__init__(path, f"disk full: {what}")


class UnknownFormat(ConsensusError):
    """Something on the disk or in the log was written by a newer version of this program."""

    code = "unknown_format"
    hint = "upgrade this replica"


class ChangeRefused(ConsensusError):
    """The members cannot be changed like this now; nothing happened."""

    code = "change_refused"


class Replaced(ConsensusError):
    """Another disk has replaced this one, which must not take part any more."""

    code = "replaced"
    hint = "this data directory is of no use to the cell; a new one starts with --join"

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        if hint:
            self.hint = hint


class InvariantViolated(Exception):
    """An invariant does not hold. The replica stops."""


class OtherLog(ConsensusError, InvariantViolated):
    """The leader of `term` has another entry at `index`, which is committed here. Raft makes that
    impossible, so a disk lost what it had acknowledged: it was put back to an older copy, and two
    logs of the cell went on from there."""

    code = "other_log"
    hint = (
        "nothing was cut off here. Stop all replicas, and restore the cell from a disk that was not"
        " put back and did not follow one that was (`raftcron restore --from-data`): docs/backup.md"
    )

    def __init__(self, index: int, term: int) -> None:
        super().__init__(
            f"the leader of term {term} has another entry {index}, which is committed here: a"
            " replica's disk was put back to an older copy"
        )


def invariant(condition: bool, message: str) -> None:
    """Stop with `message` unless `condition` holds; never removed by `python -O`."""
    if not condition:
        raise InvariantViolated(message)

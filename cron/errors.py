"""Errors of the daemon, with hints for the operator.

CronError                     .code (stable, snake_case)   .hint (what the operator can do, or "")
├ InvalidInput                CrontabError(problems)  ScheduleError(column)  ConfigError(path)
│                             PositionGone
├ NotFound                    UnknownJob  UnknownLaunch  UnknownReplica  UnknownTask
│                             UnknownQueue  UnknownHandler
├ Conflict                    RevisionConflict  NotNow  StillAlive
├ AlreadyExists               OtherContent
├ Unavailable                 NotLeader(leader)  NoQuorum  Shutdown  ExecutorAway  StorageAway
│                             ReplicaFault  OldDisk
├ OutcomeUnknown              the change may or may not happen. Never retried blindly
├ NotAllowed                  NotAuthenticated
├ Superseded                  the cell was restored elsewhere; the replica must never act again
└ LimitExceeded               TooManyTimes  QueueFull  RateExceeded
InvariantViolated(Exception)  a bug. Not a CronError, never caught: the replica stops

Messages are lower case, have no full stop, and begin with the thing that is wrong.
`cron/api/status.py` maps errors to gRPC codes, `cron/cli/exits.py` to exit codes.
"""

from __future__ import annotations

import msgspec


class CronError(Exception):
    """Base class of errors that users may see."""

    code = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class InvalidInput(CronError):
    """The input is not valid; nothing changed."""

    code = "invalid_input"


class Problem(msgspec.Struct, frozen=True, order=True):
    """An error or warning in a file. `line` and `column` count from 1; 0 means unknown."""

    file: str
    line: int
    column: int
    message: str
    hint: str = ""
    is_warning: bool = False

    def __str__(self) -> str:
        place = self.file
        if self.line:
            place += f" line {self.line}"
        if self.column:
            place += f", column {self.column}"
        return f"{place}: {self.mark}{self.message}"

    @property
    def mark(self) -> str:
        """Return the prefix of the message: empty for errors, `warning: ` otherwise."""
        return "warning: " if self.is_warning else ""

    @property
    def is_note(self) -> bool:
        """Return whether this is a note, which needs no action."""
        return False


class Note(Problem, frozen=True):
    """A note: valid here, but other cron implementations reject it, or the cell needs something.

    Only `raftcron lint` shows notes; a replica does not send them.
    """

    @property
    def mark(self) -> str:
        """Return the prefix of the message."""
        return "note: "

    @property
    def is_note(self) -> bool:
        """Return whether this is a note, which needs no action."""
        return True


class CrontabError(InvalidInput):
    """All errors of a file; nothing changed."""

    code = "crontab"

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class ScheduleError(InvalidInput):
    """A schedule is not valid. `column` counts characters of the expression from 1."""

    code = "schedule"

    def __init__(self, message: str, column: int = 0, hint: str = "") -> None:
        super().__init__(message, hint)
        self.column = column


class ConfigError(InvalidInput):
    """A configuration file or option is wrong; the daemon does not start."""

    code = "config"


class PositionGone(InvalidInput):
    """The changes after a position are not kept any more, or a page is of a list that is over."""

    code = "position_gone"


class NotFound(CronError):
    """The named object does not exist."""

    code = "not_found"


class UnknownJob(NotFound):
    """No such job."""

    code = "unknown_job"


class UnknownLaunch(NotFound):
    """No such launch."""

    code = "unknown_launch"


class UnknownReplica(NotFound):
    """The cell has no such replica."""

    code = "unknown_replica"


class UnknownTask(NotFound):
    """No such task, or it is forgotten."""

    code = "unknown_task"


class UnknownGroup(NotFound):
    """No group of tasks has this name, or it was forgotten."""

    code = "unknown_group"


class UnknownPredecessor(NotFound):
    """A task or group that a task comes after does not exist, or was forgotten."""

    code = "unknown_predecessor"


class UnknownQueue(NotFound):
    """No such queue of tasks."""

    code = "unknown_queue"


class UnknownHandler(NotFound):
    """No worker serves the handler, and no queue waits for it."""

    code = "unknown_handler"


class Superseded(CronError):
    """The cell was restored elsewhere: this replica must never act again."""

    code = "superseded"


class Conflict(CronError):
    """The change conflicts with another change or with the current state; nothing changed."""

    code = "conflict"


class RevisionConflict(Conflict):
    """The jobs were changed since they were read."""

    code = "revision_conflict"


class NotNow(Conflict):
    """The state of the launch or of the cell does not allow the change now."""

    code = "not_now"


class GroupClosed(Conflict):
    """The group takes no more tasks."""

    code = "group_closed"


class GroupOpen(Conflict):
    """The group cannot be followed yet: more tasks may join it."""

    code = "group_open"


class StillAlive(Conflict):
    """The replica to be replaced seems to be alive; the caller must confirm."""

    code = "still_alive"


class AlreadyExists(CronError):
    """What was to be made is there already, and is something else; nothing changed."""

    code = "already_exists"


class OtherContent(AlreadyExists):
    """A task has this key and other content."""

    code = "other_content"


class Unavailable(CronError):
    """No replica can answer now; nothing changed."""

    code = "unavailable"


class NotLeader(Unavailable):
    """This replica does not lead; `leader` is the leader's client address, if known."""

    code = "not_leader"

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"this replica does not lead; leader: {leader or 'unknown'}")
        self.leader = leader


class OldDisk(Unavailable):
    """The leader's log lacks what executors were ordered: a replica's disk was set back."""

    code = "old_disk"


class NoQuorum(Unavailable):
    """No leader has a majority."""

    code = "no_quorum"


class Shutdown(Unavailable):
    """The replica is stopping."""

    code = "shutdown"


class ExecutorAway(Unavailable):
    """The executor that has the requested data is not connected now."""

    code = "executor_away"


class StorageAway(Unavailable):
    """Object storage does not answer; the replica itself works."""

    code = "storage_away"


class ReplicaFault(Unavailable):
    """The replica that was asked has a bug; its log says more."""

    code = "replica_fault"


class OutcomeUnknown(CronError):
    """The change may happen now, later or never; check before you retry."""

    code = "outcome_unknown"


class NotAllowed(CronError):
    """The caller may not do this; nothing changed."""

    code = "not_allowed"


class NotAuthenticated(NotAllowed):
    """The caller or the server could not be authenticated; nothing changed."""

    code = "not_authenticated"


class LimitExceeded(CronError):
    """A documented limit is exceeded; nothing changed."""

    code = "limit_exceeded"


class QueueFull(LimitExceeded):
    """As many tasks wait in the queue as it takes; nothing changed."""

    code = "queue_full"


class RateExceeded(LimitExceeded):
    """Tasks come faster than their queue takes them; nothing changed."""

    code = "rate_exceeded"


class TooManyTimes(LimitExceeded):
    """More scheduled times in a range than the caller allows."""

    code = "too_many_times"


class InvariantViolated(Exception):
    """An invariant does not hold. The replica stops."""


class TooOld(InvariantViolated):
    """The log or the state is of a newer release: the replica stops until it is upgraded."""


class TooNew(InvariantViolated):
    """The log or the state is of an older release, whose format this one does not read."""


def invariant(condition: bool, message: str) -> None:
    """Stop with `message` unless `condition` holds; never removed by `python -O`."""
    if not condition:
        raise InvariantViolated(message)

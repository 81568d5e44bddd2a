"""Errors of the daemon and what they tell an operator.

CronError                     .code (stable, snake_case)   .hint (what the operator can do, or "")
├ InvalidInput                CrontabError(problems)  ScheduleError(column)  ConfigError(path)
├ NotFound                    UnknownJob  UnknownLaunch  UnknownReplica
├ Conflict                    RevisionConflict  NotNow  StillAlive
├ Unavailable                 NotLeader(leader)  NoQuorum  Shutdown  ExecutorAway  StorageAway
├ OutcomeUnknown              the change may or may not happen. Never retried blindly
├ NotAllowed                  NotAuthenticated
├ Superseded                  the cell was restored elsewhere; the replica must never act again
└ LimitExceeded               TooManyTimes
InvariantViolated(Exception)  a bug. Not a CronError, never caught: the replica stops

Messages: lower case, no full stop, the thing first. `cron/api/status.py` maps them to gRPC codes,
`cron/cli/exits.py` to exit codes.
"""

from __future__ import annotations

import msgspec


class CronError(Exception):
    """Base of what a user may be told."""

    code = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class InvalidInput(CronError):
    """What was given cannot be meant; nothing happened."""

    code = "invalid_input"


class Problem(msgspec.Struct, frozen=True, order=True):
    """One error or warning of a file. `line` and `column` count from 1; 0 where there is none."""

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
        """What stands before the message of all but errors."""
        return "warning: " if self.is_warning else ""

    @property
    def is_note(self) -> bool:
        """Whether nothing has to be done about it."""
        return False


class Note(Problem, frozen=True):
    """A warning that is none: the file means here what it looks like, if not for other crons.

    Notes are for `raftcron lint`; a replica does not send them.
    """

    @property
    def mark(self) -> str:
        """What stands before the message."""
        return "note: "

    @property
    def is_note(self) -> bool:
        """Whether nothing has to be done about it."""
        return True


class CrontabError(InvalidInput):
    """A file has errors: all of them, and nothing was changed."""

    code = "crontab"

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class ScheduleError(InvalidInput):
    """A schedule cannot be read. `column` counts characters of the expression from 1."""

    code = "schedule"

    def __init__(self, message: str, column: int = 0, hint: str = "") -> None:
        super().__init__(message, hint)
        self.column = column


class ConfigError(InvalidInput):
    """A configuration file or option is wrong; the daemon does not start."""

    code = "config"


class NotFound(CronError):
    """The thing that was named does not exist."""

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


class Superseded(CronError):
    """The cell was restored elsewhere: this one must never act again."""

    code = "superseded"


class Conflict(CronError):
    """Somebody else was faster, or the thing is not in the state for this; nothing happened."""

    code = "conflict"


class RevisionConflict(Conflict):
    """The jobs were changed meanwhile."""

    code = "revision_conflict"


class NotNow(Conflict):
    """The launch's state, or the cell's, does not allow it."""

    code = "not_now"


class StillAlive(Conflict):
    """The replica that is to be replaced seems to be well; whoever means it confirms it."""

    code = "still_alive"


class Unavailable(CronError):
    """Nobody can answer now; nothing happened."""

    code = "unavailable"


class NotLeader(Unavailable):
    """This replica does not lead; `leader` is the leader's client address, if known."""

    code = "not_leader"

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"this replica does not lead; leader: {leader or 'unknown'}")
        self.leader = leader


class NoQuorum(Unavailable):
    """No leader has a majority."""

    code = "no_quorum"


class Shutdown(Unavailable):
    """The replica is stopping."""

    code = "shutdown"


class ExecutorAway(Unavailable):
    """The executor that has what was asked for is known, and not connected now."""

    code = "executor_away"


class StorageAway(Unavailable):
    """Object storage does not answer; whoever was asked to ask it is well."""

    code = "storage_away"


class OutcomeUnknown(CronError):
    """The change may happen now, later or never; look before trying again."""

    code = "outcome_unknown"


class NotAllowed(CronError):
    """Whoever asks may not do this; nothing happened."""

    code = "not_allowed"


class NotAuthenticated(NotAllowed):
    """Certificates do not prove who asks, or who answers; nothing happened."""

    code = "not_authenticated"


class LimitExceeded(CronError):
    """More than the documented bound; nothing happened."""

    code = "limit_exceeded"


class TooManyTimes(LimitExceeded):
    """More scheduled times in a range than the caller allows."""

    code = "too_many_times"


class InvariantViolated(Exception):
    """Something that cannot be, is. The replica stops."""


class TooOld(InvariantViolated):
    """The log or the state is of a newer release: the replica stops until it is upgraded."""


def invariant(condition: bool, message: str) -> None:
    """Stop with `message` unless `condition` holds; never removed by `python -O`."""
    if not condition:
        raise InvariantViolated(message)

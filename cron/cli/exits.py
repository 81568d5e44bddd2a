"""The one table between errors and exit codes. Documented at the end of `raftcron --help`."""

from __future__ import annotations

from typing import Final

from cron.errors import (
    AlreadyExists,
    Conflict,
    CronError,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
UNAVAILABLE: Final = 5
UNKNOWN: Final = 6
NOT_ALLOWED: Final = 7
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count
PIPE_CLOSED: Final = 141  # 128 + SIGPIPE

MEANINGS: Final = {
    OK: "done",
    FAILED: "the launch failed, a check found damage, no majority, or you answered no",
    USAGE: "invalid input or usage; nothing changed",
    NOT_FOUND: "no such job, launch, task, queue, handler, executor, gate, limit or snapshot",
    CONFLICT: "conflict with another change or with the current state; nothing changed",
    UNAVAILABLE: "no replica can answer now; nothing changed",
    UNKNOWN: "the change may or may not happen, or is not complete; check before you retry",
    NOT_ALLOWED: "not allowed, or the certificates do not match; nothing changed",
}

TABLE: Final[tuple[tuple[type[CronError], int], ...]] = (
    (InvalidInput, USAGE),
    (LimitExceeded, USAGE),
    (NotFound, NOT_FOUND),
    (Conflict, CONFLICT),
    (AlreadyExists, CONFLICT),
    (Unavailable, UNAVAILABLE),
    (OutcomeUnknown, UNKNOWN),
    (NotAllowed, NOT_ALLOWED),
)


def exit_code(error: CronError) -> int:
    """Return the exit code of an error; 1 for one that the table does not have."""
    return next((code for kind, code in TABLE if isinstance(error, kind)), FAILED)


def epilog() -> str:
    """Return the exit codes as lines for `--help`."""
    lines = [f"  {code}  {meaning}" for code, meaning in MEANINGS.items()]
    return "\n".join(["\b", "Exit codes:", *lines])

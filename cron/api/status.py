"""The one table between errors and gRPC codes, and how an error travels whole.

What a client raises is what the server raised: same class, message, hint, column, problems, leader.
The class travels as its stable `code`; a client that does not know the code (a newer server)
raises the class that the gRPC code stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import msgspec

from cron import limits
from cron.api.rpc import View, decode, encode
from cron.errors import (
    AlreadyExists,
    Conflict,
    CronError,
    CrontabError,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    Problem,
    ScheduleError,
    Unavailable,
)


class Code(IntEnum):
    """The codes with which a gRPC call ends; those of `grpc.StatusCode`, without importing grpc."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


ERROR: Final = "raftcron-error-bin"
"""The trailing metadata that has a `Refusal`, as JSON."""

MESSAGE_CHARS_MAX: Final = 4_000
METADATA_BYTES_MAX: Final = 1 << 20
"""What a client accepts: 100 problems with texts of a few thousand bytes each, and some room."""
_PROBLEM_CHARS_MAX: Final = 2_000

TABLE: Final[tuple[tuple[type[CronError], Code], ...]] = (
    # The first class that fits counts: NotLeader before Unavailable, of which it is one.
    (InvalidInput, Code.INVALID_ARGUMENT),
    (NotFound, Code.NOT_FOUND),
    (Conflict, Code.ABORTED),
    (AlreadyExists, Code.ALREADY_EXISTS),
    (NotLeader, Code.FAILED_PRECONDITION),
    (Unavailable, Code.UNAVAILABLE),
    (OutcomeUnknown, Code.UNKNOWN),
    (LimitExceeded, Code.RESOURCE_EXHAUSTED),
    (NotAuthenticated, Code.UNAUTHENTICATED),
    (NotAllowed, Code.PERMISSION_DENIED),
)

Metadata = Sequence[tuple[str, str | bytes]]


class Refusal(View, frozen=True):
    """What is known of an error beside its message, the description of the status.

    `code` is the stable name of its class, `column` that of a schedule's error. `leader` is the
    leader's client address, where this replica does not lead and knows one; `peers` are the client
    addresses of the cell's replicas. `problems` are the first hundred; the last of them counts
    those that are missing.
    """

    code: str
    hint: str = ""
    column: int = 0
    problems: list[Problem] = []
    leader: str | None = None
    peers: list[str] = []


def code_of(error: CronError) -> Code:
    """Return the gRPC code of an error; INTERNAL for one that the table does not have."""
    return next((code for kind, code in TABLE if isinstance(error, kind)), Code.INTERNAL)


def to_refusal(error: CronError, peers: Sequence[str] = ()) -> tuple[Code, str, Metadata]:
    """Return an error as gRPC carries it: code, message and trailing metadata. Texts are cut to
    what a client accepts."""
    problems = error.problems if isinstance(error, CrontabError) else []
    cut = [
        msgspec.structs.replace(
            one,
            file=_text(one.file, _PROBLEM_CHARS_MAX),
            message=_text(one.message, _PROBLEM_CHARS_MAX),
            hint=_text(one.hint, _PROBLEM_CHARS_MAX),
        )
        for one in problems[: limits.CRONTAB_ERRORS_MAX + 1]
    ]
    message = f"{len(problems)} problems" if isinstance(error, CrontabError) else str(error)
    refusal = Refusal(
        code=error.code,
        hint=_text(error.hint),
        column=error.column if isinstance(error, ScheduleError) else 0,
        problems=cut,
        leader=error.leader if isinstance(error, NotLeader) else None,
        peers=[*peers],
    )
    return code_of(error), _text(message), ((ERROR, encode(refusal)),)


def from_refusal(code: int, message: str, metadata: Metadata) -> tuple[CronError, Refusal] | None:
    """Return the error that a server raised, and what else it says; None where it was not
    raftcron's server that spoke: what gRPC itself reports has no `ERROR`."""
    try:
        refusal = decode(dict(metadata).get(ERROR, b""), Refusal)
    except msgspec.DecodeError:
        return None
    by_code = next((kind for kind, its in TABLE if its == code), CronError)
    kind = _by_name().get(refusal.code, by_code)
    error: CronError
    if issubclass(kind, NotLeader):
        error = NotLeader(refusal.leader)
    elif issubclass(kind, CrontabError):
        error = CrontabError(refusal.problems)
    elif issubclass(kind, ScheduleError):
        error = ScheduleError(message, refusal.column, refusal.hint)
    else:
        error = kind(message, refusal.hint)
    return error, refusal


def error_of(code: str, message: str, hint: str = "") -> CronError:
    """Return the error of a stable code; a CronError of an unknown one."""
    return _by_name().get(code, CronError)(message, hint)


def _by_name() -> dict[str, type[CronError]]:
    """All classes by their stable code."""
    found: dict[str, type[CronError]] = {}
    waiting: list[type[CronError]] = [CronError]
    while waiting:
        kind = waiting.pop()
        found[kind.code] = kind
        waiting += kind.__subclasses__()
    return found


def _text(text: str, chars_max: int = MESSAGE_CHARS_MAX) -> str:
    """Return a text that is short enough and can be encoded."""
    return text[:chars_max].encode(errors="replace").decode()

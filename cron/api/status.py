"""The one table between errors and gRPC codes, and how an error travels whole.

What a client raises is what the server raised: same class, message, hint, column, problems, leader.
The class travels as its stable `code` in the trailing metadata; a client that does not know the
code (a newer server) raises the class that the gRPC code stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from cron import limits
from cron.api.translate import message_class, to_message, to_view
from cron.errors import (
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


CODE: Final = "raftcron-code"
HINT: Final = "raftcron-hint-bin"
COLUMN: Final = "raftcron-column"
PROBLEMS: Final = "raftcron-problems-bin"
LEADER: Final = "raftcron-leader"
PEERS: Final = "raftcron-peers"

MESSAGE_CHARS_MAX: Final = 4_000
METADATA_BYTES_MAX: Final = 1 << 20
"""What a client accepts: 100 problems with texts of a few thousand bytes each, and some room."""
_PROBLEM_CHARS_MAX: Final = 2_000

TABLE: Final[tuple[tuple[type[CronError], Code], ...]] = (
    # The first class that fits counts: NotLeader before Unavailable, of which it is one.
    (InvalidInput, Code.INVALID_ARGUMENT),
    (NotFound, Code.NOT_FOUND),
    (Conflict, Code.ABORTED),
    (NotLeader, Code.FAILED_PRECONDITION),
    (Unavailable, Code.UNAVAILABLE),
    (OutcomeUnknown, Code.UNKNOWN),
    (LimitExceeded, Code.RESOURCE_EXHAUSTED),
    (NotAuthenticated, Code.UNAUTHENTICATED),
    (NotAllowed, Code.PERMISSION_DENIED),
)

Metadata = Sequence[tuple[str, str | bytes]]


class Refusal(NamedTuple):
    """An error as gRPC carries it."""

    code: Code
    message: str
    metadata: tuple[tuple[str, str | bytes], ...]


def code_of(error: CronError) -> Code:
    """Return the gRPC code of an error; INTERNAL for one that the table does not have."""
    return next((code for kind, code in TABLE if isinstance(error, kind)), Code.INTERNAL)


def to_refusal(error: CronError) -> Refusal:
    """Return the error as gRPC carries it; texts are cut to what a client accepts."""
    metadata: list[tuple[str, str | bytes]] = [(CODE, error.code)]
    message = str(error)
    if error.hint:
        metadata.append((HINT, error.hint[:MESSAGE_CHARS_MAX].encode(errors="replace")))
    if isinstance(error, ScheduleError):
        metadata.append((COLUMN, str(error.column)))
    if isinstance(error, NotLeader) and error.leader:
        metadata.append((LEADER, error.leader))
    if isinstance(error, CrontabError):
        cut = [
            msgspec.structs.replace(
                one,
                file=one.file[:_PROBLEM_CHARS_MAX],
                message=one.message[:_PROBLEM_CHARS_MAX],
                hint=one.hint[:_PROBLEM_CHARS_MAX],
            )
            for one in error.problems[: limits.CRONTAB_ERRORS_MAX + 1]
        ]
        metadata.append((PROBLEMS, to_message(Problems(cut)).SerializeToString()))
        message = f"{len(error.problems)} problems"
    message = message[:MESSAGE_CHARS_MAX].encode(errors="replace").decode()
    return Refusal(code_of(error), message, tuple(metadata))


def from_refusal(code: int, message: str, metadata: Metadata) -> CronError | None:
    """Return the error that a server raised; None where it was not raftcron's server that spoke.

    What gRPC itself reports (a broken connection, a deadline) has no `raftcron-code`.
    """
    fields = dict(metadata)
    name = fields.get(CODE)
    if name is None:
        return None
    by_code = next((kind for kind, its in TABLE if its == code), CronError)
    kind = _by_name().get(_text(name), by_code)
    if issubclass(kind, NotLeader):
        return NotLeader(_text(fields.get(LEADER, "")) or None)
    if issubclass(kind, CrontabError):
        encoded = fields.get(PROBLEMS, b"")
        raw = encoded if isinstance(encoded, bytes) else encoded.encode()
        message_of = message_class(Problems)
        return CrontabError(to_view(message_of.FromString(raw), Problems).problems)
    hint = _text(fields.get(HINT, ""))
    if issubclass(kind, ScheduleError):
        column = _text(fields.get(COLUMN, ""))
        return ScheduleError(message, int(column) if column.isdecimal() else 0, hint)
    return kind(message, hint)


def peers_of(metadata: Metadata) -> list[str]:
    """Return the client addresses of the cell's replicas, as the server named them."""
    return [one for one in _text(dict(metadata).get(PEERS, "")).split(",") if one]


def _by_name() -> dict[str, type[CronError]]:
    """All classes by their stable code."""
    found: dict[str, type[CronError]] = {}
    waiting: list[type[CronError]] = [CronError]
    while waiting:
        kind = waiting.pop()
        found[kind.code] = kind
        waiting += kind.__subclasses__()
    return found


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class Problems(msgspec.Struct):
    """What `PROBLEMS` in the metadata has: the first hundred, since the reader counted the rest."""

    problems: list[Problem]

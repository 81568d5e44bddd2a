"""What a refusal looks like in HTTP: a status and a problem document (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from cron import limits
from cron.api.rpc import View, encode
from cron.api.status import MESSAGE_CHARS_MAX
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
    OutcomeUnknown,
    Problem,
    RevisionConflict,
    ScheduleError,
    TooManyTimes,
    Unavailable,
)

CONTENT_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1
"""An election takes a few seconds; a client that asks each second goes on soon after it."""

STATUSES: Final[tuple[tuple[type[CronError], int], ...]] = (
    # The first class that fits counts: RevisionConflict before Conflict, of which it is one.
    (InvalidInput, 400),
    (TooManyTimes, 400),
    (NotAuthenticated, 401),
    (NotAllowed, 403),
    (NotFound, 404),
    (RevisionConflict, 412),
    (Conflict, 409),
    (AlreadyExists, 409),
    (LimitExceeded, 429),
    (Unavailable, 503),
    # Not 500: the replica works, and what it waited for did not answer in time.
    (OutcomeUnknown, 504),
)
_RETRIED: Final = (429, 503)


class ProblemDocument(View, frozen=True, kw_only=True):
    """Why a request was refused (RFC 9457). `code` is stable, `detail` and `hint` are for people;
    `type` is the code as a URI. `column` is that of an error in a schedule; `problems` are those of
    a file."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str = ""
    column: int = 0
    problems: list[Problem] = []


class Refusal(Exception):
    """A request that HTTP itself refuses, before it is a call: no such path, too large."""

    def __init__(self, status: int, code: str, detail: str, hint: str = "", **headers: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.hint = hint
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Answer(msgspec.Struct, frozen=True):
    """A whole answer: its status, its headers and its body."""

    status: int
    headers: dict[str, str]
    body: bytes


def with_lists(view: View) -> bytes:
    """Return a view as JSON, with its lists also where they are empty: programs count on them."""
    content = encode(view)
    empty = [name for name in view.__struct_fields__ if getattr(view, name) == []]
    if not empty:
        return content
    lists = ",".join(f'"{name}":[]' for name in empty).encode()
    return b"{" + lists + (b"}" if content == b"{}" else b"," + content[1:])


def status_of(error: CronError) -> int:
    """Return the status of an error; 500 for one that the table does not have."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def refused(error: CronError | Refusal, *, is_input: bool = False) -> Answer:
    """Return the answer to a request that was refused. With `is_input` the request itself broke a
    limit, so that it is of no use to send it again."""
    if isinstance(error, Refusal):
        return _answer(error.status, error.code, str(error), error.hint, headers=error.headers)
    status = status_of(error)
    if is_input and isinstance(error, LimitExceeded):
        status = 400
    problems = error.problems if isinstance(error, CrontabError) else []
    return _answer(
        status,
        error.code,
        f"{len(problems)} problems" if len(problems) > 1 else str(error),
        error.hint,
        column=error.column if isinstance(error, ScheduleError) else 0,
        problems=problems[: limits.CRONTAB_ERRORS_MAX + 1],
    )


def _answer(
    status: int,
    code: str,
    detail: str,
    hint: str,
    *,
    headers: dict[str, str] | None = None,
    **more: object,
) -> Answer:
    document = ProblemDocument(
        type=f"urn:raftcron:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=_text(detail),
        code=code,
        hint=_text(hint),
        **more,  # type: ignore[arg-type]
    )
    said = {"content-type": CONTENT_TYPE, **(headers or {})}
    if status in _RETRIED:
        said.setdefault("retry-after", str(RETRY_AFTER_S))
    if status == HTTPStatus.UNAUTHORIZED:
        said["www-authenticate"] = 'Bearer realm="raftcron"'
    return Answer(status, said, encode(document))


def _text(text: str) -> str:
    """Return a text that is short enough and can be encoded."""
    return text[:MESSAGE_CHARS_MAX].encode(errors="replace").decode()

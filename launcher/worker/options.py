"""Options of a worker, its parent process and its children, and their exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from launcher.errors import BadConfig
from launcher.protocol.names import NAME_PART_CHARS_MAX
from launcher.worker.wire import TOKEN_CHARS_MAX

SOCKET_VARIABLE: Final = "RAFTCRON_WORKERS"
TARGET_VARIABLE: Final = "RAFTCRON_TARGET"
"""The kind of target that a worker serves, as `raftcron target` sets it."""
TOKEN_VARIABLE: Final = "RAFTCRON_WORKER_TOKEN"  # noqa: S105 - the name, not a token
"""A token for the executor, where no file has it."""
SOCKET_DEFAULT: Final = "/var/lib/raftcron/executor/workers.sock"
THREADS_MAX: Final = 1_000
PROCESSES_MAX: Final = 500
BUFFER_MAX: Final = 10_000
BUFFER_PER_THREAD: Final = 16
"""Tasks that may wait at a child, so that no thread waits for the executor. Only a bound: executors
send as many as end within milliseconds, and keep long ones for the child that is free first."""
MEMORY_BYTES_MAX: Final = 1 << 50
RENEW_AFTER_MAX: Final = 1_000_000_000

EXIT_OK: Final = 0
EXIT_BUG: Final = 1
EXIT_APP: Final = 2
"""The module cannot be imported, or registers no handler."""
EXIT_REFUSED: Final = 3
EXIT_LOST: Final = 4
"""The connection to the executor ended."""
EXIT_STUCK: Final = 5
"""A drain's time was over, and handlers ran on."""

GRACE_MS_MAX: Final = 86_400_000
_Ms = Annotated[int, Meta(ge=0, le=GRACE_MS_MAX)]
_Name = Annotated[
    str, Meta(pattern=rf"^([A-Za-z0-9_][A-Za-z0-9_.-]{{0,{NAME_PART_CHARS_MAX - 1}}})?$")
]


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One `raftcron worker`. `group` is the app where empty; `buffer` 0: so many per thread.

    `app` is a module, or `module:registry`. `executor` is the path of its socket; empty for that in
    $RAFTCRON_WORKERS, or SOCKET_DEFAULT. `token_file` has the token that grants it its handlers;
    empty for that in $RAFTCRON_WORKER_TOKEN, or none. What runs when the worker is stopped has
    `grace_ms` to end, is cancelled then, and has `cancelled_grace_ms` more. A process with
    `memory_max_bytes` of resident memory, or after about `renew_after` launches, is renewed; 0:
    never.
    """

    app: str
    processes: Annotated[int, Meta(ge=1, le=PROCESSES_MAX)] = 1
    threads: Annotated[int, Meta(ge=1, le=THREADS_MAX)] = 8
    group: _Name = ""
    executor: str = ""
    token_file: str = ""
    buffer: Annotated[int, Meta(ge=0, le=BUFFER_MAX)] = 0
    grace_ms: _Ms = 30_000
    cancelled_grace_ms: _Ms = 5_000
    memory_max_bytes: Annotated[int, Meta(ge=0, le=MEMORY_BYTES_MAX)] = 0
    renew_after: Annotated[int, Meta(ge=0, le=RENEW_AFTER_MAX)] = 0


class ChildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One child, `python -m launcher.worker.child JSON`. Descriptors are -1 where it is alone.

    `check`: only import the app and end. `number` is its place among its siblings, from 1.
    """

    worker: WorkerOptions
    number: int = 1
    lease_page_fd: int = -1
    parent_fd: int = -1
    check: bool = False


def worker_options(app: str, **said: Any) -> WorkerOptions:
    """Return checked options; see WorkerOptions.

    Raises:
        BadConfig: one is out of its bounds.
    """
    try:
        return msgspec.convert({"app": app, **said}, WorkerOptions)
    except msgspec.ValidationError as error:
        raise BadConfig(f"worker: {explain(error)}") from error


def explain(error: msgspec.ValidationError) -> str:
    """Return in words what is wrong with options; a pattern would say little to a user."""
    text = str(error)
    if text.endswith("at `$.group`"):
        return f"its group is not up to {NAME_PART_CHARS_MAX} of A-Z a-z 0-9 _ . -"
    if text.endswith("at `$.grace_ms`"):
        return f"its grace is not within {GRACE_MS_MAX // 3_600_000} hours"
    return text


def socket_path(said: str) -> str:
    """Return the path of the executor's socket."""
    return said or os.environ.get(SOCKET_VARIABLE, "") or SOCKET_DEFAULT


def token_of(said: str) -> str:
    """Return the token in a file, without blanks around it; "" for no file is that of the
    environment.

    Raises:
        BadConfig: the file cannot be read, or holds no token.
    """
    if not said:
        return os.environ.get(TOKEN_VARIABLE, "").strip()[:TOKEN_CHARS_MAX]
    try:
        with open(said, encoding="ascii") as file:
            token = file.read(TOKEN_CHARS_MAX + 2).strip()
    except (OSError, UnicodeDecodeError) as error:
        hint = "it has to be readable, and ASCII"
        raise BadConfig(f"token file {said}: {error}", hint) from error
    if not 0 < len(token) <= TOKEN_CHARS_MAX:
        text = f"token file {said} has no token of 1 to {TOKEN_CHARS_MAX} characters"
        raise BadConfig(text, "`openssl rand -hex 32` makes one")
    return token


def buffer_of(options: WorkerOptions) -> int:
    """Return how many tasks may wait at a child, beside those that its threads run."""
    return options.buffer or options.threads * BUFFER_PER_THREAD


def say(text: str) -> None:
    """Write one line to stderr, after the command that a person started."""
    kind = os.environ.get(TARGET_VARIABLE, "")
    command = f"target {kind}" if kind else "worker"
    sys.stderr.write(f"raftcron {command}: {text}\n")
    sys.stderr.flush()

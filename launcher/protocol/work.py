"""The work of an executor: a command or a handler, and how to run it."""

from __future__ import annotations

from typing import Final

import msgspec

HANDLER_TIMEOUT_MS: Final = 3_600_000
"""How long a handler may run if neither its job nor its program says: one that blocks for ever
would keep its slot for ever."""
NO_TIMEOUT_MS: Final = 1 << 50
"""A timeout of this length or more is none: `timeout=none` of a handler's job is stored as this."""


class Epoch(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A leadership term as its Claim recorded it: the fencing token, compared in this order."""

    generation: int = 0
    term: int = 0
    replica: str = ""

    def __str__(self) -> str:
        return f"{self.generation}.{self.term}.{self.replica}"


class WorkSpec(msgspec.Struct, frozen=True, array_like=True):
    """One piece of work, complete: the executor adds nothing from its own environment.

    `argv` is executed as it is. `env` is the part of the environment that the crontab's lines set,
    in order, after SHELL, PATH, HOME, LOGNAME and USER. `user` is empty for the executor's own.
    `cwd` is empty for HOME. `timeout_ms` is 0 for the default, which is none for a command and
    HANDLER_TIMEOUT_MS for a handler that has none of its own; NO_TIMEOUT_MS is none. `guarded` work
    must not outlive the executor's lease (rule R6). Where `handler` names a function of a worker,
    `argv` is empty; the function gets `payload`, and must say within each `heartbeat_ms` that it is
    alive (0: need not). `cpu_milli` (thousandths of a CPU) and `memory_bytes` are what it may use,
    0 for any; `priority` is 0 (first) to 9. `labels` and `traceparent` are what a task was
    submitted with, and `results` what the tasks returned that it came after, by their names: the
    function finds them in its context. `secrets` are variables of the environment, and the names of
    the secrets that the executor sets them to at each start; no value is ever in here.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    stdin: str = ""
    user: str = ""
    cwd: str = ""
    timeout_ms: int = 0
    guarded: bool = False
    handler: str = ""
    payload: bytes = b""
    heartbeat_ms: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    priority: int = 5
    labels: tuple[tuple[str, str], ...] = ()
    traceparent: str = ""
    results: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()


def results_bytes(spec: WorkSpec) -> int:
    """Return how many bytes the results have that a piece of work brings along."""
    return sum(len(text.encode()) for result in spec.results for text in result)

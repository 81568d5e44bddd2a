"""The life of a launch: its states, the moves between them, the reasons for them.

Everything that says which state may follow which is in the table of this file; replicas, the
leader's pool and the documentation read it from here.
"""

from __future__ import annotations

import enum
from typing import Final


class LaunchState(enum.IntEnum):
    """Where a launch stands. The numbers are in the log: append, never renumber."""

    DUE = 1
    BEGUN = 2
    LAUNCHED = 3
    SUCCEEDED = 4
    FAILED = 5
    SKIPPED = 6
    LOST = 7
    CANCELLED = 8

    @property
    def label(self) -> str:
        """The word that people and programs see."""
        return self.name.lower()


class Reason(enum.IntEnum):
    """Why a launch is in its state. The numbers are in the log: append, never renumber."""

    NONE = 0
    MISSED = 1
    OVERLAP = 2
    PAUSED = 3
    GATED = 4
    DEADLINE = 5
    TIMEOUT = 6
    KILLED = 7
    REPLACED = 8
    FENCED = 9
    EXECUTOR_LOST = 10
    RESTORED = 11
    USER = 12
    SPAWN = 13  # the operating system would not start it: no such shell, directory, memory
    RETRY = 14  # it asked to be tried again: an exit code, or a handler's word
    FATAL = 15  # it said that trying again is of no use
    SNOOZE = 16  # a handler asked for another time, which is no failure
    RAISED = 17  # a handler raised what nobody expected
    SILENT = 18  # a handler did not say in time that it is alive
    WORKER_DIED = 19  # the process that ran the handler is gone, and the handler with it
    MEMORY = 20  # it took more memory than its job may
    BUDGET = 21  # it would be tried again, but its tenant has no retries left
    FULL = 22  # its queue takes no more
    OVERLOAD = 23  # more fell due than could begin, and others went before it
    NO_EXECUTOR = 24  # more fell due than could begin, since no executor could run any of it

    @property
    def label(self) -> str:
        """The word that people and programs see; empty for none."""
        return "" if self is Reason.NONE else self.name.lower().replace("_", "-")


_S = LaunchState

TRANSITIONS: Final[dict[LaunchState, frozenset[LaunchState]]] = {
    # Accounted for, waiting for an executor. Cancelled and skipped without ever having begun; lost
    # where a cell was restored from a time at which it was due (rule R13).
    _S.DUE: frozenset({_S.BEGUN, _S.SKIPPED, _S.CANCELLED, _S.LOST}),
    # Log point 1 is committed; nobody knows yet whether it was started. Back to due only when the
    # executor durably refused it (rule R7), which proves that it never ran.
    _S.BEGUN: frozenset(
        {_S.LAUNCHED, _S.DUE, _S.SUCCEEDED, _S.FAILED, _S.SKIPPED, _S.LOST, _S.CANCELLED}
    ),
    # Log point 2 is committed: it was started.
    _S.LAUNCHED: frozenset({_S.SUCCEEDED, _S.FAILED, _S.LOST, _S.CANCELLED}),
    _S.SUCCEEDED: frozenset(),
    # Backfill makes these due again, as the next attempt of the same row (rule R1, `Reopen`).
    _S.FAILED: frozenset({_S.DUE}),
    _S.SKIPPED: frozenset({_S.DUE}),
    _S.LOST: frozenset({_S.DUE}),
    _S.CANCELLED: frozenset({_S.DUE}),
}

OPEN: Final = frozenset({_S.DUE, _S.BEGUN, _S.LAUNCHED})
"""States of launches that are not over."""
ACTIVE: Final = frozenset({_S.BEGUN, _S.LAUNCHED})
"""States in which something may be running."""
REOPENABLE: Final = frozenset({_S.FAILED, _S.SKIPPED, _S.LOST, _S.CANCELLED})


def may_follow(before: LaunchState, after: LaunchState) -> bool:
    """Whether a launch may move from `before` to `after`."""
    return after in TRANSITIONS[before]


def mermaid() -> str:
    """Return the table as a Mermaid state diagram, for the documents."""
    lines = ["stateDiagram-v2", "    [*] --> due", "    [*] --> skipped"]
    lines += [
        f"    {before.label} --> {after.label}"
        for before, afters in TRANSITIONS.items()
        for after in sorted(afters)
    ]
    lines += [f"    {state.label} --> [*]" for state in LaunchState if state not in OPEN]
    return "\n".join(lines) + "\n"

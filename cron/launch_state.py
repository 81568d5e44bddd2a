"""The states of a launch and the moves between them.

Replicas and the documentation read the table of this file.
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

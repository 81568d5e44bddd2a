"""What a target knows of the work of a launch. Pure."""

from __future__ import annotations

import enum

import msgspec


class State(enum.Enum):
    """What a target knows of the work of a launch."""

    RUNNING = "running"
    DONE = "done"
    RETRY = "retry"
    """It failed, or could not be handed over; another try may succeed."""
    FATAL = "fatal"
    """It was refused, and would be refused again."""
    ABSENT = "absent"
    """The target does not have it, or drops a second one of its name: handing it over does it at
    most once."""
    UNKNOWN = "unknown"
    """The target cannot tell whether it has it."""


class Seen(msgspec.Struct, frozen=True):
    """What became of the work of a launch, with a detail for people. `after_ms` is, with RETRY, how
    long to wait; 0: as the job says."""

    state: State
    detail: str = ""
    after_ms: int = 0

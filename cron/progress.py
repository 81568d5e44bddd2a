"""The progress of a replica that joins a cell, as text."""

from __future__ import annotations

from typing import Final, Protocol

_UNITS: Final = ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"))


class Progress(Protocol):
    """`consensus.cell.Joining`, or the API's view of it."""

    @property
    def stage(self) -> str:
        """`waiting`, `dump` or `log`."""

    @property
    def done(self) -> int:
        """Bytes of the dump, or the last entry that this replica has."""

    @property
    def goal(self) -> int:
        """The value of `done` at the end of the stage."""

    @property
    def text(self) -> str:
        """What the replica waits for."""


def describe_progress(progress: Progress) -> str:
    """Return the progress as text, such as `receives the state: 40 of 100 MB`."""
    if progress.stage == "dump":
        return f"receives the state: {_bytes(progress.done, progress.goal)}"
    if progress.stage == "log":
        return f"receives the log: {progress.done:,} of {progress.goal:,} entries"
    return f"waits to be taken in: {progress.text or 'no peer has answered yet'}"


def _bytes(done: int, goal: int) -> str:
    for size, unit in _UNITS:
        if goal >= size:
            digits = 0 if goal >= 10 * size else 1
            return f"{done / size:,.{digits}f} of {goal / size:,.{digits}f} {unit}"
    return f"{done} of {goal} bytes"

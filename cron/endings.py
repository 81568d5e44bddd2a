"""The exit codes of a replica, for operators and service managers.

A replica with exit code 4 or 6 must not be started again on its data. After every other code it may
be started again, for some of them once the operator has fixed what the message names.
"""

from __future__ import annotations

from typing import Final

from consensus.errors import LOST_DISK, DiskFull, LogDamaged, Replaced, UnknownFormat
from cron.errors import Superseded, TooNew, TooOld
from launcher import disk_errors

STOPPED: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
TOO_OLD: Final = 3
REPLACED: Final = 4
DISK_FULL: Final = 5
SUPERSEDED: Final = 6
TOO_NEW: Final = 7

MEANINGS: Final = {
    STOPPED: "the replica was told to stop",
    FAILED: "the replica failed; its log has the reason",
    REFUSED: "the replica cannot start (configuration, ports, data); nothing was changed",
    TOO_OLD: "the data or the peers are of a newer version; upgrade this replica",
    REPLACED: "another disk has replaced this one; never start a replica on this data again",
    DISK_FULL: "the disk is full; a restarted replica waits ten minutes for free space",
    SUPERSEDED: "the cell was restored elsewhere; never start a replica on this data again",
    TOO_NEW: "the data is of an older version, which this one does not read; nothing was changed",
}

_TABLE: Final[tuple[tuple[type[Exception], int], ...]] = (
    (Replaced, REPLACED),
    (DiskFull, DISK_FULL),
    (UnknownFormat, TOO_OLD),
    (TooOld, TOO_OLD),
    (TooNew, TOO_NEW),
    (Superseded, SUPERSEDED),
)


class DiskFailed(Exception):
    """The disk refuses or fails; `hint` says what to do. It is no bug, and needs no traceback."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.hint = hint


OF_DISK: Final = (DiskFailed, LogDamaged)
"""What ends a replica because of its disk alone."""


def of_disk(error: BaseException) -> BaseException:
    """Return the error that describes a disk error to an operator; other errors unchanged."""
    if not isinstance(error, OSError) or not (hint := disk_errors.hint_of(error)):
        return error
    text = disk_errors.text_of(error)
    if error.errno in disk_errors.FULL:
        return DiskFull(str(error.filename or "the disk"), text)
    return DiskFailed(text, f"{hint}; if the disk is lost: {LOST_DISK}")


def exit_code(error: BaseException, *, is_start: bool) -> int:
    """Return the exit code of a replica that stopped, or could not start, because of `error`."""
    other = REFUSED if is_start else FAILED
    return next((code for kind, code in _TABLE if isinstance(error, kind)), other)


def epilog() -> str:
    """Return the exit codes as lines for `--help`, with the matching systemd settings."""
    lines = [f"  {code}  {meaning}" for code, meaning in MEANINGS.items()]
    unit = f"systemd: Restart=always and RestartPreventExitStatus={REPLACED} {SUPERSEDED}"
    return "\n".join(["\b", "Exit codes:", *lines, unit])

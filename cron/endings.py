"""How a replica ends: the one table of its exit codes, for whoever starts it again.

A replica whose disk was replaced must stay down for good; every other end is worth another start,
if only after somebody has read the message.
"""

from __future__ import annotations

from typing import Final

from consensus.errors import DiskFull, Replaced, UnknownFormat
from cron.errors import Superseded, TooOld

STOPPED: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
TOO_OLD: Final = 3
REPLACED: Final = 4
DISK_FULL: Final = 5
SUPERSEDED: Final = 6

MEANINGS: Final = {
    STOPPED: "it was told to stop",
    FAILED: "it failed; its log says how",
    REFUSED: "it does not start: configuration, ports, data; nothing was changed",
    TOO_OLD: "its data or its peers are of a newer version; upgrade it",
    REPLACED: "another disk stands for its id; never start it on this data again",
    DISK_FULL: "its disk is full; started again, it waits ten minutes for room",
    SUPERSEDED: "the cell was restored elsewhere; never start it on this data again",
}

_TABLE: Final[tuple[tuple[type[Exception], int], ...]] = (
    (Replaced, REPLACED),
    (DiskFull, DISK_FULL),
    (UnknownFormat, TOO_OLD),
    (TooOld, TOO_OLD),
    (Superseded, SUPERSEDED),
)


def exit_code(error: BaseException, *, is_start: bool) -> int:
    """Return the exit code of a replica that `error` ended, or kept from starting."""
    other = REFUSED if is_start else FAILED
    return next((code for kind, code in _TABLE if isinstance(error, kind)), other)


def epilog() -> str:
    """Return the table as lines for `--help`, with what systemd should know of it."""
    lines = [f"  {code}  {meaning}" for code, meaning in MEANINGS.items()]
    unit = f"systemd: Restart=always and RestartPreventExitStatus={REPLACED} {SUPERSEDED}"
    return "\n".join(["\b", "Exit codes:", *lines, unit])

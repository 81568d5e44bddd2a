"""Files that are given on the command line: read whole, within bounds, named as the user did."""

from __future__ import annotations

import sys
from typing import Final

from cron import limits
from cron.api.jobs import SourceFile
from cron.errors import InvalidInput, LimitExceeded

STDIN: Final = "-"
STDIN_NAME: Final = "<stdin>"


def read_source(name: str) -> SourceFile:
    """Return a file's name and bytes; `-` is the standard input.

    Raises:
        InvalidInput: it cannot be read. LimitExceeded: it is too large.
    """
    try:
        if name == STDIN:
            content = sys.stdin.buffer.read(limits.CRONTAB_BYTES_MAX + 1)
        else:
            with open(name, "rb") as file:
                content = file.read(limits.CRONTAB_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"{printable(name)} cannot be read: {reason.lower()}") from error
    if len(content) > limits.CRONTAB_BYTES_MAX:
        raise LimitExceeded(
            f"{printable(name)} has more than {limits.CRONTAB_BYTES_MAX} bytes",
            "split it into several files",
        )
    return SourceFile(STDIN_NAME if name == STDIN else printable(name), content)


def printable(name: str) -> str:
    """Return a file's name as text that can be sent and printed, whatever bytes it has."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in name
    )

"""How far the ledger has come, in a file beside it: so that a ledger whose end is missing is told.

SQLite takes the first frame of its log that does not add up for the end of the log. That is right
after a power cut, when nobody was told of what came behind it; but a byte that flips there, a tail
that is cut off, or an older copy put in place make it forget launches that were begun, without a
word. So each synced transaction has a number, in the ledger and, once it is on the disk, here.

The file is never synced: what it says survives the process at once and the host a little later, and
is never more than what the ledger had, unless the ledger has lost something.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_DIGITS: Final = 20


class Mark:
    """The file, for the ledger at `path`. Where it cannot be read or written it says nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_suffix(".mark")
        self._fd = -1
        if path.exists():  # not where it is in memory
            with contextlib.suppress(OSError):
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def read(self, uuid: str) -> int:
        """Return the number that the ledger `uuid` had come to; 0 if that is not known."""
        if self._fd < 0:
            return 0
        try:
            name, number = os.pread(self._fd, 200, 0).decode("ascii").split()
            return int(number) if name == uuid and len(number) == _DIGITS else 0
        except (OSError, ValueError):
            return 0

    def write(self, uuid: str, number: int) -> None:
        """Say that the ledger `uuid` has come to a number, which is on the disk."""
        if self._fd >= 0:
            # An older number than is true is no harm: it only tells less.
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, f"{uuid} {number:0{_DIGITS}}\n".encode("ascii"), 0)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

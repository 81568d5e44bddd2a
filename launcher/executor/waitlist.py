"""What waits on this host and was never given to a worker, so that a killed executor's heir knows.

Theory of operation. A row without a result may have run, and becomes INTERRUPTED when its executor
was killed. What waits in the buffer has never left this process: its name stands in a file from
when it begins to wait until just before it is given away. Of names in that file the next executor
says REFUSED, so that they may begin elsewhere (rule R7). Whatever is in doubt counts as given.

Nothing is synced: the file is believed within the boot and by the ledger that wrote it, where what
a killed process wrote is there. A write each for what begins to wait together, and for what is
given away together: a millionth of a second for a launch.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from typing import Final

from launcher import logs
from launcher.errors import LedgerStuck
from launcher.executor.ledger import Ledger

log = logs.get()

FILE: Final = "waiting"
BYTES_MIN: Final = 1 << 20
"""The file is written anew when it is longer than this, and twice what was left the last time."""


class Waitlist:
    """The names that wait here and were never given away, in a file beside the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        """Begin anew. What the file said of the last executor has been read by `left_waiting`."""
        self._path = ledger.path.with_name(FILE)
        self._head = _head(ledger)
        self._names: dict[str, None] = {}
        self._fd = -1
        self._size = self._limit = 0
        self._problem: LedgerStuck | None = None
        if self._head:
            self._begin_anew()

    def add(self, names: Iterable[str]) -> None:
        """These wait from now on; their rows are in the ledger.

        Raises:
            LedgerStuck: the disk takes nothing, not even that the file says nothing.
        """
        if self._fd < 0:
            return
        some = list(names)
        self._names.update(dict.fromkeys(some))
        self._write("+", some)

    def remove(self, names: Iterable[str]) -> None:
        """These are about to be given away.

        Raises:
            LedgerStuck: that cannot be written down. They must not be given away.
        """
        some = [name for name in names if name in self._names]
        self.forget(some)
        try:
            self._write("-", some)
        except LedgerStuck:
            self._names.update(dict.fromkeys(some))
            raise

    def forget(self, names: Iterable[str]) -> None:
        """These are refused, which needs no word here: they were not given away."""
        for name in names:
            self._names.pop(name, None)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, sign: str, names: list[str]) -> None:
        if not names or self._fd < 0:
            return
        if self._problem:
            raise self._problem
        text = "".join(f"{sign}{name}\n" for name in names).encode()
        try:
            self._append(self._fd, text)
        except OSError as error:
            self._abandon(error)
            return
        self._size += len(text)
        if self._size > self._limit:
            self._begin_anew()

    @staticmethod
    def _append(fd: int, text: bytes) -> None:
        if os.write(fd, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _begin_anew(self) -> None:
        """Write what is left into a new file, which takes the place of the old one."""
        fresh = self._path.with_name(f"{FILE}.new")
        text = f"{self._head}\n" + "".join(f"+{name}\n" for name in self._names)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = -1
        try:
            fd = os.open(fresh, flags, 0o600)
            self._append(fd, text.encode())
            os.replace(fresh, self._path)
        except OSError as error:
            log.warning("waitlist.stuck", error=f"{fresh}: {error.strerror}")
            self._limit = 2 * self._size  # the old one goes on, if there is one
            if fd >= 0:
                os.close(fd)
            return
        self.close()
        self._fd, self._size = fd, len(text)
        self._limit = max(BYTES_MIN, 2 * self._size)

    def _abandon(self, error: OSError) -> None:
        """It can no longer be kept: it must say nothing. An empty file says that also when the disk
        is full."""
        try:
            os.ftruncate(self._fd, 0)
        except OSError:
            # What is in the file now nobody knows: nothing more is given away.
            hint = "make room on the disk, then start the executor again"
            self._problem = LedgerStuck(f"{self._path}: cannot write: {error}", hint)
            raise self._problem from error
        log.warning("waitlist.abandoned", error=f"{self._path}: {error.strerror}")
        self.close()
        self._names.clear()


def left_waiting(ledger: Ledger) -> frozenset[str]:
    """Return the names of which the last executor with this ledger had given nothing away."""
    head, path = _head(ledger), ledger.path.with_name(FILE)
    waiting: dict[str, None] = {}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        first, *lines = path.read_bytes().decode().split("\n")
        if not head or first != head:
            return frozenset()
        for line in lines[:-1]:  # the last is empty, or was not written to its end
            if line.startswith("+"):
                waiting[line[1:]] = None
            else:
                waiting.pop(line[1:], None)
    return frozenset(waiting)


def _head(ledger: Ledger) -> str:
    """Which ledger and which boot the file is of; empty where the boot is not known, or the ledger
    is no file itself."""
    is_file = ledger.path.is_file()
    return f"{ledger.uuid} {ledger.boot_id}" if ledger.boot_id and is_file else ""

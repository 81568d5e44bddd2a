"""The files of an executor's journal: `journal`, and beside it `journal.mark`.

Only what the operating system is asked for is here; what is in the files is in `journal.py`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_MARK_BYTES: Final = 200


class LocalDisk:
    """The journal at `path`, in a directory that no other process uses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark_path = path.with_name(f"{path.name}.mark")
        self._fd = self._mark = -1

    def read(self) -> bytes | None:
        """Return all of the journal; None if there is none."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, pieces: Iterable[bytes]) -> None:
        """Write a new journal and put it in the place of the old one, durably. The old one is
        whole until then, and later appends go to the new one."""
        fresh = self.path.with_name(f"{self.path.name}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(fresh, flags, 0o600)
        try:
            for piece in pieces:
                _write(fd, piece)
            os.fsync(fd)
            fresh.replace(self.path)
            self._sync_directory()
        except BaseException:
            os.close(fd)
            fresh.unlink(missing_ok=True)  # the room that it took is the old one's
            raise
        self.close()
        self._fd = fd

    def append(self, data: bytes) -> None:
        """Write `data` behind what is there; it survives the process, not the host."""
        _write(self._fd, data)

    def sync(self) -> None:
        """Return once all that was appended is on the disk."""
        os.fdatasync(self._fd)

    def read_mark(self) -> bytes:
        """Return what the mark says; nothing if there is none or it cannot be read."""
        try:
            return os.pread(self._open_mark(), _MARK_BYTES, 0)
        except OSError:
            return b""

    def write_mark(self, said: bytes) -> None:
        """Let the mark say `said`, which is always as long; it is not synced. A mark that cannot be
        written keeps saying less than is true, which does no harm."""
        with contextlib.suppress(OSError):
            os.pwrite(self._open_mark(), said, 0)

    def close(self) -> None:
        """Close the files."""
        for fd in (self._fd, self._mark):
            if fd >= 0:
                os.close(fd)
        self._fd = self._mark = -1

    def _open_mark(self) -> int:
        if self._mark < 0:
            self._mark = os.open(self._mark_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._mark

    def _sync_directory(self) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]

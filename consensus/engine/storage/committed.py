"""The newest commit index that this disk has written down, so that a start knows what is committed.

A leader sends the commit index again, so nothing needs this to be up to date, or to be there. But
a disk that knows that its entries were committed refuses a leader whose log lacks them: the disk of
that leader, or of those who elected it, was put back to an older copy. Without this, its entries
would be cut off, and they may be the only copy.

The index is written at most once in `EVERY_S`, in turns to two files, and never synced: a crash of
the host leaves an older one, or none.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from typing import Final

from consensus.engine.storage.disk import Disk
from consensus.engine.storage.entries import Entries

EVERY_S: Final = 1.0
FILES: Final = ("committed.0", "committed.1")
_POINT: Final = struct.Struct("<QQ")
_CHECK: Final = struct.Struct("<I")


class CommitNote:
    """The commit index on a disk. Used in the tick thread. `index` is what was found at the start,
    0 if nothing was."""

    def __init__(self, disk: Disk, log: Entries) -> None:
        """Read what is on `disk`. Only an entry that `log` has counts: other files may be newer or
        older in a copy that was made while a replica ran."""
        self._disk = disk
        self._log = log
        names = set(disk.names())
        points = [self._read(name) if name in names else (0, 0) for name in FILES]
        self.index = max(index if self._has(index, term) else 0 for index, term in points)
        self._written = self.index
        self._next_s = 0.0
        self._turn = points.index(max(points)) + 1  # never the newest

    def _read(self, name: str) -> tuple[int, int]:
        file = self._disk.open(name)
        content = file.read(0, _POINT.size + _CHECK.size + 1)
        file.close()
        point = content[: _POINT.size]
        if len(content) != _POINT.size + _CHECK.size or content[_POINT.size :] != _check(point):
            return 0, 0
        index, term = _POINT.unpack(point)
        return index, term

    def _has(self, index: int, term: int) -> bool:
        log = self._log
        return log.begin <= index <= log.last and log.term_at(index) == term

    def note(self, index: int, now_s: float) -> None:
        """Write down that the entries up to `index` are committed, if it is time for that."""
        if index <= self._written or now_s < self._next_s:
            return
        self._written, self._next_s = index, now_s + EVERY_S
        point = _POINT.pack(index, self._log.term_at(index))
        with suppress(OSError):  # a disk that is full or fails stops the journal, which says so
            file = self._disk.create(FILES[self._turn % len(FILES)])
            self._turn += 1
            try:
                file.append(point + _check(point))
            finally:
                file.close()


def _check(point: bytes) -> bytes:
    return _CHECK.pack(zlib.crc32(point))

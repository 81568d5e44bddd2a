"""The files of an executor's journal in memory: full, failing, torn or older as a test wants."""

from __future__ import annotations

import errno
import os
import random
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from launcher.executor.ledger import Ledger


class MemoryDisk:
    """A disk that knows what was synced. `room` is how many bytes more it takes, `fails` whether
    the next sync does."""

    def __init__(self, data: bytes | None = None, mark: bytes = b"") -> None:
        self.path = Path("/nowhere/data/journal")
        self.data = bytearray(data) if data is not None else None
        self.durable_size = len(data or b"")
        self.mark = mark
        self._marks = deque([b"", mark], maxlen=20)
        self.room: int | None = None
        self.fails = False
        self.syncs = 0
        self.rewrites = 0

    def read(self) -> bytes | None:
        return bytes(self.data) if self.data is not None else None

    def replace(self, pieces: Iterable[bytes]) -> None:
        fresh = bytearray()
        for piece in pieces:
            fresh += self._fitting(piece)
        self._sync()
        self.data = fresh
        self.durable_size = len(fresh)
        self.rewrites += 1

    def append(self, data: bytes) -> None:
        assert self.data is not None
        room = self.room
        if room is not None and len(data) > room:
            self.data += data[:room]
        self.data += self._fitting(data)

    def _fitting(self, data: bytes) -> bytes:
        if self.room is not None:
            if len(data) > self.room:
                self.room = 0
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= len(data)
        return data

    def sync(self) -> None:
        self._sync()
        assert self.data is not None
        self.durable_size = len(self.data)

    def _sync(self) -> None:
        self.syncs += 1
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def read_mark(self) -> bytes:
        return self.mark

    def write_mark(self, said: bytes) -> None:
        self.mark = said
        self._marks.append(said)

    def close(self) -> None:
        """There is nothing to close."""

    def copy(self) -> MemoryDisk:
        """Return what somebody else would find there now, as after a kill."""
        return MemoryDisk(self.read(), self.mark)

    def after_power_cut(self, chance: random.Random) -> MemoryDisk:
        """Return what a power cut leaves: all that was synced, anything of the rest, any mark."""
        if self.data is None:
            return MemoryDisk()
        kept, rest = self.data[: self.durable_size], self.data[self.durable_size :]
        for at in range(len(rest)):
            if chance.random() < 0.02:
                rest[at] = chance.choice((0, rest[at] ^ 1))
        cut = chance.randint(0, len(rest))
        return MemoryDisk(bytes(kept + rest[:cut]), chance.choice(self._marks))


def read_only(path: Path) -> Ledger:
    """Return the ledger that somebody else finds at `path` now, whose writes go nowhere."""
    mark = path.with_name(f"{path.name}.mark")
    said = mark.read_bytes() if mark.exists() else b""
    return Ledger(path, disk=MemoryDisk(path.read_bytes(), said))

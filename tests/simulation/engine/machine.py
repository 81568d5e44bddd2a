"""A machine: its disk, its clock, and the process that lives on it for a while."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, Literal

from tests.fakes.memory_disk import MemoryDisk, MemoryFile
from tests.simulation.engine.events import Events

if TYPE_CHECKING:
    from tests.simulation.engine.process import Process


class Clock:
    """A monotonic clock that may run fast or slow."""

    def __init__(self, events: Events, offset_s: float) -> None:
        self._events = events
        self._at_s = 0.0
        self._shown_s = offset_s
        self.rate = 1.0

    def read(self, lag_s: float) -> float:
        """Return what it shows `lag_s` from now."""
        return self._shown_s + (self._events.now + lag_s - self._at_s) * self.rate

    def run_at(self, rate: float) -> None:
        """From now on it counts `rate` seconds a second."""
        self._shown_s, self._at_s, self.rate = self.read(0.0), self._events.now, rate


PIECE_BYTES: Final = 32_768
"""What a leader reads of a dump at once, to send it."""


class SimDisk(MemoryDisk):
    """A MemoryDisk that can be asked what it would lose.

    It reads `rot` pieces of a dump wrongly, once each, to who sends it: only while `is_sending`. It
    reads `misreads` pieces of a journal wrongly, not those that a start reads whole; `has_misread`
    says that it did since somebody asked.
    """

    rot = 0
    misreads = 0
    has_misread = False
    is_sending = False

    def loses(self, prefix: str) -> bool:
        """Whether a power cut could lose something of the files whose names begin so."""
        return any(new.startswith(prefix) for _, new, _ in self._changes) or any(
            inode.safe < len(inode.content) or bool(inode.tail)
            for name, inode in self._names.items()
            if name.startswith(prefix)
        )

    def close(self) -> None:
        """Let go of it."""

    def open(self, name: str) -> MemoryFile:
        """Return an existing file."""
        file = super().open(name)
        if name.startswith("dump"):
            file.__class__ = _RottenFile
        elif name.startswith("wal-"):
            file.__class__ = _MisreadFile
        return file


class _RottenFile(MemoryFile):
    """A file that is read wrongly now and then."""

    __slots__ = ()

    def read(self, offset: int, count: int) -> bytes:
        content = super().read(offset, count)
        disk = self._disk
        is_piece = isinstance(disk, SimDisk) and disk.is_sending and count == PIECE_BYTES
        if is_piece and disk.rot and len(content) > 100:
            disk.rot -= 1
            return _flipped(content)
        return content


class _MisreadFile(MemoryFile):
    """A segment of a journal of which a part is read wrongly now and then."""

    __slots__ = ()

    def read(self, offset: int, count: int) -> bytes:
        content = super().read(offset, count)
        disk = self._disk
        if isinstance(disk, SimDisk) and disk.misreads and offset:
            disk.misreads -= 1
            disk.has_misread = True
            return _flipped(content)
        return content


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


class Machine:
    """What a replica runs on. `key` names it, `replica` is the id that its disk was made for.

    `wanted` says whether its supervisor starts a process; `retired` that its disk was replaced. It
    dies at the `dies_in`th change of its disk from now, of those that are called `dies_at`.
    """

    def __init__(
        self, events: Events, rng: random.Random, key: str, address: str, start: StartMode
    ) -> None:
        self.key = key
        self.replica = key.partition(".")[0]
        self.start: StartMode = start
        self.address = address
        self.disk = SimDisk(key)
        self.clock = Clock(events, rng.uniform(0.0, 1e4))
        self.process: Process | None = None
        self.wall_s = 0.0  # how far its wall clock is off
        self.wanted = True
        self.powered = True
        self.retired = False
        self.sync_s = (0.0001, 0.002)
        self.lives = 0
        self.ok_since = 0.0
        self.token: int | None = None
        self.dies_in = 0
        self.dies_at = ""
        self.dies_by_power = False
        self.wiped = False

    @property
    def alive(self) -> bool:
        """Whether a process runs on it, stopped or not."""
        return self.process is not None

    @property
    def outlives(self) -> bool:
        """Whether a process runs on a disk that was replaced."""
        return self.alive and self.retired

    @property
    def awake(self) -> bool:
        """Whether a process runs on it and is not stopped."""
        return self.process is not None and not self.process.paused


StartMode = Literal["resume", "bootstrap", "join"]

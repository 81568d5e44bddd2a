"""A Disk in memory that forgets like a real one: what was not synced may be lost.

Rules, all drawn from the `random.Random` that is handed in, so that a run repeats:

- Names: of the creations, renames and removals since the last `sync_names` a beginning has
  happened, in their order.
- Content: what was synced stays. Of the bytes appended since then any beginning is there, its last
  part perhaps zeros or garbage; a cut that was not synced has happened or not.
- A killed process loses nothing that it wrote, only its open files. What it had not synced can
  still be lost later: reading a file back does not make it durable.

`before` is called ahead of every change, with its name and the file's: raise there to die between
two steps, at any of them.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

SECTOR: int = 512


class _Inode:
    """A file's content apart from its names: `content[:safe] + tail` is what is durable."""

    __slots__ = ("content", "name", "safe", "tail")

    def __init__(self, name: str) -> None:
        self.name = name
        self.content = bytearray()
        self.safe = 0
        self.tail = b""

    def cut(self, size: int) -> None:
        if size < self.safe:
            self.tail = bytes(self.content[size : self.safe]) + self.tail
            self.safe = size
        del self.content[size:]

    def sync(self) -> None:
        self.safe, self.tail = len(self.content), b""

    def lose_power(self, rng: random.Random) -> None:
        if self.tail and rng.random() < 0.5:
            self.content[self.safe :] = self.tail
        elif self.safe < len(self.content):
            size = rng.randint(self.safe, len(self.content))
            del self.content[size:]
            self._tear(rng)
        self.sync()

    def _tear(self, rng: random.Random) -> None:
        # Sectors are written in any order: the length is there, the bytes perhaps not.
        fresh = len(self.content) - self.safe
        if not fresh or rng.random() < 0.6:
            return
        count = rng.randint(1, min(fresh, 8 * SECTOR))
        garbage = bytes(count) if rng.random() < 0.5 else rng.randbytes(count)
        start = len(self.content) - count
        if rng.random() < 0.3:  # the last sectors are good and the hole is before them
            start = rng.randint(self.safe, start)
        self.content[start : start + count] = garbage


class MemoryFile:
    """An open file; unusable after the crash of who opened it."""

    __slots__ = ("_disk", "_inode", "_life")

    def __init__(self, disk: MemoryDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._life = disk.life

    def _check(self) -> None:
        if self._life != self._disk.life:
            raise OSError(errno.EBADF, "the file is closed", self._inode.name)

    @property
    def size(self) -> int:
        return len(self._inode.content)

    def append(self, content: bytes | memoryview) -> None:
        self._check()
        disk = self._disk
        if disk.before is not None:
            disk.before("append", self._inode.name)
        room = disk.room
        if room is not None:
            fits = max(0, min(len(content), room))
            disk.room = room - fits
            if fits < len(content):
                self._inode.content += content[:fits]
                raise OSError(errno.ENOSPC, "no space left on device", self._inode.name)
        self._inode.content += content

    def read(self, offset: int, count: int) -> bytes:
        self._check()
        return bytes(memoryview(self._inode.content)[offset : offset + count])

    def cut(self, size: int) -> None:
        self._check()
        self._disk.step("cut", self._inode.name)
        self._disk.gain(max(0, self.size - size))
        self._inode.cut(size)

    def sync(self) -> None:
        self._check()
        disk = self._disk
        if disk.before is not None:
            disk.before("sync", self._inode.name)
        disk.count_sync()
        self._inode.sync()

    def close(self) -> None:
        self._check()
        self._life = -1


class MemoryDisk:
    """One replica's directory in memory. `room` is what may still be written, None for no end."""

    def __init__(self, place: str = "memory", *, room: int | None = None) -> None:
        self.room = room
        self.syncs = 0
        self.name_syncs = 0
        self.life = 0
        self.before: Callable[[str, str], None] | None = None
        self._place = place
        self._names: dict[str, _Inode] = {}
        self._durable: dict[str, _Inode] = {}
        self._changes: list[tuple[str, str, _Inode | None]] = []
        self._failing: dict[int, int] = {}

    # --- Disk

    @property
    def place(self) -> str:
        return self._place

    def names(self) -> list[str]:
        return sorted(self._names)

    def open(self, name: str) -> MemoryFile:
        inode = self._names.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return MemoryFile(self, inode)

    def create(self, name: str) -> MemoryFile:
        self.step("create", name)
        inode = self._names.get(name)
        if inode is not None:
            self.gain(len(inode.content))
            inode.cut(0)
        else:
            if self.room is not None and self.room <= 0:
                raise OSError(errno.ENOSPC, "no space left on device", name)
            inode = self._names[name] = _Inode(name)
            self._changes.append(("", name, inode))
        return MemoryFile(self, inode)

    def rename(self, old: str, new: str) -> None:
        self.step("rename", f"{old} {new}")
        inode = self._names.pop(old, None)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        replaced = self._names.get(new)
        if replaced is not None:
            self.gain(len(replaced.content))
        self._names[new] = inode
        inode.name = new
        self._changes.append((old, new, inode))

    def remove(self, name: str) -> None:
        self.step("remove", name)
        inode = self._names.pop(name, None)
        if inode is not None:
            self.gain(len(inode.content))
            self._changes.append((name, "", None))

    def sync_names(self) -> None:
        self.step("sync_names", "")
        self.count_sync()
        self.name_syncs += 1
        self._durable = dict(self._names)
        self._changes.clear()

    def room_bytes(self) -> int:
        return 2**50 if self.room is None else max(0, self.room)

    # --- faults

    def crash(self) -> None:
        """The process is killed: its open files are gone, what it wrote is in the page cache."""
        self.life += 1
        self.before = None
        self._failing.clear()

    def power_cut(self, rng: random.Random) -> None:
        """The machine stops: what was not synced is there or not, in part or torn."""
        self.crash()
        names = dict(self._durable)
        for old, new, inode in self._changes[: rng.randint(0, len(self._changes))]:
            if old:
                names.pop(old, None)
            if new and inode is not None:
                names[new] = inode
        before = self.used()
        self._names, self._durable = names, dict(names)
        self._changes.clear()
        for name in sorted(names):
            names[name].name = name
            names[name].lose_power(rng)
        self.gain(before - self.used())

    def fail_sync(self, nth: int = 1, error: int = errno.EIO) -> None:
        """Let the nth sync from now, of a file or of names, fail."""
        self._failing[self.syncs + nth] = error

    # --- a look from outside

    def used(self) -> int:
        """How many bytes all files have."""
        return sum(len(inode.content) for inode in self._names.values())

    def content(self, name: str) -> bytes:
        """What a reader would see in `name`."""
        return bytes(self._names[name].content)

    def put(self, name: str, content: bytes) -> None:
        """Make `name` hold exactly this, durably."""
        inode = self._names.setdefault(name, _Inode(name))
        self.gain(len(inode.content) - len(content))
        inode.content[:] = content
        inode.sync()
        self.settle_names()

    def fork(self) -> MemoryDisk:
        """Another disk with the same files, all of them durable; this one goes on."""
        copy = MemoryDisk(self._place, room=self.room)
        for name, inode in self._names.items():
            copy.put(name, bytes(inode.content))
        copy.room = self.room
        return copy

    def settle_names(self) -> None:
        """Make the names durable, uncounted."""
        self._durable = dict(self._names)
        self._changes.clear()

    # --- for its files

    def step(self, act: str, name: str) -> None:
        """Tell `before`."""
        if self.before is not None:
            self.before(act, name)

    def gain(self, count: int) -> None:
        """Count room that came back."""
        if self.room is not None:
            self.room += count

    def count_sync(self) -> None:
        """Count a sync, and fail if it is the one that was chosen."""
        self.syncs += 1
        error = self._failing.pop(self.syncs, None)
        if error is not None:
            raise OSError(error, "injected", self._place)

"""The one door to files: what a replica's directory can do, and the real one.

Everything that must survive is written through a Disk, so that a simulated one can lose what was
not synced, tear the last write and run full. Names are flat; a name that was created, renamed or
removed is durable after `sync_names`, content after the file's own `sync`.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

from consensus.errors import DataInUse


class File(Protocol):
    """One open file. Owned by one thread at a time."""

    @property
    def size(self) -> int:
        """How many bytes it has."""

    def append(self, content: bytes | memoryview) -> None:
        """Write all of `content` at the end; after an OSError a part of it may be there."""

    def read(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset`, fewer at the end."""

    def cut(self, size: int) -> None:
        """Keep the first `size` bytes."""

    def sync(self) -> None:
        """Make the content durable. After an OSError nobody knows what is."""

    def close(self) -> None:
        """Let go of it; what was not synced may be lost."""


class Disk(Protocol):
    """One replica's directory."""

    @property
    def place(self) -> str:
        """What an error calls it."""

    def names(self) -> list[str]:
        """Return the names that are there, sorted."""

    def open(self, name: str) -> File:
        """Return an existing file, to be read and appended to. Raises FileNotFoundError."""

    def create(self, name: str) -> File:
        """Return an empty file; an old one of this name loses its content."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in the place of who had it."""

    def remove(self, name: str) -> None:
        """Remove a name; nothing if it is not there. Who has it open may read on."""

    def sync_names(self) -> None:
        """Make created, renamed and removed names durable."""

    def room_bytes(self) -> int:
        """Return how much can still be written."""


class DirectoryDisk:
    """A Disk that is a directory of this machine, held for this process until `close`."""

    def __init__(self, directory: Path) -> None:
        """Make `directory` if need be, and hold it.

        Raises:
            DataInUse: another process has it.
        """
        self._directory = directory
        self._lock = lock_directory(directory)

    @property
    def place(self) -> str:
        """The directory's path."""
        return str(self._directory)

    def names(self) -> list[str]:
        """Return the names that are there, sorted; the lock is none of them."""
        return sorted(name for name in os.listdir(self._directory) if name != "lock")

    def open(self, name: str) -> File:
        """Return an existing file. Raises FileNotFoundError."""
        return _OpenFile(os.open(self._directory / name, os.O_RDWR | os.O_CLOEXEC))

    def create(self, name: str) -> File:
        """Return an empty file under `name`, readable by its owner alone."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return _OpenFile(os.open(self._directory / name, flags, 0o600))

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        os.rename(self._directory / old, self._directory / new)

    def remove(self, name: str) -> None:
        """Remove a name, if it is there."""
        (self._directory / name).unlink(missing_ok=True)

    def sync_names(self) -> None:
        """Sync the directory."""
        _sync_names(self._directory)

    def room_bytes(self) -> int:
        """Return what an ordinary user may still write on this file system."""
        room = os.statvfs(self._directory)
        return room.f_bavail * room.f_frsize

    def close(self) -> None:
        """Let go of the directory."""
        os.close(self._lock)


class ReadDirectory(DirectoryDisk):
    """A DirectoryDisk that is only read, so that it may lie on a file system that nobody can write
    to; no replica starts on it meanwhile."""

    def __init__(self, directory: Path) -> None:
        """Hold `directory`, which is there, until `close`; a file `lock` is not made.

        Raises:
            DataInUse: another process has it. FileNotFoundError: there is none.
        """
        self._directory = directory
        try:
            lock = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # it is a copy: whoever starts there now makes the file
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock = _hold(lock, directory)

    def open(self, name: str) -> File:
        """Return an existing file, to be read. Raises FileNotFoundError."""
        return _OpenFile(os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC))


class _OpenFile:
    """A File that is a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    @property
    def size(self) -> int:
        return self._size

    def append(self, content: bytes | memoryview) -> None:
        view = memoryview(content)
        while view:
            count = os.pwrite(self._descriptor, view, self._size)
            self._size += count
            view = view[count:]

    def read(self, offset: int, count: int) -> bytes:
        return os.pread(self._descriptor, count, offset)

    def cut(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._size = size

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _make_directory(directory: Path) -> None:
    """Make `directory` and what is missing above it, each name durable in the one above."""
    missing = [at for at in (directory, *directory.parents) if not at.exists()]
    for at in reversed(missing):
        at.mkdir(exist_ok=True)
        _sync_names(at.parent)


def _sync_names(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_directory(directory: Path) -> int:
    """Return a descriptor that holds `directory`, made if need be, for this process until it is
    closed.

    Raises:
        DataInUse: another process has it.
    """
    _make_directory(directory)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return _hold(descriptor, directory)


def _hold(descriptor: int, directory: Path) -> int:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DataInUse(str(directory)) from None
    return descriptor

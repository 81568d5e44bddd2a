"""The interface of a replica's directory, and its implementation; all file access is behind it.

All durable data are written through a Disk, so that a simulated Disk can lose unsynced data, tear
the last write and run full. Names are flat. A created, renamed or removed name is durable after
`sync_names`, content after the file's own `sync`.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

from consensus.errors import DataInUse


class File(Protocol):
    """An open file, used by one thread at a time."""

    @property
    def size(self) -> int:
        """The size in bytes."""

    def append(self, content: bytes | memoryview) -> None:
        """Append `content`; after an OSError a part of it may be written."""

    def read(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset`, fewer at the end."""

    def cut(self, size: int) -> None:
        """Truncate the file to `size` bytes."""

    def sync(self) -> None:
        """Make the content durable. After an OSError it is unknown what is durable."""

    def close(self) -> None:
        """Close the file; unsynced content may be lost."""


class Disk(Protocol):
    """One replica's directory."""

    @property
    def place(self) -> str:
        """The directory's name in error messages."""

    def names(self) -> list[str]:
        """Return the existing names, sorted."""

    def open(self, name: str) -> File:
        """Open an existing file for reading and appending. Raises FileNotFoundError."""

    def create(self, name: str) -> File:
        """Create an empty file; truncate an existing one."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, and replace a file of the new name."""

    def remove(self, name: str) -> None:
        """Remove a name, if it exists. Open files stay readable."""

    def sync_names(self) -> None:
        """Make created, renamed and removed names durable."""

    def room_bytes(self) -> int:
        """Return the free space in bytes."""


class DirectoryDisk:
    """A Disk that is a directory of this machine, locked for this process until `close`."""

    def __init__(self, directory: Path) -> None:
        """Create `directory` and its missing parents durably, and lock it.

        Raises:
            DataInUse: another process has locked it.
        """
        self._directory = directory
        for missing in reversed([at for at in (directory, *directory.parents) if not at.exists()]):
            missing.mkdir(exist_ok=True)
            _sync_names(missing.parent)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = _hold(lock, directory)

    @property
    def place(self) -> str:
        """The directory's path."""
        return str(self._directory)

    def names(self) -> list[str]:
        """Return the existing names, sorted, without the lock file."""
        return sorted(name for name in os.listdir(self._directory) if name != "lock")

    def open(self, name: str) -> File:
        """Return an existing file. Raises FileNotFoundError."""
        return _OpenFile(os.open(self._directory / name, os.O_RDWR | os.O_CLOEXEC))

    def create(self, name: str) -> File:
        """Create an empty file `name` that only its owner can read."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return _OpenFile(os.open(self._directory / name, flags, 0o600))

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        os.rename(self._directory / old, self._directory / new)

    def remove(self, name: str) -> None:
        """Remove a name, if it exists."""
        (self._directory / name).unlink(missing_ok=True)

    def sync_names(self) -> None:
        """Sync the directory."""
        _sync_names(self._directory)

    def room_bytes(self) -> int:
        """Return how many bytes an ordinary user can still write on this file system."""
        room = os.statvfs(self._directory)
        return room.f_bavail * room.f_frsize

    def close(self) -> None:
        """Unlock the directory."""
        os.close(self._lock)


class ReadDirectory(DirectoryDisk):
    """A DirectoryDisk that is only read, also on a read-only file system; no replica starts on it
    meanwhile.
    """

    def __init__(self, directory: Path) -> None:
        """Lock the existing `directory` until `close`; create no lock file.

        Raises:
            DataInUse: another process has locked it. FileNotFoundError: it does not exist.
        """
        self._directory = directory
        try:
            lock = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            # It is a copy without a lock file: a replica that starts there creates one.
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock = _hold(lock, directory)

    def open(self, name: str) -> File:
        """Open an existing file for reading. Raises FileNotFoundError."""
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


def _sync_names(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hold(descriptor: int, directory: Path) -> int:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DataInUse(str(directory)) from None
    return descriptor

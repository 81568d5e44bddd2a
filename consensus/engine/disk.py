"""Files that survive: write, fsync, rename, fsync the directory; one process per directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from consensus.errors import DataInUse


def sync_directory(directory: Path) -> None:
    """Make names that were created or renamed in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the content of `path` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(temporary: Path, path: Path) -> None:
    """Put the finished, synced `temporary` in the place of `path`, durably."""
    temporary.rename(path)
    sync_directory(path.parent)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content`; the kernel may take less at once."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def lock_directory(directory: Path) -> int:
    """Return a descriptor that holds `directory`, made if need be, for this process until it is
    closed.

    Raises:
        DataInUse: another process has it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DataInUse(str(directory)) from None
    return descriptor

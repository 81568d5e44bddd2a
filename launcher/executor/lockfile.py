"""One executor per directory: a lock that the kernel lets go when its process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from launcher.errors import DirectoryInUse


def lock(directory: Path) -> int:
    """Make `directory` if need be and lock it for the life of this process; return the file.

    Raises:
        DirectoryInUse: another process has it.
        OSError: it cannot be made or written.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(fd, 20).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise DirectoryInUse(
            f"directory {directory} is in use by the executor with process id {owner}",
            "stop that one, or give this one a directory of its own (`data`)",
        ) from None
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd

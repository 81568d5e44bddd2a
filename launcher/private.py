"""Private files: only its own user may read the files that a raftcron process writes.

They contain jobs' environments, payloads and outputs. Commands of jobs are programs of users: they
get the umask that the process was started with.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from launcher.errors import BadConfig

UMASK: Final = 0o077
OTHERS: Final = 0o077
"""The bits of a mode for the group of a file or folder and for all other users."""
_DEFAULT: Final = 0o022

_before: list[int] = []


@contextmanager
def private_files() -> Iterator[None]:
    """While open, make new files of this process private."""
    _before.append(os.umask(UMASK))
    try:
        yield
    finally:
        os.umask(_before.pop())


def umask_before() -> int:
    """Return the umask that this process was started with, 022 if it was never changed."""
    return _before[0] if _before else _DEFAULT


def make_private(path: Path, kept: int = 0) -> str:
    """Remove the rights of group and others from a file or folder, but for the bits `kept`; return
    the mode that it had if it was changed, else an empty string. A link is followed once, so what
    is checked is what is changed.

    Raises:
        BadConfig: it belongs to another user, or its mode cannot be changed.
        OSError: it cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        mode = stat.S_IMODE(status.st_mode)
        if not mode & OTHERS & ~kept:
            return ""
        digits = "700" if stat.S_ISDIR(status.st_mode) else "600"
        wanted = mode & ~(OTHERS & ~kept)
        try:
            if status.st_uid != os.geteuid():
                raise PermissionError
            os.fchmod(fd, wanted)
        except PermissionError as error:
            owner = f"user id {status.st_uid}"
            text = f"{path}: other users may use it (mode {mode:04o}), and it belongs to {owner}"
            raise BadConfig(text, f"chmod {digits} {path}") from error
        return f"{mode:04o}"
    finally:
        os.close(fd)

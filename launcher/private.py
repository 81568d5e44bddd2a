"""Private files: only its own user may read the files that a raftcron process writes.

They contain jobs' environments, payloads and outputs. Commands of jobs are programs of users: they
get the umask that the process was started with.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

UMASK: Final = 0o077
OTHERS: Final = 0o077
"""The bits of a file's mode for its group and for all others."""
FILES_MAX: Final = 20_000
"""Files that one start checks, in about a fifth of a second. The folder itself comes first, and a
user who may not enter it reaches none of them."""
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


def tighten(folder: Path, *, is_shared: bool = False, files_max: int = FILES_MAX) -> int:
    """Remove other users' rights from a folder and from the files below it; return how many were
    changed. The folder itself is not changed if it `is_shared`. Symbolic links are not followed,
    files of other users are not changed, and at most `files_max` files are checked."""
    changed, seen = 0, 0
    if not is_shared:
        changed += _close(folder)
    waiting = deque([folder])
    while waiting:
        try:
            entries = list(os.scandir(waiting.popleft()))
        except OSError:
            continue
        for entry in entries:
            if seen >= files_max:
                return changed
            seen += 1
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            changed += _close(Path(entry.path))
    return changed


def _close(path: Path) -> int:
    """Remove other users' rights from a file or folder; return 1 if it had any. A socket keeps
    them: its owner gave them on purpose."""
    try:
        mode = path.lstat().st_mode
        is_ours = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        if not is_ours or not mode & OTHERS:
            return 0
        path.chmod(stat.S_IMODE(mode) & ~OTHERS)
    except OSError:
        return 0
    return 1

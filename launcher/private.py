"""Files that are nobody else's: what raftcron's own processes write, only their user may read.

Jobs' environments, payloads and outputs are in these files. Commands of jobs are programs of
users: they get the umask that the process was started with.
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
"""What of a file's mode is for its group and for everybody."""
FILES_MAX: Final = 20_000
"""Files that one start looks at: about a fifth of a second. The folder itself comes first, and who
may not enter that reaches none of them."""
_DEFAULT: Final = 0o022

_before: list[int] = []


@contextmanager
def private_files() -> Iterator[None]:
    """Let the files that this process makes meanwhile be its user's alone."""
    _before.append(os.umask(UMASK))
    try:
        yield
    finally:
        os.umask(_before.pop())


def umask_before() -> int:
    """Return the umask that this process was started with; 022 where that was never changed."""
    return _before[0] if _before else _DEFAULT


def tighten(folder: Path, *, is_shared: bool = False, files_max: int = FILES_MAX) -> int:
    """Take others' rights from a folder and from all below it, as an older version made them;
    return how many were changed. The folder itself is left as it is if it `is_shared`. Symbolic
    links are not followed; what is not this user's stays; after `files_max` files it ends."""
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
    """Take others' rights from a file or folder; 1 if it had any. A socket keeps its own: its
    owner made them so."""
    try:
        mode = path.lstat().st_mode
        is_ours = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        if not is_ours or not mode & OTHERS:
            return 0
        path.chmod(stat.S_IMODE(mode) & ~OTHERS)
    except OSError:
        return 0
    return 1

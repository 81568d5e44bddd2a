"""Private files: only its own user may read the files that a raftcron process writes.

They contain jobs' environments, payloads and outputs. Commands of jobs are programs of users: they
get the umask that the process was started with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

UMASK: Final = 0o077
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

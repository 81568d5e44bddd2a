"""Relations between processes that the kernel enforces: death with the parent, and orphans."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_adopting: Final[list[int]] = []


def die_with_parent(parent: int) -> bool:
    """Have the kernel kill this process once its parent ends; return whether the parent lives.

    `parent` is the expected parent's process id, 0 for the current one. The setting survives an
    exec, and not a change of user.

    Raises:
        OSError: the kernel refused.
    """
    expected = parent or os.getppid()
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    # It may have ended before the call.
    return os.getppid() == expected


def signal_of_parent(number: int) -> None:
    """Have the kernel send this process a signal once its parent ends.

    Raises:
        OSError: the kernel refused.
    """
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent dies.

    Raises:
        OSError: the kernel refused.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _adopting[:] = [os.getpid()]


def adopter() -> int:
    """Return the id of this process if it adopts orphans, otherwise 0."""
    return os.getpid() if os.getpid() in _adopting else 0


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")

"""Relations between processes: death with the parent, orphans, and ends of children."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_SIGNAL_SET_BYTES: Final = 128
"""Of sigset_t in the C library; a bit for each signal, from 1."""
_adopting: Final[list[int]] = []
_awaited: Final[list[int]] = []  # an item for each: to append and to pop is safe in threads


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


@contextmanager
def children_awaited() -> Iterator[None]:
    """While open, a thread of this process starts a child and waits for its exit code, which
    nobody else may take."""
    _awaited.append(1)
    try:
        yield
    finally:
        _awaited.pop()


def may_reap() -> bool:
    """Return whether no thread of this process waits for a child of its own."""
    return not _awaited


def ends_of_children() -> int:
    """Block SIGCHLD, and return a descriptor that is readable once a child has ended (signalfd(2));
    reading it clears that. A child must unblock the signal before it becomes another program.

    Raises:
        OSError: there are no descriptors left.
    """
    number = int(signal.SIGCHLD)
    signal.pthread_sigmask(signal.SIG_BLOCK, (number,))
    wanted = (1 << (number - 1)).to_bytes(_SIGNAL_SET_BYTES, sys.byteorder)
    libc = ctypes.CDLL(None, use_errno=True)
    found: int = libc.signalfd(-1, wanted, os.O_CLOEXEC | os.O_NONBLOCK)
    if found < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return found


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")

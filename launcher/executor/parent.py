"""Ending with the process that started this one, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> bool:
    """Have the kernel kill this process once its parent ends; return whether it is still there.

    `parent` is the expected parent's process id, 0 for whichever it is now. It holds over an exec
    and ends with a change of user. The spawner needs no such signal: it sees the end of its socket,
    and kills the commands before it leaves.

    Raises:
        OSError: the kernel refused.
    """
    expected = parent or os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    # It may have ended before the kernel was told.
    return os.getppid() == expected

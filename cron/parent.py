"""A process that must not outlive the one that started it (prctl(2), PR_SET_PDEATHSIG)."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

from cron.errors import ConfigError

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process as soon as its parent is gone.

    SIGKILL and not SIGTERM: it also ends a process that is stopped or stuck, and to lose a replica
    that way at any moment is what the whole system is made for. The parent is what is meant by
    `parent` (its pid), or by the environment's RAFTCRON_PARENT, or the present one; if it died
    between the start and this call, the process ends here.

    Raises:
        ConfigError: the system has no such call (it is Linux's).
    """
    expected = parent or int(os.environ.get("RAFTCRON_PARENT", "0")) or os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    prctl = getattr(libc, "prctl", None)
    if prctl is None or prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise ConfigError(
            "--die-with-parent needs Linux", "leave it out and end the process yourself"
        )
    if os.getppid() != expected:
        os.kill(os.getpid(), signal.SIGKILL)

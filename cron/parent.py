"""Ends a replica when the process that started it ends."""

from __future__ import annotations

import os
import signal
from typing import Final

import launcher.executor.parent
from cron.errors import ConfigError

PARENT_VARIABLE: Final = "RAFTCRON_PARENT"
"""Set by `dev` to its own pid, so that a parent that died before the call below is noticed."""


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent dies.

    The signal is SIGKILL, which also ends a process that is stopped or stuck; a cell tolerates it
    at any moment. The parent is the process with the id `parent`, or the one in RAFTCRON_PARENT, or
    the current parent. If it is dead already, this process ends here.

    Raises:
        ConfigError: the system is not Linux.
    """
    expected = parent or int(os.environ.get(PARENT_VARIABLE, "0"))
    try:
        is_there = launcher.executor.parent.die_with_parent(expected)
    except (OSError, AttributeError) as error:
        hint = "leave it out, and end the process yourself"
        raise ConfigError(f"--die-with-parent: needs Linux: {error}", hint) from error
    if not is_there:
        os.kill(os.getpid(), signal.SIGKILL)

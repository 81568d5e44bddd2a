"""A replica that must not outlive the one that started it."""

from __future__ import annotations

import os
import signal
from typing import Final

import launcher.executor.parent
from cron.errors import ConfigError

PARENT_VARIABLE: Final = "RAFTCRON_PARENT"
"""Set by `dev` to its own pid, so that a parent that died before the call below is missed."""


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process as soon as its parent is gone.

    SIGKILL and not SIGTERM: it also ends a process that is stopped or stuck, and to lose a replica
    that way at any moment is what the whole system is made for. The parent is the process with the
    id `parent`, or the one RAFTCRON_PARENT names, or the present one; if it is gone already, this
    process ends here.

    Raises:
        ConfigError: the system has no such call (it is Linux's).
    """
    expected = parent or int(os.environ.get(PARENT_VARIABLE, "0"))
    try:
        is_there = launcher.executor.parent.die_with_parent(expected)
    except (OSError, AttributeError) as error:
        hint = "leave it out, and end the process yourself"
        raise ConfigError(f"--die-with-parent: needs Linux: {error}", hint) from error
    if not is_there:
        os.kill(os.getpid(), signal.SIGKILL)

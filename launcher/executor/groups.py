"""What outlived its executor or its spawner: found again, and killed (rule R4).

How it is found is in `trees.py`. A spawner, its reaper, and what was forked that is not yet a
command have the ledger's UUID in their environment: a stopped one would wake later, and start what
is still in its socket.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Final

from launcher.errors import LauncherError
from launcher.executor.clock import boot_ms
from launcher.executor.parent import adopter
from launcher.executor.row import Row
from launcher.executor.trees import Hunt, Target, processes, send_kill

DEATH_WAIT_MS: Final = 2_000
_CLEAN_LOOKS: Final = 2
_POLL_S: Final = 0.003


class SurvivorsRemain(LauncherError):
    """Something was sent KILL and is still there: it hangs in the kernel."""


def kill_groups(rows: Iterable[Row], ledger: str = "") -> list[str]:
    """Kill what runs of `rows`, and spawners of the ledger with the UUID `ledger`; return once
    they are gone, with the names of those of which something was there.

    The wait is counted from the first look: on a busy host that look itself may take seconds, and
    what it found has had no time to die.

    Raises:
        SurvivorsRemain: not within DEATH_WAIT_MS; what could be killed is.
    """
    targets = [Target(row.name, row.pid, row.ticks, row.epoch) for row in rows]
    hunt = Hunt(targets, ledger, with_spawners=bool(ledger), reaper=adopter())
    deadline_ms = clean = 0
    while clean < _CLEAN_LOOKS:
        remaining = hunt.look()
        clean = 0 if remaining else clean + 1
        deadline_ms = deadline_ms or boot_ms() + DEATH_WAIT_MS
        if remaining and boot_ms() >= deadline_ms:
            pids = ", ".join(str(pid) for pid in remaining[:10])
            raise SurvivorsRemain(
                f"killed {DEATH_WAIT_MS} ms ago and still there: process {pids}",
                "it hangs in the kernel, on a dead mount or disk; repair that, or restart the host",
            )
        time.sleep(_POLL_S)
    return list(hunt.names)


def kill_workers(workers: Iterable[tuple[int, int]]) -> None:
    """Kill worker processes, known by (id, start time in ticks), and those of a group that one of
    them leads; return once they are gone.

    Raises:
        SurvivorsRemain: not within DEATH_WAIT_MS. Those of another user cannot be killed; they end
            by themselves, since their executor is gone.
    """
    wanted = dict(workers)
    groups: set[int] = set()
    deadline_ms = 0
    while True:
        remaining = []
        for one in processes():
            if wanted.get(one.pid) == one.ticks and one.pid == one.group:
                groups.add(one.pid)
            if one.lives and (wanted.get(one.pid) == one.ticks or one.group in groups):
                send_kill(os.kill, one.pid)
                remaining.append(one.pid)
        if not remaining:
            return
        deadline_ms = deadline_ms or boot_ms() + DEATH_WAIT_MS
        if boot_ms() >= deadline_ms:
            pids = ", ".join(str(pid) for pid in remaining[:10])
            raise SurvivorsRemain(
                f"workers of the last executor are still there: process {pids}",
                "end them; they run as another user, or hang in the kernel",
            )
        time.sleep(_POLL_S)

"""Process groups of commands that outlived their executor: found again, and killed (rule R4)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from launcher.executor.clock import boot_ms
from launcher.executor.row import Row
from launcher.executor.spawn import start_ticks

DEATH_WAIT_MS: Final = 2_000
_POLL_S: Final = 0.002


def kill_groups(rows: Iterable[Row]) -> list[str]:
    """Kill the groups of commands that are still there, and wait until they are gone.

    A process is known by its id and the time it was started at: ids are used again. Where the
    main process is gone, members of its group are known by their environment.
    Returns the names whose group was killed.
    """
    killed = {row.name: row.pid for row in rows if row.pid > 1 and _is_ours(row)}
    for pid in killed.values():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    _await_death(set(killed.values()))
    return list(killed)


def _is_ours(row: Row) -> bool:
    ticks = start_ticks(row.pid)
    if ticks:
        return ticks == row.ticks
    mark = b"RAFTCRON_LAUNCH=" + row.name.partition("#")[0].encode()
    return any(mark in _environment(pid) for pid, group in _processes() if group == row.pid)


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _processes() -> list[tuple[int, int]]:
    """(process id, process group) of every live process that can be seen."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (path / "stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    found.append((int(path.name), int(fields[2])))
    return found


def _await_death(groups: set[int]) -> None:
    deadline_ms = boot_ms() + DEATH_WAIT_MS
    while groups and boot_ms() < deadline_ms:
        groups &= {group for _, group in _processes()}
        if groups:
            time.sleep(_POLL_S)

"""How worker processes die, and of what: as much as can be seen from beside.

Theory of operation. An executor is not the parent of its workers, so the kernel tells it that one
has ended and not how. But until its parent reaps it a dead process shows its exit status in /proc,
and a worker's parent waits a moment with that (launcher/worker/parent.py). What the kernel ended
for want of memory is told from any other SIGKILL by a counter of the whole host; so is said that it
was at work, not whom it took.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from launcher.executor.worker import Worker
from launcher.worker.renewal import bytes_said, kill_bytes, resident_bytes

LOOK_EVERY_MS: Final = 250
"""Half as much memory again as its bound, in this time: 1 GiB a second for one of 512 MiB."""
CUT: Final = "its connection ended"
_VMSTAT: Final = Path("/proc/vmstat")
_TICKS, _STATUS = 19, 49
"""Fields of /proc/PID/stat after the name: start time and exit status (proc(5): 22 and 52)."""


class Deaths:
    """Looks at the memory of workers while they live, and for the cause when they are dead."""

    def __init__(self, vmstat: Path = _VMSTAT) -> None:
        self._vmstat = vmstat
        self._oom_kills = self._count()
        self._look_ms = 0

    def excess(self, workers: Iterable[Worker], now_ms: int) -> list[tuple[Worker, str]]:
        """Return who has more memory than it may ever have, and how much; at its time only."""
        if now_ms < self._look_ms:
            return []
        self._look_ms = now_ms + LOOK_EVERY_MS
        found = []
        for worker in workers:
            if not worker.killed_for and worker.memory_max_bytes:
                worker.memory_bytes = resident_bytes(worker.pid)
                if worker.memory_bytes >= kill_bytes(worker.memory_max_bytes):
                    bound = f"half over its bound of {bytes_said(worker.memory_max_bytes)}"
                    found.append(
                        (worker, f"it had {bytes_said(worker.memory_bytes)} of memory, {bound}")
                    )
        return found

    def cause(self, worker: Worker, known: str) -> str:
        """Return how a dead worker ended, where `known` is what is known of it so far: nothing, or
        that its connection ended, upon which it was killed in any case."""
        status = exit_status(worker.pid, worker.ticks)
        if status is not None and not _is_killed(status):
            return _said(status)
        before, self._oom_kills = self._oom_kills, self._count()
        cause = known or ("it ended" if status is None else _said(status))
        if self._oom_kills > before:
            cause += "; the kernel was killing for want of memory on this host"
        if worker.memory_max_bytes and worker.memory_bytes >= worker.memory_max_bytes:
            bound = f"over its bound of {bytes_said(worker.memory_max_bytes)}"
            cause += f"; it had {bytes_said(worker.memory_bytes)} of memory, {bound}"
        return cause

    def _count(self) -> int:
        """How many processes the kernel has killed for want of memory; 0 where it does not say."""
        try:
            text = self._vmstat.read_text()
        except OSError:
            return 0
        return next((int(line[9:]) for line in text.splitlines() if line[:9] == "oom_kill "), 0)


def exit_status(pid: int, ticks: int) -> int | None:
    """Return the wait status of a dead process that started at `ticks`, or None: it was reaped, its
    user is another, or it ended with exit code 0."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        fields = text.rpartition(")")[2].split()
        is_dead = fields[0] in ("Z", "X") and int(fields[_TICKS]) == ticks
        # Of a process that may not be looked at the kernel says 0.
        return (int(fields[_STATUS]) or None) if is_dead else None
    except (OSError, IndexError, ValueError):
        return None


def _is_killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _said(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"it ended with exit code {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    try:
        return f"it was killed by {signal.Signals(number).name}"
    except ValueError:
        return f"it was killed by signal {number}"

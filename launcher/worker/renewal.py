"""When a child of a worker is renewed: it has too much memory, or has run enough launches.

A child that is renewed accepts no more tasks, finishes those that run, and ends; then another one
starts. No launch fails because of that. Leaks of a handler's program (memory, files, threads) end
with the process.

Memory means resident memory, mapped files included, as the kernel reports it.
"""

from __future__ import annotations

import os
from typing import Final

from launcher.worker.options import WorkerOptions

SPREAD: Final = 4
"""The children of a worker are renewed within the last quarter before `renew_after`."""


class Bounds:
    """The bounds of one `raftcron worker` on its children's memory and launches; 0 for none."""

    def __init__(self, options: WorkerOptions) -> None:
        self._memory_max_bytes = options.memory_max_bytes
        self._renew_after = options.renew_after
        self._processes = options.processes

    def __bool__(self) -> bool:
        """Return whether there is a bound."""
        return self._memory_max_bytes > 0 or self._renew_after > 0

    def launches(self, number: int) -> int:
        """Return after how many launches child `number` (from 1) is renewed; 0 for never.

        Children get about as many launches each, and with one number for all they would leave at
        once. So each has its own, spread evenly over the last quarter, the same in every life.
        """
        spread = self._renew_after // SPREAD
        return self._renew_after - spread * (number - 1) // self._processes

    def has_run(self, number: int, launches: int) -> bool:
        """Return whether child `number` has run enough launches."""
        return self._renew_after > 0 and launches >= self.launches(number)

    def renewal(self, number: int, launches: int, memory_bytes: int) -> str:
        """Return why child `number` is to be renewed, or "".

        A child that has run nothing yet is not renewed for its memory: the next would be as big.
        """
        if self._memory_max_bytes and launches and memory_bytes >= self._memory_max_bytes:
            bound = f"--memory-max is {bytes_said(self._memory_max_bytes)}"
            return f"it has {bytes_said(memory_bytes)} of memory, {bound}"
        if self.has_run(number, launches):
            return f"it has run {launches} launches, --renew-after is {self._renew_after}"
        return ""

    def excess(self, memory_bytes: int) -> str:
        """Return why a child is to be killed, or ""."""
        if not self._memory_max_bytes or memory_bytes < kill_bytes(self._memory_max_bytes):
            return ""
        bound = f"half over its --memory-max of {bytes_said(self._memory_max_bytes)}"
        return f"it has {bytes_said(memory_bytes)} of memory, {bound}"


_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_MIB: Final = 1 << 20


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if it is gone or may not be seen."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read(256).split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def kill_bytes(memory_max_bytes: int) -> int:
    """Return the memory at which a process is killed that is renewed at `memory_max_bytes`: half as
    much again, so that its launches can end."""
    return memory_max_bytes + memory_max_bytes // 2


def bytes_said(count: int) -> str:
    """Return a number of bytes as people read it: `512 MiB`."""
    return f"{count / _MIB:.4g} MiB"

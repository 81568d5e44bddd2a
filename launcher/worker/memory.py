"""How much memory a process has, as the kernel counts it; for parents, children and executors.

Resident memory: what of the process is in the machine's memory now, files that it maps included.
"""

from __future__ import annotations

import os
from typing import Final

_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_MIB: Final = 1 << 20


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 where it is gone or may not be seen."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read(256).split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def kill_bytes(memory_max_bytes: int) -> int:
    """Return the memory at which a process is killed that is to be renewed at `memory_max_bytes`:
    half as much again, for what runs to come to its end."""
    return memory_max_bytes + memory_max_bytes // 2


def said(count: int) -> str:
    """Return a number of bytes as people read it: `512 MiB`."""
    return f"{count / _MIB:.4g} MiB"

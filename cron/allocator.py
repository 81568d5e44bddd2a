"""Settings of glibc's allocator, so that memory that was freed is used again or returned.

glibc gives threads arenas of their own, and one thread does not use what another one freed. A large
block is mapped, and unmapped when it is freed; but each time that happens, glibc raises the size
from which blocks are mapped, up to 32 MiB, and the free memory that it keeps. So what a thread
needs for a moment, for instance to write a segment of history, stays with the process for good.
"""

from __future__ import annotations

import ctypes
from typing import Final

ARENAS: Final = 1
"""Arenas of all threads together. Most calls are made under Python's global lock, so there is
hardly any contention."""
MAPPED_BYTES: Final = 512 * 1024
"""A larger block is mapped. Each read from a socket takes 256 KiB for a moment; mapping those costs
a replica 350 page faults a second at 200 launches a second, and a tenth of its CPU."""
KEPT_BYTES: Final = 2 * MAPPED_BYTES
"""How much free memory stays at the end of the heap."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def keep_memory_small() -> bool:
    """Set up the allocator of this process, before it starts threads; return whether it is glibc's.

    Other C libraries are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    settings = (
        (_M_ARENA_MAX, ARENAS),
        (_M_MMAP_THRESHOLD, MAPPED_BYTES),
        (_M_TRIM_THRESHOLD, KEPT_BYTES),
    )
    return all([mallopt(*setting) == 1 for setting in settings])

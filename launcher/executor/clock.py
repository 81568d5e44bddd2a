"""The executor's only access to the clock."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Return milliseconds since the epoch, UTC; they may jump either way."""
    return time.time_ns() // 1_000_000


def boot_ms() -> int:
    """Return milliseconds since boot, sleep included: the clock of leases (rule R5)."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

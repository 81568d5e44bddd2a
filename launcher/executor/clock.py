"""The executor's only listener to the clock."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Milliseconds since the epoch, UTC; may jump either way."""
    return time.time_ns() // 1_000_000


def boot_ms() -> int:
    """Milliseconds since boot, sleep included: what leases are counted on (rule R5)."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

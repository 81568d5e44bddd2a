"""The only access to the clock of executors and workers."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Return milliseconds since the epoch, UTC; they may jump either way."""
    return time.time_ns() // 1_000_000


def boot_ms() -> int:
    """Return milliseconds since boot, sleep included: the clock of leases (rule R5)."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def until_step_s(step_ms: int) -> float:
    """Return how long it is, in seconds, to the next multiple of `step_ms` of the boot clock.

    What looks at deadlines all the while sleeps so long: then all of it wakes the process at the
    same moments. To wake up costs more than to look.
    """
    step_ns = step_ms * 1_000_000
    return (step_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME) % step_ns) / 1e9

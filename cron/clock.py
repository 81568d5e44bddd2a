"""The daemon's only door to the clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for schedules, monotonic time for everything that is waited for."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC; may jump either way."""

    def mono_ms(self) -> int:
        """Milliseconds of a clock that only goes forward, also while the machine sleeps."""


class SystemClock:
    """The machine's clocks. CLOCK_BOOTTIME counts while the machine sleeps, as leases must."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> int:
        """Milliseconds since boot, sleep included."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

"""The clocks of the daemon; no other module reads the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for schedules, monotonic time for timeouts and intervals."""

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch, UTC; may jump in either direction."""

    def mono_ms(self) -> int:
        """Return milliseconds of a clock that never goes back and counts while suspended."""


class SystemClock:
    """The machine's clocks. CLOCK_BOOTTIME also counts while the machine is suspended."""

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> int:
        """Return milliseconds since boot, including time while suspended."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

"""Notices when the wall clock moves against the monotonic one (rule R10)."""

from __future__ import annotations

from cron.clock import Clock


class Jump:
    """The distance between two clocks, looked at again and again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.wall_ms() - clock.mono_ms()

    def since_last(self) -> int:
        """Return by how many ms the wall clock jumped since the last call; slow drift adds up to
        nothing, since each call starts anew."""
        offset_ms = self._clock.wall_ms() - self._clock.mono_ms()
        jumped_ms = offset_ms - self._offset_ms
        self._offset_ms = offset_ms
        return jumped_ms


def describe_jump(jumped_ms: int) -> str:
    """Return a jump in words."""
    way = "forward" if jumped_ms > 0 else "back"
    return f"its clock jumped {way} by {abs(jumped_ms) / 1000:.1f} s"

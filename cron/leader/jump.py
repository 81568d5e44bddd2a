"""Notices when the wall clock moves against the monotonic one (rule R10), and when work rests."""

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


class Steady:
    """Since when somebody answers for what falls due, on a clock that may be set.

    The first call counts as the end of a change of leader that took `break_ms`: what fell due in
    that time was nobody's fault. From then on work goes on until a break: `break_ms` without a
    call, or with a clock that moved by as much meanwhile. Whoever was stopped, or was set to
    another time, cannot say what fell due without it.
    """

    def __init__(self, break_ms: int) -> None:
        self._break_ms = break_ms
        self._seen_ms: int | None = None
        self._since_ms = 0

    def since(self, now_ms: int) -> int:
        """Return since when, after noting that one is at work at `now_ms`."""
        if self._seen_ms is None:
            self._since_ms = now_ms - self._break_ms
        elif abs(now_ms - self._seen_ms) >= self._break_ms:
            self._since_ms = now_ms
        self._seen_ms = now_ms
        return self._since_ms


def describe_jump(jumped_ms: int) -> str:
    """Return a jump in words."""
    way = "forward" if jumped_ms > 0 else "back"
    return f"its clock jumped {way} by {abs(jumped_ms) / 1000:.1f} s"

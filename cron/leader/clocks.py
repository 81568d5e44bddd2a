"""Clocks that are wrong (rule R10): the leader notices when its own is set, and no replica lets a
wrong one carry the cell's time far ahead, which never goes back.

A replica does not acknowledge a new entry whose time is far ahead of its own clock, unless the
cell's time is there already. With one such replica the others commit the entry, and it takes it as
committed. With a majority of them the leader cannot commit, and another one leads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from cron.clock import Clock
from cron.limits import AHEAD_MS_MAX
from cron.state.codec import time_of


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


NOTE_MS: Final = 15_000
"""For so long `status` tells of it."""


class Withheld(msgspec.Struct, frozen=True):
    """An entry that was not acknowledged: when (monotonic clock), and how far ahead it was."""

    mono_ms: int
    ahead_ms: int


class Ratchet:
    """What one replica acknowledges. `may_acknowledge` runs in the engine's thread; nothing of it
    waits, and what it leaves behind is replaced as a whole."""

    def __init__(self, clock: Clock, log_ms: Callable[[], int]) -> None:
        """`log_ms` returns State's time, as far as it is applied here."""
        self._clock = clock
        self._log_ms = log_ms
        self._newest: Withheld | None = None

    def may_acknowledge(self, entry: bytes) -> bool:
        """Return whether a new entry may be acknowledged before it is committed."""
        at_ms = time_of(entry)
        ahead_ms = at_ms - self._clock.wall_ms()
        if ahead_ms <= AHEAD_MS_MAX or at_ms <= self._log_ms():
            return True
        self._newest = Withheld(self._clock.mono_ms(), ahead_ms)
        return False

    @property
    def note(self) -> str:
        """What `status` says of this replica, "" if it withheld nothing lately."""
        newest = self._newest
        if newest is None or self._clock.mono_ms() - newest.mono_ms > NOTE_MS:
            return ""
        return (
            f"did not acknowledge a leader's entry that is {newest.ahead_ms / 1000:.0f} s ahead of"
            " its clock: set the clock that is wrong"
        )

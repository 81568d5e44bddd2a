"""Wrong clocks (rule R10). The leader notices when its clock is set, and no replica lets a wrong
clock carry the cell's time far ahead, from where it never returns.

A replica does not acknowledge a new entry whose time is far ahead of its own clock, unless the
cell's time is there already. If one such replica exists, the others commit the entry, and it
applies it as committed. If they are a majority, the leader cannot commit, and another replica
leads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from cron.clock import Clock
from cron.limits import AHEAD_MS_MAX
from cron.state.codec import time_of


class Jump:
    """The distance between the wall clock and the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.wall_ms() - clock.mono_ms()

    def since_last(self) -> int:
        """Return by how many ms the wall clock jumped since the last call. Slow drift does not add
        up: each call starts again."""
        offset_ms = self._clock.wall_ms() - self._clock.mono_ms()
        jumped_ms = offset_ms - self._offset_ms
        self._offset_ms = offset_ms
        return jumped_ms


class Steady:
    """Since when this leader answers for what falls due, on a clock that may be set.

    The first call counts as the end of a change of leader that took `break_ms`: instants that fell
    due in it are not missed. Work continues until a break: `break_ms` without a call, or a clock
    that moved by as much. A leader that was stopped, or whose clock was set, does not know what
    fell due meanwhile.
    """

    def __init__(self, break_ms: int) -> None:
        self._break_ms = break_ms
        self._seen_ms: int | None = None
        self._since_ms = 0

    def since(self, now_ms: int) -> int:
        """Return since when this leader works, after a call at `now_ms`."""
        if self._seen_ms is None:
            self._since_ms = now_ms - self._break_ms
        elif abs(now_ms - self._seen_ms) >= self._break_ms:
            self._since_ms = now_ms
        self._seen_ms = now_ms
        return self._since_ms


NOTE_MS: Final = 15_000
"""How long `status` mentions an entry that was not acknowledged."""


class Withheld(msgspec.Struct, frozen=True):
    """An entry that was not acknowledged: when (monotonic clock), and how far ahead it was."""

    mono_ms: int
    ahead_ms: int


class Ratchet:
    """Which entries one replica acknowledges. `may_acknowledge` runs in the engine's thread, does
    not wait, and replaces its result as a whole."""

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
        """The note of this replica for `status`, "" if it withheld nothing lately."""
        newest = self._newest
        if newest is None or self._clock.mono_ms() - newest.mono_ms > NOTE_MS:
            return ""
        return (
            f"did not acknowledge a leader's entry that is {newest.ahead_ms / 1000:.0f} s ahead of"
            " its clock: set the clock that is wrong"
        )

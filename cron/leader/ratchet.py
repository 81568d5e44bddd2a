"""Log time never goes back, so no replica lets a wrong clock carry it far ahead (rule R10).

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

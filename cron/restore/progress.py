"""How far something long is: not a line for each step of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cron.clock import Clock, SystemClock

EVERY_MS: Final = 1_000


class Progress:
    """Tells `what: 3 of 10 things` at the first step, then once a second, and at the last one."""

    def __init__(
        self, tell: Callable[[str], None], total: int, text: str, clock: Clock | None = None
    ) -> None:
        """`text` has a `{}` for `3 of 10`."""
        self._tell = tell
        self._total = total
        self._text = text
        self._clock = clock or SystemClock()
        self._next_ms = 0

    def at(self, number: int) -> None:
        """Tell of step `number`, which counts from 1, if it is time to."""
        now_ms = self._clock.mono_ms()
        if number < self._total and now_ms < self._next_ms:
            return
        self._next_ms = now_ms + EVERY_MS
        self._tell(self._text.format(f"{number} of {self._total}"))

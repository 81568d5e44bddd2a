"""Computing for a request beside the loop, within a time: the loop has heartbeats to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from cron.clock import Clock
from cron.errors import LimitExceeded

ASIDE_MS_MAX: Final = 2_000
"""How long one request may compute; 10,000 times of a common schedule take some 50 ms."""
AT_ONCE: Final = 2
"""Requests that compute at once: each takes its share of the interpreter from the loop."""
_LOOK_EVERY: Final = 64

T = TypeVar("T")


class Patience:
    """The time that one request may compute. Its work calls `spend` for each row."""

    def __init__(self, clock: Clock, hint: str) -> None:
        self._clock = clock
        self._hint = hint
        self._end_ms = clock.mono_ms() + ASIDE_MS_MAX
        self.rows = 0

    def spend(self) -> None:
        """Count a row.

        Raises:
            LimitExceeded: the time is over.
        """
        self.rows += 1
        if self.rows % _LOOK_EVERY == 1 and self._clock.mono_ms() > self._end_ms:
            raise LimitExceeded(
                f"after {ASIDE_MS_MAX / 1000:g} s only {self.rows - 1:,} were found", self._hint
            )


class Aside:
    """Threads for what requests compute, a few at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def run(self, work: Callable[[Patience], T], hint: str) -> T:
        """Return what the work returns, computed in a thread.

        `hint` says what to ask for instead where the time is not enough.

        Raises:
            LimitExceeded: the time is over; nothing is answered.
        """
        async with self._turns:
            return await asyncio.to_thread(work, Patience(self._clock, hint))

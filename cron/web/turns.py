"""How much of the event loop's time HTTP requests get: it is the leader's, too."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

from cron import limits
from cron.web.problems import Refusal

THROTTLE_S: Final = 0.001
"""How long requests are read without a rest; reading one takes about a third of this."""


class Throttle:
    """Makes calls one after the other, and rests as long as it works, a millisecond each: hundreds
    of requests that arrive at one moment are not read in one go."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False

    def add(self, call: Callable[[], None]) -> None:
        """Make a call soon, after those that were added before."""
        self._waiting.append(call)
        self._go_on(0.0)

    def _go_on(self, rest_s: float) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(rest_s, self._run)

    def _run(self) -> None:
        self._is_due = False
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        try:
            while self._waiting and loop.time() < begin_s + THROTTLE_S:
                self._waiting.popleft()()
        finally:
            self._go_on(THROTTLE_S)


class Turns:
    """Lets some requests be answered at once, and others wait; first come, first served."""

    def __init__(
        self, at_once: int = limits.HTTP_READS_MAX, waiting: int = limits.HTTP_WAITING_MAX
    ) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._waiting_max = waiting
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and keep it inside.

        Raises:
            Refusal: too many wait already.
        """
        if self._free.locked() and self.waiting >= self._waiting_max:
            raise Refusal(503, "busy", "too many requests wait already", "try again shortly")
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._free.release()

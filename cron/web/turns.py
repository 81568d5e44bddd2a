"""How many HTTP requests are answered at one time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from cron import limits
from cron.web.problems import Refusal


class Turns:
    """Lets some requests be answered at once, and others wait; first come, first served."""

    def __init__(
        self, at_once: int = limits.HTTP_AT_ONCE_MAX, waiting: int = limits.HTTP_WAITING_MAX
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

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
STEPS: Final = 2
"""Steps of the event loop in which a request is read to its end, and checked."""
REST_S_MAX: Final = 0.25
"""How long a turn rests at most; some take seconds, most of which they wait."""


class Throttle:
    """Makes calls one after the other, for a millisecond. Then it rests for as long as the event
    loop took for what followed from them: hundreds of requests that arrive at one moment are not
    read in one go, and on a machine without time to spare the leader gets half of it."""

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
            self._is_due = True
            loop.call_soon(self._follow, begin_s, STEPS)

    def _follow(self, begin_s: float, steps: int) -> None:
        loop = asyncio.get_running_loop()
        if steps:
            loop.call_soon(self._follow, begin_s, steps - 1)
            return
        self._is_due = False
        self._go_on(max(THROTTLE_S, loop.time() - begin_s))


class Turns:
    """Lets some requests be answered at once, and others wait; first come, first served. With
    `rests` a turn is free again only after as long as it took."""

    def __init__(
        self,
        at_once: int = limits.HTTP_READS_MAX,
        waiting: int = limits.HTTP_WAITING_MAX,
        *,
        rests: bool = False,
    ) -> None:
        self._rests = rests
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
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        try:
            yield
        finally:
            if self._rests:
                loop.call_later(min(REST_S_MAX, loop.time() - begin_s), self._free.release)
            else:
                self._free.release()

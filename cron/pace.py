"""Slows down background work, so that the event loop is not delayed.

An image of a hundred thousand jobs keeps a thread busy for half a second. Python runs one thread at
a time, and a machine may have few cores: without pauses, every launch in that half second would be
late by a tenth of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final, TypeVar

RESTS: Final = 2.0
"""The length of a pause relative to the work before it: at most a third of a core is used."""
REST_S_MAX: Final = 0.05
TURN_ITEMS: Final = 250
"""Items that one callback of the event loop handles: some milliseconds."""

T = TypeVar("T")


def paced(
    pieces: Iterable[T],
    rest: Callable[[float], object] = time.sleep,
    now_s: Callable[[], float] = time.monotonic,
) -> Iterator[T]:
    """Yield `pieces`, and pause after each for longer than it took to make and use it. `rest` is
    called with the seconds.
    """
    began_s = now_s()
    for piece in pieces:
        yield piece
        rest(min(RESTS * (now_s() - began_s), REST_S_MAX))
        began_s = now_s()


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield `items` on the event loop, and let other tasks run in between."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % TURN_ITEMS:
            await asyncio.sleep(0)


class WakeUp:
    """An event for which one task waits, and not for ever. It costs a third of an `asyncio.Event`
    within an `asyncio.timeout`."""

    def __init__(self) -> None:
        self.is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Let the event happen: the task that waits goes on."""
        self.is_set = True
        if self._waiter is not None:
            _end(self._waiter)

    def clear(self) -> None:
        """Wait for the event to happen again."""
        self.is_set = False

    async def wait(self, seconds: float) -> bool:
        """Return once the event has happened, or after so many seconds; whether it has."""
        if self.is_set:
            return True
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(seconds, _end, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None
        return self.is_set


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

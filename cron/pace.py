"""Work that takes its time, so that the event loop beside it need not wait for its own.

An image of a hundred thousand jobs keeps one thread busy for half a second. Python runs one thread
at a time, and a machine may have few cores: without rests every launch of that half second would be
late by a tenth of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final, TypeVar

RESTS: Final = 2.0
"""How long to rest, in terms of how long the work took: a third of one core at most is used."""
REST_S_MAX: Final = 0.05
TURN_ITEMS: Final = 250
"""What one turn of the loop does of a list: some milliseconds of what a person asks to see."""

T = TypeVar("T")


def paced(
    pieces: Iterable[T],
    rest: Callable[[float], object] = time.sleep,
    now_s: Callable[[], float] = time.monotonic,
) -> Iterator[T]:
    """Yield `pieces`, and rest after each for longer than it took to make and to use it: seconds
    are given to `rest`."""
    began_s = now_s()
    for piece in pieces:
        yield piece
        rest(min(RESTS * (now_s() - began_s), REST_S_MAX))
        began_s = now_s()


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield `items` on the event loop, and let everything else on it have its turn in between."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % TURN_ITEMS:
            await asyncio.sleep(0)

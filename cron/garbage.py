"""Python's garbage collector, kept from stopping the process for long.

A collection stops all threads, Raft's among them, for half a microsecond per object that it looks
at: 290 ms with 100,000 jobs, and a leader steps down after 640 ms without answers. So young objects
are looked at in small portions, and old ones never by Python's own decision. This module looks at
them now and then. Where there are many it freezes them, which takes no time: they are State, whose
parts go by their reference counts. A State as a whole is a cycle; it is collected when another one
takes its place.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

THRESHOLDS: Final = (20_000, 5, 1_000_000)
"""Young objects are looked at when so many are new, middle ones at every sixth time: 26 ms at most
while 100,000 jobs are read. The last figure means never."""
LOOK_EVERY_S: Final = 10.0
COLLECT_OBJECTS_MAX: Final = 100_000
"""How many old objects are collected: 50 ms. More are frozen."""


class Garbage:
    """The collector of this process. `root` returns the State in force."""

    def __init__(self, root: Callable[[], object]) -> None:
        self._root = root
        self._seen: object = None

    def begin(self) -> None:
        """Collect once, and exclude all objects that exist now from later collections."""
        gc.set_threshold(*THRESHOLDS)
        self._seen = self._root()
        _freeze_living()

    def look(self) -> None:
        """Collect what became old since the last look, or freeze it where it is much."""
        root = self._root()
        if root is not self._seen:
            self._seen = root
            _freeze_living()
        elif gc.get_count()[2]:  # objects became old
            if len(gc.get_objects(generation=2)) > COLLECT_OBJECTS_MAX:
                gc.freeze()
            else:
                gc.collect()

    async def watch(self) -> None:
        """Look now and then, for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()


def _freeze_living() -> None:
    gc.unfreeze()
    gc.collect()
    gc.freeze()

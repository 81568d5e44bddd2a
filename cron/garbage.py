"""Limits how long Python's garbage collector stops the process.

A collection stops all threads, including Raft's, for half a microsecond per object: 290 ms with
100,000 jobs. A leader steps down after 640 ms without answers. So Python collects young objects in
small portions and never collects old ones. This module checks the old objects periodically. If
there are few, it collects them; if there are many, it freezes them, which takes no time: they are
parts of State, which reference counting frees. A whole State is a cycle of references; it is
collected when another State replaces it.

Each call that is answered leaves a cycle of some objects. Python would collect these when there are
thousands, after minutes or hours, so the memory of a quiet replica would grow until then. This
module collects young objects from time to time as well.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

THRESHOLDS: Final = (20_000, 5, 1_000_000)
"""Thresholds for `gc.set_threshold`: young objects are collected when this many are new, middle
ones every sixth time; at most 26 ms while 100,000 jobs are read. The last number means never.
"""
LOOK_EVERY_S: Final = 10.0
MIDDLE_LOOKS: Final = 6
"""Of so many collections of young objects, one is of those as well that survived one before."""
COLLECT_OBJECTS_MAX: Final = 100_000
"""The most old objects that are collected (50 ms); more are frozen."""


class Garbage:
    """The garbage collector of this process. `root` returns the current State."""

    def __init__(self, root: Callable[[], object]) -> None:
        self._root = root
        self._seen: object = None
        self._looks = 0

    def begin(self) -> None:
        """Collect once, and exclude all objects that exist now from later collections."""
        gc.set_threshold(*THRESHOLDS)
        self._seen = self._root()
        _freeze_living()

    def look(self) -> None:
        """Collect the objects that became old since the last call, or freeze them if they are many;
        collect young objects if none became old."""
        root = self._root()
        if root is not self._seen:
            self._seen = root
            _freeze_living()
        elif gc.get_count()[2]:  # objects became old
            if len(gc.get_objects(generation=2)) > COLLECT_OBJECTS_MAX:
                gc.freeze()
            else:
                gc.collect()
        else:
            self._looks += 1
            gc.collect(0 if self._looks % MIDDLE_LOOKS else 1)

    async def watch(self) -> None:
        """Call `look` periodically, for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()


def _freeze_living() -> None:
    gc.unfreeze()
    gc.collect()
    gc.freeze()

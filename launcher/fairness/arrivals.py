"""Items in an order of their own: by arrival, or by when their hold ends. A heap with shells.

What leaves from the middle leaves a shell (Stage.GONE) that is dropped when it comes to the front,
or all at once when shells outnumber items: so leaving costs O(1) on average.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from launcher.fairness.item import Item, Stage

SHELLS_MIN: Final = 32
"""Fewer shells than this are not worth rebuilding for."""
GONE: Final = Stage.GONE
TIES: Final = count()
"""Decides in a heap between an item and shells of the same item."""


class Arrivals:
    """Items, lowest order first, then lowest `seq`; `size` counts without shells."""

    __slots__ = ("heap", "shells", "size")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, int, Item]] = []
        self.size = self.shells = 0

    def push(self, order: int, item: Item) -> None:
        """Take `item` in."""
        heappush(self.heap, (order, item.seq, next(TIES), item))
        self.size += 1

    def first(self) -> tuple[int, Item] | None:
        """Return (order, item) of the first one, or None."""
        heap = self.heap
        while self.shells and heap and heap[0][3].stage is GONE:
            heappop(heap)
            self.shells -= 1
        return (heap[0][0], heap[0][3]) if heap else None

    def pop(self) -> Item:
        """Take the first one out; only after `first` has found one."""
        self.size -= 1
        return heappop(self.heap)[3]

    def lose(self) -> None:
        """Count that one of the items is now a shell."""
        self.size -= 1
        self.shells += 1
        if self.shells > self.size + SHELLS_MIN:
            self.heap = [row for row in self.heap if row[3].stage is not GONE]
            heapify(self.heap)
            self.shells = 0

"""The executors that fit a need, least loaded first: a heap, put right where it is looked at.

Theory of operation. Each member that has room has a *key*, its load and number, which is in the
heap and never above what it should be: where a load rises nothing is done until the key comes to
the top, and is replaced by the true one. Members without room leave the heap there. Where something
is given back the number goes to `unseen`, and before the next look the lower key is pushed. So
taking and giving cost next to nothing, a look O(log members) for each change since the last one,
and never more than one pass over the members, whatever the number of launches.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from launcher.placement.place import Seat

NUMBER_BITS: Final = 32
NUMBER_MAX: Final = (1 << NUMBER_BITS) - 1
"""A key is one integer, the load above so many bits of the number: quick to compare, and small."""
_STALE_MIN: Final = 64
_PASS_SHARE: Final = 2
"""Where one in so many members is to be looked at, one pass over all is less work; 0 for never."""


class Ranking:
    """Seats by load, ties by number, for needs that take the same cpu and memory."""

    def __init__(
        self, serial: int, cpu_milli: int, memory_bytes: int, members: dict[int, Seat]
    ) -> None:
        self.cpu_milli, self.memory_bytes = cpu_milli, memory_bytes
        self.members = members
        self.asked = True
        """Whether somebody looked since this was last set to False."""
        self._serial = serial
        self._unseen: set[int] = set()
        self._heap: list[int] = []
        self._keys: dict[int, int] = {}
        for seat in members.values():
            seat.watchers[serial] = self._unseen
        self._rank_all()

    def put(self, number: int, seat: Seat | None) -> None:
        """Let `number` have this seat, or none."""
        old = self.members.pop(number, None)
        if old is not None:
            del old.watchers[self._serial]
            self._keys.pop(number, None)
        if seat is not None:
            self.members[number] = seat
            seat.watchers[self._serial] = self._unseen
            self._unseen.add(number)

    def forget(self) -> None:
        """Let all seats go; the ranking is of no use any more."""
        for seat in self.members.values():
            del seat.watchers[self._serial]
        self.members = {}

    def first(self, avoid: int | None = None, barred: Collection[int] = ()) -> int | None:
        """Return the member with room that is least loaded; `avoid` only where there is no other,
        and none of `barred`."""
        if avoid is None and not barred:
            return self._top()
        aside: list[int] = []
        while (number := self._top()) is not None and (number == avoid or number in barred):
            aside.append(self._pop(number))
        self._unseen.update(aside)
        if number is None and avoid in aside and avoid not in barred:
            return avoid
        return number

    def firsts(self, count: int) -> list[int]:
        """Return up to `count` members with room, least loaded first."""
        numbers: list[int] = []
        while len(numbers) < count and (number := self._top()) is not None:
            numbers.append(self._pop(number))
        self._unseen.update(numbers)
        return numbers

    def _top(self) -> int | None:
        """Put right what is on top until that is true; return its number, None for none."""
        if self._unseen:
            self._catch_up()
        heap, keys = self._heap, self._keys
        while heap:
            key = heap[0]
            number = key & NUMBER_MAX
            if keys.get(number) != key:
                heappop(heap)
                continue
            seat = self.members[number]
            if not seat.has_room(self.cpu_milli, self.memory_bytes):
                heappop(heap)
                del keys[number]
                continue
            true = seat.load << NUMBER_BITS | number
            if true == key:
                return number
            heapreplace(heap, true)
            keys[number] = true
        return None

    def _catch_up(self) -> None:
        """Look where something was given back since the last time."""
        unseen, keys, heap = self._unseen, self._keys, self._heap
        if _PASS_SHARE * len(unseen) >= max(1, len(self.members)):
            self._rank_all()
            return
        for number in unseen:
            seat = self.members.get(number)
            if seat is not None and seat.has_room(self.cpu_milli, self.memory_bytes):
                key = seat.load << NUMBER_BITS | number
                if key < keys.get(number, key + 1):
                    keys[number] = key
                    heappush(heap, key)
        unseen.clear()
        if len(heap) > 2 * len(self.members) + _STALE_MIN:
            self._heap = list(keys.values())
            heapify(self._heap)

    def _rank_all(self) -> None:
        self._keys = {
            number: seat.load << NUMBER_BITS | number
            for number, seat in self.members.items()
            if seat.has_room(self.cpu_milli, self.memory_bytes)
        }
        self._heap = list(self._keys.values())
        heapify(self._heap)
        self._unseen.clear()

    def _pop(self, number: int) -> int:
        """Take the top off; where its key stands there a second time, that counts for nothing."""
        heappop(self._heap)
        del self._keys[number]
        return number

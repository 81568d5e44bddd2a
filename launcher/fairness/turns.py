"""Whose turn it is among the classes of a band: the tenants', as far as classes can tell.

A class in which several tenants wait has as many turns as there are of them; all classes in which
one tenant is alone share the turns of that tenant, as many as its weight. Else whoever asks for
something special, a label or a bit more memory, would have as many turns as all others together
who ask for nothing, and twice that with two such wishes. Classes whose slots are elsewhere take
nothing from each other, and no turns either: a tenant has its turns in each domain.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from launcher.fairness.lanes import Lane, Line


EMPTY_MAX: Final = 1_000
"""Groups without a class that are remembered since they are in the midst of a turn."""


class Group:
    """The classes of a domain in which one tenant is alone; `credit` is what is left of a turn that
    has begun."""

    __slots__ = ("credit", "key", "lanes")

    def __init__(self, key: tuple[str, Hashable]) -> None:
        self.key = key
        self.credit = 0
        self.lanes: OrderedDict[Lane, None] = OrderedDict()

    def front(self) -> Lane:
        """Return the class that is next of these."""
        return next(iter(self.lanes))


class Turns:
    """The lanes of one band that may have their turn, in its order."""

    __slots__ = ("_groups", "_ring")

    def __init__(self) -> None:
        self._ring: OrderedDict[Lane | Group, None] = OrderedDict()
        self._groups: dict[tuple[str, Hashable], Group] = {}

    def __bool__(self) -> bool:
        return bool(self._ring)

    def first(self) -> Lane:
        """Return the lane whose turn it is; only while there is any.

        It stands where it belonged when it came, and moves only now, when it has its turn in any
        case: if others who come and go moved it at once, to the end, it might never have one.
        """
        lane = next(iter(self._ring)).front()
        if lane.place.key != (None if lane.group is None else lane.group.key):
            self.remove(lane)
            self.add(lane)
            if lane.group is None:
                self._ring.move_to_end(lane, last=False)
            else:
                self._ring.move_to_end(lane.group, last=False)
                lane.group.lanes.move_to_end(lane, last=False)
        return lane

    def add(self, lane: Lane) -> None:
        """Let a lane have its turn, after all others; or with those of its tenant."""
        key = lane.place.key
        if key is None:
            self._ring[lane] = None
            return
        group = lane.group = self._groups.get(key) or self._groups.setdefault(key, Group(key))
        group.lanes[lane] = None
        self._ring[group] = None

    def remove(self, lane: Lane) -> None:
        """Let a lane that was added have no turn."""
        group, lane.group = lane.group, None
        if group is None:
            del self._ring[lane]
            return
        del group.lanes[lane]
        if not group.lanes:
            del self._ring[group]
            if not group.credit:  # else it goes on when there is room again
                del self._groups[group.key]
            elif len(self._groups) > 2 * len(self._ring) + EMPTY_MAX:
                self._groups = {one.key: one for one in self._groups.values() if one.lanes}

    def took(self, line: Line) -> None:
        """Count that a launch of `line` begins: the turn of its class goes on, or is over."""
        shelf = line.shelf
        if shelf is None:
            return
        lane, group = shelf.lane, shelf.lane.group
        entry, most = lane if group is None else group, line.owner.weight
        if group is None:
            most = len(shelf.ring)
        else:
            group.lanes.move_to_end(lane)
        entry.credit = min(entry.credit or most, most) - 1
        if not entry.credit:
            self._ring.move_to_end(entry)

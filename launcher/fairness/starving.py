"""Place classes of which nothing has begun for long, for want of room alone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from launcher.fairness.item import Item
from launcher.fairness.lanes import Line, PlaceClass

PATIENCE_MS: Final = 30_000
"""As long as it takes a launch to count as one priority better."""
GAP_MS: Final = 2_000
"""Whoever was not found without room for so long waited for something else meanwhile: a gate, a
limit, a rate."""
LOOK_MS: Final = 500
"""So often classes are asked how long they have waited; in the rounds between, nothing is done."""


class Starving:
    """What the pump passes over in each round because no executor has room, while others begin."""

    def __init__(self) -> None:
        self.since_ms: dict[Hashable, int] = {}
        """Since when, by place: what the last round that is over and asked has found."""
        self._found: dict[Hashable, int] = {}
        self._next_ms = 0
        self._is_asking = False

    def begin_round(self, now_ms: int) -> None:
        """Begin a round; if it is time, ask all in it. Time that was set back is time."""
        if self._is_asking:
            self.since_ms, self._found = self._found, {}
        self._is_asking = now_ms >= self._next_ms or now_ms < self._next_ms - LOOK_MS
        if self._is_asking:
            self._next_ms = now_ms + LOOK_MS

    def note(
        self, place: PlaceClass, now_ms: int, first: Callable[[], tuple[Line, Item] | None]
    ) -> None:
        """Note that a class found no room, or not enough; `first` returns what would have begun,
        None where that must wait for something else as well. Who is beyond its share may starve."""
        is_on = 0 <= now_ms - place.noted_ms <= GAP_MS
        place.noted_ms = now_ms
        if not place.lacks_since_ms or not is_on:
            place.lacks_since_ms = now_ms
        if not self._is_asking or now_ms - place.lacks_since_ms < PATIENCE_MS:
            return
        found = first()
        if found is None or found[0].over is not None:
            return
        since_ms = max(place.lacks_since_ms, found[1].enqueued_ms)
        if now_ms - since_ms >= PATIENCE_MS:
            self._found[place.place] = since_ms

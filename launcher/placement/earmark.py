"""Room that is put by for a launch that needs much, where small ones take all that comes free.

Theory of operation. A launch of several parts, or one that needs most of an executor, finds room
only if enough comes free at one moment; where small launches follow each other without a gap that
never happens. So of the classes that have waited for long without anything of theirs beginning one
gets a *mark* on as many executors as it needs, the least loaded that fit. On each of them its share
is held as soon as it is free; until then an executor whose cpu or memory is short gets nothing
else. When all is held the launch may begin.

This is the reservation of EASY backfilling (Mu'alem and Feitelson, IEEE TPDS 12(6), 2001). Nobody
here knows how long launches will run, so it is bounded by time instead: a mark lasts a quarter of
the time that was waited, after one that came to nothing there is none for twice as long as that
lasted, and the same class gets its next when it has waited twice as long. So marks that come to
nothing cost others a third of a few executors' time at most, and one that must outlast a long run
does so in the end. Slots that are reserved for others are neither held nor barred: who asks to hold
something says whether it may be (`hold`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from launcher.placement.place import Need, Seat
from launcher.placement.places import Places

SHARE: Final = 4
"""A mark lasts one part in so many of what was waited."""
UNSEEN_MS: Final = 5_000
"""A mark for a class that did not starve any more for so long is let go."""
READY_MS: Final = 1_000
"""How long room is held for a launch that could begin, and does not come."""
UNFIT_MS: Final = 30_000
"""After so long a class is looked at again that no executors fit."""
TRIED_MAX: Final = 4
"""Classes that are looked at in one go: each is a pass over all executors."""
MARKED_MAX: Final = 256
"""No launch on more executors gets a mark: each round looks at all of them."""


Hold = Callable[[int, Need], bool]


class Wanted(msgspec.Struct, frozen=True, cache_hash=True):
    """What a launch needs on each executor, and on how many, or on which: the place class of what
    runs on several."""

    need: Need
    parts: int = 1
    each: str = ""

    @property
    def is_much(self) -> bool:
        """Whether it may find no room although room comes free all the time."""
        return self.need.takes_resources or self.parts > 1 or bool(self.each)


class Mark(msgspec.Struct):
    """Executors on which room is put by for the next launch of a class. `held`: where it is."""

    wanted: Wanted
    numbers: tuple[int, ...]
    since_ms: int
    from_ms: int
    until_ms: int
    seen_ms: int
    held: set[int] = msgspec.field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        """Whether the launch may begin."""
        return len(self.held) == len(self.numbers)


class Earmarks:
    """At most one mark at a time, on these places."""

    def __init__(self, places: Places, hold: Hold | None = None) -> None:
        self._places = places
        self._hold = hold or places.hold
        self.mark: Mark | None = None
        self._now_ms = 0
        self._rests_until_ms = 0
        self._rests_for: Wanted | None = None
        self._failed: dict[Wanted, int] = {}  # -> how long it must have waited for the next

    def look(self, starving: Mapping[Wanted, int] | None, now_ms: int) -> None:
        """Do what is to be done before a round. `starving`: who waits, and since when; None where
        that is as it was."""
        if now_ms < self._now_ms:  # the clock was set back
            self._let_go()
            self._rests_until_ms = 0
        self._now_ms = now_ms
        mark = self.mark
        if mark is not None and self._is_over(mark, starving):
            self._fail(mark)
        elif mark is not None:
            self._gather(mark)
        elif starving and now_ms >= self._rests_until_ms:
            self._choose(starving)
        if starving is not None and not self._failed.keys() <= starving.keys():
            self._failed = {one: ms for one, ms in self._failed.items() if one in starving}

    def _is_over(self, mark: Mark, starving: Mapping[Wanted, int] | None) -> bool:
        if starving is not None:
            if mark.wanted in starving:
                mark.seen_ms = self._now_ms
            if not self._is_sound(mark):
                return True
        return self._now_ms >= mark.until_ms or self._now_ms - mark.seen_ms >= UNSEEN_MS

    def _is_sound(self, mark: Mark) -> bool:
        """Whether these are still the executors that it needs, and what is held is there."""
        places, need, each = self._places, mark.wanted.need, mark.wanted.each
        if each and places.each(need, each).keys() != set(mark.numbers):
            return False
        return all(
            places.bears(number, need) if number in mark.held else places.is_fit(number, need)
            for number in mark.numbers
        )

    def _choose(self, starving: Mapping[Wanted, int]) -> None:
        """Make a mark for who has waited longest, and could begin if others let it."""
        tried = 0
        for wanted, since_ms in sorted(starving.items(), key=lambda item: item[1]):
            waited_ms = self._now_ms - since_ms
            if not wanted.is_much or waited_ms < self._failed.get(wanted, 0):
                continue
            numbers = self._executors(wanted)
            if numbers:
                until_ms = self._now_ms + waited_ms // SHARE
                self.mark = Mark(wanted, numbers, since_ms, self._now_ms, until_ms, self._now_ms)
                self._gather(self.mark)
                return
            self._failed[wanted] = waited_ms + UNFIT_MS
            tried += 1
            if tried == TRIED_MAX:
                return

    def _executors(self, wanted: Wanted) -> tuple[int, ...]:
        """Return the executors to mark, the least loaded first; none where there are not enough."""
        seats = self._fitting(wanted)
        count = len(seats) if wanted.each else wanted.parts
        if not 0 < count <= min(len(seats), MARKED_MAX):
            return ()
        return tuple(sorted(seats, key=lambda number: (seats[number].load, number))[:count])

    def _fitting(self, wanted: Wanted) -> dict[int, Seat]:
        """Return where it could run, were nothing taken; nothing if it could not begin at all."""
        seats = self._places.could_fit(wanted.need)
        if not wanted.each:
            return seats
        meant = self._places.each(wanted.need, wanted.each)
        return dict(meant) if meant.keys() <= seats.keys() else {}

    def _gather(self, mark: Mark) -> None:
        """Hold what has come free; where much is needed nothing else may take what has not."""
        if mark.is_ready:
            return
        for number in mark.numbers:
            if number not in mark.held and self._hold(number, mark.wanted.need):
                mark.held.add(number)
        if mark.is_ready:
            mark.until_ms = min(mark.until_ms, self._now_ms + READY_MS)

    def _fail(self, mark: Mark) -> None:
        self._failed[mark.wanted] = 2 * (self._now_ms - mark.since_ms)
        self._rests_until_ms = self._now_ms + 2 * (self._now_ms - mark.from_ms)
        self._rests_for = mark.wanted
        self._let_go()

    def _let_go(self) -> None:
        mark, self.mark = self.mark, None
        if mark is None:
            return
        for number in mark.numbers:
            if number in mark.held:
                self._places.give(number, mark.wanted.need)
            else:
                self._places.unbar(number)

    # ---- what the round asks

    @property
    def is_idle(self) -> bool:
        """Whether there is no mark, nor was one of late that came to nothing."""
        return self.mark is None and not self._failed

    def held(self, number: int) -> int:
        """Return how many launches room is held for on an executor: none, or one."""
        return int(self.mark is not None and number in self.mark.held)

    def is_ready(self, wanted: Wanted) -> bool:
        """Whether all that a launch of this class needs is held for it."""
        mark = self.mark
        if mark is None or mark.wanted != wanted:
            return False
        return mark.is_ready and self._is_sound(mark)

    def take(self, wanted: Wanted) -> tuple[int, ...]:
        """Return the executors where all is held for a launch of this class, which now may take it;
        none where it is not. If it does not begin after all, that is a mark that came to nothing.
        """
        mark = self.mark
        if mark is None or not self.is_ready(wanted):
            return ()
        self._fail(mark)
        return mark.numbers

    def began(self, wanted: Wanted) -> bool:
        """Learn that a launch of this class begins, wherever it does: it needs no mark any more.
        Return whether room was let go for that."""
        self._failed.pop(wanted, None)
        if self._rests_for == wanted:
            self._rests_until_ms, self._rests_for = 0, None
        if self.mark is None or self.mark.wanted != wanted:
            return False
        self._let_go()
        return True

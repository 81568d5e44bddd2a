"""Questions to one tail of history, in the thread of questions.

Theory of operation. State's thread appends items to a tail and never changes one. A question
knows how many items there were when it was asked, and reads no more. Jobs are not among a tail's
columns, since no launch should pay for that; they are indexed here, when somebody asks for one,
from where the last question left off.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Final

from cron.history.order import Match, newest_s
from cron.state.rows import Chunk, Row, at
from cron.state.tail import Tail

_ITEM_SHIFT: Final = 32
_NUMBER: Final = (1 << _ITEM_SHIFT) - 1


class TailReader:
    """Reads a tail, as far as the question of now may see it."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self._items = 0
        self._jobs: dict[str, array[int]] = {}  # of each row its item and its number there
        self._indexed = 0
        self._read: tuple[int, Row | Chunk] | None = None

    def upto(self, items: int) -> TailReader:
        """Have questions see so many items from now on."""
        self._items = items
        return self

    def of_job(self, job: str, match: Match, limit: int | None = None) -> list[Row]:
        """Return the rows of a job that match; of more than `limit`, at least the newest so many,
        in no order."""
        lasts_s = self.tail.lasts_s
        places = sorted(
            self._places_of(job), key=lambda place: lasts_s[place >> _ITEM_SHIFT], reverse=True
        )
        mine = groupby(places, lambda place: place >> _ITEM_SHIFT)
        return self._newest(mine, job, match, limit)

    def newest(self, match: Match, limit: int, jobs: frozenset[str] | None = None) -> list[Row]:
        """Return at least the newest `limit` rows that match, of these jobs, in no order."""
        items = sorted(range(self._items), key=self.tail.lasts_s.__getitem__, reverse=True)
        return self._newest(((item, ()) for item in items), "", match, limit, jobs)

    def later(self, than_s: Mapping[str, int]) -> dict[str, int]:
        """Return, by job, how many rows are of later instants than these."""
        found = {}
        for job, last_s in than_s.items():
            found[job] = 0
            for place in self._places_of(job):
                if self.tail.lasts_s[place >> _ITEM_SHIFT] > last_s:
                    item = self._item(place >> _ITEM_SHIFT)
                    is_alone = isinstance(item, Row) or item.count > 0
                    found[job] += is_alone or at(item.scheduled_s, place & _NUMBER) > last_s
        return found

    def _newest(
        self,
        items: Iterable[tuple[int, Iterable[int]]],
        job: str,
        match: Match,
        limit: int | None,
        jobs: frozenset[str] | None = None,
    ) -> list[Row]:
        """Return the rows that match of items, which come with the newest first, and of each the
        places of the rows of `job`, "" for all of `jobs`, None for all."""
        tail = self.tail
        found: list[Row] = []
        newest: list[int] = []  # the newest ScheduledTimes of these, a heap of `limit` at most
        for number, places in items:
            last_s = tail.lasts_s[number]
            if limit is not None and len(newest) >= limit and newest[0] > last_s:
                break
            if not match.may_be(tail.firsts_s[number], last_s, 1 << tail.states[number]):
                continue
            for row in self._rows(self._item(number), job, places, limit, jobs):
                if match.fits(row):
                    found.append(row)
                    heapq.heappush(newest, newest_s(row))
                    if limit is not None and len(newest) > limit:
                        heapq.heappop(newest)
        return found

    def _rows(
        self,
        item: Row | Chunk,
        job: str,
        places: Iterable[int],
        limit: int | None,
        jobs: frozenset[str] | None,
    ) -> list[Row]:
        if isinstance(item, Row):
            return [item] if jobs is None or item.job in jobs else []
        if job:
            return [item.row(place & _NUMBER, job) for place in places]
        is_one = isinstance(item.scheduled_s, int) and isinstance(item.attempts, int)
        if jobs is None and not is_one:
            return item.rows()
        names = item.names()
        mine = [i for i, name in enumerate(names) if jobs is None or name in jobs]
        if is_one and limit is not None:
            mine = mine[max(len(mine) - limit, 0) :]  # its last rows are listed first
        return [item.row(i, names[i]) for i in mine]

    def _places_of(self, job: str) -> array[int]:
        """Return the item of each row of a job, and its number there, in one integer."""
        for number in range(self._indexed, self._items):
            item = self._item(number)
            names = item.names() if isinstance(item, Chunk) else [item.job]
            for place, name in enumerate(names, number << _ITEM_SHIFT):
                places = self._jobs.get(name)
                if places is None:
                    places = self._jobs[name] = array("Q")
                places.append(place)
        self._indexed = max(self._indexed, self._items)
        places = self._jobs.get(job, array("Q"))
        return places[: bisect_left(places, self._items << _ITEM_SHIFT)]

    def _item(self, number: int) -> Row | Chunk:
        if self._read is None or self._read[0] != number:
            self._read = number, self.tail.item(number)
        return self._read[1]

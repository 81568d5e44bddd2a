"""Questions to one tail of history, in the thread of questions.

Theory of operation. State's thread appends items to a tail and never changes one. A question is
told how many items there were when it was asked, and reads no more. Jobs are not among a tail's
columns, since no launch should pay for that; they are indexed here, when somebody asks for one,
from where the last question left off.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from cron.history.order import Match, newest_s
from cron.state.rows import Chunk, Row, at
from cron.state.tail import Tail

PIECE_ITEMS: Final = 1_024
"""Items that are looked at or left out together."""
_ITEM_SHIFT: Final = 32


class TailReader:
    """Reads a tail; `items` is how many of its items a question may see."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self._jobs: dict[str, array[int]] = {}  # of each row its item and its number there
        self._indexed = 0
        self._read: tuple[int, Row | Chunk] | None = None

    def newest(self, job: str | None, match: Match, limit: int | None, items: int) -> list[Row]:
        """Return the rows that match, of one job or of all; of more than `limit`, at least the
        newest so many, in no order."""
        lasts_s = self.tail.lasts_s
        places = range(items) if job is None else self._places_of(job, items)
        found: list[Row] = []
        newest: list[int] = []  # the newest ScheduledTimes of these, a heap of `limit` at most
        for last_s, piece in self._pieces(places, is_of_job=job is not None):
            if limit is not None and len(newest) >= limit and newest[0] > last_s:
                break
            for item in sorted(piece, key=lasts_s.__getitem__, reverse=True):
                if limit is not None and len(newest) >= limit and newest[0] > lasts_s[item]:
                    break
                for row in self._matching(item, job, piece[item], match, limit):
                    found.append(row)
                    heapq.heappush(newest, newest_s(row))
                    if limit is not None and len(newest) > limit:
                        heapq.heappop(newest)
        return found

    def later(self, job: str, last_s: int, items: int) -> int:
        """Return how many rows of a job are of later instants than `last_s`."""
        found = 0
        for place in self._places_of(job, items):
            number = place >> _ITEM_SHIFT
            if self.tail.lasts_s[number] > last_s:
                item = self._item(number)
                is_alone = isinstance(item, Row) or item.count > 0
                found += is_alone or at(item.scheduled_s, _number_in(place)) > last_s
        return found

    def _matching(
        self, number: int, job: str | None, mine: list[int], match: Match, limit: int | None
    ) -> list[Row]:
        """Return the rows of an item that match; of a job those of the numbers in `mine`."""
        tail = self.tail
        if not match.may_be(tail.firsts_s[number], tail.lasts_s[number], 1 << tail.states[number]):
            return []
        item = self._item(number)
        if isinstance(item, Row):
            rows = [item]
        elif job is not None:
            rows = [item.row(i, job) for i in mine]
        elif isinstance(item.scheduled_s, int) and isinstance(item.attempts, int):
            names = item.names()  # its last rows are listed first
            begin = 0 if limit is None else max(len(names) - limit, 0)
            rows = [item.row(i, names[i]) for i in range(begin, len(names))]
        else:
            rows = item.rows()
        return [row for row in rows if match.fits(row)]

    def _pieces(
        self, places: Sequence[int], *, is_of_job: bool
    ) -> Iterator[tuple[int, dict[int, list[int]]]]:
        """Yield items in pieces, each with its newest ScheduledTime, the newest piece first; and
        of each item the numbers of the job's rows."""
        lasts_s, shift = self.tail.lasts_s, _ITEM_SHIFT if is_of_job else 0
        pieces = []
        for begin in range(0, len(places), PIECE_ITEMS):
            piece = places[begin : begin + PIECE_ITEMS]
            pieces.append((max([lasts_s[place >> shift] for place in piece]), begin))
        for last_s, begin in sorted(pieces, reverse=True):
            items: dict[int, list[int]] = {}
            for place in places[begin : begin + PIECE_ITEMS]:
                items.setdefault(place >> shift, []).append(_number_in(place))
            yield last_s, items

    def _places_of(self, job: str, items: int) -> array[int]:
        """Return the item of each row of a job, and its number there, in one integer."""
        for number in range(self._indexed, items):
            item = self._item(number)
            names = item.names() if isinstance(item, Chunk) else [item.job]
            for place, name in enumerate(names, number << _ITEM_SHIFT):
                places = self._jobs.get(name)
                if places is None:
                    places = self._jobs[name] = array("Q")
                places.append(place)
        self._indexed = max(self._indexed, items)
        places = self._jobs.get(job, array("Q"))
        return places[: bisect_left(places, items << _ITEM_SHIFT)]

    def _item(self, number: int) -> Row | Chunk:
        if self._read is None or self._read[0] != number:
            self._read = number, self.tail.item(number)
        return self._read[1]


def _number_in(place: int) -> int:
    return place & ((1 << _ITEM_SHIFT) - 1)

"""What jobs are to do, each sent once over a stream under a number, for a while.

Theory of operation. Batches refer to works by number. A number is given when a message is written
that needs it, and that message brings the work itself. When there are too many, the oldest is given
up and its number means something else later. But no number that a message uses is given anew by
that message, since the executor reads all works of a message before its batches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import MutableSequence, Sequence
from typing import Final, cast

from launcher.pool import limits
from launcher.pool.orders import Work
from launcher.rpc.v1 import pool_pb2

_GIVEN_UP_EACH: Final = 4
"""Old works that one new one drives out at most: where there must be fewer they go bit by bit."""


class SentWorks:
    """The numbers that one stream knows, all that were given to it once and are below 65,536."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[Work, int] = OrderedDict()  # the oldest first
        self._free: list[int] = []
        self._bytes = 0
        self._in_use: set[int] = set()  # by the message that is being written
        self._count_max, self._bytes_max = limits.works_kept(1)

    def begin_message(self, sharers: int) -> None:
        """Begin another message, for one of so many streams that share the leader's memory."""
        self._in_use.clear()
        self._count_max, self._bytes_max = limits.works_kept(sharers)

    def numbers(
        self, works: Sequence[Work], into: MutableSequence[pool_pb2.Work], room: int
    ) -> tuple[list[int], int]:
        """Return the numbers of works, and how many bytes it takes to send those that are new.

        New ones are put into a message. Where they do not fit into `room`, in bytes, the numbers
        are those of the first works only. One new work fits into a message that has none yet.
        """
        known = list(map(self._numbers.get, works))
        if None not in known:  # the usual case, cheap
            numbers = cast("list[int]", known)
            self._in_use.update(numbers)
            return numbers, 0
        # Those of later rows as well: they were looked up, and must not be given away meanwhile.
        self._in_use.update(number for number in known if number is not None)
        numbers, taken = [], 0
        for work, before in zip(works, known, strict=True):
            number = before if before is not None else self._numbers.get(work)
            if number is None:
                if into and taken + work.size > room:
                    break
                taken += work.size
                number = self._send(work, into)
            numbers.append(number)
        return numbers, taken

    def _send(self, work: Work, into: MutableSequence[pool_pb2.Work]) -> int:
        for _ in range(_GIVEN_UP_EACH):
            is_full = self._bytes + work.size > self._bytes_max
            if not is_full and len(self._numbers) < self._count_max:
                break
            given_up = self._give_up_oldest()
            if given_up is None:
                break
            into.append(pool_pb2.Work(number=given_up))
        # All numbers up to how many there are have been given, but for those that are free again.
        number = self._free.pop() if self._free else len(self._numbers)
        self._numbers[work] = number
        self._bytes += work.size
        self._in_use.add(number)
        into.append(pool_pb2.Work(number=number, job=work.job, spec=work.spec))
        return number

    def _give_up_oldest(self) -> int | None:
        """Forget the oldest work that this message does not use; return the number that it had,
        None if there is no such work."""
        for _ in range(len(self._numbers)):
            work, number = self._numbers.popitem(last=False)
            if number not in self._in_use:
                self._bytes -= work.size
                self._free.append(number)
                return number
            self._numbers[work] = number  # it was used just now: the youngest
        return None

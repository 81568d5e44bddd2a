"""The queue of orders for one executor: bounded, sent in batches, split into messages."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import MutableSequence, Sequence
from operator import attrgetter
from typing import Final, cast

import structlog

from launcher.pool import limits
from launcher.protocol.columns import differences, full, short
from launcher.protocol.orders import BatchRows, FenceOrder, JobWork, KillOrder, StartBatch
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch

_GIVEN_UP_EACH: Final = 4
"""Works that one new work replaces at most: if there must be fewer, they go bit by bit."""
_SIZE: Final = attrgetter("size")
log = structlog.get_logger()


class Outbox:
    """Orders for one session. Orders that are queued in one turn of the loop leave in one message
    if they fit."""

    def __init__(self) -> None:
        self._starts: deque[tuple[StartBatch[JobWork], int]] = deque()  # with its bytes
        self._done = 0  # rows of the first batch that have left
        self._works = SentWorks()
        self._fences: deque[FenceOrder] = deque()
        self._kills: deque[KillOrder] = deque()
        self._acks: dict[int, list[int]] = {}
        self._watermark = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Return whether more waits than an executor that reads would ever leave waiting."""
        return self._bytes > limits.OUTBOX_BYTES_MAX

    def __bool__(self) -> bool:
        return bool(self._starts or self._fences or self._kills or self._acks or self._watermark)

    def put(
        self,
        *,
        starts: Sequence[StartBatch[JobWork]] = (),
        fences: Sequence[FenceOrder] = (),
        kills: Sequence[KillOrder] = (),
        acks: Sequence[BatchRows] = (),
        watermark: int = 0,
    ) -> None:
        """Queue orders; the highest watermark counts. Work that no message can carry is logged and
        left out: its attempt stays unanswered, and is fenced when its window is over."""
        for batch in starts:
            works = batch.works if len(batch.works) > 1 else [*batch.works] * len(batch.rows)
            size = sum(map(_SIZE, works))
            if size > limits.WORK_BYTES_MAX:  # one of them may be too large
                is_large = [len(work.spec) > limits.WORK_BYTES_MAX for work in works]
                for work in {one for one, is_so in zip(works, is_large, strict=True) if is_so}:
                    error = f"work of {len(work.spec)} bytes is over {limits.WORK_BYTES_MAX}"
                    log.warning("launch.withheld", job=work.job, index=batch.index, error=error)
                places = [place for place, is_so in enumerate(is_large) if not is_so]
                size = sum(works[place].size for place in places)
                batch = batch.pick(places) if len(places) < len(works) else batch
            if batch.rows:
                size += limits.BATCH_BYTES + limits.ROW_BYTES * len(batch.rows)
                self._starts.append((batch, size))
                self._bytes += size
        for index, rows in acks:
            if rows:  # else no end of that batch was accepted
                self._bytes += limits.ACK_BYTES * len(rows)
                self._bytes += limits.BATCH_BYTES if index not in self._acks else 0
                self._acks.setdefault(index, []).extend(rows)
        self._fences.extend(fences)
        self._kills.extend(kills)
        self._bytes += limits.FENCE_BYTES * len(fences) + limits.KILL_BYTES * len(kills)
        self._watermark = max(self._watermark, watermark)

    def take_starts(self) -> tuple[BatchRows, ...]:
        """Drop all starts that no message has taken yet; return the rows of first starts. A later
        leader asks about the others again."""
        waiting, done = self._starts, self._done
        self._starts, self._done = deque(), 0
        self._bytes -= sum(size for _, size in waiting)
        lefts = [(one, done if place == 0 else 0) for place, (one, _) in enumerate(waiting)]
        return tuple((one.index, one.rows[left:]) for one, left in lefts if one.is_first)

    def take(self, epoch: Epoch, ahead_ms: int = 0, sharers: int = 1) -> pool_pb2.Orders:
        """Remove and return as much as fits one message.

        The executor's clock is `ahead_ms` ahead of ours: ends of windows are converted to its time,
        but a deadline applies to every clock. `sharers` is how many streams remember their works.

        Starts leave before fences, kills and acks, each in the order of queueing. The watermark
        leaves last, so that it never overtakes an order for a row below it.
        """
        message = pool_pb2.Orders(epoch=encode_epoch(epoch))
        self._works.begin_message(sharers)
        room = self._take_starts(message, limits.ORDERS_BYTES_MAX, ahead_ms)
        while self._fences and room > 0:
            fence = self._fences.popleft()
            room -= limits.FENCE_BYTES
            self._bytes -= limits.FENCE_BYTES
            message.fences.add(index=fence.index, row=fence.row, name=str(fence.name))
        while self._kills and room > 0:
            kill = self._kills.popleft()
            room -= limits.KILL_BYTES
            self._bytes -= limits.KILL_BYTES
            message.kills.add(
                index=kill.index, row=kill.row, reason=kill.reason, name=str(kill.name)
            )
        while self._acks and room > 0:
            index, rows = next(iter(self._acks.items()))
            count = max(1, (room - limits.BATCH_BYTES) // limits.ACK_BYTES)
            some, rows[:] = rows[:count], rows[count:]
            if not rows:
                del self._acks[index]
                self._bytes -= limits.BATCH_BYTES
            message.acks.add(index=index, rows=differences(sorted(set(some))))
            room -= limits.BATCH_BYTES + limits.ACK_BYTES * len(some)
            self._bytes -= limits.ACK_BYTES * len(some)
        if room > 0 and not (self._starts or self._fences or self._kills or self._acks):
            message.floor, self._watermark = self._watermark, 0
        return message

    def _take_starts(self, message: pool_pb2.Orders, room: int, ahead_ms: int) -> int:
        """Move starts into a message; return how many bytes of room are left in it."""
        rows_left = limits.ORDERS_ROWS_MAX
        while self._starts and rows_left > 0 and room > 0:
            whole, whole_size = self._starts[0]
            batch = whole
            if self._done or len(whole.rows) > rows_left:
                last = min(self._done + rows_left, len(whole.rows))
                batch = whole.pick(range(self._done, last))
            numbers, size = self._works.numbers(batch.works, message.works, room)
            taken = len(batch.rows) if len(batch.works) == 1 and numbers else len(numbers)
            if not taken:
                return 0  # the next message has room for its work
            if taken < len(batch.rows):
                batch = batch.pick(range(taken))
            ends_ms = [end_ms + ahead_ms for end_ms in batch.not_after_ms]
            if any(batch.deadlines_ms):
                deadlines_ms = full(batch.deadlines_ms, taken)
                pairs = zip(full(ends_ms, taken), deadlines_ms, strict=True)
                ends_ms = [min(end_ms, last_ms) if last_ms else end_ms for end_ms, last_ms in pairs]
            message.batches.add(
                index=batch.index,
                rows=differences(batch.rows),
                works=short(numbers),
                scheduled_s=short(batch.scheduled_s, is_times=True),
                not_after_ms=short(ends_ms, is_times=True),
                attempts=short(batch.attempts, 1),
                triggers=short(batch.triggers, 0),
                parts=short(batch.parts, 1),
            )
            room -= size + limits.BATCH_BYTES + limits.ROW_BYTES * taken
            rows_left -= taken
            self._done += taken
            if self._done == len(whole.rows):
                self._starts.popleft()
                self._bytes -= whole_size
                self._done = 0
        return room


class SentWorks:
    """The works that were sent over one stream, each once, under a number below 65,536.

    Batches refer to works by number. The first message that needs a work brings it, under a number.
    When there are too many works, the oldest is given up, and its number means another work later.
    A message never gives a number that it uses to another work, because the executor reads all
    works of a message before its batches.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[JobWork, int] = OrderedDict()  # the oldest first
        self._free: list[int] = []
        self._bytes = 0
        self._in_use: set[int] = set()  # by the message that is being written
        self._count_max, self._bytes_max = limits.works_kept(1)

    def begin_message(self, sharers: int) -> None:
        """Begin another message; `sharers` streams share the leader's memory."""
        self._in_use.clear()
        self._count_max, self._bytes_max = limits.works_kept(sharers)

    def numbers(
        self, works: Sequence[JobWork], into: MutableSequence[pool_pb2.Work], room: int
    ) -> tuple[list[int], int]:
        """Return the numbers of works, and the bytes of those that are new.

        New works are added to the message `into`. If they do not fit into `room`, in bytes, the
        numbers are those of the first works only. One new work fits into a message without works.
        """
        known = list(map(self._numbers.get, works))
        if None not in known:  # the usual case, cheap
            numbers = cast("list[int]", known)
            self._in_use.update(numbers)
            return numbers, 0
        # Those of later rows as well: they were looked up, and must not be given up meanwhile.
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

    def _send(self, work: JobWork, into: MutableSequence[pool_pb2.Work]) -> int:
        for _ in range(_GIVEN_UP_EACH):
            is_full = self._bytes + work.size > self._bytes_max
            if not is_full and len(self._numbers) < self._count_max:
                break
            given_up = self._give_up_oldest()
            if given_up is None:
                break
            into.append(pool_pb2.Work(number=given_up))
        # All numbers below the count of works are in use, except those that are free again.
        number = self._free.pop() if self._free else len(self._numbers)
        self._numbers[work] = number
        self._bytes += work.size
        self._in_use.add(number)
        into.append(pool_pb2.Work(number=number, job=work.job, spec=work.spec))
        return number

    def _give_up_oldest(self) -> int | None:
        """Forget the oldest work that this message does not use; return its number, None if there
        is no such work."""
        for _ in range(len(self._numbers)):
            work, number = self._numbers.popitem(last=False)
            if number not in self._in_use:
                self._bytes -= work.size
                self._free.append(number)
                return number
            self._numbers[work] = number  # it is in use: now the youngest
        return None


def encode_epoch(epoch: Epoch) -> pool_pb2.Epoch:
    """Return the epoch as the stream carries it."""
    return pool_pb2.Epoch(generation=epoch.generation, term=epoch.term, replica=epoch.replica)

"""What the leader tells one executor, waiting to leave: bounded, batched, split to fit."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import structlog

from launcher.columns import differences, full, short, short_times
from launcher.pool import limits
from launcher.pool.orders import BatchRows, FenceOrder, KillOrder, StartBatch
from launcher.pool.works import SentWorks
from launcher.rpc.v1 import pool_pb2
from launcher.work import Epoch

log = structlog.get_logger()


class Outbox:
    """Orders for one session. What is queued in one turn of the loop leaves in one message, unless
    it is too much for one."""

    def __init__(self) -> None:
        self._batches: deque[StartBatch] = deque()
        self._done = 0  # rows of the first batch that have left
        self._works = SentWorks()
        self._fences: deque[FenceOrder] = deque()
        self._kills: deque[KillOrder] = deque()
        self._acks: dict[int, list[int]] = {}
        self._floor = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether more waits than an executor that reads would ever leave waiting."""
        return self._bytes > limits.OUTBOX_BYTES_MAX

    def __bool__(self) -> bool:
        return bool(self._batches or self._fences or self._kills or self._acks or self._floor)

    def start(self, batches: Sequence[StartBatch]) -> None:
        """Queue starts. Work that no message can carry is left out and logged: its attempt stays
        unanswered, and is fenced when its window is over."""
        for one in batches:
            batch = _without_large(one)
            if batch.rows:
                self._batches.append(batch)
                self._bytes += batch.size

    def take_starts(self) -> tuple[BatchRows, ...]:
        """Drop all starts that no message has taken yet; return the rows of those that were never
        given to any stream. The others are known to the log, and are asked about again."""
        batches, done = self._batches, self._done
        self._batches, self._done = deque(), 0
        waiting = [batch.cut(0 if i else done, len(batch.rows)) for i, batch in enumerate(batches)]
        self._bytes -= sum(batch.size for batch in waiting)
        return tuple((batch.index, batch.rows) for batch in waiting if batch.is_first)

    def fence(self, fences: Sequence[FenceOrder]) -> None:
        """Queue tombstones."""
        self._fences.extend(fences)
        self._bytes += limits.FENCE_BYTES * len(fences)

    def kill(self, kills: Sequence[KillOrder]) -> None:
        """Queue kills."""
        self._kills.extend(kills)
        self._bytes += limits.KILL_BYTES * len(kills)

    def ack(self, acks: Sequence[BatchRows]) -> None:
        """Queue acknowledgements of ends."""
        for index, rows in acks:
            if not rows:
                continue  # no end of that batch was accepted
            waiting = self._acks.setdefault(index, [])
            if not waiting:
                self._bytes += limits.BATCH_BYTES
            waiting.extend(rows)
            self._bytes += limits.ACK_BYTES * len(rows)

    def raise_floor(self, index: int) -> None:
        """Queue a floor; the highest one counts."""
        self._floor = max(self._floor, index)

    def take(self, epoch: Epoch, ahead_ms: int = 0, sharers: int = 1) -> pool_pb2.Orders:
        """Remove and return as much as fits one message; the executor's clock is `ahead_ms` ahead
        of ours, and the ends of windows are put into its time; but a deadline is one by any clock.
        So many streams, `sharers`, remember what works they were sent.

        Starts leave before fences, kills and acks, each in the order of queueing; the floor leaves
        last, so that it never overtakes an order which still speaks of what is below it.
        """
        message = pool_pb2.Orders(epoch=encode_epoch(epoch))
        self._works.begin_message(sharers)
        room = self._take_batches(message, limits.ORDERS_BYTES_MAX, ahead_ms)
        before = room
        while self._fences and room > 0:
            fence = self._fences.popleft()
            room -= limits.FENCE_BYTES
            message.fences.add(index=fence.index, row=fence.row, name=str(fence.name))
        while self._kills and room > 0:
            kill = self._kills.popleft()
            room -= limits.KILL_BYTES
            message.kills.add(index=kill.index, row=kill.row, reason=kill.reason)
        while self._acks and room > 0:
            room -= self._take_acks(message, room)
        self._bytes -= before - room
        if room > 0 and not (self._batches or self._fences or self._kills or self._acks):
            message.floor, self._floor = self._floor, 0
        return message

    def _take_batches(self, message: pool_pb2.Orders, room: int, ahead_ms: int) -> int:
        """Move starts into a message; return how much room is left in it."""
        rows_left = limits.ORDERS_ROWS_MAX
        while self._batches and rows_left > 0 and room > 0:
            batch = self._batches[0]
            part = batch.cut(self._done, self._done + rows_left)
            numbers, size = self._works.numbers(part.works, message.works, room)
            taken = len(part.rows) if len(part.works) == 1 and numbers else len(numbers)
            if not taken:
                return 0  # the next message has room for its work
            part = part.cut(0, taken)
            _write(message.batches.add(), part, numbers, ahead_ms)
            room -= size + limits.BATCH_BYTES + limits.ROW_BYTES * taken
            rows_left -= taken
            self._done += taken
            self._bytes -= part.size
            if self._done == len(batch.rows):
                self._batches.popleft()
                self._done = 0
            else:
                self._bytes += limits.BATCH_BYTES
        return room

    def _take_acks(self, message: pool_pb2.Orders, room: int) -> int:
        """Move acknowledgements for one batch into a message; return what of the room they take."""
        index, rows = next(iter(self._acks.items()))
        count = max(1, (room - limits.BATCH_BYTES) // limits.ACK_BYTES)
        if len(rows) > count:
            rows[:], rows = rows[count:], rows[:count]
            taken = 0
        else:
            del self._acks[index]
            taken = limits.BATCH_BYTES
        message.acks.add(index=index, rows=differences(sorted(set(rows))))
        return taken + limits.ACK_BYTES * len(rows)


def _without_large(batch: StartBatch) -> StartBatch:
    """Return a batch without the rows whose work is too large for any message."""
    large = {work for work in set(batch.works) if len(work.spec) > limits.WORK_BYTES_MAX}
    for work in large:
        error = f"work of {len(work.spec)} bytes is over {limits.WORK_BYTES_MAX}"
        log.warning("launch.withheld", job=work.job, index=batch.index, error=error)
    return batch.without(large) if large else batch


def _write(into: pool_pb2.Batch, batch: StartBatch, works: Sequence[int], ahead_ms: int) -> None:
    into.index = batch.index
    into.rows.extend(differences(batch.rows))
    into.works.extend(short(works))
    into.scheduled_s.extend(short_times(batch.scheduled_s))
    into.not_after_ms.extend(short_times(_put_into(ahead_ms, batch)))
    into.attempts.extend(short(batch.attempts, 1))
    into.triggers.extend(short(batch.triggers, 0))
    into.parts.extend(short(batch.parts, 1))


def _put_into(ahead_ms: int, batch: StartBatch) -> list[int]:
    """Return the ends of windows by a clock that is `ahead_ms` ahead of ours."""
    ends = [end_ms + ahead_ms for end_ms in batch.not_after_ms]
    if not any(batch.deadlines_ms):
        return ends
    count = max(len(ends), len(batch.deadlines_ms))
    both = zip(full(ends, count), full(batch.deadlines_ms, count), strict=True)
    return [min(end_ms, deadline_ms) if deadline_ms else end_ms for end_ms, deadline_ms in both]


def encode_epoch(epoch: Epoch) -> pool_pb2.Epoch:
    """Return the epoch as the stream carries it."""
    return pool_pb2.Epoch(lineage=epoch.lineage, term=epoch.term, replica=epoch.replica)

"""What the leader tells one executor, waiting to leave: bounded, batched, split to fit."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec
import structlog

from launcher.launch import Reason
from launcher.names import AttemptName, format_time
from launcher.pool import limits
from launcher.pool.spelling import SPELLING
from launcher.rpc.v1 import pool_pb2
from launcher.work import Epoch

log = structlog.get_logger()

_ORDER_FRAME_BYTES: Final = 96
"""An order beside its name and work: numbers, the scheduled time, protobuf's tags and lengths."""


class StartOrder(msgspec.Struct, frozen=True):
    """Start this, once.

    `begun_index` is the log index of its Begin (rule R4), `not_after_ms` the leader's wall time
    after which the executor refuses it (rule R7), `work` an encoded `launcher.work.WorkSpec`.
    `is_first`: no leader has given this order to any stream before. `deadline_ms` is the wall time
    after which it must not start by anybody's clock; 0: there is none.
    """

    name: AttemptName
    begun_index: int
    not_after_ms: int
    work: bytes
    is_first: bool = False
    deadline_ms: int = 0


class Outbox:
    """Orders for one session. All that is queued in one turn of the loop leaves in one message."""

    def __init__(self) -> None:
        self._starts: deque[tuple[int, StartOrder]] = deque()  # with its size in a message
        self._fences: deque[AttemptName] = deque()
        self._fence_index = 0
        self._kills: deque[tuple[AttemptName, Reason]] = deque()
        self._acks: deque[AttemptName] = deque()
        self._floor = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether more waits than an executor that reads would ever leave waiting."""
        return self._bytes > limits.OUTBOX_BYTES_MAX

    def __bool__(self) -> bool:
        return bool(self._starts or self._fences or self._kills or self._acks or self._floor)

    def start(self, orders: Sequence[StartOrder]) -> None:
        """Queue starts. Work that no message can carry is left out and logged: its attempt stays
        unanswered, and is fenced when its window is over."""
        for order in orders:
            if len(order.work) > limits.WORK_BYTES_MAX:
                log.warning(
                    "launch.withheld",
                    launch=str(order.name),
                    error=f"work of {len(order.work)} bytes is over {limits.WORK_BYTES_MAX}",
                )
                continue
            size = _name_bytes(order.name) + len(order.work)
            self._starts.append((size, order))
            self._bytes += size

    def take_starts(self) -> tuple[AttemptName, ...]:
        """Drop all starts that no message has taken yet; return the names of those that were never
        given to any stream. The others are known to the log, and are asked about again."""
        starts, self._starts = self._starts, deque()
        self._bytes -= sum(size for size, _ in starts)
        return tuple(order.name for _, order in starts if order.is_first)

    def fence(self, names: Sequence[AttemptName], index: int) -> None:
        """Queue tombstones for attempts that were begun at or below log index `index`."""
        self._fences.extend(names)
        self._fence_index = max(self._fence_index, index)
        self._bytes += sum(map(_name_bytes, names))

    def kill(self, kills: Sequence[tuple[AttemptName, Reason]]) -> None:
        """Queue kills."""
        self._kills.extend(kills)
        self._bytes += sum(_name_bytes(name) for name, _ in kills)

    def ack(self, names: Sequence[AttemptName]) -> None:
        """Queue acknowledgements of ends."""
        self._acks.extend(names)
        self._bytes += sum(map(_name_bytes, names))

    def raise_floor(self, index: int) -> None:
        """Queue a floor; the highest one counts."""
        self._floor = max(self._floor, index)

    def take(self, epoch: Epoch, ahead_ms: int = 0) -> pool_pb2.Orders:
        """Remove and return as much as fits one message; the executor's clock is `ahead_ms` ahead
        of ours, and the ends of windows are put into its time; but a deadline is one by any clock.

        Starts leave before fences, kills and acks, each in the order of queueing; the floor leaves
        last, so that it never overtakes an order which still speaks of what is below it.
        """
        message = pool_pb2.Orders(epoch=encode_epoch(epoch))
        room = limits.ORDERS_BYTES_MAX
        starts = message.starts
        while self._starts and (room >= self._starts[0][0] or not starts):
            size, order = self._starts.popleft()
            room -= size
            starts.add(  # which spares a copy
                name=SPELLING.write(order.name),
                begun_index=order.begun_index,
                not_after_ms=_put_into(ahead_ms, order),
                work=order.work,
                scheduled_time=format_time(order.name.launch.scheduled_s),
            )
        while self._fences and room > 0:
            name = self._fences.popleft()
            room -= _name_bytes(name)
            message.fences.append(str(name))
        if message.fences:
            message.fence_index = self._fence_index
        while self._kills and room > 0:
            name, reason = self._kills.popleft()
            room -= _name_bytes(name)
            message.kills.append(pool_pb2.Kill(name=str(name), reason=reason))
        while self._acks and room > 0:
            name = self._acks.popleft()
            room -= _name_bytes(name)
            message.acks.append(str(name))
        if room > 0 and not (self._starts or self._fences or self._kills or self._acks):
            message.floor, self._floor = self._floor, 0
        self._bytes = max(0, self._bytes - (limits.ORDERS_BYTES_MAX - room))
        return message


def _put_into(ahead_ms: int, order: StartOrder) -> int:
    """Return the end of a window by a clock that is `ahead_ms` ahead of ours."""
    not_after_ms = order.not_after_ms + ahead_ms
    return min(not_after_ms, order.deadline_ms) if order.deadline_ms else not_after_ms


def encode_epoch(epoch: Epoch) -> pool_pb2.Epoch:
    """Return the epoch as the stream carries it."""
    return pool_pb2.Epoch(lineage=epoch.lineage, term=epoch.term, replica=epoch.replica)


def _name_bytes(name: AttemptName) -> int:
    return len(name.launch.job) + _ORDER_FRAME_BYTES

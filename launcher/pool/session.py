"""The stream of one executor without gRPC: its greeting, the messages that wait, its end.

A session never writes by itself. The servicer's writer asks `next_message` for one message at a
time, so a message that was not asked for when the session ends can never leave.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import grpc
import msgspec

from launcher.pool import limits
from launcher.pool.errors import NotConnected, OutputUnavailable
from launcher.pool.lease import LeaseTimes
from launcher.pool.outbox import Outbox
from launcher.protocol.limits import DETAIL_CHARS_MAX, INDEX_MAX
from launcher.protocol.reading import BadMessage, parse_recollection
from launcher.protocol.reports import Greeting, GroupOffer, RowReport
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch


class End(msgspec.Struct, frozen=True):
    """How a session ends: the stream's status, and the Goodbye before it if `says_goodbye`.

    `is_drained`: nothing is open on the executor, and its process may end.
    """

    code: grpc.StatusCode
    reason: str
    leader: str = ""
    says_goodbye: bool = False
    is_drained: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether neither side wanted it: the connection broke, or the executor erred."""
        return self.code not in (grpc.StatusCode.OK, grpc.StatusCode.ABORTED)


class OutputSlice(msgspec.Struct, frozen=True):
    """A piece of an attempt's output.

    `offset` is the place of the first byte of `data` in the whole output, `size` the number of
    bytes kept so far, `dropped` the number of bytes over the bound. `ended`: the attempt is over
    and this piece reaches the end.
    """

    data: bytes
    offset: int
    size: int
    ended: bool
    dropped: int


class OutputsWaiting(NamedTuple):
    """How many outputs of all executors wait to be stored in object storage. `executor` is the
    first by id that cannot store its outputs, and `problem` says why; "" for none."""

    total: int = 0
    executor: str = ""
    problem: str = ""


NEVER: Final = -(1 << 62)
SILENT_BEATS: Final = 3
"""An executor that has missed so many heartbeats gets no work until it is heard again."""
CLOCK_STEP_MS: Final = 5_000
"""An offset that is lower by more than this is that of a clock which was set back."""
OFFSETS_KEPT: Final = 8
"""Heartbeats whose clock offsets are compared. A heartbeat that was late on its way shows a clock
that is behind by as much, so the largest offset is the truest, and none is larger than the truth: a
window that is put into the executor's time by it never ends late."""


def _unsigned(_orders: pool_pb2.Orders) -> None:
    """Leave orders as they are."""


class Session:
    """One accepted Hello and what follows, until `end`; of two ends the first counts.

    `now_ms` is the monotonic clock. `offset_ms_max` is how far the executor's clock may be off
    (rule R10). `sharers` returns the number of sessions, which share the leader's memory. `sign`
    adds mark and proof to orders that leave. `offset_ms` is the executor's wall clock minus ours,
    as its last heartbeat showed it; `ahead_ms` is the largest of the recent ones, below 0 if its
    clock is behind. `is_silent`: it left a probe unanswered for too long (`Probes`). `is_full`: its
    journal takes no more rows. `probe_number` is the number of the unanswered probe, 0 for none.
    `certificate_ends_ms` is when the executor's certificate ends; 0 until a heartbeat says it, and
    without one.
    """

    def __init__(
        self,
        greeting: Greeting,
        address: str,
        epoch: Epoch,
        *,
        now_ms: Callable[[], int],
        lease: LeaseTimes,
        offset_ms_max: int,
        sharers: Callable[[], int],
    ) -> None:
        self._now_ms, self._lease, self._offset_ms_max = now_ms, lease, offset_ms_max
        self._sharers, self.sign = sharers, _unsigned
        self.greeting = greeting
        self.executor, self.ledger = self.key = (greeting.executor, greeting.ledger)
        self.address = address
        self.epoch = epoch
        self.connected_since_ms = 0
        self.received_mono_ms = now_ms()
        self.answered_arrival_mono_ms = NEVER
        self.offset_ms = self.ahead_ms = 0
        self.running = 0
        self.offers: tuple[GroupOffer, ...] = ()
        self.last_number = 0
        self.is_welcome = False
        self.is_silent = False
        self.is_full = False
        self.outputs_waiting = self.certificate_ends_ms = 0
        self.outputs_problem = ""
        self.may_have_outputs = True
        """Whether outputs may wait for upload there: until a heartbeat reports none of them."""
        self.probe_number = 0
        self.ended: End | None = None
        self.over = asyncio.Event()
        self.wake = asyncio.Event()
        self.waking: asyncio.TimerHandle | None = None
        """The next time at which queued acknowledgements leave by themselves."""
        self.outbox = Outbox()
        self._offsets: deque[int] = deque(maxlen=OFFSETS_KEPT)
        self._first: deque[pool_pb2.FromLeader] = deque()
        self._heartbeats: deque[tuple[int, int]] = deque(maxlen=limits.HEARTBEATS_MAX)
        """Unanswered heartbeats: number, and when it arrived (monotonic clock)."""
        self._asked: deque[pool_pb2.FromLeader] = deque()
        self._is_asked_next = False
        self._answers: dict[int, tuple[asyncio.Future[OutputSlice], int]] = {}
        """By the number of a request for output: its answer, and how many bytes it may have."""
        self._last_request = 0
        self._when_leased_or_over: list[Callable[[], object]] = []
        self._has_inventory_to_send = False
        self._inventory_place = (-1, -1)

    @property
    def silent_ms(self) -> int:
        """Return for how long no heartbeat arrived."""
        return self._now_ms() - self.received_mono_ms

    @property
    def is_leased(self) -> bool:
        """Return whether the executor itself still counts on its lease, as far as this side knows.

        Without a lease it would refuse a start, but not a fence. It has none before the first
        heartbeat of this session is answered.
        """
        return self._now_ms() < self.answered_arrival_mono_ms + self._lease.self_kill_ms

    @property
    def is_fit(self) -> bool:
        """Return whether its heartbeats allow that it gets work: it has not missed several, its
        clock is right, and its journal takes rows."""
        is_recent = self.silent_ms <= SILENT_BEATS * self._lease.heartbeat_ms
        return is_recent and abs(self.offset_ms) <= self._offset_ms_max and not self.is_full

    @property
    def gets_work(self) -> bool:
        """Return whether launches may be placed on it."""
        return self.is_leased and self.is_fit and not self.is_silent

    def welcome(self, message: pool_pb2.Welcome) -> None:
        """Queue the Welcome; messages that waited leave after it."""
        if self.is_welcome or self.ended:
            return
        self.is_welcome = True
        self._has_inventory_to_send = message.inventory
        self._first.append(pool_pb2.FromLeader(welcome=message))
        self.wake.set()

    def receive_heartbeat(self, beat: pool_pb2.Heartbeat, now_mono_ms: int, offset_ms: int) -> None:
        """Note a heartbeat that arrived now, and keep it until it may be answered."""
        self.is_full = beat.is_full
        self.outputs_waiting, self.outputs_problem = beat.outputs_waiting, beat.outputs_problem
        self.may_have_outputs = beat.outputs_waiting > 0
        self.certificate_ends_ms = beat.certificate_ends_ms
        self.last_number = beat.number
        self.received_mono_ms = now_mono_ms
        self.running = beat.running
        self.offset_ms = offset_ms
        if self._offsets and offset_ms < max(self._offsets) - CLOCK_STEP_MS:
            self._offsets.clear()
        self._offsets.append(offset_ms)
        self.ahead_ms = max(self._offsets)
        self._heartbeats.append((beat.number, now_mono_ms))

    def answer_heartbeats(self, up_to_arrival_mono_ms: int) -> int | None:
        """Answer heartbeats that arrived up to that time; return the newest arrival, None for
        none."""
        if not self.is_welcome or self.ended:
            return None
        newest = None
        while self._heartbeats and self._heartbeats[0][1] <= up_to_arrival_mono_ms:
            number, arrived_mono_ms = self._heartbeats.popleft()
            answer = pool_pb2.HeartbeatAnswer(number=number)
            self._first.append(pool_pb2.FromLeader(heartbeat=answer))
            newest = self.answered_arrival_mono_ms = arrived_mono_ms
        if newest is not None:
            self.wake.set()
            self._call_waiting()
        return newest

    def when_leased_or_over(self, call: Callable[[], object]) -> None:
        """Call `call` once this session has a lease, or is over."""
        self._when_leased_or_over.append(call)

    def _call_waiting(self) -> None:
        calls, self._when_leased_or_over = self._when_leased_or_over, []
        for call in calls:
            call()

    @property
    def awaits_answer(self) -> bool:
        """Return whether a heartbeat waits for its answer."""
        return bool(self._heartbeats)

    @property
    def is_stuck(self) -> bool:
        """Return whether more waits than an executor that reads would ever leave waiting."""
        return self.outbox.is_full or len(self._first) > limits.HEARTBEATS_MAX

    def ask_output(self, request: pool_pb2.OutputRequest) -> asyncio.Future[OutputSlice]:
        """Queue a request for output, and return its answer; the request's number is set here.

        Raises:
            NotConnected: the session is over, or not welcome yet.
            OutputUnavailable: too many requests are under way.
        """
        if self.ended or not self.is_welcome:
            raise NotConnected(f"executor {self.executor} is not connected")
        if len(self._answers) >= limits.OUTPUT_REQUESTS_MAX:
            raise OutputUnavailable(
                f"executor {self.executor} has {len(self._answers)} requests for output under way; "
                "ask again later"
            )
        self._last_request += 1
        request.request = number = self._last_request
        answer: asyncio.Future[OutputSlice] = asyncio.get_running_loop().create_future()
        self._answers[number] = (answer, request.limit)
        answer.add_done_callback(lambda _: self._answers.pop(number, None))
        self._asked.append(pool_pb2.FromLeader(output=request))
        self.wake.set()
        return answer

    def place_output(self, place: pool_pb2.OutputPlace) -> None:
        """Queue the answer to an offered output."""
        if not self.ended:
            self._asked.append(pool_pb2.FromLeader(place=place))
            self.wake.set()

    def probe(self) -> None:
        """Queue a probe, behind at most one message of orders; `probe_number` is its number."""
        self._last_request += 1
        self.probe_number = number = self._last_request
        self._asked.append(pool_pb2.FromLeader(probe=pool_pb2.Probe(number=number)))
        self.wake.set()

    def check_request(self, field: str, number: int) -> None:
        """Check the number of a probe or request in its answer.

        Raises:
            BadMessage: no probe or request had that number.
        """
        if not 1 <= number <= self._last_request:
            raise BadMessage(field, f"{number} was never asked for")

    def take_output(self, chunk: pool_pb2.OutputChunk) -> None:
        """Pass an answer to its request; an answer after the request's timeout is dropped.

        Raises:
            BadMessage: nothing like this was ever asked for.
        """
        self.check_request("output.request", chunk.request)
        answer, limit = self._answers.get(chunk.request, (None, 0))
        if answer is None or answer.done():
            return
        if len(chunk.data) > limit:
            text = f"{len(chunk.data)} bytes are more than the {limit} asked"
            raise BadMessage("output.data", text)
        for field in ("offset", "size", "dropped"):
            if getattr(chunk, field) > INDEX_MAX:
                raise BadMessage(f"output.{field}", f"{getattr(chunk, field)} is out of range")
        if chunk.error:
            answer.set_exception(OutputUnavailable(chunk.error[:DETAIL_CHARS_MAX]))
            return
        answer.set_result(
            OutputSlice(chunk.data, chunk.offset, chunk.size, chunk.ended, chunk.dropped)
        )

    def take_recollection(self, message: pool_pb2.Recollection) -> tuple[RowReport, ...]:
        """Return the rows of the next page of the executor's inventory.

        Raises:
            BadMessage: the inventory was not asked for, or is complete, or a field is invalid.
        """
        if not self._has_inventory_to_send:
            raise BadMessage("recollection", "it was not asked for, or came to its last part")
        rows = parse_recollection(message, self._inventory_place)
        if rows:
            self._inventory_place = (rows[-1].index, rows[-1].row)
        self._has_inventory_to_send = not message.last
        return rows

    def next_message(self) -> pool_pb2.FromLeader | None:
        """Remove and return what leaves next; None if nothing may leave now.

        Answers to heartbeats go first. A request, a probe say, waits for at most one message of
        orders, so that no bulk delays it. After `end`, which drops all that waited, there is at
        most one Goodbye.
        """
        if self._first:
            return self._first.popleft()
        if self.ended or not self.is_welcome:
            return None
        if self._asked and (self._is_asked_next or not self.outbox):
            self._is_asked_next = False
            return self._asked.popleft()
        if not self.outbox:
            return None
        self._is_asked_next = bool(self._asked)
        orders = self.outbox.take(self.epoch, self.ahead_ms, self._sharers())
        self.sign(orders)
        return pool_pb2.FromLeader(orders=orders)

    def end(self, end: End) -> bool:
        """Stop: from this call on nothing queued leaves. Return False if the session was over."""
        if self.ended:
            return False
        self.ended = end
        self._first.clear()
        self._asked.clear()
        self._heartbeats.clear()
        self.outbox = Outbox()
        if self.waking is not None:
            self.waking.cancel()
        if end.says_goodbye:
            goodbye = pool_pb2.Goodbye(reason=end.reason, leader=end.leader, drained=end.is_drained)
            self._first.append(pool_pb2.FromLeader(goodbye=goodbye))
        for answer, _ in list(self._answers.values()):
            if not answer.done():
                text = f"executor {self.executor} left before it answered: {end.reason}"
                answer.set_exception(NotConnected(text))
        self.over.set()
        self.wake.set()
        self._call_waiting()
        return True

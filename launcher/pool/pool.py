"""The executors as the leader sees them: their sessions, the orders to them, their leases.

Theory of operation. Executors open the streams; `PoolServicer` makes a `Session` here of each, and
the leader gets events. An order of the leader is only queued: True from `order` means queued, and
only a report of the executor says what became of it. Leadership may end at any moment, and one
switch ends everything: after `close` no queued order leaves, no event follows, and every lease is
forgotten (the next leader grants them anew, rule R5).

Everything runs on one event loop, and nothing here awaits between a check and its effect.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

import grpc

from launcher.pool import limits
from launcher.pool.duplicate_ids import DuplicateIds
from launcher.pool.errors import NotConnected, NotLeading, Refused, TimedOut
from launcher.pool.events import (
    Event,
    HeartbeatReceived,
    InventoryPage,
    Joined,
    Left,
    Offered,
    Reported,
    Silent,
    Unsent,
)
from launcher.pool.lease import Key, Leases, LeaseTimes
from launcher.pool.outbox import encode_epoch
from launcher.pool.probes import Probes
from launcher.pool.session import End, OutputSlice, OutputsWaiting, Session
from launcher.pool.watchers import Watchers
from launcher.protocol.limits import PROTOCOL
from launcher.protocol.names import AttemptName
from launcher.protocol.orders import BatchRows, FenceOrder, JobWork, KillOrder, StartBatch
from launcher.protocol.proofs import prove
from launcher.protocol.reading import (
    BadMessage,
    check_heartbeat,
    parse_offered_output,
    parse_offers,
    parse_reports,
)
from launcher.protocol.reports import Greeting, OfferedOutput, Ordered
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch

_OUTPUT_BYTES: Final = attrgetter("output_bytes")


class Pool:
    """The leader's side of all executors' streams.

    `mono_ms` counts while the machine sleeps (CLOCK_BOOTTIME); `wall_ms` only measures offsets.
    `on_event` is called on the loop and must return at once without raising: it enqueues.
    `known_executors` says how many the cell has, connected or not.
    """

    def __init__(
        self,
        *,
        cell: str,
        lease: LeaseTimes,
        mono_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        on_event: Callable[[Event], None],
        clock_offset_ms_max: int = limits.CLOCK_OFFSET_MS_MAX,
        known_executors: Callable[[], int] = lambda: 0,
    ) -> None:
        self.cell = cell
        self.lease = lease
        self._mono_ms = mono_ms
        self._wall_ms = wall_ms
        self._on_event = on_event
        self._clock_offset_ms_max = clock_offset_ms_max
        self._known_executors = known_executors
        self.on_output: Callable[[str, str, OfferedOutput], None] | None = None
        """Gets the outputs that an executor with a journal offers; None if none are to be stored.
        Set it before `open`."""
        self.executors_max = limits.EXECUTORS_MAX
        self.epoch: Epoch | None = None
        """The epoch under which this replica leads, None where it takes no executors."""
        self.on_greeting: Callable[[Greeting], None] = lambda greeting: None
        """Gets each Hello that comes while this replica leads, first of all; it may `close`."""
        self._mark = self._order_key = b""
        self._sessions: dict[str, Session] = {}
        self._unanswered: dict[Session, None] = {}  # sessions with heartbeats to answer
        self._touched: set[str] = set()
        self.leases = Leases(lease)
        self._probes = Probes()
        self.duplicate_ids = DuplicateIds(mono_ms)
        self.watchers = Watchers()

    # ---- leadership

    def open(self, epoch: Epoch) -> None:
        """Accept executors from now on under `epoch`, whose Claim is applied."""
        if self.epoch is not None:
            self.close(f"a new epoch begins: {epoch}", None)
        self.epoch = epoch
        self.watchers.change()

    def prove_orders(self, mark: bytes, key: bytes) -> None:
        """Mark the orders of this term from now on, and prove by `key` which Begin each was about;
        neither if there is no mark."""
        self._mark, self._order_key = mark, key

    def _sign(self, executor: str, orders: pool_pb2.Orders) -> None:
        if self._mark and self.epoch is not None:
            orders.mark = self._mark
            if orders.batches and self._order_key:
                newest = max(batch.index for batch in orders.batches)
                about = Ordered(self.epoch, self._mark, newest)
                orders.proof = prove(self._order_key, executor, about)

    def close(self, reason: str, leader_address: str | None) -> None:
        """Stop leading: from this call on nothing queued leaves, and no event follows.

        A message that gRPC already has may still arrive; the executor refuses it because it
        remembers the highest epoch (rule R3). Idempotent.
        """
        self.epoch = None
        self._mark = self._order_key = b""
        self.watchers.change()
        sessions, self._sessions = self._sessions, {}
        self._unanswered.clear()
        self._touched.clear()
        leader = leader_address or ""
        end = End(grpc.StatusCode.FAILED_PRECONDITION, reason, leader, says_goodbye=True)
        for session in sessions.values():
            session.end(end)
        self.leases.clear()
        self._probes.clear()
        self.duplicate_ids.clear()

    # ---- sessions

    def welcome(self, executor: str, ledger: str | None = None, *, inventory: bool = False) -> None:
        """Send the Welcome to an executor whose ExecutorJoined is committed.

        Its lease begins if it has none, even if its session ended meanwhile: when the lease ends,
        the log lets go of it. With `ledger` only the session with that journal is welcomed: another
        process may have replaced the one that joined. With `inventory` the executor sends the
        inventory of its journal, if it `can_inventory`. Only the first call for a session counts.
        """
        session = self._sessions.get(executor)
        known = ledger or (session.ledger if session is not None else None)
        if self.epoch is None or known is None:
            return
        self.leases.begin((executor, known), self._mono_ms())
        if session is None or session.ledger != known:
            return
        session.welcome(
            pool_pb2.Welcome(
                epoch=encode_epoch(self.epoch),
                heartbeat_ms=self.lease.heartbeat_ms,
                self_kill_ms=self.lease.self_kill_ms,
                wall_ms=self._wall_ms(),
                inventory=inventory and session.greeting.can_inventory,
                protocol=PROTOCOL,
                spread_ms=self.spread_ms,
                stores_outputs=self.on_output is not None,
            )
        )
        self._probes.add(session)
        if session.awaits_answer:
            self._unanswered[session] = None

    def refuse(self, executor: str, reason: str) -> None:
        """Send Goodbye with the reason to an executor, and end its stream."""
        session = self._sessions.get(executor)
        if session is not None:
            self.drop(session, End(grpc.StatusCode.ABORTED, reason, says_goodbye=True))

    def disconnect(self, executor: str, reason: str) -> None:
        """End all streams of an executor; it has to authenticate itself anew."""
        self.refuse(executor, reason)
        self.watchers.end(executor)

    def dismiss(self, executor: str, reason: str) -> None:
        """Send Goodbye(drained) to an executor on which nothing is open. Its process then ends
        with exit code 0, which tells a supervisor not to start it again."""
        session = self._sessions.get(executor)
        if session is not None:
            end = End(grpc.StatusCode.ABORTED, reason, says_goodbye=True, is_drained=True)
            self.drop(session, end)

    def sessions(self) -> list[Session]:
        """Return the sessions of all connected executors, by id."""
        return [self._sessions[name] for name in sorted(self._sessions)]

    def outputs_waiting(self) -> OutputsWaiting:
        """Return how many outputs the connected executors still have to store."""
        waiting = [one for one in self.sessions() if one.outputs_waiting]
        total = sum(one.outputs_waiting for one in waiting)
        stuck = next((one for one in waiting if one.outputs_problem), None)
        if stuck is None:
            return OutputsWaiting(total)
        return OutputsWaiting(total, stuck.executor, stuck.outputs_problem)

    def is_storing(self, executor: str) -> bool:
        """Whether an executor may have outputs that object storage does not have yet. It must stay
        connected until then: it uploads with URLs that the leader signs."""
        session = self._sessions.get(executor)
        return self.on_output is not None and session is not None and session.may_have_outputs

    @property
    def count(self) -> int:
        """How many executors are connected."""
        return len(self._sessions)

    @property
    def spread_ms(self) -> int:
        """Over how long the executors of this cell are to spread their return."""
        return limits.spread_ms(max(len(self._sessions), self._known_executors()))

    def view(self, executor: str) -> Session | None:
        """Return the session of an executor, None if it is not connected."""
        return self._sessions.get(executor)

    def take_touched(self) -> set[str]:
        """Return the executors of which, since the last call, something changed that decides
        whether they get work. Missed heartbeats are not included: time alone brings them."""
        touched, self._touched = self._touched, set()
        return touched

    def is_leased(self, executor: str, ledger: str) -> bool:
        """Return whether the executor with that journal is connected and has a lease."""
        session = self._session(executor, ledger)
        return session is not None and session.is_leased

    def lease_ms(self, session: Session) -> int:
        """Return how long the leader still waits for an executor that stays silent."""
        until_ms = self.leases.until(session.key)
        return 0 if until_ms is None else max(0, until_ms - self._mono_ms())

    def is_connected(self, executor: str, ledger: str) -> bool:
        """Return whether the executor with that journal is connected."""
        return self._session(executor, ledger) is not None

    # ---- silence (rule R7)

    def probe(self) -> int:
        """Probe executors. An executor that does not answer is reported, and gives back the starts
        that wait for it. Return in how many ms to call this again while this replica leads."""
        for session in self._probes.look(self._mono_ms()):
            executor, ledger = session.key
            self._touched.add(executor)
            self._on_event(Silent(executor, ledger))
            self._report_unsent(session.key, session.outbox.take_starts())
        return self._probes.pause_ms()

    def _report_unsent(self, key: Key, batches: tuple[BatchRows, ...]) -> None:
        if batches and self.epoch is not None:
            self._on_event(Unsent(*key, batches))

    # ---- leases (rule R5)

    def answer_heartbeats(self, up_to_arrival_mono_ms: int) -> bool:
        """Answer heartbeats that arrived up to that time; renew those leases from their arrival.
        Return whether any executor has changed in what it may get since `take_touched`.

        Call this after a majority confirmed the leader, with the time read before it was asked.
        That millisecond is included; the error is below 1 ms, and give-up and self-kill are seconds
        apart.
        """
        for session in list(self._unanswered):
            was_leased = session.is_leased
            arrival = session.answer_heartbeats(up_to_arrival_mono_ms)
            if not session.awaits_answer:
                del self._unanswered[session]
            if arrival is not None:
                if not was_leased:
                    self._touched.add(session.executor)
                self.leases.renew(session.key, arrival)
                self._drop_if_stuck(session)
        return bool(self._touched)

    # ---- orders

    def order(
        self,
        executor: str,
        ledger: str,
        *,
        starts: Sequence[StartBatch[JobWork]] = (),
        fences: Sequence[FenceOrder] = (),
        kills: Sequence[KillOrder] = (),
        acks: Sequence[BatchRows] = (),
        watermark: int = 0,
    ) -> bool:
        """Queue orders. Returns False if not all of them were queued: an executor with that very
        ledger is not connected, or starts were for one that is silent.

        The Begin of `starts` is applied. If a first start is dropped before its stream took it, an
        Unsent event has its row. The executor answers each fence with a report; the tombstone and
        the start that it forbids have one log index, and the watermark passes both at once (rule
        R4). The Cancel of `kills` is committed (rule R8), as are the ends that are in `acks`;
        these leave with the next message, at the latest after `ACKS_WITHIN_MS`. The highest
        watermark (rule R4) counts.
        """
        session, is_whole = self._session(executor, ledger), True
        if starts and (session is None or session.is_silent):
            first = tuple((batch.index, batch.rows) for batch in starts if batch.is_first)
            self._report_unsent((executor, ledger), first)
            starts, is_whole = (), False
        if session is None:
            return False
        if starts:
            self._probes.ordered(session)
        session.outbox.put(
            starts=starts, fences=fences, kills=kills, acks=acks, watermark=watermark
        )
        loop = asyncio.get_running_loop()
        if starts or fences or kills or watermark:
            session.wake.set()
        elif session.waking is None or session.waking.when() <= loop.time():
            within_s = limits.ACKS_WITHIN_MS / 1000
            session.waking = loop.call_later(within_s, session.wake.set)
        return not self._drop_if_stuck(session) and is_whole

    def place_output(self, executor: str, ledger: str, place: pool_pb2.OutputPlace) -> None:
        """Send the answer to an offered output; it is dropped if the executor is gone."""
        session = self._session(executor, ledger)
        if session is not None:
            session.place_output(place)

    async def output(
        self, executor: str, ledger: str, name: AttemptName, *,
        offset: int | None, limit: int, timeout_ms: int, packed: bool = False,
    ) -> OutputSlice:  # fmt: skip
        """Return a piece of an attempt's output: at most `limit` bytes, and often less.

        `limit` is cut to 1 byte to 1 MiB; executors have a bound of their own. Ask again from
        `offset + len(data)` until `ended`. An `offset` of None asks for the last `limit` bytes,
        `packed` for the object that the executor offered.

        Raises:
            NotConnected: the executor with that journal is not connected, or left meanwhile.
            OutputUnavailable: it has no such output, or has too many requests under way.
            TimedOut: it did not answer within `timeout_ms`.
        """
        session = self._session(executor, ledger)
        if session is None:
            raise NotConnected(f"executor {executor} is not connected")
        # A limit of 0 would mean no limit.
        limit = min(max(limit, 1), limits.OUTPUT_BYTES_MAX)
        answer = session.ask_output(
            pool_pb2.OutputRequest(
                name=str(name),
                offset=max(offset or 0, 0),
                limit=limit,
                tail=offset is None,
                packed=packed,
            )
        )
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await answer
        except TimeoutError as error:
            raise TimedOut(
                f"executor {executor} did not give output of {name} within {timeout_ms} ms"
            ) from error

    # ---- called by the servicer

    def receive(self, session: Session, message: pool_pb2.FromExecutor) -> None:
        """Act on a message of a session, unless the session is over.

        Raises:
            BadMessage: a field is invalid, or nobody asked for the message.
        """
        if session.ended:
            return
        executor, ledger = session.key
        kind = message.WhichOneof("kind")
        if kind == "heartbeat":
            self._receive_heartbeat(session, message.heartbeat)
        elif kind == "reports":
            if batches := parse_reports(message.reports):
                # The last heartbeat does not count the outputs of what ended since.
                session.may_have_outputs |= any(map(any, map(_OUTPUT_BYTES, batches)))
                self._on_event(Reported(executor, ledger, batches))
        elif kind == "recollection":
            page = message.recollection
            rows = session.take_recollection(page)
            self._on_event(InventoryPage(executor, ledger, rows, page.last, page.floor))
        elif kind == "offers":
            offers = parse_offers(message.offers)
            if offers != session.offers:
                session.offers = offers
                self._touched.add(executor)
                self._on_event(Offered(executor, ledger))
        elif kind == "output":
            session.take_output(message.output)
            self._answered(session, message.output.request)
        elif kind == "kept":
            offered = parse_offered_output(message.kept)
            if self.on_output is None or not session.is_welcome:
                raise BadMessage("kept", "this executor was not asked to have outputs stored")
            self.on_output(executor, ledger, offered)
        elif kind == "probe":
            session.check_request("probe.number", message.probe.number)
            self._answered(session, message.probe.number)
        else:
            once = "a stream has one Hello, its first message"
            other = "the message is empty, or newer than this leader"
            raise BadMessage(kind or "kind", once if kind == "hello" else other)

    def _receive_heartbeat(self, session: Session, beat: pool_pb2.Heartbeat) -> None:
        """Keep a heartbeat until the leader is confirmed and answers it."""
        check_heartbeat(beat, session.last_number)
        was_fit = session.is_fit
        session.receive_heartbeat(beat, self._mono_ms(), beat.wall_ms - self._wall_ms())
        if was_fit != session.is_fit:
            self._touched.add(session.executor)
        if session.is_welcome:
            self._unanswered[session] = None
        self._on_event(HeartbeatReceived(*session.key))

    def _answered(self, session: Session, number: int) -> None:
        """Note the answer to a request; the answer to the open probe ends the silence."""
        if number != session.probe_number:
            return
        session.probe_number = 0
        self._probes.answered(session)
        if session.is_silent:
            session.is_silent = False
            self._touched.add(session.executor)
            self._on_event(Silent(*session.key, is_over=True))

    def join(self, greeting: Greeting, address: str) -> Session:
        """Return a new session, which waits for `welcome`.

        An older stream of the same process is replaced, and so is another process with this id that
        fell silent.

        Raises:
            NotLeading: this replica does not lead.
            Refused: a newer epoch was seen, another process has the id, or the pool is full.
        """
        if self.epoch is not None:
            self.on_greeting(greeting)
        if self.epoch is None:
            raise NotLeading
        name = greeting.executor
        if greeting.highest_epoch > self.epoch:
            raise Refused(
                "FAILED_PRECONDITION",
                f"executor {name} has seen epoch {greeting.highest_epoch}, which is above "
                f"{self.epoch}; another leads, or a restore did not raise the generation",
            )
        holder = self._sessions.get(name)
        if holder is None and len(self._sessions) >= self.executors_max:
            text = f"{self.executors_max} executors are connected, the most there can be here"
            raise Refused("RESOURCE_EXHAUSTED", text)
        if holder is not None:
            silent_ms = holder.silent_ms
            reason = "replaced by a newer stream of the same process"
            if holder.greeting.incarnation != greeting.incarnation:
                if silent_ms <= 2 * self.lease.heartbeat_ms:
                    text = self.duplicate_ids.note(greeting, address, holder.greeting)
                    raise Refused("ALREADY_EXISTS", text)
                newcomer = f"host {greeting.host} pid {greeting.pid}"
                reason = f"silent for {silent_ms} ms, replaced by {newcomer}"
            self.drop(holder, End(grpc.StatusCode.ABORTED, reason, says_goodbye=True))
        session = Session(
            greeting,
            address,
            self.epoch,
            now_ms=self._mono_ms,
            lease=self.lease,
            offset_ms_max=self._clock_offset_ms_max,
            sharers=lambda: len(self._sessions),
        )
        session.sign = functools.partial(self._sign, name)
        session.connected_since_ms = self._wall_ms()
        offset_ms = greeting.wall_ms - session.connected_since_ms
        session.offset_ms = session.ahead_ms = offset_ms
        self._sessions[name] = session
        self._touched.add(name)
        self._on_event(Joined(*session.key, greeting, address, offset_ms))
        return session

    def drop(self, session: Session, end: End) -> None:
        """End a session and report that to the leader, once. Its lease goes on."""
        unsent = session.outbox.take_starts()
        if not session.end(end):
            return
        # A session that has not ended is in the table, so this entry is its own.
        del self._sessions[session.executor]
        self.duplicate_ids.forget(session.executor)
        self._unanswered.pop(session, None)
        self._touched.add(session.executor)
        self._probes.remove(session)
        self._on_event(Left(session.executor, session.ledger, end.reason, end.is_cut))
        self._report_unsent(session.key, unsent)

    def _session(self, executor: str, ledger: str) -> Session | None:
        session = self._sessions.get(executor)
        return session if session is not None and session.ledger == ledger else None

    def _drop_if_stuck(self, session: Session) -> bool:
        if session.is_stuck:
            reason = "does not read: too much waits for it"
            self.drop(session, End(grpc.StatusCode.RESOURCE_EXHAUSTED, reason))
        return session.ended is not None

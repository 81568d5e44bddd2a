"""The executors as the leader sees them: who is connected, what is told to whom, whose lease ends.

Theory of operation. Executors open the streams; `PoolServicer` turns each into a `Session` here
and the leader hears of it by events. What the leader orders is only queued: True from `order` means
queued, and nothing but what the executor reports says what became of it. Leadership
may end at any moment, so all of this hangs on one switch: after `close` not one queued order
leaves, no event comes, and every lease is forgotten (the next leader grants them anew, rule R5).

Everything runs on one event loop and nothing here awaits between a check and its effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc

from launcher.pool import limits
from launcher.pool.duplicate_ids import DuplicateIds
from launcher.pool.errors import (
    BadMessage,
    HeldByAnother,
    NotConnected,
    NotLeading,
    PoolFull,
    SeenNewerEpoch,
    TimedOut,
)
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
from launcher.pool.reading import (
    check_heartbeat,
    parse_kept,
    parse_offers,
    parse_reports,
)
from launcher.pool.session import (
    End,
    OutputSlice,
    OutputsWaiting,
    Session,
)
from launcher.pool.watchers import Watchers
from launcher.protocol.names import AttemptName
from launcher.protocol.orders import BatchRows, FenceOrder, KillOrder, StartBatch
from launcher.protocol.reports import Greeting, OfferedOutput
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch


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
        self.on_kept: Callable[[str, str, OfferedOutput], None] | None = None
        """Takes the offers of outputs, of an executor with a ledger; None: none are to be stored.
        Set before `open`."""
        self.executors_max = limits.EXECUTORS_MAX
        self._epoch: Epoch | None = None
        self._sessions: dict[str, Session] = {}
        self._beating: dict[Session, None] = {}  # those with heartbeats to answer
        self._touched: set[str] = set()
        self.leases = Leases(lease)
        self._probes = Probes()
        self.duplicate_ids = DuplicateIds(mono_ms)
        self.watchers = Watchers()

    # ---- leadership

    @property
    def is_open(self) -> bool:
        """Whether this replica leads and takes executors."""
        return self._epoch is not None

    @property
    def epoch(self) -> Epoch | None:
        """The epoch under which this replica leads, None where it takes no executors."""
        return self._epoch

    def open(self, epoch: Epoch) -> None:
        """Take executors from now on and lead them under `epoch`: its Claim is applied."""
        if self._epoch is not None:
            self.close(f"a new epoch begins: {epoch}", None)
        self._epoch = epoch
        self.watchers.change()

    def close(self, reason: str, leader_address: str | None) -> None:
        """Stop leading: nothing queued leaves from this call on, no event comes after it.

        What gRPC was already given may still arrive; the executors' memory of the highest epoch
        is what stops that (rule R3). Safe to call twice.
        """
        self._epoch = None
        self.watchers.change()
        sessions, self._sessions = self._sessions, {}
        self._beating.clear()
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
        """Let in who joined: its ExecutorJoined is committed. A lease begins if it has none, also
        of one that is gone again: at its end the log lets go of it. With `ledger` only the session
        with that ledger: another process may have replaced the one whose joining was committed.
        With `inventory` it tells all that its ledger remembers, if it `can_inventory`. The first
        counts.
        """
        session = self._sessions.get(executor)
        known = ledger or (session.ledger if session is not None else None)
        if self._epoch is None or known is None:
            return
        self.leases.begin((executor, known), self._mono_ms())
        if session is None or session.ledger != known:
            return
        session.welcome(
            pool_pb2.Welcome(
                epoch=encode_epoch(self._epoch),
                heartbeat_ms=self.lease.heartbeat_ms,
                self_kill_ms=self.lease.self_kill_ms,
                wall_ms=self._wall_ms(),
                inventory=inventory and session.greeting.can_inventory,
                protocol=limits.PROTOCOL,
                spread_ms=self.spread_ms,
                stores_outputs=self.on_kept is not None,
            )
        )
        self._probes.add(session)
        if session.is_beating:
            self._beating[session] = None

    def refuse(self, executor: str, reason: str) -> None:
        """Send an executor away: Goodbye with the reason, then its stream ends."""
        session = self._sessions.get(executor)
        if session is not None:
            self.drop(session, End(grpc.StatusCode.ABORTED, reason, says_goodbye=True))

    def dismiss(self, executor: str, reason: str) -> None:
        """Send away an executor that was drained: nothing is open on it. Its process then ends
        with exit code 0, which tells whoever watches it not to start it again."""
        session = self._sessions.get(executor)
        if session is not None:
            end = End(grpc.StatusCode.ABORTED, reason, says_goodbye=True, is_drained=True)
            self.drop(session, end)

    def sessions(self) -> list[Session]:
        """Return the connected executors, by id."""
        return [self._sessions[name] for name in sorted(self._sessions)]

    def outputs_waiting(self) -> OutputsWaiting:
        """Return what the connected executors say of the outputs that they are to store."""
        count, first = 0, None
        for session in self._sessions.values():
            if not session.outputs_waiting:
                continue
            count += session.outputs_waiting
            if session.outputs_problem and (first is None or session.key < first.key):
                first = session
        if first is None:
            return OutputsWaiting(count)
        return OutputsWaiting(count, first.key[0], first.outputs_problem)

    @property
    def count(self) -> int:
        """How many executors are connected."""
        return len(self._sessions)

    @property
    def spread_ms(self) -> int:
        """Over how long the executors of this cell are to spread their return."""
        return limits.spread_ms(max(len(self._sessions), self._known_executors()))

    def view(self, executor: str) -> Session | None:
        """Return a connected executor, None if it is not."""
        return self._sessions.get(executor)

    def take_touched(self) -> set[str]:
        """Return the executors of whom something has changed since the last call that decides
        whether they get work: all but what time alone brings, that they miss heartbeats."""
        touched, self._touched = self._touched, set()
        return touched

    def is_leased(self, executor: str, ledger: str) -> bool:
        """Whether an executor is connected that would not refuse an order for want of a lease."""
        session = self._session(executor, ledger)
        return session is not None and session.is_leased

    def is_connected(self, executor: str, ledger: str) -> bool:
        """Whether a stream of that executor with that very ledger is open."""
        return self._session(executor, ledger) is not None

    # ---- silence (rule R7)

    def probe(self) -> None:
        """Probe executors, and report those that do not answer: starts that wait for them are given
        back. Call it every `probes.LOOK_MS` while this replica leads."""
        for session in self._probes.look(self._mono_ms()):
            executor, ledger = session.key
            self._touched.add(executor)
            self._on_event(Silent(executor, ledger))
            self._give_back(session.key, session.outbox.take_starts())

    def _give_back(self, key: Key, batches: tuple[BatchRows, ...]) -> None:
        if batches and self._epoch is not None:
            self._on_event(Unsent(*key, batches))

    # ---- leases (rule R5)

    def answer_heartbeats(self, up_to_arrival_mono_ms: int) -> None:
        """Answer heartbeats that arrived up to then, and renew those leases from their arrival.

        Call it after the leader was confirmed, with the time read before it asked. "Up to" includes
        that millisecond: what it lets through is younger than one, where give-up and self-kill
        are seconds apart.
        """
        for session in list(self._beating):
            was_leased = session.is_leased
            arrival = session.answer_heartbeats(up_to_arrival_mono_ms)
            if not session.is_beating:
                del self._beating[session]
            if arrival is not None:
                if not was_leased:
                    self._touched.add(session.executor)
                self.leases.renew(session.key, arrival)
                self._drop_if_stuck(session)

    # ---- orders

    def order(
        self,
        executor: str,
        ledger: str,
        *,
        starts: Sequence[StartBatch] = (),
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
        R4). The Cancel of `kills` is committed (rule R8), as are the ends that are in `acks`. The
        highest watermark (rule R4) counts.
        """
        session, is_whole = self._session(executor, ledger), True
        if starts and (session is None or session.is_silent):
            first = tuple((batch.index, batch.rows) for batch in starts if batch.is_first)
            self._give_back((executor, ledger), first)
            starts, is_whole = (), False
        if session is None:
            return False
        if starts:
            self._probes.ordered(session)
        session.outbox.put(
            starts=starts, fences=fences, kills=kills, acks=acks, watermark=watermark
        )
        session.wake.set()
        return not self._drop_if_stuck(session) and is_whole

    def place_output(self, executor: str, ledger: str, place: pool_pb2.OutputPlace) -> None:
        """Answer an output that was offered; nobody is told where the executor is gone."""
        session = self._session(executor, ledger)
        if session is not None:
            session.place_output(place)

    async def output(
        self,
        executor: str,
        ledger: str,
        name: AttemptName,
        *,
        offset: int,
        limit: int,
        tail: bool,
        timeout_ms: int,
    ) -> OutputSlice:
        """Return a piece of an attempt's output: at most `limit` bytes, and often less.

        `limit` is cut to 1 byte to 1 MiB; executors have a bound of their own. Ask again from
        `offset + len(data)` until `ended`.

        Raises:
            NotConnected: that executor with that ledger is not there, or left meanwhile.
            OutputUnavailable: it has no such output, or too much was asked of it at once.
            TimedOut: it did not answer within `timeout_ms`.
        """
        request = pool_pb2.OutputRequest(name=str(name), offset=max(offset, 0), tail=tail)
        return await self._ask_output(executor, ledger, request, limit, timeout_ms)

    async def packed_output(
        self, executor: str, ledger: str, name: AttemptName, *,
        offset: int, limit: int, timeout_ms: int,
    ) -> OutputSlice:  # fmt: skip
        """Return a piece of the object that an executor has offered; as `output` otherwise."""
        request = pool_pb2.OutputRequest(name=str(name), offset=offset, packed=True)
        return await self._ask_output(executor, ledger, request, limit, timeout_ms)

    async def _ask_output(
        self,
        executor: str,
        ledger: str,
        request: pool_pb2.OutputRequest,
        limit: int,
        timeout_ms: int,
    ) -> OutputSlice:
        session = self._session(executor, ledger)
        if session is None:
            raise NotConnected(f"executor {executor} is not connected")
        # Never 0, which the protocol reads as "as much as you like".
        request.limit = min(max(limit, 1), limits.OUTPUT_BYTES_MAX)
        answer = session.ask_output(request)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await answer
        except TimeoutError as error:
            raise TimedOut(
                f"executor {executor} did not give output of {request.name} within {timeout_ms} ms"
            ) from error

    # ---- called by the servicer

    def hear(self, session: Session, message: pool_pb2.FromExecutor) -> None:
        """Take a message of a session; nothing happens if that is over.

        Raises:
            BadMessage: a field is wrong, or nobody asked for it.
        """
        if session.ended:
            return
        executor, ledger = session.key
        kind = message.WhichOneof("kind")
        if kind == "heartbeat":
            check_heartbeat(message.heartbeat, session.last_number)
            self._beat(session, message.heartbeat)
        elif kind == "reports":
            batches = parse_reports(message.reports)
            if batches:
                self._on_event(Reported(executor, ledger, batches))
        elif kind == "recollection":
            said = message.recollection
            rows = session.take_recollection(said)
            self._on_event(InventoryPage(executor, ledger, rows, said.last, said.floor))
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
            kept = parse_kept(message.kept)
            if self.on_kept is None or not session.is_welcome:
                raise BadMessage("kept", "this executor was not asked to have outputs stored")
            self.on_kept(executor, ledger, kept)
        elif kind == "probe":
            session.check_request("probe.number", message.probe.number)
            self._answered(session, message.probe.number)
        else:
            more = {"hello": "a stream has one Hello, its first message"}
            other = "the message is empty, or newer than this leader"
            raise BadMessage(kind or "kind", more.get(kind or "", other))

    def _beat(self, session: Session, said: pool_pb2.Heartbeat) -> None:
        """Take a heartbeat; the leader answers it once it is confirmed."""
        now, was_fit = self._mono_ms(), session.is_fit
        session.hear(said, now, said.wall_ms - self._wall_ms())
        if was_fit != session.is_fit:
            self._touched.add(session.executor)
        if session.is_welcome:
            self._beating[session] = None
        self._on_event(
            HeartbeatReceived(*session.key, said.number, said.running, said.wall_ms, now)
        )

    def _answered(self, session: Session, number: int) -> None:
        """Take the answer to a probe, or to anything else that was asked under a number."""
        if number != session.probe_number:
            return
        session.probe_number = 0
        self._probes.answered(session)
        if session.is_silent:
            session.is_silent = False
            self._touched.add(session.executor)
            self._on_event(Silent(*session.key, is_over=True))

    def join(self, greeting: Greeting, address: str) -> Session:
        """Accept a Hello: a session that waits for `welcome`.

        Raises:
            Refused: not leading, a newer epoch was seen, the id is held, or the pool is full.
        """
        if self._epoch is None:
            raise NotLeading("this replica does not lead")
        if greeting.highest_epoch > self._epoch:
            raise SeenNewerEpoch(
                f"executor {greeting.executor} has seen epoch {greeting.highest_epoch}, which is "
                f"above {self._epoch}; another leads, or a restore did not raise the generation"
            )
        self._make_room(greeting, address)
        session = Session(
            greeting,
            address,
            self._epoch,
            now_ms=self._mono_ms,
            lease=self.lease,
            offset_ms_max=self._clock_offset_ms_max,
            sharers=lambda: len(self._sessions),
        )
        session.connected_since_ms = self._wall_ms()
        session.offset_ms = greeting.wall_ms - session.connected_since_ms
        self._sessions[greeting.executor] = session
        self._touched.add(greeting.executor)
        self._on_event(Joined(*session.key, greeting, address, session.offset_ms))
        return session

    def drop(self, session: Session, end: End) -> None:
        """End a session and tell the leader, once. Its lease goes on."""
        unsent = session.outbox.take_starts()
        if not session.end(end):
            return
        # Invariant: whoever has not ended is in the table, so this is its own place in it.
        del self._sessions[session.executor]
        self.duplicate_ids.forget(session.executor)
        self._beating.pop(session, None)
        self._touched.add(session.executor)
        self._probes.remove(session)
        self._on_event(Left(session.executor, session.ledger, end.reason, end.is_cut))
        self._give_back(session.key, unsent)

    # ---- within

    def _make_room(self, greeting: Greeting, address: str) -> None:
        """Let a newcomer replace an older stream of its own, or of a process that fell silent."""
        holder = self._sessions.get(greeting.executor)
        if holder is None:
            if len(self._sessions) >= self.executors_max:
                text = f"{self.executors_max} executors are connected, the most there can be here"
                raise PoolFull(text)
            return
        is_same = holder.greeting.incarnation == greeting.incarnation
        silent_ms = holder.silent_ms
        if not is_same and silent_ms <= 2 * self.lease.heartbeat_ms:
            raise HeldByAnother(self.duplicate_ids.note(greeting, address, holder.greeting))
        reason = (
            "replaced by a newer stream of the same process"
            if is_same
            else (f"silent for {silent_ms} ms, replaced by host {greeting.host} pid {greeting.pid}")
        )
        self.drop(holder, End(grpc.StatusCode.ABORTED, reason, says_goodbye=True))

    def _session(self, executor: str, ledger: str) -> Session | None:
        session = self._sessions.get(executor)
        return session if session is not None and session.ledger == ledger else None

    def _drop_if_stuck(self, session: Session) -> bool:
        if session.is_stuck:
            reason = "does not read: too much waits for it"
            self.drop(session, End(grpc.StatusCode.RESOURCE_EXHAUSTED, reason))
        return session.ended is not None

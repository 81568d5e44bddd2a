"""The executor's way to the leader: finds it, greets it, keeps the lease, carries both ways."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio

from launcher import logs
from launcher.config import ExecutorConfig, check_address
from launcher.errors import BadConfig, LauncherError
from launcher.executor.channel import NotReached, connected, open_channel
from launcher.executor.clock import boot_ms, wall_ms
from launcher.executor.foreman import Foreman
from launcher.executor.leader_watch import LeaderWatch, Told
from launcher.executor.offers import Offer
from launcher.executor.outlet import Page, Recall
from launcher.executor.pace import Pace
from launcher.executor.packing import Packed
from launcher.executor.row import Change, Row, epoch_message, epoch_of
from launcher.executor.words import PROTOCOL, Words
from launcher.executor.works import Works
from launcher.limits import HELLO_ROWS_MAX, REPORTS_PER_MESSAGE_MAX, RUNNING_TOLD_MAX
from launcher.renewal import Current
from launcher.rpc.v1 import pool_pb2, pool_pb2_grpc
from launcher.tls import Credentials
from launcher.work import Epoch

log = logs.get()

LEADER_KEY: Final = "raftcron-leader"
SPREAD_KEY: Final = "raftcron-spread-ms"
CLOCK_SET_MS: Final = 1_000
"""A wall clock that moved this far against the boot clock was set, not steered."""
DISTRUST_S: Final = 2.0
"""Between visits when no replica takes our certificate: only a person can change that."""
PROBLEM_CHARS_MAX: Final = 200
_BEAT_STEP_MS: Final = 100
# Part of looking for the leader: a replica that does not lead, or is not there. INTERNAL is what
# gRPC makes of a refusal that was faster than the call, CANCELLED where too many wait at its door.
_USUAL: Final = (
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.INTERNAL,
)


class StreamEnded(LauncherError):
    """This stream is over; `leader` is where to go now, if anybody said. `is_refusal`: a leader
    does not want this executor, which a person has to look at. `is_distrust`: so it is with
    certificates that do not fit, and the next replica will hardly say anything else. `is_drained`:
    nothing is open here, and this process may end. `is_late`: nobody has said anything in time."""

    def __init__(
        self,
        message: str,
        leader: str = "",
        *,
        is_refusal: bool = False,
        is_distrust: bool = False,
        is_drained: bool = False,
        is_late: bool = False,
    ) -> None:
        super().__init__(message)
        self.leader = leader
        self.is_refusal = is_refusal or is_distrust
        self.is_distrust = is_distrust
        self.is_drained = is_drained
        self.is_late = is_late


class Visit:
    """One stream to one replica. Implements the foreman's Outlet."""

    def __init__(
        self,
        config: ExecutorConfig,
        foreman: Foreman,
        incarnation: str,
        credentials: Credentials | None = None,
        words: Words | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.works = Works()
        self.welcomed = False
        self.epoch = Epoch()  # that of the leader, once it has said so
        self.ended = asyncio.Event()
        self._config = config
        self._foreman = foreman
        self._incarnation = incarnation
        self._credentials = credentials
        self._words = words or Words()
        self._pace = pace or Pace(config, incarnation)
        self._offers: Sequence[Offer] | None = None
        self._rest: Recall | None = None
        self._outgoing: asyncio.Queue[pool_pb2.FromExecutor | None] = asyncio.Queue()
        self._left: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._parked: list[pool_pb2.Orders] | None = []

    # ---- the foreman's side

    def begin(self, known: list[Row], highest: Epoch) -> None:
        """Send the greeting, with the rows that the leader may ask about."""
        hello = self._words.hello(self._config, self._foreman.ledger_uuid, self._incarnation)
        hello.wall_ms = wall_ms()
        hello.highest_epoch.CopyFrom(epoch_message(highest))
        first = self._words.known(known[:HELLO_ROWS_MAX])
        for reports in self._words.reports(first, HELLO_ROWS_MAX):
            hello.known.CopyFrom(reports)
        self._outgoing.put_nowait(pool_pb2.FromExecutor(hello=hello))
        self.send(self._words.known(known[HELLO_ROWS_MAX:]))

    def send(self, changes: list[Change]) -> None:
        """Report what became of rows, of a bounded number in one message."""
        for reports in self._words.reports(changes, REPORTS_PER_MESSAGE_MAX):
            self._outgoing.put_nowait(pool_pb2.FromExecutor(reports=reports))

    def offer(self, offers: Sequence[Offer]) -> None:
        """Tell what the workers of this host serve, once the leader has welcomed this executor."""
        if not self.welcomed:
            self._offers = offers
            return
        message = self._words.offers(offers)
        self._outgoing.put_nowait(pool_pb2.FromExecutor(offers=message))

    def recollect(self, page: Page) -> None:
        """Tell a page of what the ledger remembers; the rest is asked for when it has left."""
        self._rest = page.rest
        recollection = self._words.recollection(page)
        self._outgoing.put_nowait(pool_pb2.FromExecutor(recollection=recollection))

    def keep(self, name: str, packed: Packed) -> None:
        """Offer an output that is to be stored."""
        kept = pool_pb2.KeptOutput(name=name, bytes=packed.size, sha256=packed.sha256)
        self._outgoing.put_nowait(pool_pb2.FromExecutor(kept=kept))

    def leave(self, reason: str) -> None:
        """End the stream."""
        if not self._left.done():
            self._left.set_result(reason)

    def finish(self) -> None:
        """Send what is waiting, then end our half of the stream."""
        self._outgoing.put_nowait(None)

    # ---- the replica's side

    async def attend(self, address: str) -> None:
        """Connect and serve until the stream ends.

        Raises:
            StreamEnded: it did.
        """
        channel = open_channel(address, self._credentials)
        try:
            await connected(channel, address, self._pace.connect_ms, self._credentials)
            self._foreman.attach(self)
            stub = pool_pb2_grpc.PoolStub(channel)  # type: ignore[no-untyped-call]
            await self._serve(stub.Connect())
        except NotReached as error:
            text, is_late = str(error), error.is_late
            raise StreamEnded(text, is_distrust=error.is_distrust, is_late=is_late) from None
        except grpc.aio.AioRpcError as error:
            self._pace.learn(_spread_ms(error, self._pace.spread_ms))
            text = f"{error.code().name}: {error.details()}"
            is_refusal = error.code() not in _USUAL
            is_late = error.code() is grpc.StatusCode.CANCELLED
            raise StreamEnded(text, _hint(error), is_refusal=is_refusal, is_late=is_late) from error
        finally:
            self._foreman.detach(self)
            self._foreman.uploads.detach(self)
            self.ended.set()
            await channel.close()

    async def _serve(self, call: Any) -> None:
        writer = asyncio.create_task(self._write(call))
        tasks = {writer}
        try:
            every_ms = self._greeted(await self._first(call))
            ends = {
                asyncio.create_task(self._read(call)),
                asyncio.create_task(self._beat(every_ms)),
                asyncio.create_task(self._leaving()),
            }
            tasks |= ends
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _first(self, call: Any) -> Any:
        try:
            async with asyncio.timeout(self._pace.welcome_ms / 1000):
                return await call.read()
        except TimeoutError:
            raise StreamEnded("no welcome in time", is_late=True) from None

    async def _write(self, call: Any) -> None:
        # Where the stream is over, whoever reads says why.
        with contextlib.suppress(grpc.aio.BaseError, asyncio.InvalidStateError):
            while (message := await self._outgoing.get()) is not None:
                await call.write(message)
                if message.HasField("recollection") and self._rest is not None:
                    self._foreman.recall(self._rest)
            await call.done_writing()

    def _greeted(self, message: Any) -> int:
        """Check the first message; return the time between heartbeats."""
        if message is grpc.aio.EOF:
            raise StreamEnded("ended before a welcome")
        if message.WhichOneof("kind") == "goodbye":
            raise _farewell(message.goodbye)
        if message.WhichOneof("kind") != "welcome":
            raise StreamEnded("the first message is no welcome")
        welcome = message.welcome
        if welcome.protocol != PROTOCOL:
            raise StreamEnded(_other_protocol(welcome.protocol), is_refusal=True)
        epoch = epoch_of(welcome.epoch)
        if epoch < self._foreman.highest:
            raise StreamEnded(f"its epoch {epoch} is older than {self._foreman.highest}")
        self.welcomed, self.epoch = True, epoch
        foreman = self._foreman
        foreman.welcome(epoch)
        if welcome.recall:
            foreman.recall(Recall(self))
        foreman.lease.connected(welcome.self_kill_ms)
        self._pace.learn(welcome.spread_ms)
        foreman.uploads.attach(self, stores=welcome.stores_outputs)
        if self._offers is not None:
            self.offer(self._offers)
        foreman.clock_offset_ms = wall_ms() - welcome.wall_ms if welcome.wall_ms else 0
        if abs(foreman.clock_offset_ms) > self._config.clock_offset_ms_max:
            log.warning("clock.drifted", offset_ms=foreman.clock_offset_ms)
        return max(1, int(welcome.heartbeat_ms))

    async def _read(self, call: Any) -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            self._take(message)
        raise StreamEnded("ended by the replica")

    def _take(self, message: pool_pb2.FromLeader) -> None:
        kind = message.WhichOneof("kind")
        if kind == "orders":
            if self._parked is None:
                self._foreman.order(self, message.orders)
            else:
                self._parked.append(message.orders)
        elif kind == "heartbeat":
            if self._foreman.answered(message.heartbeat.number):
                self._unpark()
        elif kind == "output":
            chunk = self._foreman.output(message.output)
            self._outgoing.put_nowait(pool_pb2.FromExecutor(output=chunk))
        elif kind == "place":
            self._foreman.uploads.placed(message.place)
        elif kind == "probe":
            answer = pool_pb2.ProbeAnswer(number=message.probe.number)
            self._outgoing.put_nowait(pool_pb2.FromExecutor(probe=answer))
        elif kind == "goodbye":
            raise _farewell(message.goodbye)

    def _unpark(self) -> None:
        # Orders may be faster than the first answer; without a lease they would all be refused.
        parked, self._parked = self._parked, None
        for orders in parked or ():
            self._foreman.order(self, orders)

    async def _beat(self, every_ms: int) -> None:
        lease = self._foreman.lease
        due_ms = boot_ms()
        clock_ms = wall_ms() - due_ms
        while True:
            now_ms = boot_ms()
            if not self._foreman.able.is_set():
                raise StreamEnded("commands of a dead spawner cannot be ended")
            # The next welcome measures the offset anew.
            if abs(wall_ms() - now_ms - clock_ms) > CLOCK_SET_MS:
                raise StreamEnded("this host's clock was set")
            if lease.unanswered_ms(now_ms) > self._pace.answer_ms:
                raise StreamEnded("heartbeats are not answered")
            if now_ms >= due_ms:
                due_ms = now_ms + every_ms
                running = min(self._foreman.running, RUNNING_TOLD_MAX)
                beat = pool_pb2.Heartbeat(
                    number=lease.sent(now_ms),
                    wall_ms=wall_ms(),
                    running=running,
                    is_full=self._foreman.is_full,
                    outputs_waiting=self._foreman.uploads.waiting,
                    outputs_problem=self._foreman.uploads.problem[:PROBLEM_CHARS_MAX],
                )
                self._outgoing.put_nowait(pool_pb2.FromExecutor(heartbeat=beat))
            await asyncio.sleep(min(due_ms - now_ms, _BEAT_STEP_MS) / 1000)

    async def _leaving(self) -> None:
        raise StreamEnded(await self._left)


class Way:
    """Visits replicas until one leads, and again when it no longer does, or a newer leader is heard
    of. `watch` says who leads; without it, or where it cannot reach the leader, replicas are asked
    in turn, and name the leader as they refuse."""

    def __init__(
        self,
        config: ExecutorConfig,
        foreman: Foreman,
        incarnation: str,
        credentials: Current | None = None,
        words: Words | None = None,
    ) -> None:
        self._config = config
        self._foreman = foreman
        self._incarnation = incarnation
        self._credentials = credentials
        self._words = words
        self._pace = Pace(config, f"{config.id}/{incarnation}")
        self._watch = LeaderWatch(config, credentials)
        self._heeded = Epoch()  # the highest epoch for which a visit was made or left
        self._visit: Visit | None = None
        self._refusal = ""
        self._distrusts = 0

    async def run(self) -> None:
        """Be connected until a leader says that this executor is drained."""
        visiting = asyncio.create_task(self._visit_all(), name="visits")
        tasks = (visiting, asyncio.create_task(self._watch.run(), name="leaders"))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _visit_all(self) -> None:
        leaders, pace = self._config.leaders, self._pace
        number, hint = 0, ""
        while True:
            await self._foreman.able.wait()
            told = self._news()
            hint = told.address if told is not None else hint
            followed = bool(hint)
            address = hint or leaders[number % len(leaders)]
            number += not followed
            ours = self._credentials() if self._credentials is not None else None
            visit = self._visit = Visit(
                self._config, self._foreman, self._incarnation, ours, self._words, pace
            )
            hint = ""
            try:
                await self._attend(visit, address)
            except StreamEnded as error:
                hint = self._usable(error.leader)
                pace.met(is_late=error.is_late and not visit.welcomed)
                self._note(visit, address, error)
                if error.is_drained:
                    log.info("executor.drained", replica=address, error=str(error))
                    return
            if visit.welcomed:
                # All the others' streams have ended, too: whoever dies, or is deposed.
                number += pace.first(len(leaders))
                await asyncio.sleep(pace.after_stream_ms() / 1000)
            if hint and not followed:
                continue
            rest_ms = 0 if visit.welcomed and pace.spread_ms else pace.after_failure_ms()
            is_hopeless = self._distrusts >= len(leaders)
            await self._rest(DISTRUST_S if is_hopeless else rest_ms / 1000)

    async def _attend(self, visit: Visit, address: str) -> None:
        """Attend until the stream ends, or another replica says that it leads with a newer epoch:
        then nobody is behind this stream who could renew a lease, frozen or not (rule R5). What was
        granted stays granted.

        Raises:
            StreamEnded: either.
        """
        attending = asyncio.create_task(visit.attend(address), name="visit")
        try:
            while not attending.done():
                await self._first(attending, visit)
                told = self._watch.newest
                if attending.done() or told is None or told.epoch <= self._beyond(visit):
                    continue
                if told.address != address:
                    raise StreamEnded(f"{told.address} leads with epoch {told.epoch}")
                self._heeded = told.epoch
        finally:
            attending.cancel()
            await asyncio.gather(attending, return_exceptions=True)
        attending.result()

    async def _first(self, attending: asyncio.Task[None], visit: Visit) -> None:
        """Return when the visit is over, or a new leader is heard of."""
        news = asyncio.create_task(self._watch.newer(self._beyond(visit)))
        try:
            await asyncio.wait((attending, news), return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()

    def _beyond(self, visit: Visit | None = None) -> Epoch:
        """Return the epoch above which a leader is news: heeded already, or that of this visit. It
        is never below the highest that this executor has met (rule R3)."""
        highest = self._foreman.highest
        known = max(self._heeded, Epoch(highest.lineage, highest.term, ""))
        return max(known, visit.epoch) if visit is not None else known

    def _news(self) -> Told | None:
        """Return a leader that is news, once."""
        told = self._watch.newest
        if told is None or told.epoch <= self._beyond():
            return None
        self._heeded = told.epoch
        return told

    async def _rest(self, seconds: float) -> None:
        """Rest, in a small cell at most until there is a new leader."""
        if self._pace.spread_ms:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._watch.newer(self._beyond())

    async def close(self, wait_s: float) -> None:
        """Send what is waiting and end the stream; wait for the replica at most `wait_s`."""
        visit = self._visit
        if visit is None or not visit.welcomed:
            return
        self._foreman.detach(visit)
        visit.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await visit.ended.wait()

    def _note(self, visit: Visit, address: str, error: StreamEnded) -> None:
        self._distrusts = self._distrusts + 1 if error.is_distrust else 0
        if visit.welcomed:
            self._refusal = ""
            log.info("stream.ended", replica=address, error=str(error))
        elif error.is_refusal and str(error) != self._refusal:
            # Once: it is tried again several times a second.
            self._refusal = str(error)
            log.warning("executor.refused", replica=address, error=str(error))

    def _usable(self, address: str) -> str:
        if not address:
            return ""
        try:
            check_address(address, "leader", is_secure=self._credentials is not None)
        except BadConfig as error:
            log.warning("leader.ignored", error=str(error))
            return ""
        return address


def _other_protocol(theirs: int) -> str:
    text = f"the replica speaks {theirs}, and this executor speaks {PROTOCOL}"
    return f"{text}; upgrade {'the replicas' if theirs < PROTOCOL else 'the executor'}"


def _farewell(goodbye: pool_pb2.Goodbye) -> StreamEnded:
    return StreamEnded(goodbye.reason, goodbye.leader, is_drained=goodbye.drained)


def _hint(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == LEADER_KEY:
            return value if isinstance(value, str) else value.decode()
    return ""


def _spread_ms(error: grpc.aio.AioRpcError, known_ms: int) -> int:
    """Return over how long the replica wants returns to be spread; as known if it does not say."""
    for key, value in error.trailing_metadata() or ():
        text = value if isinstance(value, str) else value.decode(errors="replace")
        if key == SPREAD_KEY and text.isdecimal() and len(text) < 10:
            return int(text)
    return known_ms

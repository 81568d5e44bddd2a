"""One stream of an executor to a leader: Hello and Welcome, heartbeats, orders and reports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from importlib import metadata
from typing import Any, Final

import grpc
import grpc.aio

from launcher import logs
from launcher.clock import boot_ms, until_step_s, wall_ms
from launcher.config import ExecutorConfig
from launcher.executor.backoff import Backoff
from launcher.executor.channel import StreamEnded, connect, open_channel
from launcher.executor.ledger import Inventory, Page
from launcher.executor.loop import ExecutorLoop
from launcher.executor.resources import UNLIMITED, Capacity
from launcher.executor.rows import changes_of, epoch_of, message_of
from launcher.executor.rules import Works
from launcher.executor.uploads import Packed
from launcher.limits import HELLO_ROWS_MAX, REPORTS_PER_MESSAGE_MAX, RUNNING_TOLD_MAX
from launcher.protocol.limits import PROBLEM_CHARS_MAX, PROTOCOL
from launcher.protocol.reports import BatchReport, GroupOffer, RowReport
from launcher.protocol.v1 import pool_pb2, pool_pb2_grpc
from launcher.protocol.work import Epoch
from launcher.renewal import Current

log = logs.get()

LEADER_KEY: Final = "raftcron-leader"
SPREAD_KEY: Final = "raftcron-spread-ms"
CLOCK_SET_MS: Final = 1_000
"""A wall clock that moved this far against the boot clock was set, not adjusted."""
REPORTS_EVERY_S: Final = 0.02
"""Of a busy executor, the reports of several turns share a message: each wakes up both ends."""
_LOOK_MS: Final = 500
_ANSWER_LOOK_MS: Final = 100
"""Between two looks while a heartbeat is unanswered."""
# Usual while an executor looks for the leader: the replica does not lead, or is down. gRPC reports
# INTERNAL for a refusal that was faster than the call, CANCELLED if too many wait at its listener.
_USUAL: Final = (
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.INTERNAL,
)


class LeaderStream:
    """One stream to one replica. Implements `ReportSink` and `StoreLink`."""

    def __init__(
        self,
        config: ExecutorConfig,
        executor: ExecutorLoop,
        incarnation: str,
        credentials: Current | None = None,
        backoff: Backoff | None = None,
        room: Capacity = UNLIMITED,
    ) -> None:
        self.works = Works()
        self.welcomed = False
        self.epoch = Epoch()  # of the leader, from its Welcome on
        self.ended = asyncio.Event()
        self._config = config
        self._executor = executor
        self._incarnation = incarnation
        self._current = credentials
        self._credentials = credentials() if credentials is not None else None
        self._room = room
        self._backoff = backoff or Backoff(config, incarnation)
        self._offers: Sequence[GroupOffer] | None = None
        self._rest: Inventory | None = None
        self._gathered: list[BatchReport] = []
        self._gathers_until_s = 0.0
        self._later: asyncio.TimerHandle | None = None
        self._outgoing: asyncio.Queue[pool_pb2.FromExecutor | None] = asyncio.Queue()
        self._left: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._parked: list[pool_pb2.Orders] | None = []

    # ---- the executor's side

    def begin(self, known: list[RowReport], highest: Epoch) -> None:
        """Send the Hello, with the rows that the leader may ask about."""
        config, accounts = self._config, self._executor.accounts
        hello = pool_pb2.Hello(
            cell=config.cell,
            executor=config.id,
            ledger=self._executor.ledger_uuid,
            incarnation=self._incarnation,
            highest_epoch=message_of(highest),
            slots=config.slots,
            host=config.host or socket.gethostname() or "unknown",
            pid=os.getpid(),
            version=_version(),
            labels=config.labels,
            can_inventory=True,
            cpu_milli=self._room.cpu_milli,
            memory_bytes=self._room.memory_bytes,
            knows_secrets=self._executor.knows_secrets,
            cpu_limiting=pool_pb2.Limiting.ValueType(self._executor.limiting[0]),
            memory_limiting=pool_pb2.Limiting.ValueType(self._executor.limiting[1]),
            accounts=pool_pb2.Accounts(own=accounts.own, others=accounts.others),
            protocol=PROTOCOL,
            wall_ms=wall_ms(),
        )
        ordered = self._executor.ordered
        if ordered.index:
            hello.ordered.CopyFrom(
                pool_pb2.Ordered(
                    epoch=message_of(ordered.epoch),
                    mark=ordered.mark,
                    index=ordered.index,
                    proof=ordered.proof,
                )
            )
        for reports in messages_of(changes_of(known[:HELLO_ROWS_MAX]), HELLO_ROWS_MAX):
            hello.known.CopyFrom(reports)
        self._outgoing.put_nowait(pool_pb2.FromExecutor(hello=hello))
        self.send(changes_of(known[HELLO_ROWS_MAX:]))

    def send(self, changes: list[BatchReport], *, at_once: bool = False) -> None:
        """Report changes of rows, a bounded number in one message. Soon after other reports they
        wait for those that follow, unless they have to leave `at_once`."""
        loop = asyncio.get_running_loop()
        self._gathered += changes
        now_s = loop.time()
        if now_s < self._gathers_until_s and not at_once:
            if self._later is None and self._gathered:
                send = partial(self.send, [], at_once=True)
                self._later = loop.call_at(self._gathers_until_s, send)
            return
        if self._later is not None:
            self._later.cancel()
        self._later, gathered, self._gathered = None, self._gathered, []
        if gathered:
            self._gathers_until_s = now_s + REPORTS_EVERY_S
        for reports in messages_of(gathered, REPORTS_PER_MESSAGE_MAX):
            self._outgoing.put_nowait(pool_pb2.FromExecutor(reports=reports))

    def offer(self, offers: Sequence[GroupOffer]) -> None:
        """Send what the workers of this host serve, once the leader has sent its Welcome."""
        if not self.welcomed:
            self._offers = offers
            return
        message = pool_pb2.Offers(
            offers=[
                pool_pb2.Offer(
                    group=one.group,
                    slots=one.slots,
                    handlers=one.handlers,
                    at_once=one.at_once,
                    memory_limiting=pool_pb2.Limiting.ValueType(one.memory_limiting),
                )
                for one in offers
            ]
        )
        self._outgoing.put_nowait(pool_pb2.FromExecutor(offers=message))

    def recollect(self, page: Page) -> None:
        """Send a page of the ledger; the next page is read once it has left."""
        self.send([], at_once=True)  # what was reported before the page is older
        self._rest = page.rest
        recollection = recollection_of(page)
        self._outgoing.put_nowait(pool_pb2.FromExecutor(recollection=recollection))

    def keep(self, name: str, packed: Packed) -> None:
        """Offer an output for upload, after the report of its end."""
        self.send([], at_once=True)
        kept = pool_pb2.KeptOutput(name=name, bytes=packed.size, sha256=packed.sha256)
        self._outgoing.put_nowait(pool_pb2.FromExecutor(kept=kept))

    def leave(self, reason: str) -> None:
        """End the stream."""
        if not self._left.done():
            self._left.set_result(reason)

    def finish(self) -> None:
        """Send what is queued, then end our half of the stream."""
        self.send([], at_once=True)
        self._outgoing.put_nowait(None)

    # ---- the replica's side

    async def attend(self, address: str) -> None:
        """Connect and serve until the stream ends.

        Raises:
            StreamEnded: always.
        """
        channel = open_channel(address, self._credentials)
        try:
            await connect(channel, address, self._backoff.connect_ms, self._credentials)
            self._executor.attach(self)
            stub = pool_pb2_grpc.PoolStub(channel)  # type: ignore[no-untyped-call]
            await self._serve(stub.Connect())
        except grpc.aio.AioRpcError as error:
            spread = metadata_of(error).get(SPREAD_KEY, "")
            if spread.isdecimal() and len(spread) < 10:
                self._backoff.learn(int(spread))
            raise ended_by(error) from error
        finally:
            self._executor.detach(self)
            self._executor.uploads.detach(self)
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
            async with asyncio.timeout(self._backoff.welcome_ms / 1000):
                return await call.read()
        except TimeoutError:
            raise StreamEnded("no welcome in time", is_late=True) from None

    async def _write(self, call: Any) -> None:
        # If the stream is over, its reader reports why.
        with contextlib.suppress(grpc.aio.BaseError, asyncio.InvalidStateError):
            while (message := await self._outgoing.get()) is not None:
                await call.write(message)
                if message.HasField("recollection") and self._rest is not None:
                    self._executor.inventory(self, self._rest)
            await call.done_writing()

    def _greeted(self, message: Any) -> int:
        """Take the Welcome; return the time between heartbeats in ms."""
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
        if epoch < self._executor.highest:
            raise StreamEnded(f"its epoch {epoch} is older than {self._executor.highest}")
        self.welcomed, self.epoch = True, epoch
        executor = self._executor
        executor.welcome(epoch)
        if welcome.inventory:
            executor.inventory(self, Inventory())
        executor.lease.connected(welcome.self_kill_ms)
        self._backoff.learn(welcome.spread_ms)
        executor.uploads.attach(self, stores=welcome.stores_outputs)
        if self._offers is not None:
            self.offer(self._offers)
        executor.clock_offset_ms = wall_ms() - welcome.wall_ms if welcome.wall_ms else 0
        if abs(executor.clock_offset_ms) > self._config.clock_offset_ms_max:
            log.warning("clock.drifted", offset_ms=executor.clock_offset_ms)
        return max(1, int(welcome.heartbeat_ms))

    async def _read(self, call: Any) -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            self._take(message)
        raise StreamEnded("ended by the replica")

    def _take(self, message: pool_pb2.FromLeader) -> None:
        kind = message.WhichOneof("kind")
        if kind == "orders":
            if self._parked is None:
                self._executor.order(self, message.orders)
            else:  # faster than the first answer: without a lease they would all be refused
                self._parked.append(message.orders)
        elif kind == "heartbeat":
            if self._executor.answered(message.heartbeat.number):
                parked, self._parked = self._parked, None
                for orders in parked or ():
                    self._executor.order(self, orders)
        elif kind == "output":
            chunk = self._executor.output(message.output)
            self._outgoing.put_nowait(pool_pb2.FromExecutor(output=chunk))
        elif kind == "place":
            self._executor.uploads.receive(message.place)
        elif kind == "probe":
            answer = pool_pb2.ProbeAnswer(number=message.probe.number)
            self._outgoing.put_nowait(pool_pb2.FromExecutor(probe=answer))
        elif kind == "goodbye":
            raise _farewell(message.goodbye)

    async def _beat(self, every_ms: int) -> None:
        lease = self._executor.lease
        due_ms = boot_ms()
        clock_ms = wall_ms() - due_ms
        while True:
            now_ms = boot_ms()
            if not self._executor.able.is_set():
                raise StreamEnded("commands of a dead spawner cannot be ended")
            # The next welcome measures the offset anew.
            if abs(wall_ms() - now_ms - clock_ms) > CLOCK_SET_MS:
                raise StreamEnded("this host's clock was set")
            if lease.unanswered_ms(now_ms) > self._backoff.answer_ms:
                raise StreamEnded("heartbeats are not answered")
            if now_ms >= due_ms:
                due_ms = now_ms + every_ms
                running = min(self._executor.running, RUNNING_TOLD_MAX)
                beat = pool_pb2.Heartbeat(
                    number=lease.sent(now_ms),
                    wall_ms=wall_ms(),
                    running=running,
                    is_full=self._executor.is_full,
                    outputs_waiting=self._executor.uploads.waiting,
                    outputs_problem=self._executor.uploads.problem[:PROBLEM_CHARS_MAX],
                    certificate_ends_ms=self._certificate_ends_ms(),
                )
                self._outgoing.put_nowait(pool_pb2.FromExecutor(heartbeat=beat))
            step_s = until_step_s(_ANSWER_LOOK_MS if lease.awaits_answer else _LOOK_MS)
            await asyncio.sleep(min((due_ms - now_ms) / 1000, step_s))

    def _certificate_ends_ms(self) -> int:
        """Return when the certificate in this executor's files ends, 0 without one. It may be newer
        than that of the stream, and is what the next stream begins with."""
        return self._current().not_after_s * 1000 if self._current is not None else 0

    async def _leaving(self) -> None:
        raise StreamEnded(await self._left)


def recollection_of(page: Page) -> pool_pb2.Recollection:
    """Return a page of the ledger as a message, whose rows have names and epochs."""
    return pool_pb2.Recollection(
        reports=[
            pool_pb2.RowReport(
                name=row.name,
                epoch=row.epoch,
                index=row.index,
                row=row.row,
                status=pool_pb2.Status.ValueType(row.status),
                reason=row.reason,
                exit_code=row.exit_code,
                started_ms=row.started_ms,
                finished_ms=row.finished_ms,
                detail=row.detail,
                retry_after_ms=row.retry_after_ms,
                cpu_ms=row.cpu_ms,
                memory_peak_bytes=row.memory_peak_bytes,
                output_bytes=row.output_bytes,
            )
            for row in page.rows
        ],
        last=page.rest is None,
        floor=page.watermark,
    )


def messages_of(changes: Iterable[BatchReport], rows_max: int) -> Iterator[pool_pb2.Reports]:
    """Return messages with changes, of at most `rows_max` rows each. A change is not cut: a leader
    does not begin more rows at once."""
    message, count = pool_pb2.Reports(), 0
    for change in changes:
        size = len(change.rows)
        if count and count + size > rows_max:
            yield message
            message, count = pool_pb2.Reports(), 0
        count += size
        message.batches.add(
            index=change.index,
            status=pool_pb2.Status.ValueType(change.status),
            reason=change.reason,
            exit_code=change.exit_code,
            rows=change.rows,
            started_ms=change.started_ms,
            finished_ms=change.finished_ms,
            output_bytes=change.output_bytes,
            detail=change.detail,
            cpu_ms=change.cpu_ms,
            memory_peak_bytes=change.memory_peak_bytes,
            retry_after_ms=change.retry_after_ms,
            mark=change.mark,
        )
    if count:
        yield message


@lru_cache(maxsize=1)
def _version() -> str:
    try:
        return metadata.version("raftcron")
    except metadata.PackageNotFoundError:
        return "unknown"


def _other_protocol(theirs: int) -> str:
    text = f"the replica speaks {theirs}, and this executor speaks {PROTOCOL}"
    return f"{text}; upgrade {'the replicas' if theirs < PROTOCOL else 'the executor'}"


def _farewell(goodbye: pool_pb2.Goodbye) -> StreamEnded:
    return StreamEnded(goodbye.reason, goodbye.leader, is_drained=goodbye.drained)


def metadata_of(error: grpc.aio.AioRpcError) -> dict[str, str]:
    """Return the text that a replica sent with the end of a stream."""
    return {
        key: value if isinstance(value, str) else value.decode(errors="replace")
        for key, value in error.trailing_metadata() or ()
    }


def ended_by(error: grpc.aio.AioRpcError) -> StreamEnded:
    """Return the end of a stream that gRPC reports."""
    return StreamEnded(
        f"{error.code().name}: {error.details()}",
        metadata_of(error).get(LEADER_KEY, ""),
        is_refusal=error.code() not in _USUAL,
        is_late=error.code() is grpc.StatusCode.CANCELLED,
    )

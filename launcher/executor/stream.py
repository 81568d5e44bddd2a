"""One stream of an executor to a leader: greets it, keeps the lease, carries both ways."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from importlib import metadata
from typing import Any, Final

import grpc
import grpc.aio

from launcher import logs
from launcher.config import ExecutorConfig
from launcher.errors import LauncherError
from launcher.executor.backoff import Backoff
from launcher.executor.channel import NotReached, connected, open_channel
from launcher.executor.clock import boot_ms, wall_ms
from launcher.executor.ledger import Inventory, Page
from launcher.executor.loop import ExecutorLoop
from launcher.executor.resources import UNLIMITED, Capacity
from launcher.executor.rows import Change, Row, changes_of, epoch_of
from launcher.executor.rules import Works
from launcher.executor.uploads import Packed
from launcher.limits import HELLO_ROWS_MAX, REPORTS_PER_MESSAGE_MAX, RUNNING_TOLD_MAX
from launcher.protocol.limits import PROBLEM_CHARS_MAX, PROTOCOL
from launcher.protocol.reports import GroupOffer
from launcher.protocol.v1 import pool_pb2, pool_pb2_grpc
from launcher.protocol.work import Epoch
from launcher.tls import Credentials

log = logs.get()

LEADER_KEY: Final = "raftcron-leader"
SPREAD_KEY: Final = "raftcron-spread-ms"
CLOCK_SET_MS: Final = 1_000
"""A wall clock that moved this far against the boot clock was set, not steered."""
_BEAT_STEP_MS: Final = 100
# Part of looking for the leader: a replica that does not lead, or is not there. INTERNAL is what
# gRPC makes of a refusal that was faster than the call, CANCELLED where too many wait at its
# listener.
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


class LeaderStream:
    """One stream to one replica. Implements the executor's ReportSink."""

    def __init__(
        self,
        config: ExecutorConfig,
        executor: ExecutorLoop,
        incarnation: str,
        credentials: Credentials | None = None,
        backoff: Backoff | None = None,
        room: Capacity = UNLIMITED,
    ) -> None:
        self.works = Works()
        self.welcomed = False
        self.epoch = Epoch()  # that of the leader, once it has said so
        self.ended = asyncio.Event()
        self._config = config
        self._executor = executor
        self._incarnation = incarnation
        self._credentials = credentials
        self._room = room
        self._backoff = backoff or Backoff(config, incarnation)
        self._offers: Sequence[GroupOffer] | None = None
        self._rest: Inventory | None = None
        self._outgoing: asyncio.Queue[pool_pb2.FromExecutor | None] = asyncio.Queue()
        self._left: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._parked: list[pool_pb2.Orders] | None = []

    # ---- the executor's side

    def begin(self, known: list[Row], highest: Epoch) -> None:
        """Send the greeting, with the rows that the leader may ask about."""
        config = self._config
        hello = pool_pb2.Hello(
            cell=config.cell,
            executor=config.id,
            ledger=self._executor.ledger_uuid,
            incarnation=self._incarnation,
            highest_epoch=pool_pb2.Epoch(
                generation=highest.generation, term=highest.term, replica=highest.replica
            ),
            slots=config.slots,
            host=socket.gethostname() or "unknown",
            pid=os.getpid(),
            version=_version(),
            labels=config.labels,
            can_inventory=True,
            cpu_milli=self._room.cpu_milli,
            memory_bytes=self._room.memory_bytes,
            protocol=PROTOCOL,
            wall_ms=wall_ms(),
        )
        for reports in messages_of(changes_of(known[:HELLO_ROWS_MAX]), HELLO_ROWS_MAX):
            hello.known.CopyFrom(reports)
        self._outgoing.put_nowait(pool_pb2.FromExecutor(hello=hello))
        self.send(changes_of(known[HELLO_ROWS_MAX:]))

    def send(self, changes: list[Change]) -> None:
        """Report what became of rows, of a bounded number in one message."""
        for reports in messages_of(changes, REPORTS_PER_MESSAGE_MAX):
            self._outgoing.put_nowait(pool_pb2.FromExecutor(reports=reports))

    def offer(self, offers: Sequence[GroupOffer]) -> None:
        """Tell what the workers of this host serve, once the leader has welcomed this executor."""
        if not self.welcomed:
            self._offers = offers
            return
        message = pool_pb2.Offers(
            offers=[
                pool_pb2.Offer(group=one.group, slots=one.slots, handlers=one.handlers)
                for one in offers
            ]
        )
        self._outgoing.put_nowait(pool_pb2.FromExecutor(offers=message))

    def recollect(self, page: Page) -> None:
        """Tell a page of what the ledger remembers; the rest is asked for when it has left."""
        self._rest = page.rest
        recollection = recollection_of(page)
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
            await connected(channel, address, self._backoff.connect_ms, self._credentials)
            self._executor.attach(self)
            stub = pool_pb2_grpc.PoolStub(channel)  # type: ignore[no-untyped-call]
            await self._serve(stub.Connect())
        except NotReached as error:
            text, is_late = str(error), error.is_late
            raise StreamEnded(text, is_distrust=error.is_distrust, is_late=is_late) from None
        except grpc.aio.AioRpcError as error:
            self._backoff.learn(_spread_ms(error, self._backoff.spread_ms))
            text = f"{error.code().name}: {error.details()}"
            is_refusal = error.code() not in _USUAL
            is_late = error.code() is grpc.StatusCode.CANCELLED
            raise StreamEnded(text, _hint(error), is_refusal=is_refusal, is_late=is_late) from error
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
        # Where the stream is over, whoever reads says why.
        with contextlib.suppress(grpc.aio.BaseError, asyncio.InvalidStateError):
            while (message := await self._outgoing.get()) is not None:
                await call.write(message)
                if message.HasField("recollection") and self._rest is not None:
                    self._executor.inventory(self, self._rest)
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
            else:
                self._parked.append(message.orders)
        elif kind == "heartbeat":
            if self._executor.answered(message.heartbeat.number):
                self._unpark()
        elif kind == "output":
            chunk = self._executor.output(message.output)
            self._outgoing.put_nowait(pool_pb2.FromExecutor(output=chunk))
        elif kind == "place":
            self._executor.uploads.placed(message.place)
        elif kind == "probe":
            answer = pool_pb2.ProbeAnswer(number=message.probe.number)
            self._outgoing.put_nowait(pool_pb2.FromExecutor(probe=answer))
        elif kind == "goodbye":
            raise _farewell(message.goodbye)

    def _unpark(self) -> None:
        # Orders may be faster than the first answer; without a lease they would all be refused.
        parked, self._parked = self._parked, None
        for orders in parked or ():
            self._executor.order(self, orders)

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
                )
                self._outgoing.put_nowait(pool_pb2.FromExecutor(heartbeat=beat))
            await asyncio.sleep(min(due_ms - now_ms, _BEAT_STEP_MS) / 1000)

    async def _leaving(self) -> None:
        raise StreamEnded(await self._left)


def recollection_of(page: Page) -> pool_pb2.Recollection:
    """Return what a leader is told that may not know where the rows come from."""
    return pool_pb2.Recollection(
        reports=[
            pool_pb2.Report(
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
        floor=page.floor,
    )


def messages_of(changes: Iterable[Change], rows_max: int) -> Iterator[pool_pb2.Reports]:
    """Return messages of at most `rows_max` rows each with what became of rows. A change is not
    cut: the rows of one batch are no more than a leader begins at once."""
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

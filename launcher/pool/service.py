"""The gRPC face of the pool: the streams of executors, on the replica's one server.

`Connect`, one stream per executor, carries the work; `WatchLeader` only says who leads. A stream of
`Connect` has two tasks, a reader and a writer; both only move messages between gRPC and the
session. Whoever ends a session (either task, the leader, a newer stream) calls `Session.end`. The
handler then gives the writer a moment for the Goodbye, stops both tasks and sets the status.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Never

import grpc
import structlog
from google.protobuf.message import DecodeError

from launcher.pool import limits
from launcher.pool.errors import NotLeading, Refused
from launcher.pool.outbox import encode_epoch
from launcher.pool.pool import Pool
from launcher.pool.session import End, Session
from launcher.pool.turns import NEWER, Turn, Turns
from launcher.protocol.names import NAME_PART_CHARS_MAX
from launcher.protocol.reading import BadMessage, parse_hello
from launcher.protocol.v1 import pool_pb2, pool_pb2_grpc

LEADER_METADATA: Final = "raftcron-leader"
"""Trailing metadata that names the leader's address where this replica does not lead."""
SPREAD_METADATA: Final = "raftcron-spread-ms"
"""Trailing metadata: over how long the executors of a large cell are to spread their return."""

log = structlog.get_logger()

Context = grpc.aio.ServicerContext[pool_pb2.FromExecutor, pool_pb2.FromLeader]
WatchContext = grpc.aio.ServicerContext[pool_pb2.WatchRequest, pool_pb2.Leadership]
Requests = AsyncIterator[pool_pb2.FromExecutor]
AuthenticatedId = Callable[[grpc.aio.ServicerContext[Any, Any]], str]
"""Returns the id of the executor that a caller's certificate is of."""


class PoolServicer(pool_pb2_grpc.PoolServicer):
    """Serves `raftcron.pool.v1.Pool` from a `Pool`.

    `leader_address` returns the leader's address while this replica follows. `authenticated_id` is
    None if callers have no certificates.
    """

    def __init__(
        self,
        pool: Pool,
        leader_address: Callable[[], str | None],
        authenticated_id: AuthenticatedId | None = None,
    ) -> None:
        self._pool = pool
        self._leader_address = leader_address
        self._authenticated_id = authenticated_id
        self._noted = ""
        self._turns = Turns()

    async def Connect(self, request_iterator: Requests, context: Context) -> None:  # noqa: N802
        """Serve one executor until its session is over."""
        session = await self._greet(request_iterator, context)
        reader = asyncio.create_task(self._read(session, request_iterator), name="pool.reader")
        writer = asyncio.create_task(self._write(session, context), name="pool.writer")
        try:
            await session.over.wait()
            await asyncio.wait({writer}, timeout=limits.GOODBYE_WITHIN_MS / 1000)
        finally:
            # Also when gRPC cancels this handler: the executor is gone, or the server stops.
            self._pool.drop(session, End(grpc.StatusCode.CANCELLED, "the stream broke"))
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
        end = session.ended
        if end is None or end.code is grpc.StatusCode.OK:
            return
        try:
            # The status queues behind the one message that gRPC may have taken and the executor
            # not read, so this may wait for as long as the connection lasts.
            if end.code is grpc.StatusCode.FAILED_PRECONDITION:
                await self._abort_not_leading(context, end.reason, end.leader)
            await context.abort(end.code, end.reason)
        except grpc.aio.InternalError:
            # An executor that has gone needs no status; gRPC would log a page for each of them.
            log.debug("executor.gone", executor=session.executor)

    async def WatchLeader(  # noqa: N802
        self, request: pool_pb2.WatchRequest, context: WatchContext
    ) -> AsyncIterator[pool_pb2.Leadership]:
        """Send an executor whether this replica leads, at once and after each change."""
        check = self._authenticated_id
        caller = check(context) if check is not None else request.executor
        if request.cell != self._pool.cell or not 0 < len(request.executor) <= NAME_PART_CHARS_MAX:
            text = f"this is cell {self._pool.cell}, and a caller names itself and its cell"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        if caller != request.executor:
            text = _of_another(caller, request.executor)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
        watcher = self._pool.watchers.enter(caller, self._pool.executors_max)
        if watcher is None:
            text = f"{self._pool.executors_max} executors watch this replica already"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        sent: pool_pb2.Leadership | None = None
        try:
            while not watcher.is_over:
                watcher.changed.clear()
                epoch = self._pool.epoch
                view = (
                    pool_pb2.Leadership(epoch=encode_epoch(epoch))
                    if epoch is not None
                    else pool_pb2.Leadership(leader=self._leader_address() or "")
                )
                if view != sent:
                    sent = view
                    yield view
                await watcher.changed.wait()
        finally:
            self._pool.watchers.leave(watcher)

    async def _greet(self, requests: Requests, context: Context) -> Session:
        """Return the session of a Hello that is in order, or abort the stream."""
        try:
            return await self._admit(requests, context)
        except NotLeading as error:
            await self._abort_not_leading(context, str(error))
        except (BadMessage, Refused) as error:
            code = error.code if isinstance(error, Refused) else "INVALID_ARGUMENT"
            # A refusal that a person has to end is logged once: executors try again and again.
            if code != "DEADLINE_EXCEEDED" and str(error) != self._noted:
                self._noted = str(error)
                log.warning("executor.refused", address=_address(context.peer()), error=str(error))
            await context.abort(grpc.StatusCode[code], str(error))

    async def _admit(self, requests: Requests, context: Context) -> Session:
        """Read a Hello in its turn, which lasts until the session has a lease or is over.

        Raises:
            NotLeading, BadMessage, Refused: the stream gets no session. The code is
                DEADLINE_EXCEEDED if no Hello came in time, or a newer stream of the same caller.
        """
        check = self._authenticated_id
        caller = check(context) if check is not None else ""
        turn: Turn | None = None
        try:
            try:
                async with asyncio.timeout(None) as limit:
                    turn = await self._turns.take(caller, limit)
                    first = await _next(requests)
            except TimeoutError as error:
                text = turn.reason if turn is not None else NEWER
                raise Refused("DEADLINE_EXCEEDED", text) from error
            if first is None:
                raise Refused("DEADLINE_EXCEEDED", "it ended its stream before its Hello")
            if self._pool.epoch is None:
                # Only now: gRPC loses the status of a stream that ends while its Hello is sent,
                # and with it the leader's address.
                raise NotLeading
            kind = first.WhichOneof("kind")
            if kind != "hello":
                raise BadMessage(kind or "hello", "the first message must be Hello")
            greeting = parse_hello(first.hello, self._pool.cell)
            self._turns.greeted(turn)
            if check is not None and caller != greeting.executor:
                raise Refused("PERMISSION_DENIED", _of_another(caller, greeting.executor))
            session = self._pool.join(greeting, _address(context.peer()))
        except BaseException:
            if turn is not None:
                self._turns.give_back(turn)
            raise
        session.when_leased_or_over(functools.partial(self._turns.give_back, turn))
        return session

    async def _read(self, session: Session, requests: Requests) -> None:
        """Pass on what the executor sends until it stops, errs, or is silent for a whole lease."""
        silence_ms = self._pool.lease.give_up_ms
        try:
            while not session.ended:
                async with asyncio.timeout(silence_ms / 1000):
                    message = await _next(requests)
                if message is None:
                    # Requests of a stream that broke end as well, just before gRPC cancels us.
                    await asyncio.sleep(limits.BREAKS_WITHIN_MS / 1000)
                    self._pool.drop(session, End(grpc.StatusCode.OK, "it ended its stream"))
                    return
                self._pool.receive(session, message)
        except TimeoutError:
            reason = f"silent for {silence_ms} ms"
            self._pool.drop(session, End(grpc.StatusCode.DEADLINE_EXCEEDED, reason))
        except BadMessage as error:
            self._pool.drop(session, End(grpc.StatusCode.INVALID_ARGUMENT, str(error)))
        except Exception as error:  # noqa: BLE001 - top of a task; _fail logs
            self._fail(session, error)

    async def _write(self, session: Session, context: Context) -> None:
        """Send what the session has, one message at a time, so that its end cuts off the rest."""
        # A heartbeat's answer behind this would come too late to be worth anything.
        patience_ms = self._pool.lease.self_kill_ms
        try:
            while True:
                await session.wake.wait()
                session.wake.clear()
                while (message := session.next_message()) is not None:
                    async with asyncio.timeout(patience_ms / 1000):
                        await context.write(message)
                if session.ended:
                    return
        except TimeoutError:
            reason = f"does not read: a message waited {patience_ms} ms"
            self._pool.drop(session, End(grpc.StatusCode.RESOURCE_EXHAUSTED, reason))
        except Exception as error:  # noqa: BLE001 - top of a task; _fail logs
            self._fail(session, error)

    def _fail(self, session: Session, error: Exception) -> None:
        """End a session whose task met an error; a stream that broke is no surprise."""
        if isinstance(error, grpc.aio.BaseError | asyncio.InvalidStateError):
            self._pool.drop(session, End(grpc.StatusCode.UNAVAILABLE, "the stream broke"))
            return
        log.error("executor.stream_failed", executor=session.executor, exc_info=error)
        self._pool.drop(session, End(grpc.StatusCode.INTERNAL, f"the leader failed: {error!r}"))

    async def _abort_not_leading(self, context: Context, text: str, leader: str = "") -> Never:
        address = leader or self._leader_address()
        metadata = [(LEADER_METADATA, address)] if address else []
        if spread_ms := self._pool.spread_ms:
            metadata.append((SPREAD_METADATA, str(spread_ms)))
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text, tuple(metadata))


def add_pool_service(
    server: grpc.aio.Server,
    pool: Pool,
    leader_address: Callable[[], str | None],
    authenticated_id: AuthenticatedId | None = None,
) -> None:
    """Serve `pool` on a `grpc.aio` server; see PoolServicer."""
    servicer = PoolServicer(pool, leader_address, authenticated_id)
    pool_pb2_grpc.add_PoolServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]


def _of_another(caller: str, executor: str) -> str:
    return f"the certificate is of executor {caller}, not of {executor}"


async def _next(requests: Requests) -> pool_pb2.FromExecutor | None:
    """Return the next message, None after the last.

    Raises:
        BadMessage: the bytes are no message at all.
    """
    try:
        return await anext(requests)
    except StopAsyncIteration:
        return None
    except DecodeError as error:
        raise BadMessage("message", "cannot be decoded") from error


def _address(peer: str) -> str:
    """Return gRPC's `ipv4:127.0.0.1:7000` without the kind of address in front."""
    return peer.removeprefix("ipv4:").removeprefix("ipv6:").replace("%5B", "[").replace("%5D", "]")

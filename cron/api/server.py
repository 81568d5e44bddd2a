"""The API's server: gRPC in, the daemon's Backend behind it, for each row of `cron.api.table`.

A request is bounded and brought into its canonical form here, before the Backend sees it. Every
refusal goes through `cron.api.status`. An error that is not a CronError is a bug: the server logs
it whole, and tells the client no more than that it happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final, NoReturn, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError

from cron import limits
from cron.api.checks import checked
from cron.api.reading import reading, to_metadata
from cron.api.rpc import Backend, Request, Rpc, Where
from cron.api.status import PEERS, Metadata, to_refusal
from cron.api.table import TABLE
from cron.api.translate import (
    SERVICE,
    answer_class,
    message_class,
    page_of,
    to_message,
    to_view,
)
from cron.errors import CronError, InvalidInput

log = structlog.get_logger()

T = TypeVar("T")

PAGE_ROWS: Final = 200
"""Rows in one message of a stream, and in a list that is translated on the loop: a few ms of the
loop that also ticks."""

SERVER_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", limits.RPC_BYTES_MAX),
    ("grpc.max_send_message_length", limits.RPC_BYTES_MAX),
    # Without this a second daemon on the same port would quietly take half of the connections.
    ("grpc.so_reuseport", 0),
    # Watching streams say nothing for days. Executors ask by pings whether the replica is there,
    # and the replica whether they are; gRPC by itself takes such pings for an attack.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
_CODES: Final[dict[int, grpc.StatusCode]] = {int(one.value[0]): one for one in grpc.StatusCode}

Context = grpc.aio.ServicerContext[Any, Any]


def add_admin(
    server: grpc.aio.Server,
    backend: Backend,
    peers: Callable[[], Sequence[str]] = tuple,
    calls: Iterable[Rpc[Any, Any]] = tuple(TABLE.values()),
) -> None:
    """Add the API to a server that was made with SERVER_OPTIONS and is not started yet.

    `peers` returns the client addresses of the cell's replicas. A client that makes a call that is
    not among `calls` goes on to another replica.
    """
    answers = _Answers(backend, peers)
    handlers = {}
    for rpc in calls:
        make = (
            grpc.unary_stream_rpc_method_handler
            if rpc.is_stream
            else grpc.unary_unary_rpc_method_handler
        )
        handlers[rpc.name] = make(
            answers.stream(rpc) if rpc.is_stream else answers.unary(rpc),
            request_deserializer=_reader(rpc.request),
            response_serializer=answer_class(rpc).SerializeToString,
        )
    generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
    server.add_generic_rpc_handlers((generic,))


async def refuse(context: Context, error: CronError, more: Metadata = ()) -> NoReturn:
    """End a call with an error; `more` goes into the trailing metadata beside it."""
    refusal = to_refusal(error)
    await context.abort(_CODES[refusal.code], refusal.message, (*refusal.metadata, *more))


class _Answers:
    """Answers the calls to one replica."""

    def __init__(self, backend: Backend, peers: Callable[[], Sequence[str]]) -> None:
        self._backend = backend
        self._peers = peers
        self._changes: set[asyncio.Task[Any]] = set()

    def unary(self, rpc: Rpc[Any, Any]) -> Callable[[Any, Context], Any]:
        """Return what gRPC calls for a call with one answer."""

        async def call(message: Any, context: Context) -> Any:
            answer = await self._ended(context, self._answer(rpc, message, context))
            # 100,000 rows take a second to translate: not on the loop that ticks.
            values = (getattr(answer, field) for field in answer.__struct_fields__)
            if any(isinstance(value, list) and len(value) > PAGE_ROWS for value in values):
                return await asyncio.to_thread(to_message, answer)
            return to_message(answer)

        return call

    def stream(self, rpc: Rpc[Any, Any]) -> Callable[[Any, Context], AsyncIterator[Any]]:
        """Return what gRPC calls for a call that is answered with pages of rows."""
        page = page_of(rpc.view)

        async def call(message: Any, context: Context) -> AsyncIterator[Any]:
            answer = await self._ended(context, self._answer(rpc, message, context))
            pages = _pages(answer).__aiter__()
            while (rows := await self._ended(context, anext(pages, None))) is not None:
                yield to_message(page(rows))

        return call

    async def _answer(self, rpc: Rpc[Any, Any], message: Any, context: Context) -> Any:
        """Return what the Backend answers.

        A change goes on to its end even when the client gives up: half of an apply must not stay
        behind because somebody pressed Ctrl-C.
        """
        with reading(context.invocation_metadata() or ()) as read:
            answer = self._backend.answer(rpc, _request(message, rpc))
            if rpc.where is not Where.CHANGE:
                result = await answer
            else:
                task: asyncio.Task[Any] = asyncio.ensure_future(answer)
                self._changes.add(task)
                task.add_done_callback(self._changes.discard)
                try:
                    result = await asyncio.shield(task)
                except asyncio.CancelledError:
                    task.add_done_callback(_log_abandoned)
                    raise
        if read.behind is not None:
            context.set_trailing_metadata(to_metadata(read.behind))
        return result

    async def _ended(self, context: Context, answer: Any) -> Any:
        """Return what is awaited, or end the call with the error that it raises."""
        try:
            return await answer
        except CronError as error:
            refused = error
        except Exception as error:  # the top of a request: a bug ends it, not the replica
            log.exception("request.failed", error=str(error))
            await context.abort(grpc.StatusCode.INTERNAL, "a bug ended the request; see the log")
        peers = self._peers()
        await refuse(context, refused, ((PEERS, ",".join(peers)),) if peers else ())


async def _pages(answer: list[T] | AsyncIterator[T]) -> AsyncIterator[list[T]]:
    """Yield the rows of an answer: a list in pages, and those that take time one by one."""
    if isinstance(answer, list):
        for first in range(0, len(answer), PAGE_ROWS):
            yield answer[first : first + PAGE_ROWS]
    else:
        async for row in answer:
            yield [row]


def _reader(request: type[Request]) -> Callable[[bytes], Any]:
    """Return what reads the message of a request; it returns None for bytes that are none. gRPC
    would report an error here as a bug of the server, and log it whole."""
    message = message_class(request)

    def read(content: bytes) -> Any:
        try:
            return message.FromString(content)
        except DecodeError:
            return None

    return read


def _request(message: Any, rpc: Rpc[Any, Any]) -> Any:
    """Return the request that a message stands for, in its canonical form.

    Raises:
        InvalidInput, LimitExceeded: it could not be read, or is not allowed.
    """
    if message is None:
        raise InvalidInput(
            f"{rpc.name}: the message is not a {rpc.request.__name__}",
            "write it as admin.proto says, or use the client of the replica's release",
        )
    return checked(to_view(message, rpc.request))


def _log_abandoned(task: asyncio.Task[Any]) -> None:
    """Tell what became of a change whose client had gone."""
    if not task.cancelled() and task.exception() is not None:
        log.warning("request.abandoned", error=str(task.exception()))

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
import msgspec
import structlog

from cron import limits
from cron.api.checks import checked
from cron.api.reading import BEHIND, reading
from cron.api.rpc import Backend, Request, Rpc, Where, decode, encode
from cron.api.status import to_refusal
from cron.api.table import TABLE
from cron.errors import CronError, InvalidInput
from launcher.grpc_settings import OPTIONS

log = structlog.get_logger()

T = TypeVar("T")

PAGE_ROWS: Final = 200
"""Rows in one message of a stream."""

SERVER_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    *OPTIONS,
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
    services: dict[str, dict[str, Any]] = {}
    for rpc in calls:
        make = (
            grpc.unary_stream_rpc_method_handler
            if rpc.is_stream
            else grpc.unary_unary_rpc_method_handler
        )
        services.setdefault(rpc.service, {})[rpc.name] = make(
            answers.stream(rpc) if rpc.is_stream else answers.unary(rpc),
            request_deserializer=_reader(rpc),
            response_serializer=encode,
        )
    generic = [grpc.method_handlers_generic_handler(*one) for one in services.items()]
    server.add_generic_rpc_handlers(tuple(generic))


async def refuse(context: Context, error: CronError, peers: Sequence[str] = ()) -> NoReturn:
    """End a call with an error; `peers` are the client addresses of the cell's replicas."""
    code, message, metadata = to_refusal(error, peers)
    await context.abort(_CODES[code], message, tuple(metadata))


class _Answers:
    """Answers the calls to one replica."""

    def __init__(self, backend: Backend, peers: Callable[[], Sequence[str]]) -> None:
        self._backend = backend
        self._peers = peers
        self._changes: set[asyncio.Task[Any]] = set()

    def unary(self, rpc: Rpc[Any, Any]) -> Callable[[Any, Context], Any]:
        """Return what gRPC calls for a call with one answer."""

        async def call(request: Any, context: Context) -> Any:
            return await self._ended(context, self._answer(rpc, request, context))

        return call

    def stream(self, rpc: Rpc[Any, Any]) -> Callable[[Any, Context], AsyncIterator[Any]]:
        """Return what gRPC calls for a call that is answered with pages of rows."""

        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            answer = await self._ended(context, self._answer(rpc, request, context))
            pages = _pages(answer).__aiter__()
            while (rows := await self._ended(context, anext(pages, None))) is not None:
                yield rows

        return call

    async def _answer(self, rpc: Rpc[Any, Any], request: Any, context: Context) -> Any:
        """Return what the Backend answers.

        A change goes on to its end even when the client gives up: half of an apply must not stay
        behind because somebody pressed Ctrl-C.
        """
        with reading(context.invocation_metadata() or ()) as read:
            answer = self._backend.answer(rpc, _canonical(request))
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
            context.set_trailing_metadata(((BEHIND, encode(read.behind).decode()),))
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
        await refuse(context, refused, self._peers())


async def _pages(answer: list[T] | AsyncIterator[T]) -> AsyncIterator[list[T]]:
    """Yield the rows of an answer: a list in pages, and those that take time one by one."""
    if isinstance(answer, list):
        for first in range(0, len(answer), PAGE_ROWS):
            yield answer[first : first + PAGE_ROWS]
    else:
        async for row in answer:
            yield [row]


def _reader(rpc: Rpc[Any, Any]) -> Callable[[bytes], Request | InvalidInput]:
    """Return what reads the message of a request; where it is none it returns the error. gRPC would
    report an error that is raised here as a bug of the server, and log it whole."""

    def read(content: bytes) -> Request | InvalidInput:
        try:
            request: Request = decode(content, rpc.request)
        except msgspec.DecodeError as error:
            return InvalidInput(
                f"{rpc.name}: the message is not a {rpc.request.__name__}: {error}",
                "write it as schema.json says, or use the client of the replica's release",
            )
        return request

    return read


def _canonical(request: Request | InvalidInput) -> Request:
    """Return a request in its canonical form.

    Raises:
        InvalidInput, LimitExceeded: it could not be read, or is not allowed.
    """
    if isinstance(request, InvalidInput):
        raise request
    return checked(request)


def _log_abandoned(task: asyncio.Task[Any]) -> None:
    """Tell what became of a change whose client had gone."""
    if not task.cancelled() and task.exception() is not None:
        log.warning("request.abandoned", error=str(task.exception()))

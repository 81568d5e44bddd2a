"""The API's server: gRPC in, the daemon's Backend behind it, for each row of `cron.api.table`.

A request is bounded and brought into its canonical form here, before the Backend sees it. Every
refusal goes through `cron.api.status`. An error that is not a CronError is a bug: the server logs
it whole, and tells the client no more than that it happened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NoReturn

import grpc
import msgspec
import structlog

from cron import limits
from cron.api.calls import Calls, pages_of
from cron.api.checks import checked
from cron.api.reading import BEHIND, reading
from cron.api.rpc import Backend, Request, Rpc, decode, encode
from cron.api.status import to_refusal
from cron.api.table import TABLE
from cron.errors import CronError, InvalidInput
from launcher.grpc_settings import OPTIONS

log = structlog.get_logger()

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
) -> None:
    """Add the API to a server that was made with SERVER_OPTIONS and is not started yet. `peers`
    returns the client addresses of the cell's replicas."""
    answers = _Answers(backend, peers)
    services: dict[str, dict[str, Any]] = {}
    for rpc in TABLE.values():
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
        self._calls = Calls(backend)
        self._peers = peers

    def unary(self, rpc: Rpc[Any, Any]) -> Callable[[Any, Context], Any]:
        """Return what gRPC calls for a call with one answer."""

        async def call(request: Any, context: Context) -> Any:
            return await self._ended(context, self._answer(rpc, request, context))

        return call

    def stream(self, rpc: Rpc[Any, Any]) -> Callable[[Any, Context], AsyncIterator[Any]]:
        """Return what gRPC calls for a call that is answered with pages of rows."""

        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            answer = await self._ended(context, self._answer(rpc, request, context))
            pages = pages_of(answer).__aiter__()
            while (rows := await self._ended(context, anext(pages, None))) is not None:
                yield rows

        return call

    async def _answer(self, rpc: Rpc[Any, Any], request: Any, context: Context) -> Any:
        """Return what the Backend answers to a request in its canonical form.

        Raises:
            InvalidInput, LimitExceeded: it could not be read, or is not allowed. And what the
                Backend raises.
        """
        with reading(context.invocation_metadata() or ()) as read:
            if isinstance(request, InvalidInput):
                raise request
            result = await self._calls.answer(rpc, checked(request))
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

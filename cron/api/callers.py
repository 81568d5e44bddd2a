"""Who calls, and what they may: every call to a replica that has certificates passes here first.

TLS proves that a caller's certificate is one of the cell's authority; what it says is read here.
`may` decides by role, as `cron.api.table` says.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import grpc
import msgspec
import structlog

from cron.api.connections import ConnectionWatch
from cron.api.rpc import SERVICE, Request
from cron.api.server import refuse
from cron.api.table import TABLE
from cron.errors import CronError, NotAllowed, NotAuthenticated
from launcher.identity import EXECUTOR, PERSON, REPLICA, Identity, only_identity

log = structlog.get_logger()

TLS_VERSION: Final = b"TLSv1.3"
ADMIN: Final = f"/{SERVICE}/"
POOL: Final = "/raftcron.pool.v1.Pool/"

Context = grpc.aio.ServicerContext[Any, Any]
Properties = Mapping[str, Iterable[bytes]]


def may(kind: str, method: str) -> bool:
    """Whether a certificate of this kind may call `/package.Service/Method`."""
    if method.startswith(POOL):
        return kind == EXECUTOR
    rpc = TABLE.get(method.rpartition("/")[2])
    return rpc is not None and rpc.path == method and kind in rpc.roles


def caller_of(properties: Properties, cell: str) -> Identity:
    """Return who calls, from what TLS proved of the connection.

    Raises:
        NotAuthenticated: TLS is too old, the certificate states nobody, or somebody of another
            cell.
    """
    if list(properties.get("ssl_tls_version", ())) != [TLS_VERSION]:
        raise NotAuthenticated("the connection is not TLS 1.3", "upgrade the client's TLS library")
    identity = _stated(properties)
    hint = "`raftcron certs issue` makes certificates; `raftcron certs show` tells what one says"
    if identity is None:
        raise NotAuthenticated("the certificate states no raftcron:// identity", hint)
    if identity.cell != cell:
        text = f"the certificate is of {identity}; this is cell {cell}"
        raise NotAuthenticated(text, "ask a replica of that cell, or use this one's certificate")
    return identity


def _stated(properties: Properties) -> Identity | None:
    return only_identity(uri.decode(errors="replace") for uri in properties.get("peer_uri", ()))


def name_of(identity: Identity) -> str:
    """Return how the record names who made a change: people by their name alone."""
    return identity.name if identity.kind == PERSON else f"{identity.kind} {identity.name}"


def executor_of(context: Context) -> str:
    """Return the one executor that a caller whom the Guard let through may be."""
    identity = _stated(context.auth_context())
    return identity.name if identity is not None and identity.kind == EXECUTOR else ""


class Guard(grpc.aio.ServerInterceptor):
    """Stands before all services of a replica's server: refuses who may not, and writes who asks
    over what a request says of it. Without a cell nobody is refused: there are no certificates."""

    def __init__(self, cell: str | None, watch: ConnectionWatch | None = None) -> None:
        self._cell = cell
        self._watch = watch
        self._noted = ""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of a call behind this guard; None where there is none."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        kind = "_".join(
            "stream" if streams else "unary"
            for streams in (handler.request_streaming, handler.response_streaming)
        )
        guarded = self._guarded(getattr(handler, kind), str(handler_call_details.method))
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(guarded, handler.request_deserializer, handler.response_serializer)

    def _guarded(self, served: Callable[..., Any], method: str) -> Callable[..., Any]:
        async def answer(request: Any, context: Context) -> Any:
            return await served(await self._admitted(request, context, method), context)

        async def answers(request: Any, context: Context) -> AsyncIterator[Any]:
            async for one in served(await self._admitted(request, context, method), context):
                yield one

        return answers if inspect.isasyncgenfunction(served) else answer

    async def _admitted(self, request: Any, context: Context, method: str) -> Any:
        """Return the request of a caller who may, signed; else end the call."""
        if self._cell is None:
            if self._watch is not None:
                self._watch.note(context.peer())
            return request
        try:
            caller = caller_of(context.auth_context(), self._cell)
            if self._watch is not None:
                self._watch.note(context.peer(), str(caller))
            if not may(caller.kind, method):
                service, _, call = method.strip("/").partition("/")
                is_peer = caller.kind == REPLICA and method.startswith(ADMIN)
                denied = call if is_peer else service.rpartition(".")[2]
                hint = "people and executors have certificates of their own; `raftcron certs issue`"
                raise NotAllowed(f"{caller} may not use {denied}", hint)
        except CronError as error:
            self._note(context, error)
            await refuse(context, error)
        if isinstance(request, Request) and "by" in request.__struct_fields__:
            return msgspec.structs.replace(request, by=name_of(caller))
        return request

    def _note(self, context: Context, error: CronError) -> None:
        """Log a refusal that a person has to end; some clients try again several times a second."""
        if str(error) != self._noted:
            self._noted = str(error)
            log.warning("caller.refused", address=context.peer(), error=str(error))

"""Who calls: every gRPC call to a replica passes here first.

TLS proves that a caller's certificate is one of the cell's authority; what it says is read here.
`may` decides which kinds of certificates a service is for, and `cron.api.admission` what the roles
of a person or a token allow.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import ssl
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
)
from functools import lru_cache
from typing import Any, Final

import grpc
import structlog

from cron.access import AccessRules
from cron.api.admission import Admission, Shown
from cron.api.connections import ConnectionWatch
from cron.api.reading import ADDRESS, AUTHORIZATION, ON_BEHALF
from cron.api.rpc import SERVICE, Request, Rpc
from cron.api.server import refuse
from cron.api.table import TABLE
from cron.clock import SystemClock
from cron.errors import CronError, NotAllowed, NotAuthenticated
from launcher.identity import (
    EXECUTOR,
    PERSON,
    REPLICA,
    Identity,
    certificate_digest,
    is_name,
    only_identity,
)

log = structlog.get_logger()

TLS_VERSION: Final = b"TLSv1.3"
ADMIN: Final = f"/{SERVICE}/"
RECHECK_S: Final = 2.0
"""How often a stream that is open is asked whether its caller may still see it."""
BY_PATH: Final[dict[str, Rpc[Any, Any]]] = {rpc.path: rpc for rpc in TABLE.values()}
_FROM: Final = re.compile(r"http:[0-9A-Za-z.:%]{1,60}", re.ASCII)
POOL: Final = "/raftcron.pool.v1.Pool/"
HEALTH: Final = "/grpc.health.v1.Health/"

Context = grpc.aio.ServicerContext[Any, Any]
Properties = Mapping[str, Iterable[bytes]]


def may(kind: str, method: str) -> bool:
    """Whether a certificate of this kind may call `/package.Service/Method`."""
    if method.startswith(POOL):
        return kind == EXECUTOR
    if method.startswith(HEALTH):
        return kind in (EXECUTOR, PERSON, REPLICA)
    rpc = BY_PATH.get(method)
    return rpc is not None and kind in rpc.roles


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


@lru_cache(maxsize=1_024)
def _digest(pem: bytes) -> str:
    return certificate_digest(ssl.PEM_cert_to_DER_cert(pem.decode()))


def certificate_of(properties: Properties) -> str:
    """Return the SHA-256 (hex) of the certificate that TLS proved; "" if it proved none."""
    return next(map(_digest, properties.get("x509_pem_cert", ())), "")


def executor_of(context: Context) -> str:
    """Return the one executor that a caller whom the Guard let through may be."""
    identity = _stated(context.auth_context())
    return identity.name if identity is not None and identity.kind == EXECUTOR else ""


def _said(context: Context) -> dict[str, Any]:
    """Return the metadata of a call."""
    return dict(context.invocation_metadata() or ())


def _on_behalf(said: Mapping[str, Any], caller: Identity) -> Identity:
    """Return who calls: the person whose call another replica forwards, if it says so. A replica
    may be believed: it could write to the log what it wants."""
    named = said.get(ON_BEHALF)
    if caller.kind == REPLICA and named is not None and is_name(str(named)):
        return Identity(caller.cell, PERSON, str(named))
    return caller


def _address(said: Mapping[str, Any], caller: Identity | None, peer: str) -> str:
    """Return where a call comes from, by the word of a replica that forwards it."""
    address = str(said.get(ADDRESS, ""))
    is_believed = caller is None or caller.kind == REPLICA
    return address if is_believed and _FROM.fullmatch(address) else peer


def open_admission(cell: str, *, is_open: bool) -> Admission:
    """Return what decides over calls where no roles and tokens are known: only certificates do."""
    rules = AccessRules()
    return Admission(cell, lambda: rules, SystemClock().wall_ms, is_open=is_open)


class Guard(grpc.aio.ServerInterceptor):
    """Stands before all services of a replica's server: refuses callers who may not, and writes who
    asks over what a request says of it. Without a cell there are no certificates, and nobody who
    shows no token is refused."""

    def __init__(
        self,
        cell: str | None,
        watch: ConnectionWatch | None = None,
        admission: Admission | None = None,
        recheck_s: float = RECHECK_S,
    ) -> None:
        self._cell = cell
        self._watch = watch
        self._admission = admission or open_admission(cell or "", is_open=cell is None)
        self._recheck_s = recheck_s
        self._noted = ""
        self._handlers: dict[str, tuple[Any, Any]] = {}  # by method: bare, and behind this guard

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of a call behind this guard; None where there is none."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method)
        bare, guarded = self._handlers.get(method, (None, None))
        if bare is not handler:
            guarded = self._behind(handler, method)
            self._handlers[method] = (handler, guarded)
        return guarded

    def _behind(self, handler: Any, method: str) -> Any:
        """Return a handler that admits a call before the one of the service answers it."""
        kind = "_".join(
            "stream" if streams else "unary"
            for streams in (handler.request_streaming, handler.response_streaming)
        )
        guarded = self._guarded(getattr(handler, kind), method)
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(guarded, handler.request_deserializer, handler.response_serializer)

    def _guarded(self, served: Callable[..., Any], method: str) -> Callable[..., Any]:
        async def answer(request: Any, context: Context) -> Any:
            return await served(await self._admitted(request, context, method), context)

        async def answers(request: Any, context: Context) -> AsyncIterator[Any]:
            admitted = await self._admitted(request, context, method)

            async def is_allowed() -> None:
                if await self._admitted(request, context, method) != admitted:
                    error = NotAllowed("the caller's roles have changed", "ask again")
                    await refuse(context, error)

            rows = served(admitted, context)
            is_proven = self._cell is not None or bool(_said(context).get(AUTHORIZATION))
            if isinstance(request, Request) and is_proven:  # its caller may lose what it may
                rows = self._while_allowed(rows, is_allowed)
            async for one in rows:
                yield one

        return answers if inspect.isasyncgenfunction(served) else answer

    async def _while_allowed(
        self, rows: AsyncGenerator[Any, None], is_allowed: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[Any]:
        """Yield what a stream yields; ask every few seconds whether its caller may still see it."""
        time = asyncio.get_running_loop().time
        next_s = time() + self._recheck_s
        following = asyncio.ensure_future(anext(rows, None))
        try:
            while True:
                done, _ = await asyncio.wait((following,), timeout=max(0.0, next_s - time()))
                if time() >= next_s:
                    await is_allowed()
                    next_s = time() + self._recheck_s
                if done:
                    one = following.result()
                    if one is None:
                        return
                    yield one
                    following = asyncio.ensure_future(anext(rows, None))
        finally:
            following.cancel()
            await asyncio.wait((following,))
            await rows.aclose()

    async def _admitted(self, request: Any, context: Context, method: str) -> Any:
        """Return the request of a caller who may, signed; else end the call."""
        try:
            return self._admit(request, context, method)
        except CronError as error:
            # A person has to end it, and some clients try again several times a second.
            if isinstance(error, NotAllowed) and str(error) != self._noted:
                self._noted = str(error)
                log.warning("caller.refused", address=context.peer(), error=str(error))
            await refuse(context, error)

    def _admit(self, request: Any, context: Context, method: str) -> Any:
        """Return the request of a caller who may, signed.

        Raises:
            CronError: it is refused.
        """
        identity, certificate = None, ""
        if self._cell is not None:
            properties = context.auth_context()
            identity, certificate = caller_of(properties, self._cell), certificate_of(properties)
        peer = str(context.peer())
        if self._watch is not None:
            self._watch.note(peer, str(identity or ""))
        rpc = BY_PATH.get(method)
        if rpc is None:  # executors and health checks: callers are who their certificates say
            self._admission.check_certificate(certificate)
            if identity is not None and not may(identity.kind, method):
                service, _, call = method.strip("/").partition("/")
                is_peer = identity.kind == REPLICA and method.startswith(ADMIN)
                denied = call if is_peer else service.rpartition(".")[2]
                hint = "people and executors have certificates of their own; `raftcron certs issue`"
                raise NotAllowed(f"{identity} may not use {denied}", hint)
            return request
        said = _said(context)
        address = _address(said, identity, peer)
        if identity is not None:
            identity = _on_behalf(said, identity)
        shown = Shown(identity, str(said.get(AUTHORIZATION, "")), address, certificate)
        if not isinstance(request, Request):  # it could not be read, which the server says
            self._admission.caller(shown)
            return request
        return self._admission.admit(rpc, request, shown)

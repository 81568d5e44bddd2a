"""The HTTP server of one replica: listens, bounds its connections, and stops.

It runs in the replica's event loop. uvicorn's own server is not used: it installs signal handlers
and wakes up ten times a second. What is used of uvicorn is one connection's protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any, Final

import structlog
from uvicorn.config import Config
from uvicorn.server import ServerState

from cron import limits
from cron.errors import ConfigError
from cron.web.connection import IDLE_S, THROTTLE, Connection
from cron.web.turns import Throttle
from launcher.address import split_address
from launcher.renewal import Current

_log = structlog.get_logger()

HANDSHAKE_S: Final = 5.0
STOP_S: Final = 1.0
"""How long a stop waits for requests that are being answered."""
_REST_S: Final = 0.5
"""Rest after the system refused a connection: it has no file left for one."""
_LOOK_S: Final = 0.1
"""Between two looks for an idle connection while each is busy and another one waits."""
_BACKLOG: Final = 128


class HttpServer:
    """Serves an ASGI application at one address; with credentials over TLS 1.3."""

    def __init__(
        self,
        app: Any,
        address: str,
        credentials: Current | None = None,
        connections_max: int = limits.HTTP_CONNECTIONS_MAX,
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._connections_max = connections_max
        self._state = ServerState()
        self.throttle = Throttle()
        self._config = Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # the application logs; a stranger's mistakes are not logged
            access_log=False,
            reset_contextvars=True,  # a request that waits for another one is not part of it
            workers=1,  # uvicorn reads a variable for it otherwise
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=IDLE_S,
            h11_max_incomplete_event_size=limits.HTTP_HEAD_BYTES_MAX,
        )
        self._sock: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def connections(self) -> int:
        """How many connections are open, or in their handshake."""
        return len(self._open)

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the address cannot be used.
        """
        self._config.load()
        self._sock = _listen(self._address)
        self.port = self._sock.getsockname()[1]
        self._accepting = asyncio.create_task(self._accept(self._sock), name="http")

    async def stop(self) -> None:
        """End all connections; those with a request get a second for it. Idempotent."""
        if self._accepting is not None:
            self._accepting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._accepting
            self._accepting = None
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        for one in self._made():
            one.shutdown()
        if self._open:
            await asyncio.wait(self._open, timeout=STOP_S)
        for one in self._made():
            one.abort()
        for task in [*self._open]:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _made(self) -> list[Connection]:
        return [one for one in self._state.connections if isinstance(one, Connection)]

    async def _accept(self, sock: socket.socket) -> None:
        """Accept connections, for ever; one above the bound waits until there is room for it."""
        loop = asyncio.get_running_loop()
        context = _context(self._credentials) if self._credentials is not None else None
        while True:
            try:
                accepted, _ = await loop.sock_accept(sock)
            except OSError as error:
                _log.warning("http.refused", error=str(error))
                await asyncio.sleep(_REST_S)
                continue
            try:
                await self._make_room()
            except asyncio.CancelledError:
                accepted.close()
                raise
            task = asyncio.create_task(self._serve(accepted, context), name="http_connection")
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _make_room(self) -> None:
        """Return once there may be one connection more; the one that was idle for the longest time
        ends for it."""
        while len(self._open) >= self._connections_max:
            idle = [one for one in self._made() if one.is_idle]
            if idle:
                min(idle, key=lambda one: one.active_s).abort()
            await asyncio.wait(self._open, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)

    async def _serve(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """Serve one connection until it ends."""
        loop = asyncio.get_running_loop()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def make() -> Connection:
            return Connection(self._config, self._state, {THROTTLE: throttle}, loop)

        throttle = self.throttle
        seconds = HANDSHAKE_S if context is not None else None
        try:
            _, protocol = await loop.connect_accepted_socket(
                make, sock, ssl=context, ssl_handshake_timeout=seconds, ssl_shutdown_timeout=seconds
            )
        except OSError:  # of which SSLError is one: a stranger, or somebody who went away
            return
        await protocol.closed


def _listen(address: str) -> socket.socket:
    split = split_address(address)
    host, port = split if split is not None else (address.rpartition(":")[0], 0)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(place)
            sock.listen(_BACKLOG)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"http address {address} cannot be used: {reason}",
            "another process may have the port; `http` in the configuration names another",
        ) from error
    return sock


def _context(credentials: Current) -> ssl.SSLContext:
    """Return a context that shows each new connection the certificate of that moment."""
    shown = credentials()
    newest = shown.server_context()

    def follow(tls: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal shown, newest
        latest = credentials()
        if latest is not shown:
            shown, newest = latest, latest.server_context()
        tls.context = newest

    first = shown.server_context()
    first.sni_callback = follow
    return first

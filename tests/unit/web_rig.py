"""The HTTP server of a replica on the test's own event loop, and a client in a thread."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from consensus.leadership import Freshness, Leadership
from cron.api.admission import Admission
from cron.api.callers import open_admission
from cron.api.readiness import Readiness
from cron.api.rpc import Backend
from cron.web.application import Application, Metrics
from cron.web.console.events import Events
from cron.web.console.page_request import Serving, ServingNow
from cron.web.console.site import Console
from cron.web.forwarding import Forwarding
from cron.web.health import HealthChecks
from cron.web.server import HttpServer
from cron.web.turns import Turns
from launcher.renewal import Current
from tests.unit.api_rig import in_thread

WALL_MS = 1_795_186_800_000
LEADS = Leadership(3, leads=True, leader="r1")
FRESH = Freshness(9, 9, 5)
NOBODY: Any = None


class Said(NamedTuple):
    """An answer: status, headers in lower case, body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Site:
    """Where a server listens, and what is said there."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.port = server.port

    @property
    def open(self) -> int:
        """How many connections there are."""
        return self.server.connections

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Said:
        """Make one request over a connection of its own. A body that is no bytes is sent as JSON,
        and the path as it is."""
        return await in_thread(self._ask, method, path, body, headers or {}, tls)

    def _ask(
        self,
        method: str,
        path: str,
        body: Any,
        headers: dict[str, str],
        tls: ssl.SSLContext | None,
    ) -> Said:
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        said = {"content-type": "application/json"} if content is not None else {}
        kind = http.client.HTTPConnection if tls is None else http.client.HTTPSConnection
        more = {} if tls is None else {"context": tls}
        connection = kind("127.0.0.1", self.port, timeout=30, **more)
        try:
            connection.request(method, path, content, said | headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Said(answer.status, found, answer.read())
        finally:
            connection.close()

    async def raw(self, *pieces: bytes) -> bytes:
        """Send bytes, and return all that comes back until the server ends the connection."""
        return await in_thread(self._talk, None, pieces)

    async def raw_tls(self, tls: ssl.SSLContext, *pieces: bytes) -> bytes:
        """The same over TLS."""
        return await in_thread(self._talk, tls, pieces)

    def _talk(self, tls: ssl.SSLContext | None, pieces: tuple[bytes, ...]) -> bytes:
        with contextlib.ExitStack() as held:
            plain = socket.create_connection(("127.0.0.1", self.port), timeout=30)
            sock = held.enter_context(plain if tls is None else tls.wrap_socket(plain))
            for piece in pieces:
                sock.sendall(piece)
            found = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := sock.recv(65_536):
                    found += piece
            return found


@contextlib.asynccontextmanager
async def site(
    backend: Backend,
    *,
    credentials: Current | None = None,
    cell: str | None = None,
    leadership: Leadership = LEADS,
    freshness: Freshness = FRESH,
    turns: Turns | None = None,
    admission: Admission | None = None,
    connections_max: int = 100,
    has_console: bool = False,
    events: Events | None = None,
    serving: ServingNow | None = None,
    metrics: Metrics | None = None,
) -> AsyncIterator[Site]:
    """Serve a backend over HTTP on loopback."""
    let_in = admission or open_admission(cell or "", is_open=cell is None)
    is_secure = credentials is not None
    console = Console(
        cell or "test",
        let_in,
        serving or (lambda: Serving("r1", leadership, freshness)),
        lambda: WALL_MS,
        is_secure=is_secure,
        events=events,
    )
    application = Application(
        backend if isinstance(backend, Forwarding) else Forwarding(backend, NOBODY),
        let_in,
        HealthChecks("r1", Readiness(lambda: leadership, lambda: freshness)),
        lambda: WALL_MS,
        is_secure=is_secure,
        turns=turns,
        console=console if has_console else None,
        metrics=metrics,
    )
    server = HttpServer(application, "127.0.0.1:0", credentials, connections_max)
    await server.start()
    try:
        yield Site(server)
    finally:
        await server.stop()

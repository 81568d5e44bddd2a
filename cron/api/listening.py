"""A replica's server: made with what guards it, and made to listen."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
import structlog

from cron.api.admission import Admission
from cron.api.callers import Guard
from cron.api.connections import HANDSHAKE_MS, IDLE_MS, ConnectionWatch
from cron.api.health import HealthService
from cron.api.members import StatusReport, StatusRow
from cron.api.rpc import Rpc
from cron.api.server import SERVER_OPTIONS, add_admin
from cron.api.table import PEER_STATUS, STATUS
from cron.errors import ConfigError, Unavailable
from launcher.renewal import Current
from launcher.tls import Credentials

_log = structlog.get_logger()

_GRACE_S: Final = 0.2


def make_server(
    cell: str,
    credentials: Current | None,
    watch: ConnectionWatch | None = None,
    listeners: int = 1,
    admission: Admission | None = None,
) -> grpc.aio.Server:
    """Return a server without services. With credentials its callers must prove who they are.
    `watch` hears of each caller, and its bound of connections is that of all `listeners`.
    `admission` decides by roles and tokens; without it certificates alone do."""
    guard = Guard(cell if credentials is not None else None, watch, admission)
    options = [
        *SERVER_OPTIONS,
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", IDLE_MS),
    ]
    if watch is not None:
        # gRPC counts for each address that it listens on, and refuses before TLS begins.
        each = max(1, watch.connections_max // listeners)
        options.append(("grpc.max_allowed_incoming_connections", each))
    return grpc.aio.server(interceptors=[guard], options=options)


def listen(server: grpc.aio.Server, address: str, credentials: Current | None) -> int:
    """Make a server listen at `host:port`, and return the port; with credentials, only to callers
    that show a certificate of the same authority.

    Raises:
        ConfigError: the address cannot be used.
    """
    check_free(address)
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, _followed(credentials))
    except RuntimeError as error:
        raise ConfigError(
            f"client address {address} cannot be used: {error}",
            "another process may have the port",
        ) from error
    if not port:
        raise ConfigError(f"client address {address} cannot be used")
    return int(port)


def _followed(credentials: Current) -> grpc.ServerCredentials:
    """What each new connection is shown: the certificate of that moment."""
    shown = credentials()

    def renewed() -> grpc.ServerCertificateConfiguration | None:  # in a thread of gRPC
        nonlocal shown
        latest = credentials()
        if latest is shown:
            return None
        shown = latest
        return _configuration(latest)

    # The stubs do not know that None means no change.
    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown),
        renewed,  # type: ignore[arg-type]
        True,
    )


def _configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    pair = (credentials.key, credentials.certificate)
    return grpc.ssl_server_certificate_configuration([pair], credentials.authority)


def check_free(address: str) -> int:
    """Return at how many addresses `host:port` can be listened; gRPC would write pages of its own
    about one that is taken.

    Raises:
        ConfigError: the address cannot be used.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, place in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"client address {address} cannot be used: {reason}",
            "another process may have the port; `client` in the configuration names another",
        ) from error
    addresses = sorted({str(place[0]) for *_, place in found})
    # A name, which others know for another address, may be one of loopback here: Debian gives a
    # machine's own name the address 127.0.1.1.
    is_name = host != "localhost" and host not in addresses
    if is_name and all(ipaddress.ip_address(one).is_loopback for one in addresses):
        hint = "`client` and `raft` in the configuration may be 0.0.0.0:PORT"
        _log.warning("listening.on_loopback", name=host, addresses=addresses, hint=hint)
    return len(addresses)


class _Waiting:
    """Answers status with the row of a replica that waits: it knows of no other. It refuses all
    other calls with the reason, and a client goes on to another replica."""

    def __init__(self, row: Callable[[], StatusRow]) -> None:
        self._row = row

    async def answer(self, rpc: Rpc[Any, Any], request: Any) -> Any:
        row = self._row()
        if rpc is PEER_STATUS:
            return row
        if rpc is STATUS:
            return StatusReport(rows=[row])
        raise Unavailable(f"{row.id} {row.note}", "make room there; it goes on by itself then")


@contextlib.asynccontextmanager
async def answering(
    cell: str, address: str, credentials: Current | None, row: Callable[[], StatusRow]
) -> AsyncIterator[None]:
    """Answer status at `address` inside, for a replica that waits for room on its disk, and say so
    to all other calls. Where it cannot listen there, nobody is answered."""
    server = make_server(cell, credentials)
    add_admin(server, _Waiting(row))
    HealthService(lambda: False).add_to(server)
    try:
        listen(server, address, credentials)
        await server.start()
    except ConfigError as error:
        _log.warning("disk.full", error=str(error))
    try:
        yield
    finally:
        await server.stop(_GRACE_S)

"""Replicas behind TLS on loopback, as the daemon puts them together: guard, API and pool."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from cron.access import AccessRules
from cron.api.admission import Admission
from cron.api.callers import executor_of
from cron.api.client import Client
from cron.api.health import HealthService
from cron.api.listening import listen, make_server
from cron.api.server import add_admin
from launcher.pool.service import add_pool_service
from launcher.renewal import Current
from launcher.tls import Credentials
from tests.unit.api_rig import FakeBackend, call, in_thread
from tests.unit.certs_rig import CELL, REPLICA, Certs
from tests.unit.pool_rig import EPOCH, Rig


@contextlib.asynccontextmanager
async def secured(
    certs: Certs,
    backend: FakeBackend,
    *,
    credentials: Credentials | Current | None = None,
    rig: Rig | None = None,
    cell: str = CELL,
    rules: AccessRules | None = None,
) -> AsyncIterator[str]:
    """Serve a backend, and a pool if one is given, to who shows a certificate; the address."""
    given = credentials or certs.credentials(*REPLICA)
    shown = (lambda: given) if isinstance(given, Credentials) else given
    known = rules or AccessRules()
    admission = Admission(cell, lambda: known, lambda: 0, is_open=False)
    server = make_server(cell, shown, admission=admission)
    add_admin(server, backend)
    HealthService(lambda: True).add_to(server)
    if rig is not None:
        rig.pool.open(EPOCH)
        add_pool_service(server, rig.pool, lambda: rig.leader, executor_of)
    port = listen(server, "127.0.0.1:0", shown)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def ask(server: str, credentials: Credentials | None, method: str = "jobs") -> object:
    """Ask a replica as a client would that has these credentials, or none."""

    def asked() -> object:
        with Client([server], 60_000, credentials) as client:
            return call(client, method)

    return await in_thread(asked)

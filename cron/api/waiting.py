"""What a replica answers that waits for room on its disk: who it is, and what it waits for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import structlog

from cron.api.listening import listen, make_server
from cron.api.members import StatusReport, StatusRow
from cron.api.rpc import Rpc
from cron.api.server import add_admin
from cron.api.table import PEER_STATUS, STATUS
from cron.errors import ConfigError
from launcher.renewal import Current

_log = structlog.get_logger()

_GRACE_S = 0.2


class _Waiting:
    """Answers status with this replica's row: it knows of no other."""

    def __init__(self, row: Callable[[], StatusRow]) -> None:
        self._row = row

    async def answer(self, rpc: Rpc[Any, Any], request: Any) -> Any:
        """Return this replica's row."""
        return self._row() if rpc is PEER_STATUS else StatusReport(rows=[self._row()])


@contextlib.asynccontextmanager
async def answering(
    cell: str, address: str, credentials: Current | None, row: Callable[[], StatusRow]
) -> AsyncIterator[None]:
    """Answer status at `address` inside; where it cannot be listened on, nobody is answered."""
    server: grpc.aio.Server = make_server(cell, credentials)
    add_admin(server, _Waiting(row), calls=(STATUS, PEER_STATUS))
    try:
        listen(server, address, credentials)
        await server.start()
    except ConfigError as error:
        _log.warning("disk.full", error=str(error))
    try:
        yield
    finally:
        await server.stop(_GRACE_S)

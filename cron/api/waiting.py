"""What a replica answers that waits for room on its disk: who it is, and what it waits for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import structlog

from cron.api.listening import listen, make_server
from cron.api.translate import to_message
from cron.api.v1 import admin_pb2, admin_pb2_grpc
from cron.api.views import StatusRow
from cron.errors import ConfigError
from launcher.renewal import Current

_log = structlog.get_logger()

_GRACE_S = 0.2


class _Waiting(admin_pb2_grpc.AdminServicer):
    """Answers status and nothing else: clients go on to another replica."""

    def __init__(self, row: Callable[[], StatusRow]) -> None:
        self._row = row

    async def PeerStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Tell the state of this replica."""
        return to_message(self._row())

    async def Status(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Tell the state of this replica, which knows of no other."""
        return admin_pb2.StatusPage(rows=[to_message(self._row())])


@contextlib.asynccontextmanager
async def answering(
    cell: str, address: str, credentials: Current | None, row: Callable[[], StatusRow]
) -> AsyncIterator[None]:
    """Answer status at `address` inside; where it cannot be listened on, nobody is answered."""
    server: grpc.aio.Server = make_server(cell, credentials)
    servicer = _Waiting(row)
    admin_pb2_grpc.add_AdminServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    try:
        listen(server, address, credentials)
        await server.start()
    except ConfigError as error:
        _log.warning("disk.full", error=str(error))
    try:
        yield
    finally:
        await server.stop(_GRACE_S)

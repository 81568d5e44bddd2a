"""The standard health service of gRPC (`grpc.health.v1.Health`) on the client port.

It says SERVING where `/readyz` says 200. It tells nothing else, so it asks for no token and no
role; with TLS the caller shows any certificate of the cell.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]

from cron.limits import HEALTH_WATCHES_MAX

SERVICE: Final = "grpc.health.v1.Health"
NAMES: Final = ("", "raftcron")
"""The services whose health is known: the server as a whole, and the cell's."""
PERIOD_S: Final = 1.0
"""How often a watch looks whether the answer has changed."""

Context = grpc.aio.ServicerContext[Any, Any]
_STATUS: Final = health_pb2.HealthCheckResponse


class HealthService:
    """Answers health checks of one replica."""

    def __init__(
        self,
        is_ready: Callable[[], bool],
        *,
        period_s: float = PERIOD_S,
        watches_max: int = HEALTH_WATCHES_MAX,
    ) -> None:
        self._is_ready = is_ready
        self._period_s = period_s
        self._watches_max = watches_max
        self._closed = asyncio.Event()
        self.watches = 0

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add the service to a server that is not started yet."""
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, **_MESSAGES),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, **_MESSAGES),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))

    def close(self) -> None:
        """Say to all who watch that the replica does not serve any more, and end their streams."""
        self._closed.set()

    def _status(self, name: str) -> int:
        if name not in NAMES:
            return int(_STATUS.SERVICE_UNKNOWN)
        is_serving = not self._closed.is_set() and self._is_ready()
        return int(_STATUS.SERVING if is_serving else _STATUS.NOT_SERVING)

    async def _check(self, request: Any, context: Context) -> Any:
        if request.service not in NAMES:
            known = " and ".join(repr(one) for one in NAMES)
            await context.abort(grpc.StatusCode.NOT_FOUND, f"the services are {known}")
        return _STATUS(status=self._status(request.service))

    async def _watch(self, request: Any, context: Context) -> AsyncIterator[Any]:
        if self.watches >= self._watches_max:
            text = f"{self._watches_max} watches are open already; use Check"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self.watches += 1
        try:
            said = None
            while True:
                is_last = self._closed.is_set()
                status = self._status(request.service)
                if status != said:
                    yield _STATUS(status=status)
                    said = status
                if is_last:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._period_s):
                        await self._closed.wait()
        finally:
            self.watches -= 1


_MESSAGES: Final = {
    "request_deserializer": health_pb2.HealthCheckRequest.FromString,
    "response_serializer": _STATUS.SerializeToString,
}

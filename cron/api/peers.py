"""One replica's questions to another, over the same API that clients use."""

from __future__ import annotations

from typing import Final

import grpc

from cron.api.channels import open_aio_channel
from cron.api.translate import to_view
from cron.api.v1 import admin_pb2, admin_pb2_grpc
from cron.api.views import StatusRow
from launcher.renewal import Current
from launcher.tls import Credentials

_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    # A replica that comes back must be seen soon, not after a backoff of minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class Peers:
    """Connections to other replicas, made when first needed and kept; with our credentials, if the
    cell has certificates."""

    def __init__(self, credentials: Current | None = None) -> None:
        self._credentials = credentials
        self._shown: Credentials | None = None
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._old: list[grpc.aio.Channel] = []

    def _stub(self, address: str) -> admin_pb2_grpc.AdminStub:
        shown = self._credentials() if self._credentials is not None else None
        if shown is not self._shown:
            # Renewed. Not closed at once: somebody may be waiting for an answer.
            self._old += self._channels.values()
            self._channels, self._shown = {}, shown
        channel = self._channels.get(address)
        if channel is None:
            channel = open_aio_channel(address, shown, _OPTIONS)
            self._channels[address] = channel
        return admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]

    async def peer_status(self, address: str, timeout_ms: int) -> StatusRow:
        """Return the row of the replica at `address`. Raises grpc.aio.AioRpcError."""
        answer = await self._stub(address).PeerStatus(
            admin_pb2.PeerStatusRequest(), timeout=timeout_ms / 1000
        )
        return to_view(answer, StatusRow)

    async def status(self, address: str, timeout_ms: int) -> list[StatusRow]:
        """Return what the replica at `address` says of all. Raises grpc.aio.AioRpcError."""
        answer = await self._stub(address).Status(
            admin_pb2.StatusRequest(), timeout=timeout_ms / 1000
        )
        return [to_view(row, StatusRow) for row in answer.rows]

    async def segment(
        self, address: str, name: str, offset: int, limit: int, timeout_ms: int
    ) -> tuple[bytes, int]:
        """Return a piece of a segment of the replica at `address`, and its size. Raises
        grpc.aio.AioRpcError."""
        request = admin_pb2.SegmentRequest(name=name, offset=offset, limit=limit)
        answer = await self._stub(address).FetchSegment(request, timeout=timeout_ms / 1000)
        return answer.content, answer.size

    async def close(self) -> None:
        """Close all connections."""
        for channel in (*self._channels.values(), *self._old):
            await channel.close()

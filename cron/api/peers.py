"""One replica's questions to another, over the same API that clients use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, TypeVar

import grpc
import msgspec

from cron import limits
from cron.api.calls import Pages
from cron.api.members import StatusRow
from cron.api.rpc import Request, Rpc, encode
from cron.api.snapshots import SegmentRequest
from cron.api.status import METADATA_BYTES_MAX, Metadata, from_refusal
from cron.api.table import FETCH_SEGMENT, PEER_STATUS, STATUS
from cron.errors import CronError, OutcomeUnknown, Unavailable
from launcher.grpc_settings import OPTIONS
from launcher.identity import REPLICA_HOST
from launcher.renewal import Current
from launcher.tls import Credentials

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")

_OPTIONS: Final = (
    *OPTIONS,
    ("grpc.enable_http_proxy", 0),
    # A replica that comes back must be seen soon, not after a backoff of minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Answers to calls that are forwarded are as long as those to clients.
    ("grpc.max_receive_message_length", limits.RPC_BYTES_MAX),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
)
_CONNECT_S: Final = 1.0


def open_aio_channel(
    address: str, credentials: Credentials | None, options: Sequence[tuple[str, Any]]
) -> grpc.aio.Channel:
    """Return a channel to a replica for the event loop. Both sides show a certificate of the cell,
    or both are on loopback. A replica is verified by the name that all replicas share, never by its
    address, which may change."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    secret = grpc.ssl_channel_credentials(
        credentials.authority, credentials.key, credentials.certificate
    )
    expected = ("grpc.ssl_target_name_override", REPLICA_HOST)
    return grpc.aio.secure_channel(address, secret, options=[*options, expected])


class Peers:
    """Connections to other replicas, made when first needed and kept; with our credentials, if the
    cell has certificates."""

    def __init__(self, credentials: Current | None = None) -> None:
        self._credentials = credentials
        self._shown: Credentials | None = None
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._old: list[grpc.aio.Channel] = []

    async def peer_status(self, address: str, timeout_ms: int) -> StatusRow:
        """Return the row of the replica at `address`. Raises grpc.aio.AioRpcError."""
        return await self._ask(address, PEER_STATUS, PEER_STATUS.request(), timeout_ms)

    async def status(self, address: str, timeout_ms: int) -> list[StatusRow]:
        """Return what the replica at `address` says of all. Raises grpc.aio.AioRpcError."""
        return (await self._ask(address, STATUS, STATUS.request(), timeout_ms)).rows

    async def segment(
        self, address: str, name: str, offset: int, limit: int, timeout_ms: int
    ) -> tuple[bytes, int]:
        """Return a piece of a segment of the replica at `address`, and its size. Raises
        grpc.aio.AioRpcError."""
        request = SegmentRequest(name=name, offset=offset, limit=limit)
        piece = await self._ask(address, FETCH_SEGMENT, request, timeout_ms)
        return piece.content, piece.size

    async def forward(
        self,
        address: str,
        rpc: Rpc[Any, Any],
        request: Request,
        metadata: Metadata,
        timeout_ms: int,
    ) -> Any:
        """Return what the replica at `address` answers to a call that one of our callers made; of a
        stream its `Pages`, which come for as long as it lasts.

        Raises:
            Unavailable: it was not reached. OutcomeUnknown: a change may have happened. What else
                the replica raised, it raises as well.
        """
        channel = self._channel(address)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await channel.channel_ready()
        except TimeoutError:
            raise Unavailable(f"the leader at {address} does not answer", "try again") from None
        content = encode(request)
        if rpc.is_stream:
            stream: Any = channel.unary_stream(rpc.path)
            return Pages(_pages(rpc, stream(content, metadata=metadata), address))
        call: Any = channel.unary_unary(rpc.path)
        try:
            message = await call(content, timeout=timeout_ms / 1000, metadata=metadata)
            return rpc.read_answer([message])
        except grpc.aio.AioRpcError as error:
            raise _judged(error, address, is_change=rpc.is_change(request)) from error
        except msgspec.DecodeError as error:
            text = f"the answer of the leader at {address} is of another version: {error}"
            raise OutcomeUnknown(text) from error

    async def _ask(self, address: str, rpc: Rpc[Q, A], request: Q, timeout_ms: int) -> A:
        call: Any = self._channel(address).unary_unary(rpc.path)
        return rpc.read_answer([await call(encode(request), timeout=timeout_ms / 1000)])

    def _channel(self, address: str) -> grpc.aio.Channel:
        shown = self._credentials() if self._credentials is not None else None
        if shown is not self._shown:
            # Renewed. Not closed at once: somebody may be waiting for an answer.
            self._old += self._channels.values()
            self._channels, self._shown = {}, shown
        channel = self._channels.get(address)
        if channel is None:
            channel = open_aio_channel(address, shown, _OPTIONS)
            self._channels[address] = channel
        return channel

    async def close(self) -> None:
        """Close all connections."""
        for channel in (*self._channels.values(), *self._old):
            await channel.close()


def _judged(error: grpc.aio.AioRpcError, address: str, *, is_change: bool) -> CronError:
    """Return what a failure means: the replica's own error where it raised one."""
    code = int(error.code().value[0])
    said = from_refusal(code, error.details() or "", tuple(error.trailing_metadata() or ()))
    if said is not None:
        return said[0]
    text = f"the leader at {address} gave no answer: {error.code().name.lower()}"
    if is_change and error.code() is not grpc.StatusCode.UNIMPLEMENTED:
        return OutcomeUnknown(text, "look whether the change happened before you repeat it")
    return Unavailable(text, "try again")


async def _pages(rpc: Rpc[Any, Any], pages: Any, address: str) -> AsyncIterator[list[Any]]:
    """Yield the pages of a stream; errors are raised as `forward` raises them."""
    try:
        async for page in pages:
            yield rpc.read_answer([page])
    except grpc.aio.AioRpcError as error:
        raise _judged(error, address, is_change=False) from error
    except msgspec.DecodeError as error:
        raise Unavailable(f"the leader at {address} is of another version: {error}") from error
    finally:
        pages.cancel()

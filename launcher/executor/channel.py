"""A connection to one replica, for the streams of an executor."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import grpc
import grpc.aio

from launcher.errors import LauncherError
from launcher.identity import REPLICA_HOST
from launcher.limits import MESSAGE_BYTES_MAX
from launcher.reach import Unreached, reach
from launcher.tls import Credentials

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Each visit connects anew at once, whatever became of the one before.
    ("grpc.use_local_subchannel_pool", 1),
)
_EXPECTED: Final = ("grpc.ssl_target_name_override", REPLICA_HOST)


class NotReached(LauncherError):
    """There is no connection. `is_distrust`: because certificates do not fit; `is_late`: because
    nobody has said anything in time."""

    def __init__(self, message: str, *, is_distrust: bool = False, is_late: bool = False) -> None:
        super().__init__(message)
        self.is_distrust = is_distrust
        self.is_late = is_late


def open_channel(
    address: str, credentials: Credentials | None, options: Sequence[tuple[str, int]] = ()
) -> grpc.aio.Channel:
    """Return a channel of its own, which is not connected yet."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=[*_OPTIONS, *options])
    secret = grpc.ssl_channel_credentials(
        credentials.authority, credentials.key, credentials.certificate
    )
    return grpc.aio.secure_channel(address, secret, options=[*_OPTIONS, *options, _EXPECTED])


async def connected(
    channel: grpc.aio.Channel, address: str, wait_ms: int, credentials: Credentials | None
) -> None:
    """Return once the replica has answered; a frozen one accepts connections and does not.

    Raises:
        NotReached: it has not within `wait_ms`, or cannot be reached at all.
    """
    try:
        async with asyncio.timeout(wait_ms / 1000):
            state = channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    raise await _not_reached(address, wait_ms, credentials)
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        raise NotReached(f"not reached within {wait_ms / 1000} s", is_late=True) from None


async def _not_reached(address: str, wait_ms: int, credentials: Credentials | None) -> NotReached:
    """Return why there is no connection: gRPC does not tell whose certificate is wrong."""
    try:
        await asyncio.to_thread(reach, address, wait_ms, credentials)
    except Unreached as error:
        hint = f" ({error.hint})" if error.hint else ""
        return NotReached(f"{error}{hint}", is_distrust=error.is_distrust)
    return NotReached("nobody answers there")

"""A connection to one replica, for the streams of an executor."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import grpc
import grpc.aio

from launcher.errors import LauncherError
from launcher.grpc_settings import OPTIONS
from launcher.identity import REPLICA_HOST
from launcher.limits import MESSAGE_BYTES_MAX
from launcher.reach import Unreached, reach
from launcher.tls import Credentials

_OPTIONS: Final = (
    *OPTIONS,
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Each visit connects anew at once, however the one before ended.
    ("grpc.use_local_subchannel_pool", 1),
)
_EXPECTED: Final = ("grpc.ssl_target_name_override", REPLICA_HOST)


class StreamEnded(LauncherError):
    """A stream is over, or could not be opened. `leader` is the address of the leader, if the
    replica named one.

    `is_refusal`: a leader refuses this executor, and a person has to look at that. `is_distrust`:
    the refusal is about certificates, so other replicas will hardly accept them. `is_drained`:
    nothing is open on this executor, and its process may end. `is_late`: there was no answer in
    time.
    """

    def __init__(
        self,
        message: str,
        leader: str = "",
        *,
        is_refusal: bool = False,
        is_distrust: bool = False,
        is_drained: bool = False,
        is_late: bool = False,
    ) -> None:
        super().__init__(message)
        self.leader = leader
        self.is_refusal = is_refusal or is_distrust
        self.is_distrust = is_distrust
        self.is_drained = is_drained
        self.is_late = is_late


def open_channel(
    address: str, credentials: Credentials | None, options: Sequence[tuple[str, int]] = ()
) -> grpc.aio.Channel:
    """Return a channel that is not connected yet, and shares no connection."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=[*_OPTIONS, *options])
    secret = grpc.ssl_channel_credentials(
        credentials.authority, credentials.key, credentials.certificate
    )
    return grpc.aio.secure_channel(address, secret, options=[*_OPTIONS, *options, _EXPECTED])


async def connect(
    channel: grpc.aio.Channel, address: str, wait_ms: int, credentials: Credentials | None
) -> None:
    """Return once the replica has answered: a frozen one accepts connections, and does not answer.

    Raises:
        StreamEnded: it has not answered within `wait_ms`, or cannot be reached.
    """
    try:
        async with asyncio.timeout(wait_ms / 1000):
            state = channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    # gRPC does not say whose certificate is wrong.
                    await asyncio.to_thread(reach, address, wait_ms, credentials)
                    raise StreamEnded("nobody answers there")
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        raise StreamEnded(f"not reached within {wait_ms / 1000} s", is_late=True) from None
    except Unreached as error:
        hint = f" ({error.hint})" if error.hint else ""
        raise StreamEnded(f"{error}{hint}", is_distrust=error.is_distrust) from None

"""How gRPC is secured: both sides show a certificate of the cell, or both are on loopback.

A replica is verified by the name that all replicas share, never by its address, which may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc

from launcher.identity import REPLICA_HOST
from launcher.tls import Credentials

Options = Sequence[tuple[str, Any]]

_EXPECTED: Final = ("grpc.ssl_target_name_override", REPLICA_HOST)


def open_aio_channel(
    address: str, credentials: Credentials | None, options: Options
) -> grpc.aio.Channel:
    """Return a channel to a replica for the event loop."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, _secret(credentials), options=[*options, _EXPECTED])


def _secret(credentials: Credentials) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        credentials.authority, credentials.key, credentials.certificate
    )

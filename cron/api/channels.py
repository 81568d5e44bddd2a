"""How gRPC is secured: both sides show a certificate of the cell, or both are on loopback.

A replica is verified by the name that all replicas share, never by its address, which may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc

from cron.errors import ConfigError
from launcher.errors import BadConfig
from launcher.identity import REPLICA_HOST
from launcher.tls import Credentials, TlsFiles, load_credentials

Options = Sequence[tuple[str, Any]]

_EXPECTED: Final = ("grpc.ssl_target_name_override", REPLICA_HOST)


def load(files: TlsFiles) -> Credentials:
    """Return the certificate and key in `files`, checked.

    Raises:
        ConfigError: they are of no use; the message names the file, the hint the way out.
    """
    try:
        return load_credentials(files)
    except BadConfig as error:
        raise ConfigError(str(error), error.hint) from error


def open_channel(address: str, credentials: Credentials | None, options: Options) -> grpc.Channel:
    """Return a client's channel to a replica."""
    if credentials is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, _secret(credentials), options=[*options, _EXPECTED])


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

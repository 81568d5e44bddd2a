"""Addresses of replicas, as the command line reads them (see `launcher.address`)."""

from __future__ import annotations

from typing import Final

from cron.errors import InvalidInput
from launcher import address
from launcher.address import DEV_CELL, BadAddress

PORT: Final = address.CLIENT_PORT
REPLICAS: Final = address.DEV_REPLICAS
DEFAULT: Final = DEV_CELL
SERVERS_MAX: Final = address.SERVERS_MAX


def parse_servers(text: str, *, is_secure: bool = False) -> list[str]:
    """Return the addresses of a comma list, each once, in order; a missing port is 7400.

    Raises:
        InvalidInput: an address cannot be read, or is not on loopback and not secure.
    """
    try:
        return address.parse_servers(text, is_secure=is_secure)
    except BadAddress as error:
        raise InvalidInput(str(error), error.hint) from error


def parse_server(text: str, *, is_secure: bool = False) -> str:
    """Return `host:port` of one server, which must be on loopback unless TLS makes it secure.

    Raises:
        InvalidInput: it cannot be read, or is not on loopback and not secure.
    """
    try:
        return address.parse_server(text, is_secure=is_secure)
    except BadAddress as error:
        raise InvalidInput(str(error), error.hint) from error

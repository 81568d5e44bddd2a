"""Addresses: `host:port`, where the host is a name, an IPv4 address or an IPv6 address in brackets.
Pure."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_ADDRESS: Final = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}):(?P<port>[0-9]{1,5})"
)


def split_address(text: str) -> tuple[str, int] | None:
    """Return the host, without brackets, and the port; None if `text` is not `host:port`."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65_536:
        return None
    host = match["host"]
    if host.startswith("["):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return None
    return host, int(match["port"])


def is_loopback(host: str) -> bool:
    """Return whether `host` is `localhost` or a loopback address, which no other machine can
    reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""Addresses: `host:port`, where the host is a name, an IPv4 address or an IPv6 address in brackets.
Pure."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

CLIENT_PORT: Final = 7400
HTTP_PORT: Final = 7480
DEV_REPLICAS: Final = 3
DEV_CELL: Final = ",".join(f"127.0.0.1:{CLIENT_PORT + n}" for n in range(DEV_REPLICAS))
"""What is asked where nobody names a server: the replicas of `raftcron dev`."""
SERVERS_MAX: Final = 32

_ADDRESS: Final = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}):(?P<port>[0-9]{1,5})"
)


class BadAddress(ValueError):
    """A text is no address of a replica; the message says why, `hint` what to write."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


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


def parse_servers(text: str, *, is_secure: bool = False, port: int = CLIENT_PORT) -> list[str]:
    """Return the addresses of a comma list, each once, in order; `port` where one has none.

    Raises:
        BadAddress: an address cannot be read, or is not on loopback and not secure.
    """
    each = (one.strip() for one in text.split(","))
    found = list(
        dict.fromkeys(parse_server(one, is_secure=is_secure, port=port) for one in each if one)
    )
    if not found:
        hint = f"--server {DEV_CELL}, or leave --server and RAFTCRON_SERVER"
        raise BadAddress("list of servers is empty", hint)
    if len(found) > SERVERS_MAX:
        raise BadAddress(f"list of servers has {len(found)}, at most {SERVERS_MAX} are allowed")
    return found


def parse_server(text: str, *, is_secure: bool = False, port: int = CLIENT_PORT) -> str:
    """Return `host:port` of one server, which must be on loopback unless TLS makes it secure.

    Raises:
        BadAddress: it cannot be read, or is not on loopback and not secure.
    """
    has_port = ":" in text and not text.endswith("]")
    found = split_address(text if has_port else f"{text}:{port}")
    if found is None:
        raise BadAddress(f"server {text[:100]!r} is not host:port", "such as 127.0.0.1:7400")
    host, port = found
    if not is_secure and not is_loopback(host):
        raise BadAddress(
            f"server {text[:100]!r} is beyond loopback, where anybody could read and change jobs",
            "with TLS any address will do: --tls DIR or RAFTCRON_TLS, a folder of `raftcron certs`",
        )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

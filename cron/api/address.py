"""Addresses of replicas: `host:port`; without certificates only on loopback."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from cron.errors import InvalidInput

PORT: Final = 7400
REPLICAS: Final = 3
DEFAULT: Final = ",".join(f"127.0.0.1:{PORT + n}" for n in range(REPLICAS))
"""What is asked where nobody names a server: the replicas of `raftcron dev`."""
SERVERS_MAX: Final = 32
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})")


def parse_servers(text: str, *, is_secure: bool = False) -> list[str]:
    """Return the addresses of a comma list, each once, in order; a missing port is 7400.

    Raises:
        InvalidInput: an address cannot be read, or is not on loopback and not secure.
    """
    each = (one.strip() for one in text.split(","))
    found = list(dict.fromkeys(parse_server(one, is_secure=is_secure) for one in each if one))
    if not found:
        raise InvalidInput(
            "list of servers is empty", f"--server {DEFAULT}, or leave --server and RAFTCRON_SERVER"
        )
    if len(found) > SERVERS_MAX:
        raise InvalidInput(f"list of servers has {len(found)}, at most {SERVERS_MAX} are allowed")
    return found


def parse_server(text: str, *, is_secure: bool = False) -> str:
    """Return `host:port` of one server, which must be on loopback unless TLS makes it secure.

    Raises:
        InvalidInput: it cannot be read, or is not on loopback and not secure.
    """
    host, port = _split(text)
    if not is_secure and not is_loopback(host):
        raise InvalidInput(
            f"server {text[:100]!r} is beyond loopback, where anybody could read and change jobs",
            "with TLS any address will do: --tls DIR or RAFTCRON_TLS, a folder of `raftcron certs`",
        )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host is an address of this machine that no other can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(text: str) -> tuple[str, int]:
    """Return the host and port of `host`, `host:port`, `[v6]` or `[v6]:port`."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        is_host = bool(ipaddress.ip_address(host))
    except ValueError:
        is_host = _HOST.fullmatch(host) is not None
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65_536
    if not is_host or not is_port:
        raise InvalidInput(f"server {text[:100]!r} is not host:port", "such as 127.0.0.1:7400")
    return host, int(port)

"""Addresses of replicas: `host:port`; without certificates only on loopback."""

from __future__ import annotations

from typing import Final

from cron.errors import InvalidInput
from launcher.address import is_loopback, split_address

PORT: Final = 7400
REPLICAS: Final = 3
DEFAULT: Final = ",".join(f"127.0.0.1:{PORT + n}" for n in range(REPLICAS))
"""What is asked where nobody names a server: the replicas of `raftcron dev`."""
SERVERS_MAX: Final = 32


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
    has_port = ":" in text and not text.endswith("]")
    found = split_address(text if has_port else f"{text}:{PORT}")
    if found is None:
        raise InvalidInput(f"server {text[:100]!r} is not host:port", "such as 127.0.0.1:7400")
    host, port = found
    if not is_secure and not is_loopback(host):
        raise InvalidInput(
            f"server {text[:100]!r} is beyond loopback, where anybody could read and change jobs",
            "with TLS any address will do: --tls DIR or RAFTCRON_TLS, a folder of `raftcron certs`",
        )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

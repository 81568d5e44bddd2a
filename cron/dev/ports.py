"""Whether the ports of a cell are free, asked before anything is started."""

from __future__ import annotations

import asyncio
import socket

from cron.dev.files import HOST, Ports
from cron.errors import ConfigError


def taken(ports: Ports) -> list[tuple[str, int]]:
    """Return what somebody else listens on already: what it would be for, and the port."""
    return [(purpose, port) for purpose, port in ports.all if not _is_free(port)]


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: connections in TIME_WAIT are no reason to refuse.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


async def check_ports(ports: Ports, *, patience_ms: int = 1_000) -> None:
    """Return once all ports are free; those of a cell that just died take a moment.

    Raises:
        ConfigError: after `patience_ms` some are still in use; all of them are named.
    """
    for _ in range(max(1, patience_ms // 100)):
        if not (rest := taken(ports)):
            return
        await asyncio.sleep(0.1)
    named = ", ".join(f"{port} ({purpose})" for purpose, port in rest)
    ways = f"choose others with --port, such as --port {ports.client[0] + 100}"
    raise ConfigError(f"port in use on {HOST}: {named}", f"{ways}, or end what listens there")


def check_range(port: int) -> None:
    """Refuse a first port that leaves no room for the others.

    Raises:
        ConfigError: it is below 1 or too high.
    """
    highest = 65_535 - 12
    if not 0 < port <= highest:
        hint = "six ports are needed: P, P+1, P+2 and P+10, P+11, P+12"
        raise ConfigError(f"--port: {port} is not in 1-{highest}", hint)

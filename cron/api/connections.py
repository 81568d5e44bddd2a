"""How many connections the client port takes, and which of them end when too many are there.

A connection costs the process an open file before anything is known of its caller, and the log
needs open files too. Three bounds keep them apart. gRPC closes every connection above
`Bounds.connections` before TLS begins. It ends a handshake after `HANDSHAKE_MS`, and a connection
without a call after `IDLE_MS`. And where three quarters of the connections are taken,
`ConnectionWatch` ends those of the callers that hold most of them: a stranger who opens one
connection after another cannot keep out an executor or a person.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import resource
import socket
from collections import defaultdict
from typing import Final, NamedTuple

import msgspec
import structlog

_log = structlog.get_logger()

FILES_BESIDE: Final = 512
"""Open files beside the connections of the client port: log, history, store, the Raft port, and
connections that this replica opens itself."""
EACH: Final = 5
"""Connections for each executor: its stream, the watch of who leads, the look at a replica before a
stream, and those that a process or a network that broke off left behind."""
HANDSHAKE_MS: Final = 5_000
"""A connection that has not ended TLS and the beginning of HTTP/2 within this time is closed."""
IDLE_MS: Final = 60_000
"""A connection without any call is closed after this."""
LOOK_S: Final = 1.0
LOOK_BUSY_S: Final = 0.25
FILES_FEW: Final = 1_000
"""With fewer open files a look takes less than a millisecond."""
LOOK_SHARE: Final = 4
"""A look at many connections takes a tenth of a second; the pause is so many times as long."""
SAY_EVERY_S: Final = 60.0
"""A line of the log for each look would be a stranger's way to fill the disk."""
SAFE_EACH: Final = 4
"""Connections of one proven caller that are never ended."""

_FOLDER: Final = "/dev/fd"


class Bounds(NamedTuple):
    """What the limit of open files allows: executors in the pool, connections of all callers."""

    executors: int
    connections: int


def allow_connections(wanted: int, beside: int = FILES_BESIDE) -> Bounds:
    """Raise the limit of open files to what `wanted` executors take, as far as the host lets us,
    and return how many executors and connections there may be. `beside` files are for others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = EACH * wanted + beside
    if soft < needed:
        soft = max(soft, min(needed, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    connections = min(EACH * wanted, max(soft - beside, soft // 2))
    executors = min(wanted, max(1, connections - connections // 8))
    if executors < wanted:
        hint = f"LimitNOFILE={needed} in its unit, or ulimit -n {needed}, allows {wanted}"
        _log.warning("files.few", limit=soft, executors_max=executors, hint=hint)
    return Bounds(executors, connections)


class AcceptedConnection(msgspec.Struct, frozen=True):
    """An accepted connection as a look finds it: its open file and the other end's address."""

    file: int
    address: str
    host: str  # of IPv6 the network of 64 bits, of which a host has all addresses


class ConnectionWatch:
    """Tracks the callers of the client port's connections; ends some when there are too many.

    `ended` counts the connections that it has ended.
    """

    def __init__(self, connections_max: int) -> None:
        """`connections_max` is the bound that gRPC keeps."""
        self.connections_max = connections_max
        self.ended = 0
        self._callers: dict[str, str] = {}
        self._since: dict[str, int] = {}
        self._looks = 0
        self._files = 0  # open files at the last look

    def note(self, peer: str, identity: str = "") -> None:
        """Remember who made a call over the connection from `peer` (gRPC's text). Without an
        identity, each connection that makes calls is a caller of its own."""
        address = _address_of_peer(peer)
        self._callers[address] = identity or address

    async def watch(self, port: int) -> None:
        """Look at the connections of `port` again and again, for ever."""
        loop = asyncio.get_running_loop()
        said, said_s = 0, -SAY_EVERY_S
        while True:
            begin_s = loop.time()
            # A look at few files is quicker than a thread.
            few = self._files < FILES_FEW
            ended = self.look(port) if few else await asyncio.to_thread(self.look, port)
            taken_s = loop.time() - begin_s
            if self.ended > said and begin_s - said_s >= SAY_EVERY_S:
                count = self.ended - said
                _log.warning("connections.ended", count=count, connections_max=self.connections_max)
                said, said_s = self.ended, begin_s
            pause_s = LOOK_BUSY_S if ended else LOOK_S
            await asyncio.sleep(max(pause_s, LOOK_SHARE * taken_s))

    def look(self, port: int) -> int:
        """End connections if three quarters of all are taken; return how many were ended."""
        try:
            return self._look(port)
        except OSError:  # no file left to look with
            return 0

    def _look(self, port: int) -> int:
        known = list(self._callers)
        busy = self.connections_max * 3 // 4
        # Every connection is an open file: without many files there is nothing to look at.
        self._files = len(os.listdir(_FOLDER))
        if self._files < busy and len(self._callers) < 2 * self.connections_max:
            return 0
        found = _connections(port)
        self._remember(found, known)
        if len(found) <= busy:
            return 0
        excess = len(found) - self.connections_max * 5 // 8
        ended = sum(_shut(one) for one in self._ranked(found)[:excess])
        self.ended += ended
        return ended

    def _remember(self, found: list[AcceptedConnection], known: list[str]) -> None:
        self._looks += 1
        here = {one.address for one in found}
        for address in known:
            if address not in here:
                self._callers.pop(address, None)
        self._since = {one: self._since.get(one, self._looks) for one in here}

    def _ranked(self, found: list[AcceptedConnection]) -> list[AcceptedConnection]:
        """Return what may be ended, the last connections of those with the most first. A caller
        that is proven keeps its oldest ones, an address of strangers its newest: who is no
        stranger makes a call soon."""
        groups: dict[tuple[bool, str], list[AcceptedConnection]] = defaultdict(list)
        for one in found:
            caller = self._callers.get(one.address)
            groups[caller is not None, caller or one.host].append(one)
        ranked: list[tuple[int, AcceptedConnection]] = []
        for (is_proven, _), ours in groups.items():
            ours.sort(key=lambda one: self._since[one.address], reverse=not is_proven)
            safe = SAFE_EACH if is_proven else 0
            ranked += [(rank, one) for rank, one in enumerate(ours) if rank >= safe]
        ranked.sort(key=lambda pair: pair[0], reverse=True)
        return [one for _, one in ranked]


def _address_of_peer(peer: str) -> str:
    """Return gRPC's `ipv6:%5B::1%5D:7000` as `::1 7000`."""
    host, _, port = peer.partition(":")[2].rpartition(":")
    return _address(host.replace("%5B", "").replace("%5D", "").strip("[]"), port)


def _address(host: str, port: object) -> str:
    return f"{host.removeprefix('::ffff:')} {port}"


def _connections(port: int) -> list[AcceptedConnection]:
    """Return the connections that this process has accepted on a port."""
    found: list[AcceptedConnection] = []
    for name in os.listdir(_FOLDER):
        with contextlib.suppress(OSError), _borrowed(int(name)) as sock:
            if sock.type == socket.SOCK_STREAM and sock.getsockname()[1] == port:
                host, place, *_ = sock.getpeername()
                found.append(AcceptedConnection(int(name), _address(host, place), _host(host)))
    return found


def _borrowed(file: int) -> socket.socket:
    """Return a socket of its own for what an open file is. Raises OSError if it is none."""
    copy = os.dup(file)
    try:
        sock = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        sock.close()
        raise OSError("not of this kind")
    return sock


def _host(host: str) -> str:
    host = host.removeprefix("::ffff:").partition("%")[0]
    if ":" not in host:
        return host
    return str(ipaddress.ip_network(f"{host}/64", strict=False))


def _shut(connection: AcceptedConnection) -> bool:
    """End a connection for both sides; False if its open file is another one by now. gRPC, whose
    file it is, sees the end and closes it."""
    with contextlib.suppress(OSError), _borrowed(connection.file) as sock:
        host, place, *_ = sock.getpeername()
        if _address(host, place) == connection.address:
            sock.shutdown(socket.SHUT_RDWR)
            return True
    return False

"""What tests of real sockets stand on: sides that listen and dial, strangers who knock."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from consensus.engine.network.net import Connection, Network
from consensus.engine.network.peering import PeerTransport
from consensus.engine.network.sockets import SocketNetwork
from consensus.engine.network.streams import Step, Stream
from tests.fakes.ports import free_address
from tests.unit.network_rig import WITHIN_S, Recorder, until

T = TypeVar("T")
BIG = os.urandom(1024) * 5 * 1024

RESET_IN_WRAP = "ignore:unclosed <ssl.SSLSocket:ResourceWarning"
"""Python's `wrap_socket` leaves a descriptor to the garbage collector, which closes it at once, if
the caller resets the connection in the middle of it."""


class Side(Recorder):
    """A network, and an owner of each connection that it accepted."""

    def __init__(self, network: SocketNetwork) -> None:
        super().__init__()
        self.network = network
        network.opens = bool  # any byte: here nobody speaks in frames
        self.address = free_address()
        self.accepted: list[tuple[Connection, Recorder]] = []

    def listen(self) -> None:
        self.network.listen(self.address, self.take)

    def take(self, connection: Connection) -> None:
        owner = Recorder()
        connection.adopt(owner)
        self.accepted.append((connection, owner))


def joined(sides: tuple[Side, Side]) -> tuple[Connection, Connection, Recorder, Recorder]:
    """r2's connection to r1, r1's to r2, and their owners."""
    near, far = sides
    owner = Recorder()
    ours = far.network.dial(near.address, "r1", owner)
    ours.write(b"!")  # without TLS nobody is handed over who has said nothing
    before = len(near.accepted)
    both = (near.network, far.network)
    until(lambda: owner.is_connected and len(near.accepted) > before, both)
    theirs, their_owner = near.accepted[-1]
    until(lambda: their_owner.bytes == b"!", both)
    assert their_owner.told == ["connected", "received"]
    their_owner.bytes, their_owner.told = b"", ["connected"]
    return ours, theirs, owner, their_owner


def both_of(sides: tuple[Side, Side]) -> tuple[Network, Network]:
    return sides[0].network, sides[1].network


def is_over(connection: Connection) -> bool:
    assert isinstance(connection, Stream)
    return connection._step is Step.OVER


def in_thread(polled: Iterable[Network | PeerTransport], act: Callable[[], T]) -> T:
    """Let somebody do what takes its time, and poll meanwhile; what it returned or raised."""
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(act)
        until(done.done, polled, "the other thread's end")
        return done.result()


def knock(address: str, *said: bytes, is_patient: bool = False) -> bytes:
    """Dial like any stranger, say each on its own, return what comes back until the other side
    ends it. A patient one waits for an answer before it says the next."""
    host, port = address.rsplit(":", 1)
    heard = b""
    with socket.create_connection((host, int(port)), timeout=WITHIN_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):
            for one in said:
                sock.sendall(one)
                if is_patient:
                    heard += sock.recv(65536)
        return heard + hear_out(sock)


def hear_out(sock: socket.socket) -> bytes:
    """What comes until the other side ends it."""
    heard = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            heard += piece
    return heard

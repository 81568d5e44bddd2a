"""A crowd at the Raft port: peers speak on, and come back, while strangers flood it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from consensus.engine.network.sockets import SocketNetwork
from consensus.engine.network.wire import Vote, Welcome, encode_frame
from consensus.limits import HANDSHAKES_MAX, STRANGERS_MAX
from tests.fakes.certificates import CELL, files_of
from tests.fakes.ports import free_address
from tests.unit.network_rig import WITHIN_S, Station, frames_in, hello_of, until
from tests.unit.socket_rig import RESET_IN_WRAP, in_thread

pytestmark = pytest.mark.filterwarnings(RESET_IN_WRAP)

HELLO = encode_frame(hello_of("r3"))
SAID = 50


class Attacked:
    """r1, which is attacked, r2, its peer, and r3, which comes; with TLS or without."""

    def __init__(self, folder: Path, *, is_tls: bool) -> None:
        self.folder, self.is_tls = folder, is_tls
        self.peers = {name: free_address() for name in ("r1", "r2", "r3")}
        self.one, self.two = self.station("r1"), self.station("r2")
        self.parts = [self.one.transport, self.two.transport]
        until(lambda: self.one.reaches("r2") and self.two.reaches("r1"), self.parts, "the links")

    @property
    def place(self) -> tuple[str, int]:
        host, port = self.peers["r1"].rsplit(":", 1)
        return host, int(port)

    def station(self, name: str) -> Station:
        files = files_of(self.folder / name, name) if self.is_tls else None
        return Station(name, self.peers, SocketNetwork(files, CELL))

    def speaks(self, name: str, station: Station, term: int) -> None:
        """Return once r1 has heard a vote of that term from a peer."""
        assert station.send("r1", Vote(term))
        until(lambda: (name, Vote(term)) in self.one.got, self.parts, f"vote {term} of {name}")


@pytest.fixture(params=["plain", "tls"])
def cell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Attacked]:
    attacked = Attacked(tmp_path, is_tls=request.param == "tls")
    yield attacked
    for part in attacked.parts:
        part.destroy()


def client_hello() -> bytes:
    """What a TLS client says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    said = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said).do_handshake()
    return said.read()


class Flood(threading.Thread):
    """Strangers without end: each says one thing, and the oldest of `held` make room."""

    def __init__(self, place: tuple[str, int], says: bytes, held: int) -> None:
        super().__init__(daemon=True)
        self.came = 0
        self.is_over = threading.Event()
        self._place, self._says, self._held = place, says, held

    def run(self) -> None:
        sockets: list[socket.socket] = []
        while not self.is_over.is_set():
            with contextlib.suppress(OSError):
                sock = socket.create_connection(self._place, 0.2)
                sockets.append(sock)
                sock.sendall(self._says)
                self.came += 1
            if len(sockets) > self._held:
                sockets.pop(0).close()
        for sock in sockets:
            sock.close()


@contextlib.contextmanager
def flooded(place: tuple[str, int], *says: bytes) -> Iterator[list[Flood]]:
    floods = [Flood(place, one, 100) for one in says]
    for flood in floods:
        flood.start()
    try:
        yield floods
    finally:
        for flood in floods:
            flood.is_over.set()
        for flood in floods:
            flood.join()


def test_peers_speak_and_come_back_while_strangers_flood_the_port(cell: Attacked) -> None:
    with flooded(cell.place, b"", client_hello(), b"\0" * 8) as floods:
        for number in range(SAID):
            cell.speaks("r2", cell.two, 1_000 + number)
        three = cell.station("r3")
        cell.parts.append(three.transport)
        until(lambda: three.reaches("r1"), cell.parts, "r3 to get in")
        cell.speaks("r3", three, 77)
        cell.two.transport.destroy()
        cell.parts.remove(cell.two.transport)
        again = cell.station("r2")
        cell.parts.append(again.transport)
        until(lambda: again.reaches("r1"), cell.parts, "r2 to come back")
        cell.speaks("r2", again, 78)
        until(lambda: all(flood.came > 80 for flood in floods), cell.parts, "the flood")
    assert [name for name, _ in cell.one.got if name == "r2"] == ["r2"] * (SAID + 1)


def introduced(cell: Attacked, slow: socket.socket) -> list[type]:
    """What r1 answers to a peer that has been connected for a while and says its Hello now."""

    def introduce() -> bytes:
        if not cell.is_tls:
            slow.sendall(HELLO)
            return slow.recv(65_536)
        files = files_of(cell.folder / "late", "r3")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(files.certificate, files.key)
        with context.wrap_socket(slow) as secret:
            secret.sendall(HELLO)
            return secret.recv(65_536)

    return [type(one) for one in frames_in(in_thread(cell.parts, introduce))]


def test_a_peer_that_is_slow_is_not_pushed_out_by_those_that_come_after_it(cell: Attacked) -> None:
    """Its hello, or its handshake, comes after more strangers than the tick thread knows."""
    with contextlib.ExitStack() as crowd:
        slow = crowd.enter_context(socket.create_connection(cell.place, WITHIN_S))
        for _ in range(3 * STRANGERS_MAX):
            crowd.enter_context(socket.create_connection(cell.place, WITHIN_S))
            for part in cell.parts:
                part.poll(0.001)
        assert introduced(cell, slow) == [Welcome]


def test_strangers_of_other_addresses_are_bounded_and_push_out_no_peer(
    cell: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address holds half of the places at most, and all together hold no more than there are:
    a slow peer of another address keeps its own."""
    monkeypatch.setattr("consensus.engine.network.handshakes.SHAKEN_WITHIN_S", 600.0)
    half, addresses = HANDSHAKES_MAX // 2, ("127.0.0.2", "127.0.0.3", "127.0.0.4")
    with contextlib.ExitStack() as crowd:
        slow = crowd.enter_context(socket.create_connection(cell.place, WITHIN_S))
        opened: dict[str, list[socket.socket]] = {address: [] for address in addresses}
        for address, ours in opened.items():
            for _ in range(half + 8):
                ours.append(socket.create_connection(cell.place, WITHIN_S, (address, 0)))
                crowd.enter_context(ours[-1])

        def held() -> list[int]:
            return [sum(map(is_open, ours)) for ours in opened.values()]

        until(lambda: max(held()) <= half, cell.parts, "half of the places for each address")
        until(lambda: sum(held()) < HANDSHAKES_MAX, cell.parts, "no more than there are")
        assert introduced(cell, slow) == [Welcome]


def is_open(sock: socket.socket) -> bool:
    """Whether the other side has not ended the connection, on which it says nothing."""
    sock.setblocking(False)
    try:
        return bool(sock.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_no_stranger_is_shaken_hands_with_in_the_tick_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Attacked(tmp_path, is_tls=True)
    ours, shaken = threading.current_thread(), list[threading.Thread]()
    shake = ssl.SSLSocket.do_handshake

    def noted(sock: ssl.SSLSocket, block: bool = False) -> None:
        if sock.server_side:
            shaken.append(threading.current_thread())
        shake(sock, block)

    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", noted)
    with socket.create_connection(cell.place, WITHIN_S) as stranger:
        stranger.sendall(client_hello())
        deadline = time.monotonic() + WITHIN_S
        until(lambda: bool(shaken) or time.monotonic() > deadline, cell.parts, "a handshake")
    assert ours not in shaken
    for part in cell.parts:
        part.destroy()

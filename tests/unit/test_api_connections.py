"""cron.api.connections: the bound on connections, and which of them are ended above it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from cron.api import connections
from cron.api.client import Client
from cron.api.connections import FILES_BESIDE, ConnectionWatch, allow_connections
from cron.api.listening import listen, make_server
from cron.api.server import add_admin
from cron.api.table import JOBS
from launcher.tls import Credentials
from tests.unit.api_rig import FakeBackend, in_thread
from tests.unit.certs_rig import CELL, PERSON, REPLICA, Certs

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
MOST = 40
WITHIN_S = 60.0


@pytest.mark.parametrize(
    ("soft", "hard", "executors", "connections", "raised"),
    [
        (1_024, 1_048_576, 10_000, 50_000, 50_000 + FILES_BESIDE),
        (65_536, 65_536, 10_000, 50_000, 65_536),
        (20_000, 20_000, 10_000, 20_000 - FILES_BESIDE, 20_000),
        (1_024, 4_096, 3_136, 4_096 - FILES_BESIDE, 4_096),
        (256, 256, 112, 128, 256),
    ],
)
def test_ten_thousand_executors_get_their_files_or_the_operator_is_told(
    monkeypatch: pytest.MonkeyPatch,
    soft: int,
    hard: int,
    executors: int,
    connections: int,
    raised: int,
) -> None:
    """Where a process may not open another file, the log cannot go on either."""
    limits = [(soft, hard)]
    module = "cron.api.connections.resource"
    monkeypatch.setattr(f"{module}.getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(f"{module}.setrlimit", lambda _, new: limits.append(new))
    with structlog.testing.capture_logs() as lines:
        assert allow_connections(10_000) == (executors, connections)
    assert limits[-1] == (raised, hard)
    assert [line["event"] for line in lines] == ["files.few"] * (executors < 10_000)
    assert all("LimitNOFILE=50512" in line["hint"] for line in lines)


# ---- a server on loopback


class Served:
    """A replica's server with room for few connections, and strangers who take it."""

    def __init__(self, port: int, watch: ConnectionWatch, credentials: Credentials | None) -> None:
        self.port, self.watch, self.credentials = port, watch, credentials
        self.strangers: list[socket.socket] = []

    def stranger(self, say: bytes = b"") -> socket.socket:
        """Somebody who connects from a host of its own, 127.0.0.2, and then says nothing more."""
        sock = socket.create_connection(("127.0.0.1", self.port), source_address=("127.0.0.2", 0))
        sock.settimeout(WITHIN_S)
        sock.sendall(say)
        self.strangers.append(sock)
        return sock

    def alive(self) -> int:
        return sum(not is_over(one) for one in self.strangers)

    def look(self) -> int:
        return self.watch.look(self.port)


def is_over(sock: socket.socket) -> bool:
    """Whether the other side has ended a connection; what it sent is read."""
    sock.setblocking(False)
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextlib.asynccontextmanager
async def served(certs: Certs | None = None, most: int = MOST) -> AsyncIterator[Served]:
    credentials = certs.credentials(*REPLICA) if certs is not None else None
    shown = (lambda: credentials) if credentials is not None else None
    watch = ConnectionWatch(most)
    server = make_server(CELL, shown, watch)  # type: ignore[arg-type]
    add_admin(server, FakeBackend(jobs=[]))
    port = listen(server, "127.0.0.1:0", shown)  # type: ignore[arg-type]
    await server.start()
    one = Served(port, watch, certs.credentials(*PERSON) if certs is not None else None)
    try:
        yield one
    finally:
        for sock in one.strangers:
            sock.close()
        await server.stop(0)


@pytest.fixture(params=["plain", "tls"])
def certs(request: pytest.FixtureRequest, tmp_path: Path) -> Certs | None:
    return Certs(tmp_path) if request.param == "tls" else None


async def until_alive(one: Served, count: int) -> None:
    def wait() -> None:
        deadline = time.monotonic() + WITHIN_S
        while one.alive() != count:
            assert time.monotonic() < deadline, one.alive()
            time.sleep(0.01)

    await in_thread(wait)


async def test_no_more_connections_are_kept_than_there_are_files_for(certs: Certs | None) -> None:
    async with served(certs) as one:
        await in_thread(lambda: [one.stranger() for _ in range(2 * MOST)])
        await until_alive(one, MOST)


async def test_a_connection_that_says_nothing_is_closed_and_makes_room(
    certs: Certs | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cron.api.listening.HANDSHAKE_MS", 300)
    async with served(certs) as one:
        await in_thread(lambda: [one.stranger() for _ in range(2 * MOST)])
        await until_alive(one, 0)
        with Client([f"127.0.0.1:{one.port}"], 60_000, one.credentials) as client:
            assert await in_thread(client.ask, JOBS) == []


async def test_a_connection_without_a_call_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cron.api.listening.IDLE_MS", 300)
    async with served() as one:
        await in_thread(lambda: [one.stranger(PREFACE) for _ in range(5)])
        await until_alive(one, 0)


async def test_strangers_go_and_a_caller_who_is_known_stays(certs: Certs | None) -> None:
    async with served(certs) as one:
        with Client([f"127.0.0.1:{one.port}"], 60_000, one.credentials) as client:
            assert await in_thread(client.ask, JOBS) == []
            ours = set(_addresses(one.port))
            await in_thread(lambda: [one.stranger() for _ in range(MOST - 2)])
            ended = 0
            while not ended:  # connections are accepted one by one
                ended = await in_thread(one.look)
            assert one.watch.ended == ended
            assert ours & set(_addresses(one.port)), "who makes calls keeps its connection"
            await in_thread(lambda: [is_over(sock) for sock in one.strangers])
            await until_alive(one, MOST - 2 - ended)
            assert await in_thread(client.ask, JOBS) == []


async def test_who_has_most_connections_loses_them_first() -> None:
    async with served() as one:
        here = socket.create_connection(("127.0.0.1", one.port))
        with here:
            await in_thread(lambda: [one.stranger() for _ in range(MOST - 1)])
            while not await in_thread(one.look):
                pass
            assert not is_over(here)
            await until_alive(one, MOST - 1 - one.watch.ended)


async def test_a_certificate_has_few_connections_that_are_safe(tmp_path: Path) -> None:
    certs = Certs(tmp_path)
    async with served(certs, 16) as one:
        for number in range(14):
            one.watch.note(f"ipv4:127.0.0.2:{number + 1}", "executor e1 of cell berlin")
        found = [_connection(number + 1) for number in range(14)] + [_connection(77, "127.0.0.9")]
        one.watch._remember(found, [])
        ranked = one.watch._ranked(found)
        assert len(ranked) == 14 - connections.SAFE_EACH + 1
        assert ranked[-1].host == "127.0.0.9", "a stranger with one goes after a thief with many"


def _connection(port: int, host: str = "127.0.0.2") -> connections.AcceptedConnection:
    return connections.AcceptedConnection(0, f"{host} {port}", host)


def _addresses(port: int) -> list[str]:
    return [one.address for one in connections._connections(port)]


def test_addresses_of_one_host_are_one_host() -> None:
    assert connections._host("2001:db8::1") == connections._host("2001:db8::ffff:1")
    assert connections._host("2001:db8::1") != connections._host("2001:db8:0:1::1")
    assert connections._host("::ffff:192.0.2.1") == "192.0.2.1"
    assert connections._address_of_peer("ipv6:%5B2001:db8::1%5D:77") == "2001:db8::1 77"
    assert connections._address_of_peer("ipv4:192.0.2.1:77") == "192.0.2.1 77"


async def test_a_handshake_that_stops_half_way_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cron.api.listening.HANDSHAKE_MS", 300)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    hello, _ = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), hello)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    said = hello.read()
    async with served(Certs(tmp_path)) as one:
        await in_thread(lambda: [one.stranger(said) for _ in range(5)])
        await until_alive(one, 0)

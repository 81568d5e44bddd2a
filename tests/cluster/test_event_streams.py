"""1,000 open pages at one replica: half of them read nothing of what they are told."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron.limits import HTTP_CONNECTIONS_MAX, HTTP_EVENTS_MAX
from tests.cluster.harness import Cell
from tests.cluster.test_http import CRONTAB, Site

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(300)]

EACH_BYTES_MAX = 192 << 10
"""What a stream may cost the replica: its buffers of 64 KiB, and what it takes to serve it."""
BEYOND = 20
WAIT_S = 120.0


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_bytes(pid: int) -> int:
    """Return how much memory a process has in use."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def opened(port: int, *, reads: bool) -> socket.socket:
    """Return a connection that has asked for events."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    if not reads:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
    return sock


async def head(sock: socket.socket) -> bytes:
    """Return the beginning of an answer, up to the end of its headers."""
    said = b""
    async with asyncio.timeout(WAIT_S):
        while b"\r\n\r\n" not in said:
            piece = await asyncio.get_running_loop().sock_recv(sock, 4_096)
            if not piece:
                break
            said += piece
    return said


async def newest_event(sock: socket.socket) -> bytes:
    """Return the next event that arrives."""
    async with asyncio.timeout(WAIT_S):
        while True:
            piece = await asyncio.get_running_loop().sock_recv(sock, 65_536)
            assert piece, "the stream has ended"
            if b"data: " in piece:
                return piece


async def test_a_thousand_pages_may_be_open_and_requests_are_answered(
    many_files: None, tmp_path: Path
) -> None:
    with Cell(tmp_path / "cell", http=True) as cell, contextlib.ExitStack() as held:
        await asyncio.to_thread(cell.start)
        await asyncio.to_thread(cell.wait_connected)
        await asyncio.to_thread(cell.apply, CRONTAB)
        site, leader = Site(cell), cell.leader()
        site.wait_ready(leader)
        await asyncio.to_thread(cell.wait_launches, 3, "tick")
        port, pid = cell.ports.http[int(leader[1:]) - 1], cell.pid(leader)
        before = resident_bytes(pid)
        reading, silent = [], []
        for number in range(HTTP_EVENTS_MAX):
            sock = await opened(port, reads=number % 2 == 0)
            held.callback(sock.close)
            (reading if number % 2 == 0 else silent).append(sock)
            if number % 2 == 0:  # one after the other, as browsers would come
                assert (await head(sock)).startswith(b"HTTP/1.1 200 ")
        refused = []
        for _ in range(BEYOND):
            sock = await opened(port, reads=True)
            held.callback(sock.close)
            refused.append(await head(sock))
        assert all(one.startswith(b"HTTP/1.1 503 ") for one in refused)
        assert all(b"\r\nretry-after: " in one.lower() for one in refused)
        assert HTTP_EVENTS_MAX + BEYOND < HTTP_CONNECTIONS_MAX, "none was ended to make room"
        launched = len(await asyncio.to_thread(cell.history, "tick"))
        await asyncio.gather(*(newest_event(sock) for sock in reading))
        stale = {"raftcron-stale": "1"}  # a slow machine may elect another leader meanwhile
        for path in ("/healthz", "/v1/jobs", "/v1/history?limit=5"):
            said = await asyncio.to_thread(lambda path=path: site.ask(leader, "GET", path, **stale))
            assert said.status == 200, said
        await asyncio.to_thread(cell.wait_launches, launched + 3, "tick")
        grown = resident_bytes(pid) - before
        print(f"{HTTP_EVENTS_MAX} streams: {grown / HTTP_EVENTS_MAX / 1024:.0f} KiB each")
        assert grown < HTTP_EVENTS_MAX * EACH_BYTES_MAX, f"{grown} bytes"
        for sock in (*reading, *silent):
            sock.close()
        said = b""
        while not said.startswith(b"HTTP/1.1 200 "):  # once the replica has noticed
            sock = await opened(port, reads=True)
            held.callback(sock.close)
            said = await head(sock)

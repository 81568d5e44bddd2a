"""Server-sent events: which events an open page gets, and how many pages may be open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from consensus.leadership import Freshness, Leadership
from cron.access import Role, token_id
from cron.state import access as a
from cron.web import connection
from cron.web.console.events import Events, streams_within
from cron.web.console.page_request import Serving
from cron.web.exchange import RECHECK_S
from tests.unit.access_rig import AccessWorld
from tests.unit.console_rig import backend
from tests.unit.pool_rig import until
from tests.unit.web_rig import Site, site

TICK_S = 0.01


class Now:
    """What the replica says of itself; a test changes it."""

    def __init__(self) -> None:
        self.now = Serving("r1", Leadership(3, leads=True, leader="r1"), Freshness(9, 9, 5))

    def __call__(self) -> Serving:
        return self.now

    def change(self, **fields: Any) -> None:
        self.now = msgspec.structs.replace(self.now, **fields)


@contextlib.asynccontextmanager
async def stream(served: Site, cookie: str = "") -> AsyncIterator[asyncio.StreamReader]:
    """An open stream, behind its status line and headers in `lines`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    lines = f"GET /events HTTP/1.1\r\nhost: localhost\r\ncookie: {cookie}\r\n\r\n"
    writer.write(lines.encode())
    try:
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def event(reader: asyncio.StreamReader) -> dict[str, Any]:
    while True:
        line = (await reader.readline()).decode()
        assert line, "the stream has ended"
        if line.startswith("data: "):
            found: dict[str, Any] = json.loads(line.removeprefix("data: "))
            return found


async def test_a_page_is_told_of_each_change_and_of_a_new_leader() -> None:
    state = Now()
    async with (
        site(backend(), has_console=True, events=Events(state, period_s=TICK_S)) as served,
        stream(served) as reader,
    ):
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        assert (await event(reader))["index"] == 9
        state.change(fresh=Freshness(10, 10, 5))
        assert (await event(reader))["index"] == 10
        state.change(leadership=Leadership(4, leads=False, leader=None))
        told = await event(reader)
    assert told["leader"] == ""
    assert "No leader is known to r1" in told["warning"]


async def test_more_pages_than_may_be_open_are_refused_until_one_is_closed() -> None:
    events = Events(Now(), streams_max=2, period_s=TICK_S)
    async with site(backend(), has_console=True, events=events) as served:
        async with stream(served) as first, stream(served) as second:
            await event(first)
            await event(second)
            assert events.open == 2
            async with stream(served) as third:
                assert (await third.readline()).startswith(b"HTTP/1.1 503 ")
                headers = (await third.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                assert b"retry-after: 1" in headers
            page = await served.ask("GET", "/", headers={"accept": "text/html"})
            assert page.status == 200, "a page can be read still"
        status = b""
        while not status.startswith(b"HTTP/1.1 200 "):  # once the replica has noticed
            async with stream(served) as again:
                status = await again.readline()


async def test_the_stream_of_a_revoked_token_ends() -> None:
    world = AccessWorld()
    token = world.token(Role.VIEWER)
    events = Events(Now(), period_s=TICK_S)
    admission = world.admission(is_open=False)
    async with site(backend(), has_console=True, admission=admission, events=events) as served:
        async with stream(served) as stranger:
            assert (await stranger.readline()).startswith(b"HTTP/1.1 401 ")
        async with stream(served, f"raftcron-session={token}") as reader:
            await event(reader)
            world.rig.append(a.RevokeTokens((token_id(token),), "root"))
            async with asyncio.timeout(10 * RECHECK_S):
                with contextlib.suppress(ConnectionError):
                    await reader.read()  # to its end


async def test_a_reader_that_takes_nothing_is_given_up_and_makes_room(monkeypatch: Any) -> None:
    monkeypatch.setattr(connection, "WRITE_S", 0.05)
    state = Now()
    events = Events(state, streams_max=1, period_s=TICK_S)
    async with site(backend(), has_console=True, events=events) as served:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", served.port))
            await loop.sock_sendall(sock, b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            async with asyncio.timeout(60):
                await until(lambda: events.open == 1)
                index = 10
                while events.open or served.open:
                    # Each event is a megabyte: a real one would fill the buffers in hours.
                    state.change(replica=f"{index:0>1000000}")
                    index += 1
                    await asyncio.sleep(TICK_S)
        assert events.open == 0
        assert index < 1_000, "what waits for a slow reader is bounded"
        state.change(replica="r1")
        async with stream(served) as reader:
            assert (await event(reader))["replica"] == "r1"


@pytest.mark.parametrize(("connections", "streams"), [(1_100, 1_000), (110, 100), (1, 1)])
def test_streams_leave_connections_for_requests(connections: int, streams: int) -> None:
    assert streams_within(connections) == streams

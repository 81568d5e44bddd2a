"""cron.web: how much a client may send, how slowly, and how many may be there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from cron import limits
from cron.api.jobs import ApplyReport
from cron.web import connection, exchange
from cron.web.turns import Turns
from tests.unit.api_rig import FakeBackend, in_thread, launch
from tests.unit.pool_rig import until
from tests.unit.web_rig import Site, site

GET = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = {"job": "b", "request_id": "1"}


def status(said: bytes) -> int:
    """The status of an answer as it came over the connection."""
    return int(said.split(b" ", 2)[1]) if said else 0


# ---- where a body ends


async def test_a_body_with_two_lengths_is_refused_and_ends_the_connection() -> None:
    """A proxy that goes by the other length would take what follows for a part of the body."""
    backend = FakeBackend(trigger=launch())
    hidden = b"0\r\n\r\n" + GET
    async with site(backend) as served:
        said = await served.raw(
            b"POST /v1/launches HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n" % len(hidden) + hidden
        )
    assert status(said) == 400
    assert said.count(b"HTTP/1.1 ") == 1
    assert backend.calls == []


# ---- sizes


async def test_a_body_of_the_largest_size_is_read_and_a_larger_one_is_not(monkeypatch) -> None:
    monkeypatch.setattr(limits, "HTTP_BODY_BYTES_MAX", 100)
    backend = FakeBackend(trigger=launch())
    body = b'{"job":"b","request_id":"1"}'
    async with site(backend) as served:
        whole = await served.ask("POST", "/v1/launches", body.ljust(100))
        above = await served.ask("POST", "/v1/launches", body.ljust(101))
        chunked = await served.raw(
            b"POST /v1/launches HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" + (b"32\r\n" + b" " * 50 + b"\r\n") * 3
        )
    assert whole.status == 200
    assert (above.status, above.json["code"]) == (413, "too_large")
    assert status(chunked) == 413
    assert len(backend.calls) == 1


async def test_all_bodies_together_are_bounded_and_counted_no_more_when_read(monkeypatch) -> None:
    monkeypatch.setattr(limits, "HTTP_BODIES_BYTES_MAX", 100)
    backend = FakeBackend(trigger=launch())
    body = b'{"job":"b","request_id":"1"}'
    async with site(backend) as served:
        for _ in range(5):  # one after the other: far more than the bound
            assert (await served.ask("POST", "/v1/launches", body.ljust(80))).status == 200
        above = await served.ask("POST", "/v1/launches", body.ljust(101))
        again = await served.ask("POST", "/v1/launches", body.ljust(100))
    assert (above.status, above.headers["retry-after"]) == (503, "1")
    assert again.status == 200


async def test_a_file_of_the_largest_size_comes_through() -> None:
    content = "IyMj" * ((limits.HTTP_BODY_BYTES_MAX - 1_000) // 4)
    backend = FakeBackend(put_jobs=ApplyReport())
    async with site(backend) as served:
        body = {"files": [{"name": "big", "content": content}]}
        said = await served.ask("POST", "/v1/jobs", body)
    assert said.status == 200, said.body[:500]
    assert len(backend.calls[0][1][0].files[0].content) == len(content) // 4 * 3


async def test_headers_that_are_too_large_are_refused() -> None:
    async with site(FakeBackend(jobs=[])) as served:
        large = b"X-Large: " + b"x" * limits.HTTP_HEAD_BYTES_MAX + b"\r\n\r\n"
        said = await served.raw(GET[:-2] + large)
        path = await served.raw(b"GET /" + b"x" * limits.HTTP_HEAD_BYTES_MAX)
        fits = await served.ask("GET", "/v1/jobs", headers={"x-large": "x" * 15_000})
    assert status(said) == status(path) == 431
    assert b"application/problem+json" in said
    assert fits.status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        b"Content-Length: 2\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n\r\n\r\nxx\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_and_ends_the_connection(sent: bytes) -> None:
    backend = FakeBackend()
    async with site(backend) as served:
        said = await served.raw(sent)
    assert status(said) in (400, 404, 421, 505), said
    assert backend.calls == []


async def test_an_upgrade_is_answered_as_a_plain_request() -> None:
    async with site(FakeBackend(jobs=[])) as served:
        said = await served.raw(
            GET[:-2] + b"Connection: upgrade, close\r\nUpgrade: websocket\r\n\r\n"
        )
    assert status(said) == 200


# ---- times


async def test_a_client_that_sends_nothing_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.05)
    async with site(FakeBackend()) as served:
        assert await served.raw() == b""


async def test_a_client_that_sends_its_headers_slowly_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.2)
    backend = FakeBackend(jobs=[])
    async with site(backend) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)

        async def drip() -> None:
            with contextlib.suppress(OSError):
                for number in range(0, len(GET), 2):
                    writer.write(GET[number : number + 2])
                    await writer.drain()
                    await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        said = b""
        # What it sends after the end resets the connection, perhaps before it reads the answer.
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(30):
                said = await reader.read()
        await dripping
        writer.close()
    assert status(said) in (0, 408)
    assert backend.calls == []


async def test_a_request_that_waits_to_be_read_is_not_late(monkeypatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.05)
    async with site(FakeBackend(jobs=[])) as served:
        reads: list[Any] = []
        monkeypatch.setattr(served.server.throttle, "add", reads.append)
        asked = asyncio.create_task(served.ask("GET", "/v1/jobs"))
        async with asyncio.timeout(30):
            while not reads:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # much longer than a client may take
        (read,) = reads
        read()
        assert (await asked).status == 200


async def test_a_connection_that_is_kept_gets_the_same_time_for_its_next_request(
    monkeypatch,
) -> None:
    async with site(FakeBackend(jobs=[])) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(GET)
        async with asyncio.timeout(30):
            await reader.readuntil(b"0\r\n\r\n")
            monkeypatch.setattr(connection, "HEAD_S", 0.1)
            await asyncio.sleep(0.3)  # idle after an answer: that is allowed for longer
            monkeypatch.undo()
            writer.write(GET)
            await reader.readuntil(b"0\r\n\r\n")
            monkeypatch.setattr(connection, "HEAD_S", 0.1)
            writer.write(GET[:10])
            said = await reader.read()
        writer.close()
    assert status(said) == 408


async def test_an_idle_connection_ends(monkeypatch) -> None:
    monkeypatch.setattr("cron.web.server.IDLE_S", 0.05)
    async with site(FakeBackend(jobs=[])) as served:
        said = await served.raw(GET)
    assert said.endswith(b"0\r\n\r\n")


async def test_a_body_that_comes_slowly_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(exchange, "BODY_S", 0.05)
    async with site(FakeBackend()) as served:
        said = await served.raw(
            b"POST /v1/launches HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 50\r\n\r\n{"
        )
    assert status(said) == 408


async def test_a_stranger_has_less_time_for_a_body(monkeypatch) -> None:
    """A token that is not known here may be a new one, so its body is read."""
    monkeypatch.setattr(exchange, "STRANGER_BODY_S", 0.05)
    token = f"rc1_{'0' * 12}_{'0' * 64}".encode()
    async with site(FakeBackend()) as served:
        said = await served.raw(
            b"POST /v1/launches HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer " + token + b"\r\nContent-Length: 50\r\n\r\n{"
        )
    assert status(said) == 408
    assert b"longer than 0 s" in said


async def test_a_client_that_does_not_read_its_answer_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(connection, "WRITE_S", 0.1)
    rows = [launch(detail="x" * 10_000) for _ in range(2_000)]
    async with site(FakeBackend(history=rows)) as served:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", served.port))
            await loop.sock_sendall(sock, b"GET /v1/history HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(30):
                while served.open:  # noqa: ASYNC110 - the server has no event for it
                    await asyncio.sleep(0.01)
        again = await served.ask("GET", "/readyz")
    assert again.status == 200


async def test_a_call_that_takes_too_long_ends_and_a_change_may_have_happened(monkeypatch) -> None:
    monkeypatch.setattr("cron.web.application.timeout_of", lambda *_: 50)
    ended = asyncio.Event()
    go_on = asyncio.Event()

    async def slow(_: Any) -> Any:
        await go_on.wait()
        ended.set()
        return launch()

    async with site(FakeBackend(trigger=slow, jobs=slow)) as served:
        change = await served.ask("POST", "/v1/launches", BODY)
        read = await served.ask("GET", "/v1/jobs")
        assert not ended.is_set()
        go_on.set()
        async with asyncio.timeout(30):
            await ended.wait()  # the change went on to its end
    assert (change.status, change.json["code"]) == (504, "outcome_unknown")
    assert (read.status, read.json["code"]) == (503, "unavailable")


# ---- numbers


async def test_requests_wait_for_their_turn_and_above_the_bound_are_refused() -> None:
    go_on = asyncio.Event()
    running = most = 0

    async def slow(_: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1
        return launch()

    turns = Turns(at_once=2, waiting=3)
    async with site(FakeBackend(trigger=slow), turns=turns) as served:
        asked = [asyncio.create_task(served.ask("POST", "/v1/launches", BODY)) for _ in range(5)]
        while turns.waiting < 3:  # noqa: ASYNC110 - nor have turns
            await asyncio.sleep(0.01)
        above = await served.ask("POST", "/v1/launches", BODY)
        alive = await served.ask("GET", "/healthz")
        go_on.set()
        answers = await asyncio.gather(*asked)
    assert (above.status, above.json["code"]) == (503, "busy")
    assert above.headers["retry-after"] == "1"
    assert alive.status == 200, "health waits for no turn"
    assert [one.status for one in answers] == [200] * 5
    assert most == 2


async def idle(served: Site, count: int) -> list[socket.socket]:
    """So many connections that say nothing."""
    loop = asyncio.get_running_loop()
    found = []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", served.port))
        found.append(sock)
    return found


async def test_idle_connections_keep_nobody_out() -> None:
    async with site(FakeBackend(jobs=[]), connections_max=10) as served:
        socks = await idle(served, 40)
        try:
            for _ in range(5):
                assert (await served.ask("GET", "/v1/jobs")).status == 200
            assert served.open <= 10
        finally:
            for sock in socks:
                sock.close()


async def test_a_thousand_idle_connections_are_there_and_a_request_is_answered() -> None:
    async with site(FakeBackend(jobs=[]), connections_max=1_100) as served:
        socks = await idle(served, 1_000)
        try:
            assert (await served.ask("GET", "/v1/jobs")).status == 200
            assert served.open >= 1_000
        finally:
            for sock in socks:
                sock.close()


async def test_a_request_that_runs_is_not_ended_for_a_new_connection() -> None:
    begun = asyncio.Semaphore(0)
    go_on = asyncio.Event()

    async def slow(_: Any) -> Any:
        begun.release()
        await go_on.wait()
        return launch()

    async with site(FakeBackend(trigger=slow), connections_max=2) as served:
        first = [asyncio.create_task(served.ask("POST", "/v1/launches", BODY)) for _ in range(2)]
        for _ in first:
            await begun.acquire()
        waits = asyncio.create_task(served.ask("GET", "/healthz"))
        await asyncio.sleep(0.1)
        assert not waits.done()
        go_on.set()
        assert [one.status for one in await asyncio.gather(*first, waits)] == [200] * 3


async def test_the_last_connection_that_may_be_open_is_not_ended_before_another_comes() -> None:
    async with site(FakeBackend(jobs=[]), connections_max=2) as served:
        socks = await idle(served, 2)
        await until(lambda: served.open == 2)
        await asyncio.sleep(0.1)
        try:
            for sock in socks:
                assert await in_thread(_answer, sock) == b"HTTP/1.1 200 "
        finally:
            for sock in socks:
                sock.close()


def _answer(sock: socket.socket) -> bytes:
    sock.setblocking(True)
    sock.sendall(GET)
    return sock.recv(13)


async def test_one_that_waits_takes_the_place_of_one_that_becomes_idle() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: Any) -> Any:
        begun.set()
        await go_on.wait()
        return []

    async with site(FakeBackend(jobs=slow), connections_max=1) as served:
        (sock,) = await idle(served, 1)
        first = asyncio.create_task(in_thread(_answer, sock))
        await begun.wait()
        waits = asyncio.create_task(served.ask("GET", "/healthz"))
        await asyncio.sleep(0.1)
        assert not waits.done()
        go_on.set()
        assert await first == b"HTTP/1.1 200 "
        assert (await waits).status == 200, "though the first stays open"
        sock.close()


async def test_requests_in_one_go_are_answered_in_their_order() -> None:
    async with site(FakeBackend(jobs=[], history=[])) as served:
        last = GET[:-2].replace(b"jobs", b"nothing") + b"Connection: close\r\n\r\n"
        said = await served.raw(GET + GET.replace(b"jobs", b"history") + last)
    assert said.count(b"HTTP/1.1 200 ") == 2
    assert said.index(b"HTTP/1.1 404 ") > said.rindex(b"HTTP/1.1 200 ")


async def test_a_stop_waits_for_a_request_and_ends_the_rest(monkeypatch) -> None:
    monkeypatch.setattr("cron.web.server.STOP_S", 60)
    begun = asyncio.Event()

    async def slow(_: Any) -> Any:
        begun.set()
        await asyncio.sleep(0.2)
        return launch()

    async with site(FakeBackend(trigger=slow)) as served:
        socks = await idle(served, 3)
        asked = asyncio.create_task(served.ask("POST", "/v1/launches", BODY))
        await begun.wait()
    assert (await asked).status == 200
    for sock in socks:
        sock.close()

"""What any bytes on a connection of HTTP may do: end it, or be refused. They never find a bug.

The replica's side of HTTP/1.1, the requests of its calls, and the client's side of HTTP/2.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any, Final

from uvicorn.server import ServerState

from consensus.leadership import Freshness, Leadership
from cron.api.callers import open_admission
from cron.api.readiness import Readiness
from cron.errors import CronError, UnknownJob
from cron.web.application import Application
from cron.web.connection import THROTTLE, Connection
from cron.web.forwarding import Forwarding
from cron.web.health import HealthChecks
from cron.web.requests import read_request
from cron.web.routes import routes
from cron.web.server import HttpServer
from cron.web.turns import Throttle, Turns
from launcher import hpack
from launcher.http2 import Http2Connection, NoAnswer, TooLong
from launcher.http2 import _frame as frame
from launcher.reach import Unreached
from tests.fuzz.subject import Finding, Subject, check_same

_ROUTES: Final = routes()
_WALL_MS: Final = 1_795_186_800_000
_WAIT_S: Final = 30.0
_BUG: Final = b" 500 "


def request(content: bytes) -> bool:
    """As the path's value, the query and the body of a call."""
    route = _ROUTES[(content or b"\0")[0] % len(_ROUTES)]
    value, _, rest = content[1:].partition(b"\n")
    query, _, body = rest.partition(b"\n")
    with suppress(CronError):
        read_request(route, value.decode("utf-8", "replace"), query, body)
        return True
    return False


def headers(content: bytes) -> bool:
    """As a block of headers of HTTP/2: those that are read come back."""
    with suppress(hpack.BadHeaders):
        found = hpack.decode(content)
        check_same(found, hpack.decode(hpack.encode(found)), "headers")
        return bool(found)
    return False


def answer(content: bytes) -> bool:
    """As what a server of HTTP/2 says to a client that calls it, cut somewhere."""
    cut, content = (content[0] if content else 0), content[1:]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(content[cut:])
        theirs.shutdown(socket.SHUT_WR)
        connection = Http2Connection(
            ours, content[:cut], "r:1", bytes_max=1 << 20, headers_max=10_000
        )
        is_good = False
        with suppress(NoAnswer, TooLong, Unreached):
            connection.call("/s/M", b"please", (), int(_WAIT_S * 1_000))
            is_good = True
        connection.is_over()
    return is_good


def framed_answer(content: bytes) -> bool:
    """The same in frames: each begins with its length, kind, flags and stream."""
    frames = b"\0"
    while content:
        lead, content = content[:4].ljust(4, b"\0"), content[4:]
        length, kind, flags, stream = lead
        frames += frame(kind % 11, flags, stream % 3, content[:length])
        content = content[length:]
    return answer(frames)


# ---- HTTP/1.1


class _Backend:
    """Knows no job; counts the calls that reach it."""

    def __init__(self) -> None:
        self.calls = 0

    async def answer(self, rpc: Any, request: Any) -> Any:
        """Refuse a call."""
        self.calls += 1
        raise UnknownJob("there is no such job")


class _Transport(asyncio.Transport):
    """The other side of a connection: what was said to it."""

    def __init__(self) -> None:
        super().__init__()
        self.said = b""
        self.is_over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Note what is said."""
        self.said += bytes(data)

    def is_closing(self) -> bool:
        """Return whether the server has ended it."""
        return self.is_over

    def close(self) -> None:
        """End it."""
        self.is_over = True

    abort = close

    def pause_reading(self) -> None:
        """Nothing more is read anyway."""

    def resume_reading(self) -> None:
        """All has been read."""


class _Site:
    """The application of a replica, on an event loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.backend = _Backend()
        health = Readiness(
            lambda: Leadership(3, leads=True, leader="r1"), lambda: Freshness(9, 9, 5)
        )
        application = Application(
            Forwarding(self.backend, None),  # type: ignore[arg-type]
            open_admission("", is_open=True),
            HealthChecks("r1", health),
            lambda: _WALL_MS,
            turns=Turns(),
        )
        self.config = HttpServer(application, "127.0.0.1:0")._config
        self.config.load()

    async def say(self, content: bytes) -> bytes:
        """Return what is answered to some bytes, after which the other side hangs up.

        Raises:
            Finding: something of it does not end.
        """
        transport, throttle = _Transport(), Throttle()
        connection = Connection(self.config, ServerState(), {THROTTLE: throttle})
        connection.connection_made(transport)
        connection.data_received(content)
        while throttle._waiting or throttle._is_due:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
        connection.eof_received()
        connection.connection_lost(None)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left and (await asyncio.wait(left, timeout=_WAIT_S))[1]:
            raise Finding(f"a request does not end: {content!r}")
        return transport.said


_sites: list[_Site] = []


def http(content: bytes) -> bool:
    """As what a client of HTTP/1.1 says to a replica."""
    if not _sites:
        _sites.append(_Site())
    (site,) = _sites
    before = site.backend.calls
    said = site.loop.run_until_complete(site.say(content))
    if _BUG in said.partition(b"\r\n")[0] + b" ":
        raise Finding(f"{content!r} is answered {said!r}")
    return site.backend.calls > before


def call(content: bytes) -> bool:
    """As the target and the body of a request whose headers are right."""
    target, _, body = content.partition(b"\n")
    method, _, target = target.partition(b" ")
    head = b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    length = b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    return http(head % (method, target) + length)


_OK: Final = hpack.encode([("grpc-status", b"0")])
_GOOD: Final = b"".join(
    [
        frame(4, 0, 0, b""),
        frame(1, 4, 1, hpack.encode([(":status", b"200")])),
        frame(0, 0, 1, b"\0\0\0\0\x02ok"),
        frame(1, 5, 1, _OK),
    ]
)
_TRIGGER: Final = [one.path for one in _ROUTES].index("/v1/launches")
_HISTORY: Final = [one.path for one in _ROUTES].index("/v1/history")
_JOB: Final = b'{"job": "a", "request_id": "1"}'

SUBJECT: Final = Subject(
    (request, headers, answer, framed_answer, http, call),
    {
        "request": [
            bytes([_TRIGGER]) + b"\n\n" + _JOB,
            bytes([_HISTORY]) + b"\njob=a&limit=5&states=failed&states=lost\n",
        ],
        "headers": [
            _OK, hpack.encode([(":status", b"200"), ("a", b"b" * 200)]), b"\x88\x0f\x0d\x01x"
        ],
        "answer": [b"\x09" + _GOOD],
        "framed_answer": [
            bytes([len(_OK), 1, 5, 1]) + _OK,
            bytes([3, 1, 0, 1]) + _OK[:3] + bytes([len(_OK) - 3, 9, 4, 1]) + _OK[3:],
        ],
        "http": [
            b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"POST /v1/launches HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n1f\r\n" + _JOB + b"\r\n0\r\n\r\n",
        ],
        "call": [b"POST /v1/launches\n" + _JOB, b"GET /v1/why/a?limit=1\n"],
    },
)  # fmt: skip

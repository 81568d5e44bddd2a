"""A backend that answers what a test tells it to, behind real gRPC servers on loopback.

The servers run on the test's own event loop; the client is synchronous and runs in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import socketserver
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
from click.testing import CliRunner, Result

from cron.api.launches import LaunchView
from cron.api.members import StatusReport
from cron.api.rpc import Asks, Backend, Request, Rpc, encode
from cron.api.server import SERVER_OPTIONS, add_admin
from cron.api.table import STATUS, TABLE
from cron.errors import NotLeader
from tests.fakes.ports import free_address

NOON_S = 1_795_186_800  # 2026-11-20T15:00:00Z


def launch(**fields: Any) -> LaunchView:
    """A launch that ended well, or as the fields say."""
    given: dict[str, Any] = {
        "launch": "default/backup@2026-11-20T15:00:00Z",
        "job": "backup",
        "tenant": "default",
        "scheduled_s": NOON_S,
        "attempt": 1,
        "state": "succeeded",
        "begun_at_ms": NOON_S * 1000 + 3,
        "launched_at_ms": NOON_S * 1000 + 9,
        "started_at_ms": NOON_S * 1000 + 7,
        "finished_at_ms": NOON_S * 1000 + 1_507,
        "exit_code": 0,
        "executor": "e1",
        "term": 4,
        "lateness_ms": 7,
        "epoch": "0.4.r1",
        "replica": "r1",
        "begun_index": 88,
        "launched_index": 89,
        "ended_index": 90,
    }
    return LaunchView(**(given | fields))


def method_of(rpc: Rpc[Any, Any]) -> str:
    """The name by which a test speaks of a call: `put_jobs` for PutJobs."""
    return re.sub("(?<=[a-z])([A-Z])", r"_\1", rpc.name).lower()


CALLS: dict[str, Rpc[Any, Any]] = {method_of(rpc): rpc for rpc in TABLE.values()}
"""All calls by the names that tests give them."""


def asks(method: str, *given: Any) -> Any:
    """The request of a call: the one that is given, or one of the fields that are, in order."""
    if given and isinstance(given[0], Request):
        return given[0]
    kind = CALLS[method].request
    return kind(**dict(zip(kind.__struct_fields__, given, strict=False)))


def call(cell: Asks, method: str, *given: Any) -> Any:
    """What a cell answers to the request of a call."""
    return cell.ask(CALLS[method], asks(method, *given))


class Stub:
    """The service as any gRPC client sees it: `await Stub(channel).Kill(request)`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        rpc = TABLE[name]
        kind = self._channel.unary_stream if rpc.is_stream else self._channel.unary_unary
        return kind(
            rpc.path,
            request_serializer=encode,
            response_deserializer=lambda content: rpc.read_answer([content]),
        )


class Calls:
    """The calls of a service as methods: `await Calls(service).kill(LAUNCH, "ada")`."""

    def __init__(self, service: Backend) -> None:
        self.service = service

    def __getattr__(self, method: str) -> Any:
        return lambda *given: self.service.answer(CALLS[method], asks(method, *given))


class FakeBackend:
    """Answers with `answers[method]`: a value, an error to raise, or a function of the request.

    `calls` has every call that reached it, as (method, (request,)).
    """

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = answers
        self.calls: list[tuple[str, tuple[Any]]] = []

    async def answer(self, rpc: Rpc[Any, Any], request: Any) -> Any:
        method = method_of(rpc)
        self.calls.append((method, (request,)))
        answer = self.answers[method]
        if callable(answer) and not isinstance(answer, type):
            answer = answer(request)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return StatusReport(rows=answer) if rpc is STATUS and isinstance(answer, list) else answer


class Follower(FakeBackend):
    """A replica that does not lead; `leader` is what it believes."""

    def __init__(self, leader: str | None) -> None:
        super().__init__()
        self.leader = leader

    async def answer(self, rpc: Rpc[Any, Any], request: Any) -> Any:
        self.calls.append((method_of(rpc), (request,)))
        raise NotLeader(self.leader)


@contextlib.asynccontextmanager
async def serving(backend: FakeBackend, *peers: str) -> AsyncIterator[str]:
    """Serve a backend; the address of its server."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_admin(server, backend, lambda: peers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@contextlib.contextmanager
def mute() -> Iterator[str]:
    """Something that accepts connections and never says a word; its address."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(64)
        yield f"127.0.0.1:{sock.getsockname()[1]}"


@contextlib.contextmanager
def stranger(greeting: bytes) -> Iterator[str]:
    """A server that says something of its own to everybody and hangs up; its address."""

    class Greeting(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.sendall(greeting)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeting) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def closed_address() -> str:
    """An address on which nobody listens."""
    return free_address()


async def in_thread(call: Callable[..., Any], *given: Any) -> Any:
    """Call something synchronous while the servers go on."""
    return await asyncio.to_thread(call, *given)


async def run_cli(*arguments: str, server: str = "", stdin: bytes | None = None) -> Result:
    """Run the command line in this process."""
    from cron.main import cli

    environment = {"RAFTCRON_SERVER": server or closed_address(), "LOGNAME": "ada"}
    runner = CliRunner(env=environment)
    return await asyncio.to_thread(
        lambda: runner.invoke(cli, list(arguments), input=stdin, prog_name="raftcron")
    )

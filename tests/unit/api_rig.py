"""A backend that answers what a test tells it to, behind real gRPC servers on loopback.

The servers run on the test's own event loop; the client is synchronous and runs in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
from click.testing import CliRunner, Result

from cron.api import pool_views as pv
from cron.api.server import SERVER_OPTIONS, add_admin
from cron.api.views import (
    ApplyReport,
    ApplyRequest,
    AuditReport,
    BackfillReport,
    BackfillRequest,
    ClockReport,
    ClockRequest,
    HistoryQuery,
    JobsRequest,
    JobView,
    LaunchView,
    NextTimes,
    OutputQuery,
    OutputView,
    PauseReport,
    PauseRequest,
    RemoveReport,
    RemoveRequest,
    ReplaceReport,
    ReplaceRequest,
    StatusRow,
    WhyReport,
)
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


class FakeBackend:
    """Answers with `answers[method]`: a value, an error to raise, or a function of the arguments.

    `calls` has every call that reached it, as (method, arguments).
    """

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = answers
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    async def _answer(self, method: str, *given: Any) -> Any:
        self.calls.append((method, given))
        answer = self.answers[method]
        if callable(answer) and not isinstance(answer, type):
            answer = answer(*given)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def put_jobs(self, request: ApplyRequest) -> ApplyReport:
        return await self._answer("put_jobs", request)

    async def remove_jobs(self, request: RemoveRequest) -> RemoveReport:
        return await self._answer("remove_jobs", request)

    async def jobs(self, wanted: JobsRequest) -> list[JobView]:
        return await self._answer("jobs", wanted)

    async def next_times(self, job: str, after_s: int | None, count: int) -> NextTimes:
        return await self._answer("next_times", job, after_s, count)

    async def history(self, query: HistoryQuery) -> list[LaunchView]:
        return await self._answer("history", query)

    async def show(self, launch: str) -> list[LaunchView]:
        return await self._answer("show", launch)

    async def output(self, query: OutputQuery) -> OutputView:
        return await self._answer("output", query)

    async def why(self, job: str, at_s: int, is_nearest: bool) -> WhyReport:
        return await self._answer("why", job, at_s, is_nearest)

    async def trigger(self, job: str, request_id: str, by: str) -> LaunchView:
        return await self._answer("trigger", job, request_id, by)

    async def pause(self, request: PauseRequest) -> PauseReport:
        return await self._answer("pause", request)

    async def resume(self, pattern: str, by: str) -> PauseReport:
        return await self._answer("resume", pattern, by)

    async def backfill(self, request: BackfillRequest) -> BackfillReport:
        return await self._answer("backfill", request)

    async def kill(self, launch: str, by: str) -> LaunchView:
        return await self._answer("kill", launch, by)

    async def reset_clock(self, request: ClockRequest) -> ClockReport:
        return await self._answer("reset_clock", request)

    async def replace(self, request: ReplaceRequest) -> ReplaceReport:
        return await self._answer("replace", request)

    async def status(self) -> list[StatusRow]:
        return await self._answer("status")

    async def peer_status(self) -> StatusRow:
        return await self._answer("peer_status")

    async def audit(self, job: str, since_ms: int) -> AuditReport:
        return await self._answer("audit", job, since_ms)

    # ---- the pool

    async def set_limit(self, change: pv.LimitChange) -> pv.LimitView:
        return await self._answer("set_limit", change)

    async def remove_limit(self, removal: pv.LimitRemoval) -> pv.LimitView:
        return await self._answer("remove_limit", removal)

    async def limits(self) -> pv.LimitsReport:
        return await self._answer("limits")

    async def close_gate(self, request: pv.GateRequest) -> pv.GateView:
        return await self._answer("close_gate", request)

    async def open_gates(self, opening: pv.GateOpening) -> pv.GatesReport:
        return await self._answer("open_gates", opening)

    async def gates(self) -> pv.GatesReport:
        return await self._answer("gates")

    async def dead(self, query: pv.DeadQuery) -> pv.DeadReport:
        return await self._answer("dead", query)

    async def redrive(self, change: pv.DeadChange) -> pv.DeadOutcome:
        return await self._answer("redrive", change)

    async def drop_dead(self, change: pv.DeadChange) -> pv.DeadOutcome:
        return await self._answer("drop_dead", change)

    async def executors(self) -> pv.ExecutorsReport:
        return await self._answer("executors")

    async def executor(self, query: pv.ExecutorQuery) -> pv.ExecutorReport:
        return await self._answer("executor", query)

    async def drain(self, request: pv.DrainRequest) -> pv.ExecutorView:
        return await self._answer("drain", request)

    async def queues(self, query: pv.QueueQuery) -> pv.QueuesReport:
        return await self._answer("queues", query)

    async def waits(self, query: pv.WaitQuery) -> pv.WaitsReport:
        return await self._answer("waits", query)


class Follower(FakeBackend):
    """A replica that does not lead; `leader` is what it believes."""

    def __init__(self, leader: str | None) -> None:
        super().__init__()
        self.leader = leader

    async def _answer(self, method: str, *given: Any) -> Any:
        self.calls.append((method, given))
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

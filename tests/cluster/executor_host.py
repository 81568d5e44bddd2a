"""An executor process and a fake leader in front of it, for tests with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec

from launcher.clock import boot_ms, wall_ms
from launcher.protocol.v1 import pool_pb2, pool_pb2_grpc
from launcher.protocol.work import Epoch, WorkSpec
from tests.unit.rows_rig import Start, orders, reports_of

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60.0
FAR_MS = 3_600_000


async def until(condition: Callable[[], Any], what: str = "it", wait_s: float = WAIT_S) -> Any:
    """Return what `condition` returns once it is true; fail after `wait_s`."""
    deadline_ms = boot_ms() + int(wait_s * 1000)
    while not (value := condition()):
        assert boot_ms() < deadline_ms, f"waited {wait_s} s for {what}"
        await asyncio.sleep(0.005)
    return value


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def shell(command: str, **fields: Any) -> bytes:
    """Return a WorkSpec, encoded, that runs a shell command in /."""
    return work(argv=("/bin/sh", "-c", command), **fields)


def work(**fields: Any) -> bytes:
    return msgspec.msgpack.encode(WorkSpec(**{"cwd": "/", **fields}))


class FakeLeader(pool_pb2_grpc.PoolServicer):
    """Speaks the leader's half of the stream, without a replica behind it."""

    def __init__(self) -> None:
        self.epoch = Epoch(0, 1, "r1")
        self.heartbeat_ms, self.self_kill_ms = 50, 20_000
        self.answers, self.leads, self.hint = True, True, ""
        self.hellos: list[pool_pb2.Hello] = []
        self.reports: list[pool_pb2.RowReport] = []
        self.messages = 0
        self.chunks: list[pool_pb2.OutputChunk] = []
        self.offers: list[pool_pb2.Offer] = []
        self.beats = 0
        self.streams = 0
        self.port = 0
        self.refusal, self.refused = "", 0
        self.welcomes = asyncio.Event()
        self.welcomes.set()
        self._out: asyncio.Queue[Any] | None = None

    async def __aenter__(self) -> FakeLeader:
        self._server = grpc.aio.server()
        add: Any = pool_pb2_grpc.add_PoolServicer_to_server  # generated without types
        add(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def Connect(  # noqa: N802 - gRPC's name
        self, stream: Any, context: Any
    ) -> AsyncIterator[pool_pb2.FromLeader]:
        if not self.leads:
            context.set_trailing_metadata((("raftcron-leader", self.hint),) if self.hint else ())
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this replica does not lead")
        if self.refusal:
            self.refused += 1
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, self.refusal)
        out: asyncio.Queue[Any] = asyncio.Queue()
        first = await anext(stream)
        assert first.WhichOneof("kind") == "hello"
        self.hellos.append(first.hello)
        await self.welcomes.wait()
        self._out, self.offers = out, []
        self.streams += 1
        welcome = pool_pb2.Welcome(
            epoch=epoch(self.epoch),
            heartbeat_ms=self.heartbeat_ms,
            self_kill_ms=self.self_kill_ms,
            wall_ms=wall_ms(),
            protocol=3,
        )
        yield pool_pb2.FromLeader(welcome=welcome)
        reader = asyncio.create_task(self._read(stream, out))
        try:
            while (message := await out.get()) is not None:
                yield message
        finally:
            reader.cancel()
            self._out = None if self._out is out else self._out

    async def _read(self, stream: Any, out: asyncio.Queue[Any]) -> None:
        async for message in stream:
            kind = message.WhichOneof("kind")
            if kind == "heartbeat":
                self.beats += 1
                if self.answers:
                    answer = pool_pb2.HeartbeatAnswer(number=message.heartbeat.number)
                    out.put_nowait(pool_pb2.FromLeader(heartbeat=answer))
            elif kind == "reports":
                self.messages += 1
                self.reports += reports_of(message.reports)
            elif kind == "offers":
                self.offers = list(message.offers.offers)
            elif kind == "output":
                self.chunks.append(message.output)
        out.put_nowait(None)

    # ---- orders

    async def connected(self, streams: int = 1) -> None:
        await until(lambda: self.streams >= streams and self._out and self.beats, "a stream")

    def order(self, **fields: Any) -> None:
        assert self._out is not None
        under = epoch(fields.pop("epoch", self.epoch))
        message = orders(*fields.pop("starts", ()), **fields)
        message.epoch.CopyFrom(under)
        self._out.put_nowait(pool_pb2.FromLeader(orders=message))

    def start(self, name: str, spec: bytes, *, index: int = 10, **fields: Any) -> None:
        late_ms = fields.pop("late_ms", -FAR_MS)
        self.order(starts=[Start(name, spec, wall_ms() - late_ms, index)], **fields)

    def goodbye(self, leader: str = "") -> None:
        assert self._out is not None
        message = pool_pb2.Goodbye(reason="leadership is lost", leader=leader)
        self._out.put_nowait(pool_pb2.FromLeader(goodbye=message))

    async def output(self, name: str, **fields: Any) -> pool_pb2.OutputChunk:
        assert self._out is not None
        number = len(self.chunks) + 1
        request = pool_pb2.OutputRequest(request=number, name=name, **fields)
        self._out.put_nowait(pool_pb2.FromLeader(output=request))
        await until(lambda: len(self.chunks) >= number, "output")
        return self.chunks[-1]

    # ---- what came back

    def about(self, name: str, status: int | None = None) -> list[pool_pb2.RowReport]:
        return [
            report
            for report in self.reports
            if report.name == name and (status is None or report.status == status)
        ]

    async def told(self, name: str, status: int, count: int = 1) -> pool_pb2.RowReport:
        """Return the row once it was reported `count` times with that status. One that is waited
        for once may also be in the Hello of a later stream, where the one before ended
        meanwhile."""

        def found() -> list[pool_pb2.RowReport]:
            hellos = self.hellos[1:] if count == 1 else []
            greeted = [row for hello in hellos for row in reports_of(hello.known)]
            told = [row for row in greeted if (row.name, row.status) == (name, status)]
            return told + self.about(name, status)

        what = f"{pool_pb2.Status.Name(pool_pb2.Status.ValueType(status))} of {name}"
        await until(lambda: len(found()) >= count, what)
        return found()[-1]


def epoch(value: Epoch) -> pool_pb2.Epoch:
    return pool_pb2.Epoch(generation=value.generation, term=value.term, replica=value.replica)


class ExecutorHost:
    """An executor process on a directory; started as often as a test likes."""

    def __init__(self, directory: Path, leaders: list[str], **settings: Any) -> None:
        self.directory = directory
        self.config = directory / "executor.toml"
        self.configure(leaders, **settings)
        self.process: subprocess.Popen[bytes] | None = None
        self.log = directory / "stderr.log"
        self.variables: dict[str, str] = {}

    def configure(self, leaders: list[str], **settings: Any) -> None:
        fields = {"id": "e1", "data": "data", "leaders": leaders, "users": ["root"], **settings}
        self.config.write_text(
            "".join(
                f"{key} = {msgspec.json.encode(value).decode()}\n" for key, value in fields.items()
            )
        )

    def start(self, *options: str, failpoints: str = "") -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "launcher.executor", "--config", str(self.config), *options],
                cwd=ROOT,
                env={**os.environ, "RAFTCRON_FAILPOINTS": failpoints, "SECRET": "of the executor"}
                | self.variables,
                stderr=log,
            )
        return self.process

    async def ended(self, wait_s: float = WAIT_S) -> int:
        process = self.process
        assert process is not None
        await until(lambda: process.poll() is not None, "the executor's end", wait_s)
        assert process.returncode is not None
        return process.returncode

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.ended()

    def errors(self) -> str:
        """All that was written to stderr."""
        return self.log.read_text()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


def mark(tmp_path: Path) -> tuple[str, Path]:
    """A command that leaves one line per run, and the file."""
    path = tmp_path / "runs"
    return f"echo run >> {path}", path

"""Cells that a test can drive, in memory or as three processes, behind one interface."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from consensus.config import EngineConfig
from consensus.errors import ConsensusError, NotLeader, OutcomeUnknown, Stopped
from consensus.leadership import Leadership, Position
from consensus.log import Applied
from tests.conformance.ledger import AHEAD, Ledger
from tests.fakes.memory_log import MemoryCell, MemoryLog
from tests.fakes.ports import free_ports

IDS = ("r1", "r2", "r3")
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0
PAGE_ENTRIES = 5_000


async def eventually(
    holds: Callable[[], Awaitable[bool]], what: str, within_s: float = DEADLINE_S
) -> None:
    """Poll until `holds`, or fail with `what`."""
    until = asyncio.get_running_loop().time() + within_s
    while not await holds():
        assert asyncio.get_running_loop().time() < until, f"never: {what}"
        await asyncio.sleep(0.02)


def engine_configs(directory: Path, **settings: Any) -> dict[str, EngineConfig]:
    """Settings of three replicas with short elections, on free ports."""
    peers = {name: f"127.0.0.1:{port}" for name, port in zip(IDS, free_ports(3), strict=True)}
    chosen = {
        "start": "bootstrap",
        "election_min_ms": 800,
        "election_max_ms": 1_600,
        "heartbeat_ms": 50,
    } | settings
    return {
        name: EngineConfig(replica=name, peers=peers, data=str(directory / name), **chosen)
        for name in IDS
    }


class Cell(Protocol):
    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def belief(self, replica: str) -> Leadership: ...
    async def applied(self, replica: str) -> Position: ...
    async def append(self, replica: str, entry: bytes, timeout_ms: int = 60_000) -> Applied: ...
    async def barrier(self, replica: str, timeout_ms: int = 60_000) -> Position: ...
    async def confirm(self, replica: str, timeout_ms: int = 60_000) -> None: ...
    async def entries(self, replica: str) -> list[bytes]: ...
    async def snapshot(self, replica: str) -> Position: ...
    async def transfer(self, replica: str, to: str | None = None) -> None: ...
    async def stop(self, replica: str) -> None: ...
    async def kill(self, replica: str) -> None: ...
    async def restart(self, replica: str) -> None: ...
    async def isolate(self, replica: str) -> None: ...
    async def heal(self) -> None: ...
    async def pause(self, replica: str) -> None: ...
    async def resume(self, replica: str) -> None: ...
    async def slow(self, replica: str, is_slow: bool) -> None: ...


async def leader_of(cell: Cell, among: tuple[str, ...] = IDS, within_s: float = DEADLINE_S) -> str:
    """Return who leads, once the others of `among` know it too."""
    found: list[str] = []

    async def agreed() -> bool:
        beliefs = [await cell.belief(name) for name in among]
        leaders = {belief.leader for belief in beliefs if belief.leader in among}
        terms = {belief.term for belief in beliefs}
        found[:] = [name for name, b in zip(among, beliefs, strict=True) if b.leads]
        return len(found) == 1 and leaders == set(found) and len(terms) == 1

    await eventually(agreed, f"one leader among {among}", within_s)
    return found[0]


class MemoryDriver:
    """Three MemoryLogs. To be paused is to be cut off and to believe on."""

    def __init__(self) -> None:
        self.cell = MemoryCell(IDS)
        self.ledgers: dict[str, Ledger] = {}
        self.logs: dict[str, MemoryLog] = {}
        self.are_slow: dict[str, bool] = {}

    async def start(self) -> None:
        for name in IDS:
            await self.restart(name)

    async def close(self) -> None:
        for log in self.logs.values():
            await log.stop()

    async def belief(self, replica: str) -> Leadership:
        return self.logs[replica].leadership

    async def applied(self, replica: str) -> Position:
        return self.logs[replica].applied

    async def append(self, replica: str, entry: bytes, timeout_ms: int = 60_000) -> Applied:
        return await self.logs[replica].append(entry, timeout_ms=timeout_ms)

    async def barrier(self, replica: str, timeout_ms: int = 60_000) -> Position:
        return await self.logs[replica].barrier(timeout_ms=timeout_ms)

    async def confirm(self, replica: str, timeout_ms: int = 60_000) -> None:
        await self.logs[replica].confirm(timeout_ms=timeout_ms)

    async def entries(self, replica: str) -> list[bytes]:
        return list(self.ledgers[replica].entries)

    async def snapshot(self, replica: str) -> Position:
        return await self.logs[replica].snapshot()

    async def transfer(self, replica: str, to: str | None = None) -> None:
        await self.logs[replica].transfer(to)

    async def stop(self, replica: str) -> None:
        await self.logs[replica].stop()

    async def kill(self, replica: str) -> None:
        self.cell.crash(replica)

    async def restart(self, replica: str) -> None:
        self.ledgers[replica] = Ledger()
        self.logs[replica] = self.cell.log(
            replica,
            self.ledgers[replica],
            may_acknowledge=lambda entry: (
                not (self.are_slow.get(replica) and entry.startswith(AHEAD))
            ),
        )
        await self.logs[replica].start()

    async def isolate(self, replica: str) -> None:
        self.cell.isolate(replica)

    async def heal(self) -> None:
        self.cell.heal()

    async def pause(self, replica: str) -> None:
        self.cell.isolate(replica, believes=True)

    async def resume(self, replica: str) -> None:
        self.cell.heal()

    async def slow(self, replica: str, is_slow: bool) -> None:
        self.are_slow[replica] = is_slow


class NodeProcess:
    """A process of tests.conformance.engine_node, or of another `module` that serves the same
    commands, and its control channel. What it writes to stderr is kept in `log`, if there is one.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.module = "tests.conformance.engine_node"
        self.environment: dict[str, str] = {}
        self.log: Path | None = None
        self.process: asyncio.subprocess.Process | None = None
        self._is_gone = False
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        with ExitStack() as opened:
            errors = opened.enter_context(self.log.open("ab")) if self.log else None
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self.module,
                msgspec.json.encode(self.config).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=64 * 1024 * 1024,
                cwd=ROOT,
                env=os.environ | self.environment,
            )
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._count, self._waiting, self._is_gone = 0, {0: ready}, False
        self._reading = asyncio.create_task(self._read())
        async with asyncio.timeout(DEADLINE_S):
            await ready

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        while (line := await self.process.stdout.readline()).endswith(b"\n"):
            reply = json.loads(line)
            waiting = self._waiting.pop(reply["id"], None)
            if waiting is not None and not waiting.done():
                if "error" in reply:
                    waiting.set_exception(error_of(reply))
                else:
                    waiting.set_result(reply["ok"])
        self._is_gone = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(OutcomeUnknown("the process is gone"))
        self._waiting.clear()

    async def ask(self, do: str, **arguments: Any) -> Any:
        if self.process is None or self._is_gone or self.process.returncode is not None:
            raise Stopped("the process is gone")
        assert self.process.stdin is not None
        self._count += 1
        command = {"id": self._count, "do": do} | arguments
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._count] = answer
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        return await answer

    def signal(self, number: int) -> None:
        # not Process.send_signal: it waits for the child itself, and its exit code is lost
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    async def kill(self) -> int | None:
        """End it by SIGKILL, if it runs; return its exit code, None if none was started."""
        if self.process is None:
            return None
        if self.process.returncode is None:
            self.signal(signal.SIGKILL)
        return await self.reap()

    async def reap(self) -> int:
        """Wait for its end and return its exit code."""
        assert self.process is not None
        code = await self.process.wait()
        if self._reading is not None:
            await self._reading
        self.process = None
        return code


def error_of(reply: dict[str, Any]) -> ConsensusError:
    if reply["error"] == NotLeader.code:
        return NotLeader(reply["leader"])
    kinds = {kind.code: kind for kind in ConsensusError.__subclasses__()}
    return kinds[reply["error"]](reply["text"])


class ProcessDriver:
    """Three processes on loopback."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.nodes = {
            name: NodeProcess(config)
            for name, config in engine_configs(directory, **settings).items()
        }

    async def start(self) -> None:
        await asyncio.gather(*(node.start() for node in self.nodes.values()))

    async def close(self) -> None:
        await asyncio.gather(*(node.kill() for node in self.nodes.values()))

    async def belief(self, replica: str) -> Leadership:
        try:
            term, leads, leader, _ = await self.nodes[replica].ask("status")
        except (Stopped, OutcomeUnknown):
            return Leadership()
        return Leadership(term, leads, leader)

    async def applied(self, replica: str) -> Position:
        return Position(*(await self.nodes[replica].ask("status"))[3])

    async def append(self, replica: str, entry: bytes, timeout_ms: int = 60_000) -> Applied:
        position, outcome = await self.nodes[replica].ask(
            "append", entry=entry.hex(), timeout_ms=timeout_ms
        )
        return Applied(Position(*position), outcome)

    async def barrier(self, replica: str, timeout_ms: int = 60_000) -> Position:
        return Position(*await self.nodes[replica].ask("barrier", timeout_ms=timeout_ms))

    async def confirm(self, replica: str, timeout_ms: int = 60_000) -> None:
        await self.nodes[replica].ask("confirm", timeout_ms=timeout_ms)

    async def entries(self, replica: str) -> list[bytes]:
        node = self.nodes[replica]
        found: list[bytes] = []
        while part := await node.ask("entries", first=len(found), count=PAGE_ENTRIES):
            found += [bytes.fromhex(entry) for entry in part]
        return found

    async def restored(self, replica: str) -> list[Position]:
        return [Position(*place) for place in await self.nodes[replica].ask("restored")]

    async def snapshot(self, replica: str) -> Position:
        return Position(*await self.nodes[replica].ask("snapshot"))

    async def transfer(self, replica: str, to: str | None = None) -> None:
        await self.nodes[replica].ask("transfer", to=to)

    async def stop(self, replica: str) -> None:
        await self.nodes[replica].ask("stop")

    async def kill(self, replica: str) -> None:
        await self.nodes[replica].kill()

    async def restart(self, replica: str) -> None:
        await self.nodes[replica].start()

    async def isolate(self, replica: str) -> None:
        for name, node in self.nodes.items():
            cut = [other for other in IDS if other != name] if name == replica else [replica]
            await node.ask("silence", peers=cut)

    async def heal(self) -> None:
        for node in self.nodes.values():
            await node.ask("silence", peers=[])

    async def pause(self, replica: str) -> None:
        node = self.nodes[replica]
        assert node.process is not None
        node.signal(signal.SIGSTOP)
        pid = node.process.pid

        async def stopped() -> bool:
            return state_of(pid) == "T"

        await eventually(stopped, f"{replica} stands still")

    async def resume(self, replica: str) -> None:
        self.nodes[replica].signal(signal.SIGCONT)

    async def slow(self, replica: str, is_slow: bool) -> None:
        await self.nodes[replica].ask("slow", is_slow=is_slow)


def state_of(pid: int) -> str:
    """The kernel's letter for a process: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def same_prefix(ledgers: list[list[bytes]]) -> bool:
    """Whether all are beginnings of the longest."""
    longest = max(ledgers, key=len)
    return all(longest[: len(ledger)] == ledger for ledger in ledgers)


def dial_once(address: str, sent: bytes) -> bytes:
    """Send bytes to a replica's port as a stranger; return what comes until it hangs up."""
    host, _, port = address.rpartition(":")
    with closing(socket.create_connection((host, int(port)), timeout=10)) as sock:
        sock.sendall(sent)
        received = b""
        try:
            while part := sock.recv(4096):
                received += part
        except ConnectionResetError:
            pass
        return received

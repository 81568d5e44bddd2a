"""Three replicas of ours and three members of etcd, behind one interface, each on its own files."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from bench import etcd
from bench.consensus_client import HOST, EtcdTarget, OursTarget, connect
from bench.http2 import CallFailed
from bench.workloads import Measured, Workload, together
from consensus.config import EngineConfig

ROOT: Final = Path(__file__).resolve().parents[1]
START_S: Final = 30.0
POLL_S: Final = 0.02
LEVEL_ENTRIES: Final = 5
"""How far a replica may be behind and count as level: entries go on while we ask."""

Target = OursTarget | EtcdTarget


class Cell(Protocol):
    """Three replicas that can be asked, killed and started again."""

    @property
    def name(self) -> str:
        """Return whose replicas they are."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the ids of the replicas."""

    async def start(self) -> None:
        """Start all; return once one leads and all are level."""

    async def close(self) -> None:
        """Kill all."""

    def pid(self, name: str) -> int:
        """Return the process of a replica."""

    async def leader(self) -> str:
        """Return who leads, once all that run agree on it."""

    async def target(self, name: str) -> Target:
        """Return a connection to a replica."""

    async def kill(self, name: str) -> None:
        """kill -9 a replica; return once it is gone."""

    async def restart(self, name: str) -> None:
        """Start a replica that was killed; return once it is level with the leader."""


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def etcd_version() -> str | None:
    """Return `3.4.23`, or None where etcd is not installed."""
    if shutil.which("etcd") is None:
        return None
    told = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True)
    return told.stdout.split("\n", 1)[0].rpartition(" ")[2]


async def end(process: asyncio.subprocess.Process | None) -> None:
    """kill -9 a child that may be gone, and wait for it."""
    if process is not None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class NodeProcess:
    """A process of bench.consensus_node: commands in, answers out."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.port = 0
        self.process: asyncio.subprocess.Process | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it, and wait until it takes commands."""
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.consensus_node"),
            msgspec.json.encode(self.config).decode(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._count, self._waiting = 0, {0: ready}
        self._reading = asyncio.create_task(self._read(self.process))
        async with asyncio.timeout(START_S):
            self.port = await ready

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            raise RuntimeError("the process has no stdout")
        while line := await process.stdout.readline():
            reply = json.loads(line)
            waiting = self._waiting.pop(reply["id"], None)
            if waiting is None or waiting.done():
                continue
            if "error" in reply:
                waiting.set_exception(RuntimeError(reply["error"]))
            else:
                waiting.set_result(reply["ok"])
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the replica is gone"))

    async def ask(self, do: str, **arguments: Any) -> Any:
        """Return the answer to a command. Raises RuntimeError, ConnectionError."""
        if self.process is None or self.process.stdin is None:
            raise ConnectionError("the replica does not run")
        self._count += 1
        answer = self._waiting[self._count] = asyncio.get_running_loop().create_future()
        command = {"id": self._count, "do": do} | arguments
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        return await answer

    async def kill(self) -> None:
        """kill -9."""
        process, self.process = self.process, None
        await end(process)
        if self._reading is not None:
            await self._reading


class OursCell:
    """Three replicas of our engine with the default settings, but for what is given."""

    name = "ours"
    names = ("r1", "r2", "r3")

    def __init__(self, directory: Path, **settings: Any) -> None:
        ports = free_ports(3)
        peers = {name: f"{HOST}:{port}" for name, port in zip(self.names, ports, strict=True)}
        self.nodes = {
            name: NodeProcess(
                EngineConfig(
                    replica=name,
                    peers=peers,
                    data=str(directory / name),
                    start="bootstrap",
                    **settings,
                )
            )
            for name in self.names
        }

    async def start(self) -> None:
        """Start all; return once one leads and all are level."""
        await asyncio.gather(*(node.start() for node in self.nodes.values()))
        await self._level(self.names)

    async def close(self) -> None:
        """Kill all."""
        await asyncio.gather(*(node.kill() for node in self.nodes.values()))

    def pid(self, name: str) -> int:
        """Return the process of a replica."""
        process = self.nodes[name].process
        if process is None:
            raise ConnectionError(f"{name} does not run")
        return process.pid

    def _running(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.process is not None]

    async def leader(self) -> str:
        """Return who leads, once all that run agree on it."""
        async with asyncio.timeout(START_S):
            while True:
                names = self._running()
                told = [await self.nodes[name].ask("status") for name in names]
                leaders = {leader for _, _, leader, _ in told}
                leading = [name for name, one in zip(names, told, strict=True) if one[1]]
                if len(leading) == 1 and leaders == set(leading):
                    return leading[0]
                await asyncio.sleep(POLL_S)

    async def applied(self, name: str) -> int:
        """Return the index up to which a replica has applied."""
        return int((await self.nodes[name].ask("status"))[3])

    async def target(self, name: str) -> OursTarget:
        """Return a connection to a replica."""
        return await OursTarget.open(self.nodes[name].port)

    async def kill(self, name: str) -> None:
        """kill -9 a replica; return once it is gone."""
        await self.nodes[name].kill()

    async def restart(self, name: str) -> None:
        """Start a replica that was killed; return once it is level with the leader."""
        await self.nodes[name].start()
        await self._level([name])

    async def _level(self, names: Iterable[str]) -> None:
        leader = await self.leader()
        async with asyncio.timeout(4 * START_S):
            while True:
                behind = [await self._behind(leader, name) for name in names]
                if max(behind) <= LEVEL_ENTRIES:
                    return
                await asyncio.sleep(POLL_S)

    async def _behind(self, leader: str, name: str) -> int:
        led = await self.applied(leader)
        return led - await self.applied(name)

    async def drive_inside(self, workload: Workload, seconds: float) -> Measured:
        """Put from within the leader's process."""
        leader = self.nodes[await self.leader()]
        row = await leader.ask("drive", workload=msgspec.to_builtins(workload), seconds=seconds)
        return msgspec.convert(row, Measured)

    async def client_port(self) -> int:
        """Return where clients reach the leader."""
        return self.nodes[await self.leader()].port


class EtcdCell:
    """Three members of Debian's etcd with its default settings."""

    name = "etcd"
    names = ("e1", "e2", "e3")

    def __init__(self, directory: Path) -> None:
        ports = free_ports(6)
        self._directory = directory
        self._clients = dict(zip(self.names, ports[:3], strict=True))
        self._peers = dict(zip(self.names, ports[3:], strict=True))
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def _spawn(self, name: str) -> None:
        client = f"http://{HOST}:{self._clients[name]}"
        peer = f"http://{HOST}:{self._peers[name]}"
        everyone = ",".join(f"{one}=http://{HOST}:{port}" for one, port in self._peers.items())
        self._processes[name] = await asyncio.create_subprocess_exec(
            *("etcd", "--name", name, "--data-dir", str(self._directory / name)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", everyone, "--initial-cluster-state", "new"),
            *("--logger", "zap", "--log-level", "error"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def start(self) -> None:
        """Start all; return once one leads and all are level."""
        for name in self.names:
            await self._spawn(name)
        await self._level(self.names)

    async def close(self) -> None:
        """Kill all."""
        await asyncio.gather(*(end(process) for process in self._processes.values()))
        self._processes.clear()

    def pid(self, name: str) -> int:
        """Return the process of a replica."""
        return self._processes[name].pid

    async def _statuses(self) -> dict[str, etcd.Status]:
        """What those say that run; without those that do not answer."""
        told = {}
        for name in self._processes:
            with suppress(OSError, CallFailed, TimeoutError):
                async with asyncio.timeout(1):
                    told[name] = await etcd.status(HOST, self._clients[name])
        return told

    async def leader(self) -> str:
        """Return who leads, once all that run agree on it."""
        async with asyncio.timeout(START_S):
            while True:
                told = await self._statuses()
                leaders = {one.leader for one in told.values()}
                if len(told) == len(self._processes) and len(leaders) == 1:
                    names = [name for name, one in told.items() if one.member in leaders]
                    if names:
                        return names[0]
                await asyncio.sleep(POLL_S)

    async def target(self, name: str) -> EtcdTarget:
        """Return a connection to a replica."""
        target = await connect("etcd", self._clients[name])
        if not isinstance(target, EtcdTarget):
            raise TypeError("not a member of etcd")
        return target

    async def kill(self, name: str) -> None:
        """kill -9 a replica; return once it is gone."""
        await end(self._processes.pop(name))

    async def restart(self, name: str) -> None:
        """Start a replica that was killed; return once it is level with the leader."""
        await self._spawn(name)
        await self._level([name])

    async def _level(self, names: Iterable[str]) -> None:
        leader = await self.leader()
        async with asyncio.timeout(4 * START_S):
            while True:
                told = await self._statuses()
                if leader in told and all(
                    name in told and told[name].applied >= told[leader].applied - LEVEL_ENTRIES
                    for name in names
                ):
                    return
                await asyncio.sleep(POLL_S)

    async def client_port(self) -> int:
        """Return where clients reach the leader."""
        return self._clients[await self.leader()]


async def drive_outside(
    kind: str, cell: OursCell | EtcdCell, workload: Workload, seconds: float, clients: int = 1
) -> Measured:
    """Put from `clients` processes of their own, which share what is in flight."""
    port = str(await cell.client_port())
    share = msgspec.structs.replace(workload, in_flight=max(1, workload.in_flight // clients))
    argument = msgspec.json.encode(share).decode()
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.consensus_client", kind, port, argument, str(seconds)),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        for _ in range(clients)
    ]
    told = await asyncio.gather(*(process.communicate() for process in processes))
    return together([msgspec.json.decode(out, type=Measured) for out, _ in told])

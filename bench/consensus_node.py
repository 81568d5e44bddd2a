"""One replica of our engine as a process of the bench, with a dict behind it.

Started with the EngineConfig as JSON. Commands come on stdin, answers go to stdout, a JSON object
a line; appends of clients in other processes come through a port of its own, which the first line
names. It ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Final

import msgspec

from bench.consensus_state import Dictionary, Gaps
from bench.workloads import Item, Workload, drive
from consensus.config import EngineConfig
from consensus.engine.replica import EngineLog
from consensus.errors import ConsensusError, OutcomeUnknown

APPEND_MS: Final = 10_000

_encoder = msgspec.msgpack.Encoder()


class LogTarget:
    """The log in this very process, as users of ReplicatedLog have it."""

    def __init__(self, log: EngineLog) -> None:
        self._log = log

    def prepare(self, items: list[Item]) -> bytes:
        """Return the entry for `items`."""
        return _encoder.encode(items)

    async def put(self, prepared: bytes) -> None:
        """Append. Raises what append raises."""
        await self._log.append(prepared, timeout_ms=APPEND_MS)


class Node:
    """A replica, its commands and its port."""

    def __init__(self, config: EngineConfig) -> None:
        self.state = Dictionary()
        self.log = EngineLog(config, self.state, on_failure=self.fail)
        self.ticks = Gaps()
        self.acks = Gaps()
        self.steady: asyncio.Task[None] | None = None

    def fail(self, error: BaseException) -> None:
        """End: what is behind on_failure cannot go on."""
        sys.stderr.write(f"failed: {error!r}\n")
        sys.stderr.flush()
        os._exit(3)

    def watch_ticks(self) -> None:
        """Note when each tick begins, in the thread that ticks."""
        raft = getattr(self.log, "_raft", None)
        if raft is None:
            return
        tick = raft.doTick

        def noted(timeout: float) -> None:
            self.ticks.note()
            tick(timeout)

        raft.doTick = noted

    async def obey(self, command: dict[str, Any]) -> Any:
        """Return the answer to one command; raises KeyError for an unknown one."""
        match command["do"]:
            case "status":
                belief = self.log.leadership
                return [belief.term, belief.leads, belief.leader, self.log.applied.index]
            case "drive":
                workload = msgspec.convert(command["workload"], Workload)
                measured = await drive(LogTarget(self.log), workload, command["seconds"])
                return msgspec.to_builtins(measured)
            case "fill":
                return await self.fill(command["items"], command["value_bytes"])
            case "snapshot":
                return (await self.log.snapshot()).index
            case "append":  # until told to stop
                self.steady = asyncio.create_task(self.append_steadily(command["value_bytes"]))
                return None
            case "stop appending":
                if self.steady is not None:
                    self.steady.cancel()
                return None
            case "gaps":
                return [self.acks.take(), self.ticks.take()]
        raise KeyError(command["do"])

    async def fill(self, count: int, value_bytes: int) -> int:
        """Put `count` different keys, 500 an entry; return the bytes of their values."""
        value = os.urandom(value_bytes)
        for at in range(0, count, 500):
            items = [(b"fill%08d" % number, value) for number in range(at, min(at + 500, count))]
            await self.log.append(_encoder.encode(items), timeout_ms=APPEND_MS)
        return count * value_bytes

    async def append_steadily(self, value_bytes: int) -> None:
        """Append one after the other, and note each acknowledgement."""
        entry = _encoder.encode([(b"steady", b"v" * value_bytes)])
        self.acks.take()
        while True:
            try:
                await self.log.append(entry, timeout_ms=APPEND_MS)
            except OutcomeUnknown:
                continue
            self.acks.note()

    async def answer(self, command: dict[str, Any]) -> None:
        """Carry out one command and write its answer."""
        reply: dict[str, Any] = {"id": command["id"]}
        try:
            reply["ok"] = await self.obey(command)
        except ConsensusError as error:
            reply["error"] = f"{error.code}: {error}"
        os.write(1, msgspec.json.encode(reply) + b"\n")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Append what a client sends: number, length, entry. Answers may overtake each other."""
        tasks: set[asyncio.Task[None]] = set()

        async def append(number: bytes, entry: bytes) -> None:
            try:
                await self.log.append(entry, timeout_ms=APPEND_MS)
            except ConsensusError:
                writer.write(number + b"\0")
            else:
                writer.write(number + b"\1")

        try:
            while True:
                head = await reader.readexactly(8)
                entry = await reader.readexactly(int.from_bytes(head[4:], "big"))
                task = asyncio.create_task(append(head[:4], entry))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def main() -> None:
    node = Node(msgspec.json.decode(sys.argv[1], type=EngineConfig))
    await node.log.start()
    node.watch_ticks()
    server = await asyncio.start_server(node.serve, "127.0.0.1", 0, limit=16 * 1024 * 1024)
    port = server.sockets[0].getsockname()[1]
    os.write(1, msgspec.json.encode({"id": 0, "ok": port}) + b"\n")
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    tasks: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = asyncio.create_task(node.answer(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())

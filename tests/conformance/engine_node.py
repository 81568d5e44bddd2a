"""One replica as a process: commands on stdin, answers on stdout, a JSON object a line.

Started with the EngineConfig as JSON in its only argument. Any number of commands may be under
way; answers carry the command's id. It ends with its stdin; SIGTERM has it leave in an orderly way.
An error that ends the replica is the last line on stderr: `failed: DiskFull(...)` with its hint.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sys
import time
from typing import Any

import msgspec

from consensus.config import EngineConfig
from consensus.engine.replica import EngineLog
from consensus.errors import ConsensusError, NotLeader
from tests.conformance.ledger import AHEAD, Ledger


class Node:
    def __init__(self, config: EngineConfig) -> None:
        self.silenced: frozenset[str] = frozenset()
        self.ledger = Ledger()
        self.is_slow = False
        self.log = EngineLog(
            config,
            self.ledger,
            on_failure=self.fail,
            may_acknowledge=lambda entry: not (self.is_slow and entry.startswith(AHEAD)),
        )

    def fail(self, error: BaseException) -> None:
        sys.stderr.write(f"failed: {error!r} {getattr(error, 'hint', '')}\n")
        sys.stderr.flush()
        os._exit(3)

    async def do(self, command: dict[str, Any]) -> Any:
        timeout_ms = command.get("timeout_ms", 5_000)
        match command["do"]:
            case "append":
                applied = await self.log.append(
                    bytes.fromhex(command["entry"]), timeout_ms=timeout_ms
                )
                return [applied.position, applied.outcome]
            case "barrier":
                return await self.log.barrier(timeout_ms=timeout_ms)
            case "confirm":
                return await self.log.confirm(timeout_ms=timeout_ms)
            case "read":
                await self.log.barrier(timeout_ms=timeout_ms)
                return len(self.ledger.entries)
            case "snapshot":
                return await self.log.snapshot()
            case "transfer":
                return await self.log.transfer(command.get("to"))
            case "silence":
                self.silenced = frozenset(command["peers"])
                return None
            case "entries":
                first = command.get("first", 0)
                last = first + command.get("count", len(self.ledger.entries))
                return [entry.hex() for entry in self.ledger.entries[first:last]]
            case "slow":
                self.is_slow = command["is_slow"]
                return None
            case "stop":
                return await self.log.stop()
        return self.look(command["do"])

    def look(self, what: str) -> Any:
        match what:
            case "status":
                belief = self.log.leadership
                return [belief.term, belief.leads, belief.leader, self.log.applied]
            case "digest":
                digest = hashlib.sha256()
                for entry in self.ledger.entries:
                    digest.update(len(entry).to_bytes(8, "big") + entry)
                return [len(self.ledger.entries), digest.hexdigest()]
            case "wall":
                return time.time()
            case "restored":
                return self.ledger.restored
        raise ValueError(what)

    def filter_messages(self) -> None:
        """Let messages from and to the silenced peers be lost."""
        transport: Any = self.log._running().transport
        send, receive = transport.send, transport.receive
        transport.send = lambda node, one: node.id not in self.silenced and send(node, one)
        transport.receive = lambda name, one: name in self.silenced or receive(name, one)

    async def answer(self, command: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"id": command["id"]}
        try:
            reply["ok"] = await self.do(command)
        except NotLeader as error:
            reply |= {"error": error.code, "leader": error.leader}
        except ConsensusError as error:
            reply |= {"error": error.code, "text": str(error)}
        os.write(1, msgspec.json.encode(reply) + b"\n")

    async def leave(self) -> None:
        await self.log.stop()
        os._exit(0)


async def main(version: type[Node] = Node) -> None:
    node = version(msgspec.json.decode(sys.argv[1], type=EngineConfig))
    try:
        await node.log.start()
        node.filter_messages()
    except ConsensusError as error:
        node.fail(error)
    tasks: set[asyncio.Task[None]] = set()
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, lambda: tasks.add(asyncio.create_task(node.leave()))
    )
    os.write(1, b'{"id": 0, "ok": null}\n')
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        task = asyncio.create_task(node.answer(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())

"""A client of a replicated log in a process of its own. Prints what it measured as JSON.

    python -m bench.consensus_client ours|etcd|etcd-grpcio PORT WORKLOAD SECONDS

WORKLOAD is a JSON object. All clients encode before the clock runs and keep one connection.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import msgspec

from bench import etcd
from bench.http2 import RECEIVE_BYTES, Connection
from bench.workloads import Item, Workload, drive

HOST: Final = "127.0.0.1"
_encoder = msgspec.msgpack.Encoder()


class Refused(Exception):
    """Our replica did not append; it may not lead."""


class OursTarget(asyncio.BufferedProtocol):
    """Our replica, through the port that bench.consensus_node opens for this."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._count = 0
        self._space = bytearray(RECEIVE_BYTES)
        self._rest = b""

    @classmethod
    async def open(cls, port: int) -> OursTarget:
        """Connect. Raises OSError."""
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(cls, HOST, port)
        return protocol

    async def close(self) -> None:
        """End the connection; puts under way fail."""
        if self._transport is not None:
            self._transport.close()

    def prepare(self, items: list[Item]) -> bytes:
        """Return the entry for `items`."""
        return _encoder.encode(items)

    async def put(self, prepared: bytes) -> None:
        """Return once the entry is applied at the leader. Raises Refused."""
        if self._transport is None or self._transport.is_closing():
            raise Refused("no connection")
        self._count += 1
        number = self._count
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        head = number.to_bytes(4, "big") + len(prepared).to_bytes(4, "big")
        self._transport.write(head + prepared)
        try:
            await answer
        finally:
            self._answers.pop(number, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Fail what is under way."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Refused(f"the connection ended: {error}"))

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return where to put what comes."""
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        """Take answers of five bytes: number of the call, 1 for done."""
        buffer = self._rest + self._space[:nbytes]
        whole = len(buffer) // 5 * 5
        self._rest = buffer[whole:]
        for at in range(0, whole, 5):
            answer = self._answers.get(int.from_bytes(buffer[at : at + 4], "big"))
            if answer is not None and not answer.done():
                if buffer[at + 4]:
                    answer.set_result(None)
                else:
                    answer.set_exception(Refused("the replica did not append"))


class EtcdTarget:
    """An etcd member."""

    def __init__(self, caller: etcd.Caller) -> None:
        self._caller = caller

    async def close(self) -> None:
        """End the connection."""
        await self._caller.close()

    def prepare(self, items: list[Item]) -> list[tuple[str, bytes]]:
        """Return the calls for `items`: one put, or as few transactions as etcd allows."""
        return etcd.requests(items)

    async def put(self, prepared: list[tuple[str, bytes]]) -> None:
        """Return once all calls are answered; they are made at once. Raises CallFailed."""
        if len(prepared) == 1:
            await self._caller.call(*prepared[0])
        else:
            await asyncio.gather(*(self._caller.call(*one) for one in prepared))


async def connect(kind: str, port: int) -> OursTarget | EtcdTarget:
    """Return a connected target. Raises OSError."""
    if kind == "ours":
        return await OursTarget.open(port)
    if kind == "etcd":
        return EtcdTarget(await Connection.open(HOST, port))
    return EtcdTarget(etcd.GrpcioCaller(HOST, port))


async def main(kind: str, port: int, workload: Workload, seconds: float) -> None:
    target = await connect(kind, port)
    measured = await drive(target, workload, seconds)
    print(msgspec.json.encode(measured).decode(), flush=True)
    await target.close()


if __name__ == "__main__":
    _, kind, port, workload, seconds = sys.argv
    asyncio.run(main(kind, int(port), msgspec.json.decode(workload, type=Workload), float(seconds)))

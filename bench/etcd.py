"""What the bench says to etcd 3.4: puts, transactions and status, encoded by hand.

The fields are those of etcd's api/etcdserverpb/rpc.proto; stubs would need its .proto files, and
cost more per call than this.
"""

from __future__ import annotations

from typing import Final, Protocol

import grpc
import msgspec

from bench.http2 import CallFailed, Connection

PUT: Final = "/etcdserverpb.KV/Put"
TXN: Final = "/etcdserverpb.KV/Txn"
STATUS: Final = "/etcdserverpb.Maintenance/Status"
TXN_OPS_MAX: Final = 128
"""etcd's default of --max-txn-ops."""

Item = tuple[bytes, bytes]
"""A key and its value."""


class Status(msgspec.Struct, frozen=True):
    """What a member says of itself; leader is 0 while it knows none."""

    member: int
    leader: int
    term: int
    applied: int


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def lengthy(field: int, content: bytes) -> bytes:
    """Return a field that is bytes, a string or a message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def put_request(key: bytes, value: bytes) -> bytes:
    """Return a PutRequest."""
    return lengthy(1, key) + lengthy(2, value)


def txn_request(items: list[Item]) -> bytes:
    """Return a TxnRequest that puts `items` and compares nothing; each key once."""
    return b"".join(lengthy(2, lengthy(2, put_request(key, value))) for key, value in items)


def requests(items: list[Item]) -> list[tuple[str, bytes]]:
    """Return the fewest calls, each with its path, that put `items`."""
    if len(items) == 1:
        return [(PUT, put_request(*items[0]))]
    size = -(-len(items) // -(-len(items) // TXN_OPS_MAX))  # in equal parts
    return [(TXN, txn_request(items[at : at + size])) for at in range(0, len(items), size)]


def decode(message: bytes) -> dict[int, int | bytes]:
    """Return the fields of a message by number, the last of each. Raises ValueError."""
    fields: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        if tag & 7 == 0:
            fields[tag >> 3], at = _read_varint(message, at)
        elif tag & 7 == 2:
            size, at = _read_varint(message, at)
            fields[tag >> 3], at = message[at : at + size], at + size
        else:
            raise ValueError(f"field {tag >> 3} has the unknown wire type {tag & 7}")
    return fields


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def decode_status(message: bytes) -> Status:
    """Return what a StatusResponse says."""
    fields = decode(message)
    header = fields.get(1, b"")
    member = decode(header).get(2, 0) if isinstance(header, bytes) else 0
    numbers = [member, *(fields.get(field, 0) for field in (4, 6, 7))]
    return Status(*(number if isinstance(number, int) else 0 for number in numbers))


class Caller(Protocol):
    """One way to call: ours, or grpcio."""

    async def call(self, path: str, message: bytes) -> bytes:
        """Return the answer's message; raises CallFailed."""

    async def close(self) -> None:
        """End the connection."""


class GrpcioCaller:
    """The same calls by grpcio's asyncio client, to see what the client costs."""

    def __init__(self, host: str, port: int) -> None:
        self._channel = grpc.aio.insecure_channel(f"{host}:{port}")
        self._methods = {
            path: self._channel.unary_unary(path, _same, _same) for path in (PUT, TXN, STATUS)
        }

    async def call(self, path: str, message: bytes) -> bytes:
        """Return the answer's message; raises CallFailed."""
        try:
            answer: bytes = await self._methods[path](message)
        except grpc.aio.AioRpcError as error:
            raise CallFailed(error.details() or str(error.code())) from None
        return answer

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()


def _same(content: bytes) -> bytes:
    return content


async def status(host: str, port: int) -> Status:
    """Return a member's status. Raises OSError, CallFailed."""
    connection = await Connection.open(host, port)
    try:
        return decode_status(await connection.call(STATUS, b""))
    finally:
        await connection.close()

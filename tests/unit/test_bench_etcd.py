"""bench: what it says to etcd, checked by protobuf itself and by grpcio's server."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bench import etcd
from bench.consensus_client import EtcdTarget
from bench.http2 import CallFailed, Connection, frame, header_block

BYTES, INT64, UINT64, MESSAGE = 12, 3, 4, 11


def field(name: str, number: int, kind: int, of: str = "", *, many: bool = False) -> Any:
    made: Any = descriptor_pb2.FieldDescriptorProto(name=name, number=number)
    made.type, made.label = kind, 3 if many else 1
    if of:
        made.type_name = f".etcdserverpb.{of}"
    return made


@functools.cache
def messages() -> dict[str, Any]:
    """The messages of etcd's rpc.proto that are used here, made by protobuf itself."""
    file = descriptor_pb2.FileDescriptorProto(name="rpc.proto", package="etcdserverpb")
    for name, fields in {
        "PutRequest": [field("key", 1, BYTES), field("value", 2, BYTES)],
        "RequestOp": [field("request_put", 2, MESSAGE, "PutRequest")],
        "TxnRequest": [field("success", 2, MESSAGE, "RequestOp", many=True)],
        "ResponseHeader": [field("cluster_id", 1, UINT64), field("member_id", 2, UINT64)],
        "StatusResponse": [
            field("header", 1, MESSAGE, "ResponseHeader"),
            field("db_size", 3, INT64),
            field("leader", 4, UINT64),
            field("raft_index", 5, UINT64),
            field("raft_term", 6, UINT64),
            field("raft_applied_index", 7, UINT64),
        ],
    }.items():
        file.message_type.add(name=name).field.extend(fields)
    pool: Any = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made: Any = message_factory
    return {
        message.name: made.GetMessageClass(
            pool.FindMessageTypeByName(f"etcdserverpb.{message.name}")
        )
        for message in file.message_type
    }


# ---- what is said to etcd


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300, 20_000])
def test_a_put_is_encoded_as_protobuf_would(size: int) -> None:
    expected = messages()["PutRequest"](key=b"k" * 5, value=b"v" * size)
    parsed = messages()["PutRequest"].FromString(etcd.put_request(b"k" * 5, b"v" * size))
    assert parsed == expected
    if size:
        assert etcd.put_request(b"k" * 5, b"v" * size) == expected.SerializeToString()


def test_a_transaction_is_encoded_as_protobuf_would() -> None:
    items = [(b"key%d" % number, b"v" * 200) for number in range(128)]
    expected = messages()["TxnRequest"]()
    for key, value in items:
        expected.success.add().request_put.MergeFrom(messages()["PutRequest"](key=key, value=value))
    assert etcd.txn_request(items) == expected.SerializeToString()


def test_a_status_is_read_as_protobuf_wrote_it() -> None:
    status = messages()["StatusResponse"](
        db_size=2**40, leader=2**63 + 5, raft_index=9, raft_term=3, raft_applied_index=70_000
    )
    status.header.member_id = 2**63 + 5
    read = etcd.decode_status(status.SerializeToString())
    assert read == etcd.Status(member=2**63 + 5, leader=2**63 + 5, term=3, applied=70_000)


def test_a_member_without_a_leader_says_zero() -> None:
    status = messages()["StatusResponse"](raft_term=2)
    assert etcd.decode_status(status.SerializeToString()) == etcd.Status(0, 0, 2, 0)


def test_an_unknown_wire_type_is_refused() -> None:
    with pytest.raises(ValueError, match="wire type 5"):
        etcd.decode(b"\x0d\0\0\0\0")


def test_a_thousand_items_are_split_in_equal_transactions_that_etcd_takes() -> None:
    items = [(b"k%d" % number, b"v") for number in range(1_000)]
    calls = etcd.requests(items)
    parsed = [messages()["TxnRequest"].FromString(body) for _, body in calls]
    assert {path for path, _ in calls} == {etcd.TXN}
    assert [len(one.success) for one in parsed] == [125] * 8
    keys = [op.request_put.key for one in parsed for op in one.success]
    assert keys == [key for key, _ in items]


def test_one_item_is_a_put() -> None:
    assert etcd.requests([(b"k", b"v")]) == [(etcd.PUT, etcd.put_request(b"k", b"v"))]


# ---- the small HTTP/2 client, against grpcio's server


def same(content: bytes) -> bytes:
    return content


class Echo(grpc.GenericRpcHandler):
    """Answers with the request; refuses one that says so, and never answers another."""

    def service(self, details: Any) -> Any:
        if details.method != etcd.PUT:
            return None
        return grpc.unary_unary_rpc_method_handler(self.answer, same, same)

    async def answer(self, request: bytes, context: Any) -> bytes:
        if request == b"refuse":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no leader")
        if request == b"wait":
            await asyncio.Event().wait()
        return request


@pytest.fixture
async def served() -> AsyncIterator[Connection]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    connection = await Connection.open("127.0.0.1", port)
    yield connection
    await connection.close()
    await server.stop(None)


async def test_calls_that_are_under_way_at_once_get_their_own_answers(served: Connection) -> None:
    sent = [b"message %d" % number for number in range(200)]
    assert await asyncio.gather(*(served.call(etcd.PUT, one) for one in sent)) == sent


async def test_a_message_larger_than_every_window_arrives_whole(served: Connection) -> None:
    sent = [bytes([number]) * 300_000 for number in range(8)]
    assert await asyncio.gather(*(served.call(etcd.PUT, one) for one in sent)) == sent


async def test_many_small_calls_use_up_and_get_back_the_connections_window(
    served: Connection,
) -> None:
    for _ in range(20):
        sent = [b"x" * 10_000] * 20
        assert await asyncio.gather(*(served.call(etcd.PUT, one) for one in sent)) == sent


async def test_an_empty_message_is_an_answer_too(served: Connection) -> None:
    assert await served.call(etcd.PUT, b"") == b""


async def test_a_refused_call_fails_and_the_next_one_does_not(served: Connection) -> None:
    with pytest.raises(CallFailed, match="refused"):
        await served.call(etcd.PUT, b"refuse")
    with pytest.raises(CallFailed, match="refused"):
        await served.call("/etcdserverpb.KV/Unknown", b"x")
    assert await served.call(etcd.PUT, b"x") == b"x"


async def test_calls_fail_when_the_connection_ends(served: Connection) -> None:
    waiting = asyncio.create_task(served.call(etcd.PUT, b"wait"))
    await served.call(etcd.PUT, b"x")
    await served.close()
    with pytest.raises(CallFailed, match="ended"):
        await waiting
    with pytest.raises(CallFailed):
        await served.call(etcd.PUT, b"x")


async def test_a_batch_is_put_when_all_its_transactions_are(served: Connection) -> None:
    target = EtcdTarget(served)
    await target.put([(etcd.PUT, b"x"), (etcd.PUT, b"y")])
    with pytest.raises(CallFailed):
        await target.put([(etcd.PUT, b"x"), (etcd.PUT, b"refuse")])


async def test_grpcio_makes_the_same_calls(served: Connection) -> None:
    address = served._authority.partition(":")
    caller = etcd.GrpcioCaller(address[0], int(address[2]))
    assert await caller.call(etcd.PUT, b"x") == b"x"
    with pytest.raises(CallFailed, match="no leader"):
        await caller.call(etcd.PUT, b"refuse")
    await caller.close()


def test_a_frame_has_its_length_kind_flags_and_stream_in_front() -> None:
    assert frame(0, 1, 5, b"abc") == b"\0\0\x03\0\x01\0\0\0\x05abc"


def test_a_header_that_needs_a_longer_length_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        header_block("127.0.0.1:1", "/" + "x" * 127)

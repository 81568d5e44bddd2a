"""Executors that watch who leads: told once, and of each change; bounded, and proven."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

from launcher.identity import REPLICA_HOST
from launcher.pool import limits
from launcher.pool.watchers import Watchers
from launcher.protocol.v1 import pool_pb2, pool_pb2_grpc
from launcher.protocol.work import Epoch
from launcher.tls import Credentials
from tests.unit.api_rig import FakeBackend
from tests.unit.certs_rig import CELL as TLS_CELL
from tests.unit.certs_rig import EXECUTOR, PERSON, REPLICA, Certs
from tests.unit.pool_rig import CELL, EPOCH, WITHIN_S, Rig, rigged, until
from tests.unit.tls_rig import secured


def watching(channel: grpc.aio.Channel, **fields: str) -> Any:
    """A stream that watches, of e1 unless told otherwise."""
    request = pool_pb2.WatchRequest(**{"cell": CELL, "executor": "e1"} | fields)
    return pool_pb2_grpc.PoolStub(channel).WatchLeader(request)  # type: ignore[no-untyped-call]


def channel_to(rig: Rig) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{rig.port}")


async def read(call: Any) -> Any:
    async with asyncio.timeout(WITHIN_S):
        return await call.read()


def leads(epoch: Epoch) -> pool_pb2.Leadership:
    message = pool_pb2.Epoch(generation=epoch.generation, term=epoch.term, replica=epoch.replica)
    return pool_pb2.Leadership(epoch=message)


async def test_a_replica_says_what_it_believes_at_once_and_after_each_change() -> None:
    async with rigged(leads=False) as rig, channel_to(rig) as channel:
        call = watching(channel)
        assert await read(call) == pool_pb2.Leadership(leader="127.0.0.1:7401")
        rig.pool.open(EPOCH)
        assert await read(call) == leads(EPOCH)
        rig.leader = None
        rig.pool.close("deposed", None)
        assert await read(call) == pool_pb2.Leadership()
        rig.leader = "127.0.0.1:7402"
        rig.pool.watchers.change()
        assert await read(call) == pool_pb2.Leadership(leader="127.0.0.1:7402")


async def test_what_did_not_change_is_not_said_again() -> None:
    async with rigged() as rig, channel_to(rig) as channel:
        call = watching(channel)
        assert await read(call) == leads(EPOCH)
        for _ in range(3):
            rig.pool.watchers.change()
            await asyncio.sleep(0)
        rig.leader = "127.0.0.1:7402"
        rig.pool.close("deposed", None)
        assert await read(call) == pool_pb2.Leadership(leader="127.0.0.1:7402")


@pytest.mark.parametrize("wrong", [{"cell": "other"}, {"executor": ""}, {"executor": "x" * 101}])
async def test_who_does_not_name_itself_and_the_cell_is_refused(wrong: dict[str, str]) -> None:
    async with rigged() as rig, channel_to(rig) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(watching(channel, **wrong))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_oldest_stream_of_an_executor_that_has_too_many_ends() -> None:
    async with rigged() as rig, channel_to(rig) as channel:
        calls = []
        for _ in range(limits.WATCHES_EACH):
            calls.append(watching(channel))
            assert await read(calls[-1]) == leads(EPOCH)
        others = watching(channel, executor="e2")
        assert await read(others) == leads(EPOCH)
        calls.append(watching(channel))
        assert await read(calls[-1]) == leads(EPOCH)
        assert await read(calls[0]) is grpc.aio.EOF
        assert len(rig.pool.watchers) == limits.WATCHES_EACH + 1


async def test_more_executors_than_the_pool_takes_may_not_watch() -> None:
    async with rigged() as rig, channel_to(rig) as channel:
        rig.pool.executors_max = 1
        first = watching(channel)
        assert await read(first) == leads(EPOCH)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(watching(channel, executor="e2"))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()
        await until(lambda: len(rig.pool.watchers) == 0)
        assert await read(watching(channel, executor="e2")) == leads(EPOCH)


async def test_a_replica_that_stops_ends_all_streams_and_takes_no_more() -> None:
    async with rigged() as rig, channel_to(rig) as channel:
        call = watching(channel)
        await read(call)
        rig.pool.watchers.close()
        assert await read(call) is grpc.aio.EOF
        with pytest.raises(grpc.aio.AioRpcError):
            await read(watching(channel))


async def test_ten_thousand_are_told_in_portions() -> None:
    watchers = Watchers()
    places = [watchers.enter(f"e{number}", 10_000) for number in range(250)]
    told: list[int] = []

    def count() -> int:
        return sum(place is not None and place.changed.is_set() for place in places)

    watchers.change()
    told.append(count())
    assert told == [limits.NOTIFIED_PER_TURN]
    gone = places[-1]
    assert gone is not None
    watchers.leave(gone)
    async with asyncio.timeout(WITHIN_S):
        while count() < 250:
            await asyncio.sleep(0)  # a turn of the loop tells one portion at most: none is missed
            told.append(count())
    assert max(after - before for before, after in pairwise(told)) == limits.NOTIFIED_PER_TURN


async def test_a_change_while_others_are_still_to_be_told_reaches_all() -> None:
    watchers = Watchers()
    places = [watchers.enter(f"e{number}", 10_000) for number in range(150)]
    watchers.change()
    assert places[0] is not None
    places[0].changed.clear()  # it was told of the first change
    watchers.change()
    await until(lambda: all(place is not None and place.changed.is_set() for place in places))


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path)


async def read_with(certs: Certs, credentials: Credentials, executor: str) -> Any:
    rig = Rig()
    rig.pool.cell = TLS_CELL
    async with secured(certs, FakeBackend(), rig=rig) as server:
        secret = grpc.ssl_channel_credentials(
            credentials.authority, credentials.key, credentials.certificate
        )
        name = (("grpc.ssl_target_name_override", REPLICA_HOST),)
        async with grpc.aio.secure_channel(server, secret, options=name) as channel:
            return await read(watching(channel, cell=TLS_CELL, executor=executor))


async def test_an_executor_watches_with_its_own_certificate(certs: Certs) -> None:
    shown = certs.credentials(*EXECUTOR)
    assert await read_with(certs, shown, EXECUTOR[1]) == leads(EPOCH)
    with pytest.raises(grpc.aio.AioRpcError, match="the certificate is of executor") as caught:
        await read_with(certs, shown, "another")
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_nobody_but_an_executor_watches(certs: Certs) -> None:
    for identity in (REPLICA, PERSON):
        with pytest.raises(grpc.aio.AioRpcError, match="may not use Pool"):
            await read_with(certs, certs.credentials(*identity), EXECUTOR[1])

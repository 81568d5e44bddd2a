"""The pool behind certificates: an executor streams under its own name, and nobody else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from cron.access import AccessRules
from cron.api.peers import open_aio_channel
from cron.certs.revoked import watch_revoked
from launcher.pool.events import Joined
from launcher.protocol.v1 import pool_pb2, pool_pb2_grpc
from launcher.tls import Credentials
from tests.unit.api_rig import FakeBackend
from tests.unit.certs_rig import EXECUTOR, PERSON, REPLICA, Certs
from tests.unit.pool_rig import FakeExecutor, Rig, hello
from tests.unit.tls_rig import secured


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path)


@asynccontextmanager
async def stream(
    certs: Certs, credentials: Credentials | None, executor: str | None = None
) -> AsyncIterator[tuple[Rig, FakeExecutor]]:
    """A stream to a replica that leads, its Hello sent if it names an executor.

    Who is refused before the Hello sends none: gRPC loses the status of a stream that ends while
    something is written to it.
    """
    rig = Rig()
    async with (
        secured(certs, FakeBackend(), rig=rig) as server,
        open_aio_channel(server, credentials, ()) as channel,
    ):
        fake = FakeExecutor(pool_pb2_grpc.PoolStub(channel).Connect())
        if executor is not None:
            await fake.send(hello=hello(executor=executor))
        yield rig, fake
        fake.call.cancel()


async def test_an_executor_streams_under_its_own_name(certs: Certs) -> None:
    async with stream(certs, certs.credentials(*EXECUTOR), "executor-7") as (rig, fake):
        assert (await rig.heard(Joined)).executor == "executor-7"
        rig.pool.welcome("executor-7")
        assert (await fake.read()).WhichOneof("kind") == "welcome"


async def test_an_executor_does_not_stream_under_another_ones_name(certs: Certs) -> None:
    async with stream(certs, certs.credentials(*EXECUTOR), "executor-8") as (rig, fake):
        code, details = await fake.status()
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert details == "the certificate is of executor executor-7, not of executor-8"
        assert rig.events == []


async def test_an_executor_whose_certificate_is_revoked_loses_its_streams(certs: Certs) -> None:
    rig, rules, ours = Rig(), AccessRules(), certs.credentials(*EXECUTOR)
    watching = pool_pb2.WatchRequest(cell=rig.pool.cell, executor="executor-7")
    async with (
        secured(certs, FakeBackend(), rig=rig, rules=rules) as server,
        open_aio_channel(server, ours, ()) as channel,
    ):
        stub = pool_pb2_grpc.PoolStub(channel)
        fake, watch = FakeExecutor(stub.Connect()), stub.WatchLeader(watching)
        await fake.send(hello=hello(executor="executor-7"))
        await rig.heard(Joined)
        await watch.read()
        rules.revoked = certs.revoked(ours)
        ending = asyncio.create_task(
            watch_revoked(lambda: rules.revoked, {"executor": rig.pool.disconnect})
        )
        code, details = await fake.status()
        assert code is grpc.StatusCode.ABORTED
        assert details.endswith("was revoked")
        assert await watch.read() is grpc.aio.EOF
        ending.cancel()
        for call in (stub.Connect(), stub.WatchLeader(watching)):
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("who", [PERSON, REPLICA, ("person", "executor-7")])
async def test_only_executors_stream(certs: Certs, who: tuple[str, str]) -> None:
    async with stream(certs, certs.credentials(*who)) as (rig, fake):
        code, details = await fake.status()
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert details == f"{who[0]} {who[1]} of cell berlin may not use Pool"
        assert rig.events == []


async def test_an_executor_of_another_cell_is_nobody(certs: Certs) -> None:
    source = certs.authority()
    assert source.name == "ours-berlin"
    # One authority that signs for two cells is a mistake that the URI still catches.
    munich = certs.credentials(*EXECUTOR, authority="both", cell="munich")
    trusts_both = certs.folder / "both.pem"
    trusts_both.write_bytes(
        (source / "ca.pem").read_bytes()
        + (certs.authority("both", "munich") / "ca.pem").read_bytes()
    )
    known = certs.credentials(*REPLICA)
    shown = Credentials(
        known.files,
        trusts_both.read_bytes(),
        known.certificate,
        known.key,
        known.identity,
        known.not_after_s,
    )
    client = Credentials(
        munich.files,
        trusts_both.read_bytes(),
        munich.certificate,
        munich.key,
        munich.identity,
        munich.not_after_s,
    )
    rig = Rig()
    async with (
        secured(certs, FakeBackend(), rig=rig, credentials=shown) as server,
        open_aio_channel(server, client, ()) as channel,
    ):
        fake = FakeExecutor(pool_pb2_grpc.PoolStub(channel).Connect())
        code, details = await fake.status()
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "executor executor-7 of cell munich; this is cell berlin" in details
    assert rig.events == []


@pytest.mark.parametrize("how", [{"authority": "other"}, {"begins_days": -11}, None])
async def test_without_a_good_certificate_there_is_no_stream(
    certs: Certs, how: dict[str, object] | None
) -> None:
    credentials = None if how is None else certs.unchecked(*EXECUTOR, **how)
    async with stream(certs, credentials) as (rig, fake):
        code, _ = await fake.status()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert rig.events == []

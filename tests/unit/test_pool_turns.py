"""Executors that come in a flood are greeted in turns."""

from __future__ import annotations

import contextlib
from pathlib import Path

import grpc
import pytest

from cron.api.peers import open_aio_channel
from launcher.pool import limits
from launcher.pool.events import HeartbeatReceived, Joined
from launcher.pool.lease import LeaseTimes
from launcher.protocol.v1 import pool_pb2_grpc
from tests.unit.api_rig import FakeBackend
from tests.unit.certs_rig import Certs
from tests.unit.pool_rig import FakeExecutor, Rig, hello, rigged, until
from tests.unit.tls_rig import secured

FIRST, SECOND, THIRD = "e1", "e2", "e3"


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GREETINGS_MAX", 1)


def names(rig: Rig) -> list[str]:
    return [joined.executor for joined in rig.of(Joined)]


async def test_the_next_one_is_greeted_when_the_last_one_has_a_lease() -> None:
    async with rigged() as rig, rig.executor(executor=FIRST) as first:
        await rig.heard(Joined)
        async with rig.executor(executor=SECOND):
            rig.pool.welcome(FIRST)
            await first.beat(1)
            await rig.heard(HeartbeatReceived)
            assert names(rig) == [FIRST]
            rig.pool.answer_heartbeats(rig.mono)
            await rig.heard(Joined, 2)
            assert names(rig) == [FIRST, SECOND]
            for number in (2, 3):
                await first.beat(number)
                await rig.heard(HeartbeatReceived, number)
                rig.pool.answer_heartbeats(rig.mono)
            async with rig.executor(executor=THIRD):
                assert names(rig) == [FIRST, SECOND], "a turn is given back once"


async def test_the_next_one_is_greeted_when_the_last_one_is_gone() -> None:
    async with rigged() as rig, rig.executor(executor=FIRST):
        await rig.heard(Joined)
        async with rig.executor(executor=SECOND):
            rig.pool.refuse(FIRST, "go")
            await rig.heard(Joined, 2)


async def test_who_is_refused_gives_its_turn_back() -> None:
    async with rigged() as rig:
        async with rig.executor(cell="paris") as stranger:
            assert (await stranger.status())[0] is grpc.StatusCode.INVALID_ARGUMENT
        async with rig.executor(executor=FIRST):
            await rig.heard(Joined)


async def test_who_gives_up_while_it_waits_keeps_nobody_out() -> None:
    async with rigged() as rig, rig.executor(executor=FIRST):
        await rig.heard(Joined)
        async with rig.executor(executor=SECOND):
            pass
        async with rig.executor(executor=THIRD):
            rig.pool.refuse(FIRST, "go")
            await until(lambda: THIRD in names(rig))


async def test_when_leadership_ends_those_who_wait_are_told() -> None:
    async with rigged() as rig, rig.executor(executor=FIRST):
        await rig.heard(Joined)
        async with rig.executor(executor=SECOND) as second:
            rig.pool.close("another leads", None)
            code, _ = await second.status()
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert names(rig) == [FIRST]


# ---- who says nothing


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lone stream may be silent for as long as a test lasts."""
    monkeypatch.setattr(limits, "HELLO_WITHIN_MS", 600_000)


@pytest.mark.usefixtures("patient")
async def test_a_stream_without_a_hello_keeps_nobody_out() -> None:
    async with rigged() as rig, rig.silent() as silent:
        await silent.call.wait_for_connection()
        async with rig.executor(executor=SECOND):
            await rig.heard(Joined)
            code, details = await silent.status()
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert details == "no Hello within 1000 ms, and others wait"


async def test_a_stream_that_never_gets_a_lease_gives_its_turn_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HELLO_WITHIN_MS", 1_500)
    lease = LeaseTimes(heartbeat_ms=5_000, self_kill_ms=500_000, give_up_ms=600_000)
    async with rigged(lease) as rig, rig.executor(executor=FIRST):
        await rig.heard(Joined)
        async with rig.executor(executor=SECOND):
            await rig.heard(Joined, 2)


@pytest.mark.usefixtures("patient")
async def test_one_certificate_with_many_silent_streams_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GREETINGS_MAX", 2)
    monkeypatch.setattr(limits, "SILENT_MS", 600_000, raising=False)
    certs, rig = Certs(tmp_path), Rig()
    async with (
        secured(certs, FakeBackend(), rig=rig) as server,
        open_aio_channel(server, certs.credentials("executor", FIRST), ()) as many,
        open_aio_channel(server, certs.credentials("executor", SECOND), ()) as one,
    ):
        streams = [pool_pb2_grpc.PoolStub(many).Connect() for _ in range(20)]
        for stream in streams:
            with contextlib.suppress(grpc.aio.AioRpcError):  # a newer one is there already
                await stream.wait_for_connection()
        second = FakeExecutor(pool_pb2_grpc.PoolStub(one).Connect())
        await second.send(hello=hello(executor=SECOND))
        assert (await rig.heard(Joined)).executor == SECOND
        ended = [stream for stream in streams if stream.done()]
        assert len(ended) <= 19, "the newest stream of a certificate has its turn"
        await until(lambda: sum(stream.done() for stream in streams) == 19)
        for stream in streams:
            if stream.done():
                assert "newer stream" in await stream.details()
            stream.cancel()
        second.call.cancel()

"""An executor and a replica that differ: in who leads, in how large the cell is, in their age."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest

from launcher.config import ExecutorConfig
from launcher.executor.backoff import Backoff
from launcher.executor.connector import Connector
from launcher.executor.lease import Lease
from launcher.executor.loop import ExecutorLoop
from launcher.executor.stream import LeaderStream, StreamEnded
from launcher.pool.events import HeartbeatReceived, Joined, Offered
from launcher.pool.pool import Pool
from launcher.protocol import limits
from launcher.protocol.reports import Accounts, GroupOffer, Ordered
from launcher.protocol.status import Limiting
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch
from tests.unit.outputs_rig import IdleUploads
from tests.unit.pool_rig import CELL, LEDGER, WITHIN_S, Rig, rigged, until

OFFERS = [GroupOffer("app", 4, ("a.b",))]
OTHERS = [GroupOffer("app", 4, ("a.c",))]


class IdleExecutorLoop:
    """An executor loop without work, whose workers serve something."""

    def __init__(self) -> None:
        self.able = asyncio.Event()
        self.able.set()
        self.ledger_uuid = LEDGER
        self.knows_secrets = False
        self.limiting = Limiting.NONE, Limiting.NONE
        self.accounts = Accounts("raftcron")
        self.highest = Epoch(0, 0, "")
        self.ordered = Ordered()
        self.running = 0
        self.lease = Lease()
        self.is_full = False
        self.uploads = IdleUploads()
        self.clock_offset_ms = 0
        self.visits: list[LeaderStream] = []

    def attach(self, visit: LeaderStream) -> None:
        self.visits.append(visit)
        visit.begin([], self.highest)
        visit.offer(OFFERS)

    def detach(self, visit: LeaderStream) -> None:
        """Nothing is kept of a visit."""

    def welcome(self, epoch: Epoch) -> None:
        """No ledger keeps it."""

    def answered(self, number: int) -> bool:
        return self.lease.answered(number)


def config_of(rig: Rig) -> ExecutorConfig:
    return ExecutorConfig(id="e1", data="d", leaders=(f"127.0.0.1:{rig.port}",), cell=CELL)


def executor_loop_of(idle: IdleExecutorLoop) -> ExecutorLoop:
    return cast("ExecutorLoop", cast("Any", idle))


@asynccontextmanager
async def visiting(rig: Rig, pace: Backoff | None = None) -> AsyncIterator[asyncio.Task[None]]:
    """One visit of an executor; the task ends with it."""
    config = config_of(rig)
    visit = LeaderStream(
        config, executor_loop_of(IdleExecutorLoop()), "i1", backoff=pace or Backoff(config, "e1")
    )
    task = asyncio.create_task(visit.attend(config.leaders[0]))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def crowded(rig: Rig, executors: int) -> Pool:
    """Let the cell have so many executors."""
    rig.pool._known_executors = lambda: executors
    return rig.pool


# ---- how large the cell is


async def test_a_welcome_says_how_to_come_back() -> None:
    async with rigged() as rig:
        crowded(rig, 4_000)
        pace = Backoff(config_of(rig), "e1")
        async with visiting(rig, pace):
            rig.pool.welcome((await rig.heard(Joined)).executor)
            await until(lambda: pace.spread_ms == 4_000)


async def test_a_refusal_says_it_too_for_those_who_were_never_welcome() -> None:
    async with rigged(leads=False) as rig:
        crowded(rig, 4_000)
        pace = Backoff(config_of(rig), "e1")
        async with asyncio.timeout(WITHIN_S):
            while pace.spread_ms != 4_000:  # gRPC loses a status while the Hello is written
                async with visiting(rig, pace) as visit:
                    with pytest.raises(StreamEnded):
                        await visit


async def test_a_small_cell_says_nothing() -> None:
    async with rigged() as rig:
        pace = Backoff(config_of(rig), "e1")
        async with visiting(rig, pace), rig.executor() as fake:
            rig.pool.welcome((await rig.heard(Joined, 2)).executor)
            rig.pool.welcome("executor-7")
            assert (await fake.read()).welcome.spread_ms == 0
        assert pace.spread_ms == 0


@asynccontextmanager
async def refusing(code: grpc.StatusCode, said: str = "") -> AsyncIterator[Rig]:
    """A replica that ends every stream so, once it has its Hello: gRPC loses a status otherwise."""

    async def refuse(requests: Any, context: Any) -> None:
        await anext(requests)
        trailing = (("raftcron-spread-ms", said),) if said else ()
        await context.abort(code, "no", trailing)

    handler = grpc.stream_stream_rpc_method_handler(
        refuse, pool_pb2.FromExecutor.FromString, pool_pb2.FromLeader.SerializeToString
    )
    server = grpc.aio.server()
    generic = grpc.method_handlers_generic_handler("raftcron.pool.v1.Pool", {"Connect": handler})
    server.add_generic_rpc_handlers((generic,))
    rig = Rig()
    rig.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield rig
    finally:
        await server.stop(0)


@pytest.mark.parametrize("said", ["many", "-5", "9" * 40])
async def test_nonsense_about_it_is_not_heeded(said: str) -> None:
    async with refusing(grpc.StatusCode.FAILED_PRECONDITION, said) as rig:
        pace = Backoff(config_of(rig), "e1")
        async with visiting(rig, pace) as visit:
            with pytest.raises(StreamEnded, match="FAILED_PRECONDITION"):
                await visit
        assert pace.spread_ms == 0


async def test_who_finds_too_many_at_the_door_was_not_refused_but_was_late() -> None:
    """gRPC cancels streams for which a busy server has no time, and no word."""
    async with refusing(grpc.StatusCode.CANCELLED) as rig, visiting(rig) as visit:
        with pytest.raises(StreamEnded) as caught:
            await visit
    assert caught.value.is_late
    assert not caught.value.is_refusal


# ---- how old the leader is


async def test_a_leader_gets_offers_once_it_has_welcomed_the_executor() -> None:
    async with rigged() as rig, visiting(rig):
        joined = await rig.heard(Joined)
        assert not rig.of(Offered)
        rig.pool.welcome(joined.executor)
        await rig.heard(Offered)
        assert [offer.handlers for offer in rig.pool.sessions()[0].offers] == [("a.b",)]


async def test_a_leader_of_another_protocol_is_left_with_a_word_on_what_to_upgrade(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rigged() as rig, visiting(rig) as visit:
        joined = await rig.heard(Joined)
        monkeypatch.setattr("launcher.pool.pool.PROTOCOL", limits.PROTOCOL - 1)
        rig.pool.welcome(joined.executor)
        with pytest.raises(StreamEnded, match="speaks 2, and this executor speaks 3; upgrade the"):
            await asyncio.wait_for(visit, WITHIN_S)
        assert not rig.of(Offered)


async def test_the_last_offers_before_a_welcome_are_those_that_count() -> None:
    async with rigged() as rig:
        config, idle = config_of(rig), IdleExecutorLoop()
        way = Connector(config, executor_loop_of(idle), "i1")
        task = asyncio.create_task(way.run())
        try:
            joined = await rig.heard(Joined)
            idle.visits[0].offer(OTHERS)
            rig.pool.welcome(joined.executor)
            await rig.heard(Offered)
            assert [offer.handlers for offer in rig.pool.sessions()[0].offers] == [("a.c",)]
            assert len(rig.of(Offered)) == 1
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_an_older_executor_is_welcome_and_is_told_nothing_that_it_must_know() -> None:
    """It sends no number, and reads past the fields that it does not know."""
    async with rigged() as rig, rig.joined() as fake:
        await fake.beat(1)
        await rig.heard(HeartbeatReceived)
        rig.pool.answer_heartbeats(rig.mono)
        assert (await fake.read()).heartbeat.number == 1

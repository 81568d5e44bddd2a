"""An executor that hears who leads: it follows the highest epoch, and leaves an older leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import msgspec
import pytest

from launcher.config import ExecutorConfig
from launcher.executor.connector import NAMED_MAX, Connector, LeaderWatch
from launcher.executor.lease import Lease
from launcher.executor.loop import ExecutorLoop
from launcher.executor.stream import LeaderStream
from launcher.pool.events import HeartbeatReceived, Joined
from launcher.protocol.reports import Accounts, Ordered
from launcher.protocol.status import Limiting
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch
from tests.unit.outputs_rig import IdleUploads
from tests.unit.pool_rig import CELL, EPOCH, LEDGER, Rig, rigged, until

NEXT = Epoch(0, 8, "r2")
OLD = Epoch(0, 6, "r2")
NOTHING = Epoch(0, 0, "")


class IdleExecutorLoop:
    """An executor loop without work, which writes down what happens to its report sinks."""

    def __init__(self, highest: Epoch = NOTHING) -> None:
        self.able = asyncio.Event()
        self.able.set()
        self.ledger_uuid = LEDGER
        self.knows_secrets = False
        self.limiting = Limiting.NONE, Limiting.NONE
        self.accounts = Accounts("raftcron")
        self.highest = highest
        self.ordered = Ordered()
        self.running = 0
        self.lease = Lease()
        self.is_full = False
        self.uploads = IdleUploads()
        self.clock_offset_ms = 0
        self.report_sinks: list[LeaderStream] = []
        self.story: list[str] = []

    def attach(self, visit: LeaderStream) -> None:
        self.report_sinks.append(visit)
        self.story.append(f"attach {len(self.report_sinks)}")
        visit.begin([], self.highest)

    def detach(self, visit: LeaderStream) -> None:
        if visit in self.report_sinks:
            self.story.append(f"detach {self.report_sinks.index(visit) + 1}")

    def welcome(self, epoch: Epoch) -> None:
        self.story.append(f"welcome {epoch}")
        self.highest = max(self.highest, epoch)

    def order(self, visit: LeaderStream, orders: pool_pb2.Orders) -> None:
        self.story.append(f"orders of {self.report_sinks.index(visit) + 1}")

    def answered(self, number: int) -> bool:
        return self.lease.answered(number)


def address(rig: Rig) -> str:
    return f"127.0.0.1:{rig.port}"


@asynccontextmanager
async def running(
    *addresses: str, executor_loop: IdleExecutorLoop | None = None, **settings: Any
) -> AsyncIterator[IdleExecutorLoop]:
    """An executor whose replicas are at these addresses."""
    idle = executor_loop or IdleExecutorLoop()
    sound = {"id": "e1", "data": "d", "cell": CELL, "answer_ms": 3_600_000}
    config = msgspec.convert(sound | settings | {"leaders": addresses}, ExecutorConfig)
    task = asyncio.create_task(
        Connector(config, cast("ExecutorLoop", cast("Any", idle)), "i1").run()
    )
    try:
        yield idle
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def let_in(rig: Rig) -> None:
    """Welcome the executor and answer its first heartbeat."""
    rig.pool.welcome((await rig.heard(Joined)).executor)
    await rig.heard(HeartbeatReceived)
    rig.pool.answer_heartbeats(rig.mono)


async def test_a_newer_leader_is_joined_though_the_older_ones_stream_never_ends() -> None:
    async with rigged() as old, rigged(leads=False) as new:
        async with running(address(old), address(new)) as idle:
            await let_in(old)
            await until(lambda: idle.lease.until_ms > 0)
            granted_ms = idle.lease.until_ms
            new.pool.open(NEXT)
            joined = await new.heard(Joined)
            assert joined.executor == "e1"
            assert idle.lease.until_ms == granted_ms, "only an answer of the new leader renews it"
            await until(lambda: not old.pool.sessions())
            new.pool.welcome("e1")
            await until(lambda: idle.story[-1] == f"welcome {NEXT}")
        assert idle.story[:5] == [
            "attach 1",
            f"welcome {EPOCH}",
            "detach 1",
            "attach 2",
            f"welcome {NEXT}",
        ]


async def test_what_is_no_newer_leader_moves_nobody() -> None:
    async with rigged() as leader, rigged(leads=False) as other:
        async with running(address(leader), address(other)) as idle:
            await let_in(leader)
            other.pool.open(OLD)
            await until(lambda: len(other.pool.watchers) == 1)
            other.pool.close("it woke", None)
            other.pool.open(EPOCH)
            await until(lambda: len(other.pool.watchers) == 1)
            other.pool.open(NEXT)
            await other.heard(Joined)
        assert len(other.of(Joined)) == 1
        assert idle.story.count("detach 1") == 1


async def test_a_rest_between_visits_ends_when_somebody_leads() -> None:
    """Also where the replica refused a visit before it led, and reported first that it leads."""
    hour = {"reconnect_ms_min": 3_600_000, "reconnect_ms_max": 3_600_000}
    async with rigged(leads=False) as new:
        new.leader = None
        async with running(address(new), **hour):
            await until(lambda: len(new.pool.watchers) == 1)
            new.pool.open(NEXT)
            assert (await new.heard(Joined)).executor == "e1"


async def test_an_address_that_only_another_replica_knows_is_watched_too() -> None:
    """The leader's machine was replaced, and the executor's configuration has the old one."""
    async with (
        rigged() as old,
        rigged(leads=False) as other,
        rigged(leads=False) as moved,
        running(address(old), address(other)),
    ):
        await let_in(old)
        other.leader = address(moved)
        other.pool.watchers.change()
        await until(lambda: len(moved.pool.watchers) == 1)
        moved.pool.open(NEXT)
        assert (await moved.heard(Joined)).executor == "e1"


async def test_few_addresses_are_watched_beside_those_of_the_configuration() -> None:
    watch = LeaderWatch(ExecutorConfig(id="e1", data="d", leaders=("127.0.0.1:1",), cell=CELL))
    for port in range(2, 20):
        watch._take("127.0.0.1:1", pool_pb2.Leadership(leader=f"127.0.0.1:{port}"))
    watch._take("127.0.0.1:1", pool_pb2.Leadership(leader="not an address"))
    assert list(watch._named) == [f"127.0.0.1:{port}" for port in range(20 - NAMED_MAX, 20)]
    for task in watch._named.values():
        task.cancel()
    await asyncio.gather(*watch._named.values(), return_exceptions=True)


async def test_a_replica_of_another_cell_tells_nothing() -> None:
    async with rigged() as rig:
        config = ExecutorConfig(id="e1", data="d", leaders=(address(rig),), cell="other")
        watch = LeaderWatch(config)
        with pytest.raises(grpc.aio.AioRpcError, match=f"this is cell {CELL}"):
            await anext(watch.views(address(rig)))
        assert len(rig.pool.watchers) == 0

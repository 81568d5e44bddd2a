"""A pool on a real server on loopback, and an executor that does only what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import grpc

from launcher.pool.events import Event, Joined, Left
from launcher.pool.lease import LeaseTimes
from launcher.pool.pool import Pool
from launcher.pool.service import add_pool_service
from launcher.protocol import limits
from launcher.protocol.names import AttemptName, LaunchName
from launcher.protocol.orders import BatchRows, FenceOrder, JobWork, KillOrder, StartBatch, work_of
from launcher.protocol.reports import BatchReport, Greeting, RowReport
from launcher.protocol.status import Reason, Status
from launcher.protocol.v1 import pool_pb2, pool_pb2_grpc
from launcher.protocol.work import Epoch

CELL = "berlin"
EPOCH = Epoch(0, 7, "r1")
LEDGER = "0f0e0d0c-0b0a-4909-8807-060504030201"
OTHER_LEDGER = "11111111-2222-4333-8444-555555555555"
WALL_MS = 1_795_190_400_000
WITHIN_S = 60.0
MANY = 50
"""Starts with work of a MiB: more than any system has in its pipes, at times twenty."""
T = TypeVar("T")


def attempt(number: int, job: str = "default/backup", tried: int = 1) -> AttemptName:
    """The `number`-th launch of a job, one a minute."""
    return AttemptName(LaunchName(job, 1_795_190_400 + 60 * number), tried)


def order(number: int, work: bytes = b"work", *, is_first: bool = False) -> StartBatch[JobWork]:
    """A batch that has one row, and work of its own."""
    at_s = attempt(number).launch.scheduled_s
    works = [work_of("default/backup", work)]
    return StartBatch(
        index=100 + number, rows=[0], works=works, scheduled_s=[at_s],
        not_after_ms=[WALL_MS + 60_000], is_first=is_first,
    )  # fmt: skip


def batch(index: int, *jobs: str, **fields: Any) -> StartBatch[JobWork]:
    """A batch with a row for each job, whose work says its name."""
    works = [work_of(f"default/{job}", job.encode()) for job in jobs]
    usual = {"scheduled_s": [1_795_190_400], "not_after_ms": [WALL_MS + 60_000]}
    return StartBatch(index=index, rows=list(range(len(jobs))), works=works, **usual | fields)


def joined(
    executor: str = "e1",
    ledger: str = "l1",
    known: tuple[BatchReport, ...] = (),
    *,
    slots: int = 4,
    can_inventory: bool = False,
) -> Joined:
    """An executor that has joined."""
    about = (executor, ledger, "i", slots, "", 1, "", 0, Epoch(), {}, known, can_inventory)
    return Joined(executor, ledger, Greeting(*about), "", 0)


def fence(number: int) -> FenceOrder:
    return FenceOrder(100 + number, 0, attempt(number))


def kill(number: int, reason: Reason = Reason.KILLED) -> KillOrder:
    return KillOrder(100 + number, 0, reason, attempt(number))


def place(number: int) -> BatchRows:
    """Where `order(number)` is."""
    return (100 + number, [0])


def started(orders: pool_pb2.Orders) -> list[int]:
    """The numbers of those that are to start."""
    return [batch.index - 100 for batch in orders.batches]


def report(number: int, status: Status = Status.ENDED, **fields: Any) -> pool_pb2.RowReport:
    """What a Recollection says of a row."""
    return pool_pb2.RowReport(**{"index": 100 + number, "status": int(status)} | fields)


def reports(*batches: pool_pb2.BatchReport) -> pool_pb2.Reports:
    return pool_pb2.Reports(batches=batches)


def said(number: int, status: Status = Status.ENDED, **fields: Any) -> pool_pb2.BatchReport:
    """What an executor says of row 0 of a batch."""
    usual = {"index": 100 + number, "status": int(status), "rows": [0]}
    return pool_pb2.BatchReport(**usual | fields)


def beat(number: int, running: int = 0, wall_ms: int = 0, **more: Any) -> pool_pb2.FromExecutor:
    """A heartbeat, as a message."""
    heartbeat = pool_pb2.Heartbeat(number=number, running=running, wall_ms=wall_ms, **more)
    return pool_pb2.FromExecutor(heartbeat=heartbeat)


def fact(number: int, status: Status, reason: Reason = Reason.NONE, **fields: Any) -> RowReport:
    return RowReport(100 + number, 0, status, reason, **fields)


def hello(**fields: Any) -> pool_pb2.Hello:
    """A Hello that is in order, but for `fields`."""
    sound = {
        "cell": CELL,
        "executor": "executor-7",
        "ledger": LEDGER,
        "incarnation": "a1",
        "slots": 8,
        "host": "host-7.example",
        "pid": 4242,
        "version": "0.1.0",
        "wall_ms": WALL_MS,
        "protocol": limits.PROTOCOL,
    }
    return pool_pb2.Hello(**sound | fields)


class Rig:
    """The pool, its clocks, its events in order, and the address of its server."""

    def __init__(self, lease: LeaseTimes | None = None) -> None:
        self.mono = 1_000_000
        self.wall = WALL_MS
        self.leader: str | None = "127.0.0.1:7401"
        self.events: list[Event] = []
        self.port = 0
        self.pool = Pool(
            cell=CELL,
            lease=lease or LeaseTimes(),
            mono_ms=lambda: self.mono,
            wall_ms=lambda: self.wall,
            on_event=self._take,
        )

    def _take(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    async def heard(self, kind: type[T], count: int = 1) -> T:
        """Wait until `count` events of a kind came; return the last of these."""
        await until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    @asynccontextmanager
    async def silent(self) -> AsyncIterator[FakeExecutor]:
        """An executor whose Hello is not sent yet."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            fake = FakeExecutor(pool_pb2_grpc.PoolStub(channel).Connect())
            yield fake
            fake.call.cancel()

    @asynccontextmanager
    async def executor(self, **fields: Any) -> AsyncIterator[FakeExecutor]:
        """An executor whose Hello is sent."""
        async with self.silent() as fake:
            await fake.send(hello=hello(**fields))
            yield fake

    @asynccontextmanager
    async def joined(
        self, *, inventory: bool = False, **fields: Any
    ) -> AsyncIterator[FakeExecutor]:
        """An executor that is welcome, with the Welcome already read."""
        before = len(self.of(Joined))
        async with self.executor(**fields) as fake:
            joined = await self.heard(Joined, before + 1)
            self.pool.welcome(joined.executor, inventory=inventory)
            assert (await fake.read()).welcome.inventory == (
                inventory and joined.greeting.can_inventory
            )
            yield fake

    async def gone(self, count: int = 1) -> Left:
        return await self.heard(Left, count)


class FakeExecutor:
    """The executor's end of one stream."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def send(self, **kind: Any) -> None:
        await self.call.write(pool_pb2.FromExecutor(**kind))

    async def beat(
        self, number: int, running: int = 0, wall_ms: int = WALL_MS, **more: Any
    ) -> None:
        heartbeat = pool_pb2.Heartbeat(number=number, running=running, wall_ms=wall_ms, **more)
        await self.send(heartbeat=heartbeat)

    async def read(self) -> pool_pb2.FromLeader:
        """The next message; fails if the stream ended."""
        async with asyncio.timeout(WITHIN_S):
            message = await self.call.read()
        assert isinstance(message, pool_pb2.FromLeader), await self.call.code()
        return message

    async def orders(self) -> pool_pb2.Orders:
        message = await self.read()
        assert message.WhichOneof("kind") == "orders", message
        return message.orders

    async def rest(self) -> list[pool_pb2.FromLeader]:
        """All messages up to the end of the stream."""
        messages = []
        async with asyncio.timeout(WITHIN_S):
            with suppress(grpc.aio.AioRpcError):
                while (message := await self.call.read()) is not grpc.aio.EOF:
                    messages.append(message)
        return messages

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ended; what is still to be read is read and dropped."""
        await self.rest()
        async with asyncio.timeout(WITHIN_S):
            return await self.call.code(), await self.call.details()

    async def leader(self) -> str | None:
        """The leader that the trailing metadata names."""
        async with asyncio.timeout(WITHIN_S):
            trailing = await self.call.trailing_metadata()
        return trailing.get("raftcron-leader")


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so; fails after a deadline."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - the condition is another task's state
            await asyncio.sleep(0.002)


@asynccontextmanager
async def rigged(lease: LeaseTimes | None = None, *, leads: bool = True) -> AsyncIterator[Rig]:
    """A rig that serves; the pool is open unless told otherwise."""
    rig = Rig(lease)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 << 20)])
    add_pool_service(server, rig.pool, lambda: rig.leader)
    rig.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    if leads:
        rig.pool.open(EPOCH)
    try:
        yield rig
    finally:
        await server.stop(grace=None)

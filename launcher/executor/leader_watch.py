"""Who leads, as every replica says of itself, without asking again and again.

An executor has a light stream to each replica. A leader says so with its epoch once its Claim is
committed. So an executor hears of a new leader from that leader, within a round trip, also where
the old one is frozen: its connection is open, and only time would tell that nobody is behind it.
What a replica says of others is no reason to leave a stream: it only gives an address to watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import grpc
import grpc.aio

from launcher import logs
from launcher.config import ExecutorConfig, check_address
from launcher.errors import BadConfig
from launcher.executor.channel import open_channel
from launcher.executor.row import epoch_of
from launcher.renewal import Current
from launcher.rpc.v1 import pool_pb2, pool_pb2_grpc
from launcher.work import Epoch

log = logs.get()

FIRST_S: Final = 5.0
"""A replica that is not frozen has said something by then."""
PAUSE_S_MIN: Final = 0.2
PAUSE_S_MAX: Final = 3.2
NAMED_MAX: Final = 3
"""Addresses that replicas name and the configuration does not: those of machines that moved."""
KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""A replica that is gone without a word is missed after 25 s."""


class Told(NamedTuple):
    """The replica at `address` leads and takes executors; compared by epoch first."""

    epoch: Epoch
    address: str


class LeaderWatch:
    """Streams to all replicas, and what they say. On the event loop."""

    def __init__(self, config: ExecutorConfig, credentials: Current | None = None) -> None:
        self._config = config
        self._credentials = credentials
        self._leading: dict[str, Epoch] = {}
        self._named: dict[str, asyncio.Task[None]] = {}  # the oldest first
        self._news = asyncio.Event()

    @property
    def newest(self) -> Told | None:
        """The leader of the highest epoch among those that say now that they lead."""
        return max((Told(epoch, at) for at, epoch in self._leading.items()), default=None)

    async def newer(self, epoch: Epoch) -> Told:
        """Return the newest leader once its epoch is higher than `epoch`."""
        while True:
            told = self.newest
            if told is not None and told.epoch > epoch:
                return told
            self._news.clear()
            await self._news.wait()

    async def run(self) -> None:
        """Watch until cancelled."""
        tasks = [
            asyncio.create_task(self._follow(address), name="leaders")
            for address in self._config.leaders
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            tasks += self._named.values()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, address: str) -> None:
        pause_s = PAUSE_S_MIN
        while True:
            try:
                async for view in self.views(address):
                    pause_s = PAUSE_S_MIN
                    self._heed(address, view)
            except (grpc.RpcError, grpc.aio.BaseError, TimeoutError):
                pass  # visits say what is wrong with a replica
            finally:
                self._leading.pop(address, None)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def views(self, address: str) -> AsyncIterator[pool_pb2.Leadership]:
        """Return what the replica at `address` says, until its stream ends.

        Raises:
            grpc.RpcError, TimeoutError: it broke, or could not be opened.
        """
        ours = self._credentials() if self._credentials is not None else None
        channel = open_channel(address, ours, KEEPALIVE)
        try:
            stub = pool_pb2_grpc.PoolStub(channel)  # type: ignore[no-untyped-call]
            request = pool_pb2.WatchRequest(cell=self._config.cell, executor=self._config.id)
            call = stub.WatchLeader(request)
            async with asyncio.timeout(FIRST_S):
                view = await call.read()
            while view is not grpc.aio.EOF:
                yield view
                view = await call.read()
        finally:
            await channel.close()

    def _heed(self, address: str, view: pool_pb2.Leadership) -> None:
        if not view.HasField("epoch"):
            self._leading.pop(address, None)
            if view.leader:
                self._watch_also(view.leader)
            return
        self._leading[address] = epoch_of(view.epoch)
        self._news.set()

    def _watch_also(self, address: str) -> None:
        """Watch an address that a replica names, in the place of the oldest such if need be."""
        if address in self._config.leaders or address in self._named:
            return
        try:
            check_address(address, "leader", is_secure=self._credentials is not None)
        except BadConfig as error:
            log.warning("leader.ignored", error=str(error))
            return
        if len(self._named) >= NAMED_MAX:
            self._named.pop(next(iter(self._named))).cancel()
        self._named[address] = asyncio.create_task(self._follow(address), name="leaders")

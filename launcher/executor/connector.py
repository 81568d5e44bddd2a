"""The way to the leader: who leads, where to try next, and how long to rest in between.

An executor has a light stream to each replica. A leader says so with its epoch once its Claim is
committed. So an executor hears of a new leader from that leader, within a round trip, also where
the old one is frozen: its connection is open, and only time would tell that nobody is behind it.
What a replica says of others is no reason to leave a stream: it only gives an address to watch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import grpc
import grpc.aio

from launcher import logs
from launcher.config import ExecutorConfig, check_address
from launcher.errors import BadConfig
from launcher.executor.backoff import Backoff
from launcher.executor.channel import open_channel
from launcher.executor.loop import ExecutorLoop
from launcher.executor.resources import UNLIMITED, Capacity
from launcher.executor.rows import epoch_of
from launcher.executor.stream import LeaderStream, StreamEnded
from launcher.protocol.v1 import pool_pb2, pool_pb2_grpc
from launcher.protocol.work import Epoch
from launcher.renewal import Current

log = logs.get()

DISTRUST_S: Final = 2.0
"""Between visits when no replica takes our certificate: only a person can change that."""
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


class KnownLeader(NamedTuple):
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
    def newest(self) -> KnownLeader | None:
        """The leader of the highest epoch among those that say now that they lead."""
        return max((KnownLeader(epoch, at) for at, epoch in self._leading.items()), default=None)

    async def newer(self, epoch: Epoch) -> KnownLeader:
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


class Connector:
    """Visits replicas until one leads, and again when it no longer does, or a newer leader is heard
    of. `watch` says who leads; without it, or where it cannot reach the leader, replicas are asked
    in turn, and name the leader as they refuse."""

    def __init__(
        self,
        config: ExecutorConfig,
        executor: ExecutorLoop,
        incarnation: str,
        credentials: Current | None = None,
        room: Capacity = UNLIMITED,
    ) -> None:
        self._config = config
        self._executor = executor
        self._incarnation = incarnation
        self._credentials = credentials
        self._room = room
        self._backoff = Backoff(config, f"{config.id}/{incarnation}")
        self._watch = LeaderWatch(config, credentials)
        self._heeded = Epoch()  # the highest epoch for which a visit was made or left
        self._leader_stream: LeaderStream | None = None
        self._refusal = ""
        self._distrusts = 0

    async def run(self) -> None:
        """Be connected until a leader says that this executor is drained."""
        visiting = asyncio.create_task(self._visit_replicas(), name="visits")
        tasks = (visiting, asyncio.create_task(self._watch.run(), name="leaders"))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _visit_replicas(self) -> None:
        leaders, backoff = self._config.leaders, self._backoff
        number, hint = 0, ""
        while True:
            await self._executor.able.wait()
            told = self._news()
            hint = told.address if told is not None else hint
            followed = bool(hint)
            address = hint or leaders[number % len(leaders)]
            number += not followed
            ours = self._credentials() if self._credentials is not None else None
            leader_stream = self._leader_stream = LeaderStream(
                self._config, self._executor, self._incarnation, ours, backoff, self._room
            )
            hint = ""
            try:
                await self._attend(leader_stream, address)
            except StreamEnded as error:
                hint = self._usable(error.leader)
                backoff.met(is_late=error.is_late and not leader_stream.welcomed)
                self._note(leader_stream, address, error)
                if error.is_drained:
                    log.info("executor.drained", replica=address, error=str(error))
                    return
            if leader_stream.welcomed:
                # All the others' streams have ended, too: whoever dies, or is deposed.
                number += backoff.first(len(leaders))
                await asyncio.sleep(backoff.after_stream_ms() / 1000)
            if hint and not followed:
                continue
            rest_ms = (
                0 if leader_stream.welcomed and backoff.spread_ms else backoff.after_failure_ms()
            )
            is_hopeless = self._distrusts >= len(leaders)
            await self._rest(DISTRUST_S if is_hopeless else rest_ms / 1000)

    async def _attend(self, leader_stream: LeaderStream, address: str) -> None:
        """Attend until the stream ends, or another replica says that it leads with a newer epoch:
        then nobody is behind this stream who could renew a lease, frozen or not (rule R5). What was
        granted stays granted.

        Raises:
            StreamEnded: either.
        """
        attending = asyncio.create_task(leader_stream.attend(address), name="visit")
        try:
            while not attending.done():
                news = asyncio.create_task(self._watch.newer(self._beyond(leader_stream)))
                try:
                    await asyncio.wait((attending, news), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
                told = self._watch.newest
                if attending.done() or told is None or told.epoch <= self._beyond(leader_stream):
                    continue
                if told.address != address:
                    raise StreamEnded(f"{told.address} leads with epoch {told.epoch}")
                self._heeded = told.epoch
        finally:
            attending.cancel()
            await asyncio.gather(attending, return_exceptions=True)
        attending.result()

    def _beyond(self, leader_stream: LeaderStream | None = None) -> Epoch:
        """Return the epoch above which a leader is news: heeded already, or that of this visit. It
        is never below the highest that this executor has met (rule R3)."""
        highest = self._executor.highest
        known = max(self._heeded, Epoch(highest.generation, highest.term, ""))
        return max(known, leader_stream.epoch) if leader_stream is not None else known

    def _news(self) -> KnownLeader | None:
        """Return a leader that is news, once."""
        told = self._watch.newest
        if told is None or told.epoch <= self._beyond():
            return None
        self._heeded = told.epoch
        return told

    async def _rest(self, seconds: float) -> None:
        """Rest, in a small cell at most until there is a new leader."""
        if self._backoff.spread_ms:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._watch.newer(self._beyond())

    async def close(self, wait_s: float) -> None:
        """Send what is waiting and end the stream; wait for the replica at most `wait_s`."""
        leader_stream = self._leader_stream
        if leader_stream is None or not leader_stream.welcomed:
            return
        self._executor.detach(leader_stream)
        leader_stream.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await leader_stream.ended.wait()

    def _note(self, leader_stream: LeaderStream, address: str, error: StreamEnded) -> None:
        self._distrusts = self._distrusts + 1 if error.is_distrust else 0
        if leader_stream.welcomed:
            self._refusal = ""
            log.info("stream.ended", replica=address, error=str(error))
        elif error.is_refusal and str(error) != self._refusal:
            # Once: it is tried again several times a second.
            self._refusal = str(error)
            log.warning("executor.refused", replica=address, error=str(error))

    def _usable(self, address: str) -> str:
        if not address:
            return ""
        try:
            check_address(address, "leader", is_secure=self._credentials is not None)
        except BadConfig as error:
            log.warning("leader.ignored", error=str(error))
            return ""
        return address

"""Finds the leader: which replica leads, which one to try next, and how long to wait in between.

An executor has a light stream to each replica, on which a leader reports its epoch once its Claim
is committed. So an executor learns of a new leader from that leader, within a round trip, even if
the old one is frozen: the connection to a frozen leader stays open. What a replica reports about
another one is no reason to leave a stream: it only gives an address to watch.
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
from launcher.executor.channel import StreamEnded, open_channel
from launcher.executor.loop import ExecutorLoop
from launcher.executor.resources import UNLIMITED, Capacity
from launcher.executor.rows import epoch_of
from launcher.executor.stream import LeaderStream
from launcher.protocol.v1 import pool_pb2, pool_pb2_grpc
from launcher.protocol.work import Epoch
from launcher.renewal import Current

log = logs.get()

DISTRUST_S: Final = 2.0
"""Between visits if no replica accepts our certificate: only a person can change that."""
REFUSED_S: Final = 1.0
"""After a leader's refusal, e.g. since another executor has our id: a person has to change that, or
the stream of a process that died has to end."""
FIRST_S: Final = 5.0
"""A replica that is not frozen has reported something by then."""
PAUSE_S_MIN: Final = 0.2
PAUSE_S_MAX: Final = 3.2
NAMED_MAX: Final = 3
"""Addresses that replicas name and the configuration does not: of machines that moved."""
KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""A replica that vanished is noticed after 25 s."""


class KnownLeader(NamedTuple):
    """The replica at `address` leads and takes executors; compared by epoch first."""

    epoch: Epoch
    address: str


class LeaderWatch:
    """Streams to all replicas, and the leaders that they report. On the event loop."""

    def __init__(self, config: ExecutorConfig, credentials: Current | None = None) -> None:
        self._config = config
        self._credentials = credentials
        self._leading: dict[str, Epoch] = {}
        self._named: dict[str, asyncio.Task[None]] = {}  # the oldest first
        self._changed = asyncio.Event()

    @property
    def newest(self) -> KnownLeader | None:
        """The leader of the highest epoch among those that report now that they lead."""
        return max((KnownLeader(epoch, at) for at, epoch in self._leading.items()), default=None)

    async def newer(self, epoch: Epoch) -> KnownLeader:
        """Return the newest leader once its epoch is higher than `epoch`."""
        while (leader := self.newest) is None or leader.epoch <= epoch:
            self._changed.clear()
            await self._changed.wait()
        return leader

    def usable(self, address: str) -> str:
        """Return an address that a replica named, "" if it is none."""
        if address:
            try:
                check_address(address, "leader", is_secure=self._credentials is not None)
            except BadConfig as error:
                log.warning("leader.ignored", error=str(error))
                return ""
        return address

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
                    self._take(address, view)
            except (grpc.RpcError, grpc.aio.BaseError, TimeoutError):
                pass  # visits report what is wrong with a replica
            finally:
                self._leading.pop(address, None)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def views(self, address: str) -> AsyncIterator[pool_pb2.Leadership]:
        """Return what the replica at `address` reports, until its stream ends.

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

    def _take(self, address: str, view: pool_pb2.Leadership) -> None:
        """Take what the replica at `address` reports. Watches an address that it names, in the
        place of the oldest such one if there are too many."""
        if view.HasField("epoch"):
            self._leading[address] = epoch_of(view.epoch)
            self._changed.set()
            return
        self._leading.pop(address, None)
        named = self.usable(view.leader)
        if not named or named in self._config.leaders or named in self._named:
            return
        if len(self._named) >= NAMED_MAX:
            self._named.pop(next(iter(self._named))).cancel()
        self._named[named] = asyncio.create_task(self._follow(named), name="leaders")


class Connector:
    """Visits replicas until one leads, and again once it no longer does, or a newer leader reports.
    If no leader reports, or cannot be reached, the replicas are asked in turn: a replica that
    refuses names its leader."""

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
        self._visited = Epoch()  # the highest epoch for which a visit began or ended
        self._leader_stream: LeaderStream | None = None
        self._refusal = ""
        self._distrusts = 0

    async def run(self) -> None:
        """Keep this executor connected until a leader reports that it is drained."""
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
            leader = self._watch.newest
            if leader is not None and leader.epoch > self._highest():
                self._visited, hint = leader
            visited = self._visited
            is_hinted = bool(hint)
            address = hint or leaders[number % len(leaders)]
            number += not is_hinted
            leader_stream = self._leader_stream = LeaderStream(
                self._config,
                self._executor,
                self._incarnation,
                self._credentials,
                backoff,
                self._room,
            )
            hint, is_refused = "", False
            try:
                await self._attend(leader_stream, address)
            except StreamEnded as error:
                is_refused = error.is_refusal and not error.is_distrust
                hint = self._watch.usable(error.leader)
                backoff.met(is_late=error.is_late and not leader_stream.welcomed)
                self._note(leader_stream, address, error)
                if error.is_drained:
                    log.info("executor.drained", replica=address, error=str(error))
                    return
                if not leader_stream.welcomed:
                    # It refused before it led, though it reported that it leads by now.
                    self._visited = visited
            if leader_stream.welcomed:
                # All others lost their streams as well: the leader died, or was deposed.
                number += backoff.first(len(leaders))
                await asyncio.sleep(backoff.after_stream_ms() / 1000)
            if hint and not is_hinted:
                continue
            rest_ms = (
                0 if leader_stream.welcomed and backoff.spread_ms else backoff.after_failure_ms()
            )
            if self._distrusts >= len(leaders):
                await self._rest(DISTRUST_S)
            else:
                await self._rest(max(rest_ms / 1000, REFUSED_S if is_refused else 0.0))

    async def _attend(self, leader_stream: LeaderStream, address: str) -> None:
        """Attend until the stream ends, or another replica reports that it leads with a newer
        epoch: then the replica of this stream, frozen or not, cannot renew a lease any more (rule
        R5). What it granted stays granted.

        Raises:
            StreamEnded: always.
        """
        attending = asyncio.create_task(leader_stream.attend(address), name="visit")
        try:
            while not attending.done():
                newer = asyncio.create_task(self._watch.newer(self._highest(leader_stream)))
                try:
                    await asyncio.wait((attending, newer), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    newer.cancel()
                leader = self._watch.newest
                if (
                    attending.done()
                    or leader is None
                    or leader.epoch <= self._highest(leader_stream)
                ):
                    continue
                if leader.address != address:
                    raise StreamEnded(f"{leader.address} leads with epoch {leader.epoch}")
                self._visited = leader.epoch
        finally:
            attending.cancel()
            await asyncio.gather(attending, return_exceptions=True)
        attending.result()

    def _highest(self, leader_stream: LeaderStream | None = None) -> Epoch:
        """Return the epoch above which a leader is new: that of an earlier visit or of this one. It
        is never below the highest epoch that this executor has met (rule R3)."""
        highest = self._executor.highest
        known = max(self._visited, Epoch(highest.generation, highest.term, ""))
        return max(known, leader_stream.epoch) if leader_stream is not None else known

    async def _rest(self, seconds: float) -> None:
        """Rest; in a small cell at most until there is a new leader."""
        if self._backoff.spread_ms:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._watch.newer(self._highest())

    async def close(self, wait_s: float) -> None:
        """Send what is queued and end the stream; wait for the replica at most `wait_s`."""
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
            # Once: the executor tries again for ever.
            self._refusal = str(error)
            log.warning("executor.refused", replica=address, error=str(error))

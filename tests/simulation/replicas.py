"""Replicas of the simulation: the real leader, pool and state machine over a log in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from consensus.leadership import Leadership, Position
from cron.api.members import StatusRow
from cron.history.store import RowStore
from cron.leader.applier import StateApplier
from cron.leader.leader import Leader, LeaderSettings
from cron.service import replica as serving
from cron.service.members import ClusterStatus, ReplicaIdentity
from cron.state import commands as c
from cron.state.outcome import Outcome
from launcher.pool.lease import LeaseTimes
from launcher.pool.pool import Pool
from launcher.pool.service import PoolServicer
from tests.fakes.memory_log import MemoryCell, MemoryLog, _Proposal
from tests.simulation.far_tasks import SimTaskFiles
from tests.simulation.network import APART_S, Network, Stream

IDS = ("r1", "r2", "r3")
ADDRESSES = {name: f"127.0.0.1:{7400 + number}" for number, name in enumerate(IDS)}


class SimClock:
    """A replica's clocks; the wall clock may be off, and may jump."""

    def __init__(self, loop: asyncio.AbstractEventLoop, base_ms: int, offset_ms: int) -> None:
        self._loop = loop
        self._base_ms = base_ms
        self.offset_ms = offset_ms

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, as this replica believes."""
        return self._base_ms + self.mono_ms() + self.offset_ms

    def mono_ms(self) -> int:
        """Milliseconds since boot."""
        return round(self._loop.time() * 1000)


class SimCell(MemoryCell):
    """A cell in which commits take time, elections too, and an entry of an old leader may turn up
    in the log of a new one: its append ended as unknown, so nobody may rely on its absence."""

    def __init__(
        self, rng: random.Random, committed: Callable[[Position, bytes], None], *, begin: int = 0
    ) -> None:
        super().__init__(IDS, automatic=False, begin=begin)
        self._rng = rng
        self._committed_hook = committed
        self._free_s = 0.0
        self.late_entries = 0.5  # how often an old leader's entry comes after all
        self.overtakes = False  # another is elected while the next entry is under way

    def propose(self, proposal: _Proposal) -> None:
        """Commit after a while, in order."""
        loop = asyncio.get_running_loop()
        if self.overtakes and proposal.entry is not None:
            self.overtakes = False
            loop.call_soon(self._overtake, proposal.log.replica)
        delay_s = self._rng.uniform(0.001, 0.012) if self._rng.random() < 0.97 else 0.5
        self._free_s = max(self._free_s + APART_S, loop.time() + delay_s)
        loop.call_at(self._free_s, self._arrive, proposal)

    def _arrive(self, proposal: _Proposal) -> None:
        is_old = proposal.log.replica != self.leader or proposal.term != self.term
        if not is_old:
            self._settle(proposal)
        elif proposal.entry is not None and self._rng.random() < self.late_entries:
            loop = asyncio.get_running_loop()
            loop.call_later(self._rng.uniform(0.0, 5.0), self._turn_up, proposal.entry)

    def _overtake(self, replica: str) -> None:
        if self.leader == replica and (heir := self.successor(replica)) and self.has_majority():
            self.elect(heir)

    def _turn_up(self, entry: bytes) -> None:
        if self.leader is not None:
            self._commit(entry, None)

    def _commit(self, entry: bytes | None, proposal: _Proposal | None) -> None:
        super()._commit(entry, proposal)
        if entry is not None:
            self._committed_hook(self.committed[-1].position, entry)

    def is_away(self, replica: str) -> bool:
        """Whether a replica is cut off."""
        return not self.reaches(replica)

    def rejoin(self, replica: str) -> None:
        """End the isolation of one replica: it learns who leads and what was committed."""
        self._away.discard(replica)
        log = self._logs.get(replica)
        if log is None or self._state_of(log) != "running":
            return
        if self.leader is not None:
            log.believe(Leadership(self.term, replica == self.leader, self.leader))
        else:
            log.believe(Leadership(self.term))
        log.catch_up()

    def _state_of(self, log: MemoryLog) -> str:
        return log._state

    async def hold_elections(self) -> None:
        """Elect somebody, some time after nobody leads any more; for ever."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.2, 2.5))
            present = self._present()
            if self.leader is None and self.has_majority():
                self.elect(self._rng.choice(present))


class Replica:
    """One replica; `start` makes a new process of it."""

    def __init__(
        self, name: str, *, loop: asyncio.AbstractEventLoop, cell: SimCell, network: Network,
        clock: SimClock, lease: LeaseTimes, settings: LeaderSettings,
        peers: dict[str, Replica], fail: Callable[[BaseException], None],
        applied: Callable[[str, int, StateApplier, Outcome], None],
        task_files: SimTaskFiles | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.clock = clock
        self.is_alive = False
        self._loop = loop
        self._cell = cell
        self._network = network
        self._lease = lease
        self._settings = settings
        self._peers = peers
        self._fail = fail
        self._applied_hook = applied
        self._task_files = task_files
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Start the process: State comes from the log, or from a dump and the log."""
        self.is_alive = True
        self.row_store = RowStore()
        self.applier = StateApplier(self.row_store)
        applier = self.applier
        applier.subscribe(lambda index, out: self._applied_hook(self.name, index, applier, out))
        if self._task_files is not None:
            applier.subscribe(self._task_files.follow)
        self.log = self._cell.log(self.name, applier)
        self.pool = Pool(
            cell="sim",
            lease=self._lease,
            mono_ms=self.clock.mono_ms,
            wall_ms=self.clock.wall_ms,
            on_event=lambda event: self.leader.on_event(event),  # noqa: PLW0108 - made below
        )
        self.leader = Leader(
            log=self.log,
            applier=applier,
            pool=self.pool,
            clock=self.clock,
            settings=self._settings,
            about=c.Claim("2026a", "sim", c.FORMAT),
            on_failure=self._fail,
        )
        drawn = random.Random(f"{self.name} {self._loop.time()}")  # not the faults of a seed
        self.leader.older_log.draw = drawn.randbytes
        self.leader.leader_address = self._leader_address
        self.leader.task_files = self._task_files
        self.servicer = PoolServicer(self.pool, self._leader_address)
        self.cluster_status = ClusterStatus(
            identity=ReplicaIdentity(
                replica=self.name,
                address=ADDRESSES[self.name],
                pid=1,
                version="sim",
                tzdata="2026a",
                peers=ADDRESSES,
            ),
            log=self.log,
            applier=applier,
            leader=self.leader,
            clock=self.clock,
            ask=_Ask(self, self._peers, self._cell),
            offset_ms_max=10_000,
        )
        self.leader.may_tick = self.cluster_status.why_not_tick
        self.leader.shared_format = self.cluster_status.shared_format
        self.leader.clock_error_ms = self.cluster_status.clock_error_ms
        self.served = serving.Replica(
            self.leader, applier, self.row_store, self.clock, task_files=self._task_files
        )
        await self.log.start()
        self.leader.start()
        self._tasks = [self._loop.create_task(self.cluster_status.watch())]
        self._tasks[0].add_done_callback(self._failed)
        self.log.subscribe(lambda _: self.pool.watchers.change())
        self._network.servers[self.name] = self._serve
        self._network.watched[self.name] = self.servicer

    def _leader_address(self) -> str | None:
        leader = self.log.leadership.leader
        return None if leader in (None, self.name) else ADDRESSES[str(leader)]

    def _serve(self, stream: Stream) -> asyncio.Task[None]:
        task = self._loop.create_task(stream.serve(self.servicer))
        task.add_done_callback(self._failed)
        self._tasks = [other for other in self._tasks if not other.done()]
        self._tasks.append(task)
        return task

    def _failed(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def move(self, cell: SimCell) -> None:
        """Belong to another cell from the next start on: the old one is lost."""
        self._cell = cell

    def crash(self, rng: random.Random) -> None:
        """Kill the process; what it sent may still arrive."""
        self.is_alive = False
        self._network.servers.pop(self.name, None)
        self._network.watched.pop(self.name, None)
        for stream in self._network.between(None, self.name):
            loses_all = rng.random() < 0.3
            learns_s = rng.uniform(0.001, 1.0) if loses_all or rng.random() < 0.5 else -1.0
            stream.break_(loses_all=loses_all, replica_learns_s=-1, executor_learns_s=learns_s)
        self._cancel()
        self._cell.crash(self.name)

    def _cancel(self) -> list[asyncio.Task[Any]]:
        tasks = list(self._tasks)
        leader_term, self.leader._leader_term = self.leader._leader_term, None
        if leader_term is not None:
            tasks.append(leader_term)
        for task in tasks:
            task.cancel()
        return tasks

    def stop(self) -> list[asyncio.Task[Any]]:
        """End it at the end of the world; returns the tasks to wait for."""
        self.is_alive = False
        return self._cancel()


class _Ask:
    """The other replicas, as the cluster status asks them."""

    def __init__(self, asker: Replica, peers: dict[str, Replica], cell: SimCell) -> None:
        self._asker = asker
        self._peers = peers
        self._cell = cell

    async def peer_status(self, address: str, timeout_ms: int) -> StatusRow:
        """Return what a replica says of itself."""
        await asyncio.sleep(0.002)
        peer = next(one for one in self._peers.values() if ADDRESSES[one.name] == address)
        is_cut = self._cell.is_away(peer.name) or self._cell.is_away(self._asker.name)
        if not peer.is_alive or is_cut:
            await asyncio.sleep(timeout_ms / 1000)
            raise TimeoutError(f"{peer.name} does not answer")
        return peer.cluster_status.own()

    async def status(self, address: str, timeout_ms: int) -> list[StatusRow]:
        """Nobody asks for it here."""
        raise NotImplementedError

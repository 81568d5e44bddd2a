"""Executors of the simulation: the real executor loop, rules, ledger, lease and way; only what
would be processes are timers here (`spawners.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import grpc

from launcher.config import ExecutorConfig
from launcher.executor import connector as connector_module
from launcher.executor import launches as launches_module
from launcher.executor import ledger as ledger_module
from launcher.executor import loop as loop_module
from launcher.executor import stream as stream_module
from launcher.executor.attempt import Attempt
from launcher.executor.commands import running as running_module
from launcher.executor.connector import Connector, LeaderWatch
from launcher.executor.handlers import workers as workers_module
from launcher.executor.ledger import Ledger
from launcher.executor.loop import ExecutorLoop, Turn, Written, interrupt_all
from launcher.executor.rows import epoch_of
from launcher.executor.rules import Conditions, Works, read_batch
from launcher.executor.stream import LeaderStream, ended_by
from launcher.protocol.reports import BatchReport, GroupOffer, RowReport
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch
from tests.simulation.network import Network, Stream
from tests.simulation.patching import patched
from tests.simulation.spawners import Spawner, Witness, plan_of
from tests.simulation.thread_pools import Gang, ThreadPool
from tests.unit.journal_rig import MemoryDisk

NOBODY = ThreadPool()
TICK_MS = 200
"""Between two looks of an executor at what its workers have; half as often as in earnest."""


class NoOutputs:
    """Nothing that runs here writes anything, so nothing waits to be stored."""

    def __init__(self) -> None:
        self.waiting: dict[str, None] = {}

    def finished(self, name: str, kept: int) -> None:
        """Take note of an end."""

    def kept(self, name: str) -> int:
        """Nothing is kept."""
        return 0


class Ghost:
    """The report sink of a stream that is over, with what its leader had said of work."""

    def __init__(self, works: Works) -> None:
        self.works = works

    def begin(self, known: list[RowReport], highest: Epoch) -> None:
        """Nobody greets over it."""

    def send(self, changes: list[BatchReport]) -> None:
        """Nobody hears it."""

    def offer(self, offers: Sequence[GroupOffer]) -> None:
        """Nobody hears that either."""

    def leave(self, reason: str) -> None:
        """It is left already."""


def names_in(orders: pool_pb2.Orders, works: Works) -> list[str]:
    """The names of what a message has to be started, with what its stream has said of work."""
    epoch = str(epoch_of(orders.epoch))
    batches = [read_batch(message, epoch, works) for message in orders.batches]
    return [name for batch in batches for name in batch.names()]


class SimExecutorLoop(ExecutorLoop):
    """An executor loop whose commands are timers."""

    def __init__(self, host: Host, config: ExecutorConfig, ledger: Ledger) -> None:
        outputs: Any = NoOutputs()
        super().__init__(config, ledger, outputs)
        self.host = host
        self._commands._order = self._order  # type: ignore[method-assign]
        no_work: Any = lambda work, orders: 0  # noqa: E731 - each order says all of it here
        self._commands._number = no_work  # type: ignore[method-assign]
        self.spawner = Spawner(host, self._take_events)
        self._children = self.spawner  # type: ignore[assignment]

    def _order(self, attempt: Attempt, _number: int) -> dict[str, Any]:
        """Return the order that the spawner of this simulation gets for a command."""
        work, name = attempt.spec, attempt.name
        run_s, fails, codes = plan_of(work.argv[-1])
        self.host.accepted_at[name] = self.host.boot_ms()
        return {
            "name": name,
            "guarded": work.guarded,
            "timeout_ms": work.timeout_ms,
            "not_after_ms": attempt.not_after_ms,
            "run_s": run_s,
            "fails": fails,
            "codes": codes,
        }

    def welcome(self, epoch: Epoch) -> None:
        """Remember the epoch; what was waiting for this moment arrives now, or soon."""
        super().welcome(epoch)
        ghosts, self.host.ghosts = self.host.ghosts, []
        for ghost, orders in ghosts:
            soon_s = self.host.rng.choice((0.0, 0.0, 0.02, 2.0))
            self.host.loop.call_later(soon_s, self.order, ghost, orders)

    def _write(self, turn: Turn, changes: list[BatchReport], conditions: Conditions) -> Written:
        host = self.host
        host.seen = max(host.seen, turn.epoch or host.seen)
        written = super()._write(turn, changes, conditions)
        epochs = [epoch_of(orders.epoch) for _, orders in turn.orders]
        by_text = {str(epoch): epoch for epoch in epochs}
        for one in written.accepted:
            epoch = by_text[one.epoch]
            host.witness.obeyed(one.name, host.id, epoch, host.seen)
            host.witness.fenced(one.name, one.index)
            host.seen = max(host.seen, epoch)
        return written


class SimLeaderStream(LeaderStream):
    """A visit over the simulated network."""

    async def attend(self, address: str) -> None:
        """Connect and serve until the stream ends, as the real one does."""
        executor_loop = self._executor
        assert isinstance(executor_loop, SimExecutorLoop)
        host = executor_loop.host
        stream: Stream | None = None
        try:
            stream = await host.network.connect(self._config.id, address)
            stream.host = host
            self._executor.attach(self)
            await self._serve(stream)
        except grpc.aio.AioRpcError as error:
            raise ended_by(error) from error
        finally:
            self._executor.detach(self)
            self.ended.set()
            if stream is not None and host.rng.random() < host.haunted:
                stream.haunt(self._late)

    def _late(self, message: Any) -> None:
        """Orders of a stream that is over: some buffer between here and there still had them."""
        if isinstance(message, pool_pb2.FromLeader) and message.WhichOneof("kind") == "orders":
            self._executor.order(self, message.orders)


class SimLeaderWatch(LeaderWatch):
    """What replicas say of who leads, over the simulated network."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.config)
        self._host = host

    def views(self, address: str) -> AsyncIterator[pool_pb2.Leadership]:
        """Return what the replica at `address` says."""
        request = pool_pb2.WatchRequest(cell=self._config.cell, executor=self._config.id)
        return self._host.network.leaderships(self._config.id, address, request)


class Host:
    """One worker host: its ledger outlives the executor's process."""

    haunted = 0.5  # how often orders of an old stream still arrive
    forgets_ms = 0  # a mutant's ledger: rows this young are lost with the process
    failed: Callable[[asyncio.Task[Any]], None] | None = None  # told of each task that is over

    def __init__(
        self, loop: asyncio.AbstractEventLoop, network: Network, witness: Witness,
        rng: random.Random, config: ExecutorConfig, base_ms: int, thread_pool: ThreadPool = NOBODY,
    ) -> None:  # fmt: skip
        self.thread_pool = thread_pool
        self._gang: Gang | None = None
        self.loop = loop
        self.network = network
        self.witness = witness
        self.rng = rng
        self.id = config.id
        self.config = config
        self.accepted_at: dict[str, int] = {}
        # They wait for the next welcome.
        self.ghosts: list[tuple[Ghost, pool_pb2.Orders]] = []
        self._base_ms = base_ms
        self._tasks: list[asyncio.Task[None]] = []
        self._way: Connector | None = None
        self._lives = 0
        self.executor_loop: SimExecutorLoop | None = None
        self.seen = Epoch()  # the highest epoch that this ledger was shown
        self._disk = MemoryDisk()
        self.ledger = self._new_ledger()

    def haunt(self, works: Works, orders: pool_pb2.Orders) -> None:
        """Let orders of a stream that are on their way arrive after the next welcome."""
        self.ghosts.append((Ghost(works), orders))

    def boot_ms(self) -> int:
        """The boot-time clock."""
        return round(self.loop.time() * 1000)

    def wall_ms(self) -> int:
        """The wall clock; executors' clocks are right."""
        return self._base_ms + self.boot_ms()

    def delay_s(self) -> float:
        """How long its disk takes for a commit."""
        return self.rng.uniform(0.0005, 0.01) if self.rng.random() < 0.98 else 0.3

    @property
    def place(self) -> tuple[str, str]:
        """The executor's id and that of its ledger."""
        return self.id, self.ledger.uuid

    @property
    def is_alive(self) -> bool:
        """Whether its executor runs."""
        return self.executor_loop is not None

    @property
    def running(self) -> int:
        """How many commands its executor runs."""
        return self.executor_loop.running if self.executor_loop is not None else 0

    def start(self) -> None:
        """Start the executor's process."""
        self._lives += 1
        interrupt_all(self.ledger, "executor")
        self.executor_loop = SimExecutorLoop(self, self.config, self.ledger)
        self.executor_loop.renewed()
        incarnation = f"{self.ledger.uuid[:8]}-{self._lives}"
        way = self._way = Connector(self.config, self.executor_loop, incarnation)
        way._watch = SimLeaderWatch(self)
        self._tasks = [
            self.loop.create_task(self.executor_loop.run(self)),  # type: ignore[arg-type]
            self.loop.create_task(self._be_connected(way)),
            self.loop.create_task(self.executor_loop.workers.run()),
        ]
        if self.thread_pool.processes:
            self._gang = Gang(self, self.thread_pool, self.executor_loop.workers)
        for task in self._tasks:
            if self.failed is not None:
                task.add_done_callback(self.failed)

    async def _be_connected(self, way: Connector) -> None:
        """Until a leader says that it is drained; somebody starts it again some time later."""
        await way.run()
        self.loop.call_later(self.rng.choice((0.2, 10.0)), self._return, self._lives)

    def _return(self, life: int) -> None:
        if self._lives == life and self.is_alive:
            self.crash(loses_ledger=False)
            self.start()

    def crash(self, *, loses_ledger: bool) -> None:
        """Kill the process: what it ran dies with it, its ledger stays unless the disk is lost."""
        if self.executor_loop is None:
            return
        for task in self._tasks:
            task.cancel()
        self._end_work(self.executor_loop)
        self.executor_loop = None
        for stream in self.network.between(self.id, None):
            learns_s = self.rng.uniform(0.001, 2.0) if self.rng.random() < 0.8 else -1
            stream.break_(loses_all=False, replica_learns_s=learns_s, executor_learns_s=-1)
        if loses_ledger:
            self.ledger = self._new_ledger()
            self.seen = Epoch()
            return
        # What the next process finds: all that was written, and half of what it was writing.
        disk = self._disk = self._disk.copy()
        disk.append(b"\xffrj\n\x00\x01")
        self.ledger = self._opened(self.ledger.uuid)
        if self.forgets_ms:
            self._forget()

    def _end_work(self, executor_loop: SimExecutorLoop) -> None:
        executor_loop.spawner.die()
        if self._gang is not None:
            self._gang.die()

    async def retire(self) -> None:
        """End the process in order, as SIGTERM does."""
        executor_loop, way = self.executor_loop, self._way
        if executor_loop is None or way is None:
            return
        try:
            await executor_loop.drain(3_000, 4.5)
            await way.close(1.0)
        finally:
            if self.executor_loop is executor_loop:
                self.crash(loses_ledger=False)

    def _forget(self) -> None:
        ledger, now_ms = self.ledger, self.boot_ms()
        young = {
            (row.index, row.row)
            for row in ledger.accepted()
            if now_ms - self.accepted_at.get(row.name, 0) < self.forgets_ms
        }
        for index in {index for index, _ in young}:
            kept = [
                (batch, [at for at, row in enumerate(batch.rows) if (index, row) not in young])
                for batch in ledger.batches[index]
            ]
            ledger.batches[index] = [batch.only(places) for batch, places in kept if places]
            if not any(batch.unacked for batch in ledger.batches[index]):
                ledger._unacked.discard(index)

    def _new_ledger(self) -> Ledger:
        self._disk = MemoryDisk()
        return self._opened(str(uuid.UUID(int=self.rng.getrandbits(128), version=4)))

    def _opened(self, identity: str) -> Ledger:
        with patched(ledger_module, new_uuid=lambda: identity):
            ledger = Ledger(self._disk.path, self.id, disk=self._disk)
        ledger.is_same_boot = False  # no process of this machine is ever looked at
        return ledger

    def stop(self) -> list[asyncio.Task[None]]:
        """End it for good; returns the tasks to wait for."""
        if self.executor_loop is not None:
            self._end_work(self.executor_loop)
        for task in self._tasks:
            task.cancel()
        self.ledger.close()
        return self._tasks


@contextlib.contextmanager
def simulated_modules(loop: asyncio.AbstractEventLoop, base_ms: int) -> Iterator[None]:
    """Give the executor's modules the simulated clocks and network."""

    def boot_ms() -> int:
        return round(loop.time() * 1000)

    def wall_ms() -> int:
        return base_ms + boot_ms()

    def until_step_s(step_ms: int) -> float:
        return (step_ms - boot_ms() % step_ms) / 1000

    clocks = {"boot_ms": boot_ms, "wall_ms": wall_ms, "until_step_s": until_step_s}
    with (
        patched(loop_module, **clocks),
        patched(stream_module, **clocks, _LOOK_MS=1_000, _ANSWER_LOOK_MS=1_000),
        patched(connector_module, LeaderStream=SimLeaderStream),
        patched(workers_module, **clocks, TICK_MS=TICK_MS),
        patched(launches_module, boot_ms=boot_ms, wall_ms=wall_ms),
        # Few commands run here: one that ended makes others wait at the executor.
        patched(running_module, boot_ms=boot_ms, wall_ms=wall_ms, ENDS_MIN=1),
    ):
        yield

"""One simulated cell: replicas, executors, users and a nemesis, all from one seed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import structlog

from consensus.errors import ConsensusError
from cron.errors import CronError
from cron.leader.leader import LeaderSettings
from cron.scheduler import fair_queue, placement
from cron.state import pool as p
from cron.state.outcome import Outcome
from launcher.config import ExecutorConfig
from launcher.pool.lease import LeaseTimes
from tests.simulation.checkers import Eyes, Judge
from tests.simulation.crontabs import draw_crontab
from tests.simulation.disaster import Disaster, draw_disaster, strike
from tests.simulation.executors import Host, simulated_modules
from tests.simulation.far_tasks import SPILL, SimTaskFiles
from tests.simulation.loop import START_S, SimLoop
from tests.simulation.nemesis import Mood, Nemesis, draw_mood
from tests.simulation.network import Network
from tests.simulation.patching import patched
from tests.simulation.replicas import ADDRESSES, IDS, Replica, SimCell, SimClock
from tests.simulation.tasks import Programs
from tests.simulation.thread_pools import ThreadPool, draw_thread_pool
from tests.simulation.users import Users
from tests.simulation.verdict import judge_liveness, judge_progress, judge_rows
from tests.states import ended_rows

BASE_MS = 1_795_190_400_000
CHAOS_S = 180.0
CALM_S = 130.0
SILENT = logging.CRITICAL
DUPLICATE_IDS = 0.1
"""How often a second executor is started by mistake under the id of another."""


class World:
    """Everything of one simulation."""

    def __init__(
        self, seed: int, *, loop: SimLoop, chaos_s: float = CHAOS_S, mood: Mood | None = None,
        append_timeout_ms: int | None = None, crontab: str = "", is_lost: bool = False,
        disaster: Disaster | None = None, limits: dict[p.Scope, p.Limits] | None = None,
        has_tasks: bool = False, spills: bool = False,
    ) -> None:  # fmt: skip
        """With `has_tasks`, programs submit tasks, and no person changes anything. With `spills`,
        those that are due in some seconds go to disk."""
        self.task_files = SimTaskFiles(self._random(seed, "disks")) if spills else None
        self._first_limits = limits or {}
        self.seed = seed
        self.loop = loop
        self.trace: list[str] = []
        self._chaos_s = chaos_s
        self._fatal: list[BaseException] = []
        rng = self._chance("shape")
        on_disk = [self.task_files.read_now] if self.task_files is not None else []
        self.judge = Judge(self.wall_ms, self.tell, *on_disk)
        self.network = Network(self._chance("network"))
        self.network.replica_at = {address: name for name, address in ADDRESSES.items()}
        self.cell = SimCell(self._chance("cell"), self.judge.committed)
        self.skews = {name: rng.choice((0, 0, -1_500, 1_500)) for name in IDS}
        timeout_ms = append_timeout_ms or rng.choice((3_000, 10_000, 10_000, 40_000))
        self.replicas: dict[str, Replica] = {}
        for name in IDS:
            self.replicas[name] = Replica(
                name, loop=loop, cell=self.cell, network=self.network,
                clock=SimClock(loop, BASE_MS, self.skews[name]), lease=LeaseTimes(),
                settings=LeaderSettings(
                    start_window_ms=rng.choice((5_000, 30_000)),
                    append_timeout_ms=timeout_ms,
                    **({"spill": SPILL} if spills else {}),
                ),
                peers=self.replicas, fail=self._fatal.append, applied=self._applied,
                task_files=self.task_files,
            )  # fmt: skip
        self._has_workers = rng.random() < 0.5 or has_tasks
        self.hosts = {f"e{n}": self._host(f"e{n}", rng) for n in range(1, rng.randint(2, 4) + 1)}
        if rng.random() < DUPLICATE_IDS:
            self.hosts["duplicate_id"] = self._host("e1", rng, chance="duplicate_id")
        for host in self.hosts.values():
            thread_pools = self.judge.thread_pools
            thread_pools[host.id] = max(thread_pools.get(host.id, 0), _most(host))
        jobs = rng.randint(3, 6)
        has_workers = any(self.judge.thread_pools.values())
        self.users = Users(
            self._chance("users"), self.replicas, self.tell, jobs, has_workers=has_workers
        )
        self.users.fixed = crontab
        tell, leader = self.tell, self.users.leader
        made = Programs(self._chance("programs"), leader, self.wall_ms, tell)
        self.programs = made if has_tasks else None
        self.crontab = crontab or draw_crontab(rng, jobs, has_workers=has_workers)
        self.nemesis = Nemesis(self, self._chance("nemesis"), mood or draw_mood(rng))
        drawn = draw_disaster(self._chance("disaster")) if is_lost else None
        self.disaster = disaster or drawn
        self.tasks: list[asyncio.Task[None]] = []

    def _chance(self, name: str) -> random.Random:
        return self._random(self.seed, name)

    @staticmethod
    def _random(seed: int, name: str) -> random.Random:
        return random.Random(f"{seed}/{name}")

    def _host(self, name: str, rng: random.Random, *, chance: str = "") -> Host:
        config = ExecutorConfig(
            id=name,
            data="/nowhere",
            leaders=tuple(ADDRESSES.values()),
            cell="sim",
            slots=rng.choice((2, 4, 16)),
            answer_ms=rng.choice((2_000, 8_000, 30_000)),
            labels={"rack": rng.choice("ab")},
            worker_buffer=rng.choice((0, 0, 3)),
            users=("root",),  # it may run as root here, and so starts what the cell gives it
        )
        own = self._chance(chance or name)
        thread_pool = (
            draw_thread_pool(own) if self._has_workers and own.random() < 0.8 else ThreadPool()
        )
        host = Host(self.loop, self.network, Eyes(self.judge), own, config, BASE_MS, thread_pool)
        host.failed = self.failed
        return host

    def wall_ms(self) -> int:
        """The true time."""
        return BASE_MS + round(self.loop.time() * 1000)

    def tell(self, line: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.loop.time() - START_S:9.4f} {line}")

    @property
    def digest(self) -> str:
        """Of the whole trace: equal for equal seeds."""
        return hashlib.blake2b("\n".join(self.trace).encode(), digest_size=8).hexdigest()

    def failed(self, task: asyncio.Task[Any]) -> None:
        """Take note of a task that met a bug."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal.append(error)

    def _applied(self, replica: str, index: int, applier: Any, outcome: Outcome) -> None:
        self.judge.applied(replica, index, applier, outcome)

    # ---- the run

    async def run(self) -> None:
        """Faults for a while, then calm, then judgement."""
        tasks = self.tasks
        tasks.append(self.loop.create_task(self.cell.hold_elections()))
        for replica in self.replicas.values():
            await replica.start()
        for host in self.hosts.values():
            host.start()
        await self._apply_first()
        people = self.users if self.programs is None else self.programs
        chaos = [
            self.loop.create_task(self.nemesis.rage()), self.loop.create_task(people.live()),
        ]  # fmt: skip
        if self.disaster is not None:
            worst = strike(self, self.disaster, self._chance("strike"))
            chaos.append(self.loop.create_task(worst))
        for task in [*tasks, *chaos]:
            task.add_done_callback(self.failed)
        await asyncio.sleep(self._chaos_s)
        for task in chaos:
            task.cancel()
        await self.nemesis.calm()
        self.tell("calm")
        calm_ms = self.wall_ms()
        await asyncio.sleep(CALM_S / 4)
        await self.users.calm()
        await asyncio.sleep(CALM_S * 3 / 4)
        for _ in range(9):  # what was committed at this very moment is applied at this moment
            await asyncio.sleep(0)
        self._judge(calm_ms)
        await self._end(tasks)

    async def _apply_first(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            with contextlib.suppress(CronError):
                if await self.users.apply(self.crontab):
                    break
        while self._first_limits:
            await asyncio.sleep(0.5)
            with contextlib.suppress(CronError, ConsensusError):
                if await self.users.limit(self._first_limits):
                    return

    def _judge(self, calm_ms: int) -> None:
        judge, state = self.judge, self.judge.machine.state
        for error in self._fatal:
            judge.accuse("x", f"nobody expected it: {error!r}")
        for name, replica in self.replicas.items():
            if replica.applier.state.index != state.index:
                judge.accuse("g", f"{name} is at {replica.applier.state.index} only")
            judge_rows(judge, replica.applier.state, ended_rows(replica.applier.state.history))
        for request, keys in self.users.triggered.items():
            if len(keys) > 1 and self.disaster is None:  # a restore forgets what was asked since
                judge.accuse("a", f"{request} was given {sorted(keys)}")
        judge.dead_letters()
        leader = self.replicas[self.cell.leader].leader if self.cell.leader else None
        waits = {} if leader is None else {"awaits_row": leader.awaits_row}
        judge_liveness(judge, state, calm_ms, self.wall_ms(), **waits)
        judge_progress(judge, state, calm_ms, self.wall_ms())
        if self.programs is not None:
            # Two executors of one id keep each other from working.
            served = any(judge.thread_pools.values()) and "duplicate_id" not in self.hosts
            judge.tasks(self.programs.acknowledged, calm_ms, self.wall_ms(), served=served)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for replica in self.replicas.values():
            tasks += replica.stop()
        for host in self.hosts.values():
            tasks += host.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _most(host: Host) -> int:
    """How many launches of handlers it could ever ask for."""
    thread_pool = host.thread_pool
    if not thread_pool.processes:
        return 0
    return (
        thread_pool.processes * (thread_pool.threads + thread_pool.buffer)
        + host.config.worker_buffer
    )


@contextlib.contextmanager
def silent_logs() -> Iterator[None]:
    """Let nobody log: lines cost more than all the rest."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(SILENT))
    try:
        yield
    finally:
        structlog.configure(**before)


def patience(seed: int) -> contextlib.AbstractContextManager[None]:
    """Let a quarter of the seeds keep room for what needs much as soon as it waits at all; else no
    run would last long enough."""
    if seed % 4 != 2:
        return contextlib.nullcontext()
    stack = contextlib.ExitStack()
    stack.enter_context(patched(fair_queue, PATIENCE_MS=300))
    stack.enter_context(patched(placement, LOOK_MS=20))
    return stack


def simulate(seed: int, **options: Any) -> World:
    """Return the world of `seed` after its end."""
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    try:
        with silent_logs(), simulated_modules(loop, BASE_MS), patience(seed):
            made: Callable[[], World] = lambda: World(seed, loop=loop, **options)  # noqa: E731
            world = loop.run_until_complete(_run(made))
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            for error in loop.errors:
                world.judge.accuse("u", f"nobody heard of it: {error}")
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    return world


async def _run(made: Callable[[], World]) -> World:
    world = made()
    await world.run()
    return world

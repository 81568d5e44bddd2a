"""A cell to be measured: three replicas, executors, and workers where handlers are to run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from bench import launches_sampler as sampler
from bench.processes import cpu_us
from cron.api import table
from cron.api.client import Client
from cron.api.jobs import ApplyRequest, SourceFile
from cron.clock import SystemClock
from cron.dev.cell import LocalCell
from cron.dev.child import Child
from cron.dev.files import EXECUTOR, Ports, taken, write_cell
from cron.errors import OutcomeUnknown, Unavailable
from cron.parent import PARENT_VARIABLE

Kind = Literal["none", "command", "handler"]
Answer = TypeVar("Answer")

ROOT: Final = Path(__file__).resolve().parents[1]
REPLICA: Final = "[limits]\nsnapshot_entries = 1000000\n"
"""No dump of the log within the window: what it grows by is what the launches wrote."""
APPLY_MS: Final = 300_000
START_S: Final = 60.0
POLL_S: Final = 0.1
WITH_US: Final = (
    "from cron.parent import die_with_parent as d; d(); from cron.main import main; main()"
)
"""A worker that ends with the bench, whatever ends that."""


class ThreadPool(msgspec.Struct, frozen=True):
    """One `raftcron worker` beside each executor."""

    app: str = "bench.noop_tasks"
    processes: int = 1
    threads: int = 8


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What the cell is made of, beside its three replicas. `slots` are each executor's own, and
    `buffer` launches may wait at it for each group of its workers."""

    kind: Kind = "none"
    executors: int = 1
    slots: int = 10_000
    buffer: int = 1_000
    thread_pools: tuple[ThreadPool, ...] = ()
    snapshots_s: int = 0
    is_profiled: bool = False
    http: bool = False

    def executor_text(self) -> str:
        """Return what the configuration of an executor says about it."""
        start = 'start = "none"\n' if self.kind == "none" else ""
        return f"{start}slots = {self.slots}\nworker_buffer = {self.buffer}\n"

    def replica_text(self, folder: Path) -> str:
        """Return what that of a replica says; with an interval it takes and stores snapshots."""
        if not self.snapshots_s:
            return REPLICA
        return (
            f'{REPLICA}[object_storage]\nurl = "{(folder / "store").as_uri()}"\n'
            f"[snapshots]\ninterval_s = {self.snapshots_s}\n"
            f"[history]\nsegment_age_s = {self.snapshots_s}\n"
        )


class Running(msgspec.Struct):
    """A cell that runs: whom to ask, and its processes by what they are."""

    client: Client
    folder: Path
    replicas: dict[str, int]
    executors: list[int]
    workers: list[int]
    servers: list[str] = []
    children: list[Child] = []

    @property
    def pids(self) -> list[int]:
        """All processes."""
        return [*self.replicas.values(), *self.executors, *self.workers]

    @property
    def profile(self) -> Path:
        """Where the samples are, if any are taken."""
        return self.folder / "profile"

    def leader(self) -> str:
        """Return who leads now."""
        rows = ask(lambda: self.client.ask(table.STATUS)).rows
        return next((row.id for row in rows if row.role == "leader"), "")

    def groups(self, leader: str) -> dict[str, list[int]]:
        """Return the processes by their part in a launch."""
        others = [pid for name, pid in self.replicas.items() if name != leader]
        return {
            "leader": [self.replicas[leader]],
            "followers": others,
            "executors": self.executors,
            "workers": self.workers,
        }

    def spent_us(self, leader: str) -> dict[str, int]:
        """Return the CPU time so far of each part, descendants included."""
        groups = self.groups(leader).items()
        return {part: sum(map(cpu_us, pids)) for part, pids in groups}


def free_ports() -> Ports:
    """Return ports that nobody listens on."""
    first = 20_000 + os.getpid() % 10_000
    while taken(Ports.from_first(first)):
        first += 20
    return Ports.from_first(first)


@contextmanager
def running_cell(folder: Path, shape: Shape) -> Iterator[Running]:
    """A cell without jobs, whose executors are connected and offer what its workers serve.

    Raises:
        TimeoutError: it was not ready in time.
    """
    ports = free_ports()
    members = write_cell(
        folder,
        ports,
        executors=shape.executors,
        replica_extra=shape.replica_text(folder),
        executor_extra=shape.executor_text(),
        http=shape.http or None,
    )
    env = dict(os.environ)
    if shape.is_profiled:
        env = sampler.environment(folder / "profile", env)
    cell = LocalCell(members, lambda member: member.argv, SystemClock(), env)
    workers: list[subprocess.Popen[bytes]] = []
    try:
        cell.start()
        with Client(ports.servers, timeout_ms=APPLY_MS) as client:
            hosts = [child for child in cell.children if child.member.kind == EXECUTOR]
            for host in hosts:
                workers += [
                    start_worker(folder, host.member.id, thread_pool, env)
                    for thread_pool in shape.thread_pools
                ]
            replicas = {c.member.id: c.pid for c in cell.children if c not in hosts}
            executors = [host.pid for host in hosts]
            pids = [one.pid for one in workers]
            running = Running(
                client, folder, replicas, executors, pids, ports.servers, cell.children
            )
            await_ready(client, shape)
            yield running
    finally:
        for child in cell.children:
            child.send(signal.SIGKILL)
        for child in cell.children:
            child.wait()
        for worker in workers:
            worker.kill()
            worker.wait()


def start_worker(
    folder: Path, host: str, thread_pool: ThreadPool, env: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a worker beside an executor; its children end when it does."""
    socket = folder / host / "workers.sock"
    deadline = time.monotonic() + START_S
    while not socket.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{socket}: is not there after {START_S} s")
        time.sleep(POLL_S)
    numbers = ["--processes", str(thread_pool.processes), "--threads", str(thread_pool.threads)]
    argv = ["-c", WITH_US, "worker", thread_pool.app, *numbers, "--executor", str(socket)]
    with (folder / f"{host}-worker.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *argv],
            cwd=ROOT,
            env={**env, PARENT_VARIABLE: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def await_ready(client: Client, shape: Shape) -> None:
    """Return once all executors are connected and offer all slots of their workers."""
    threads = sum(thread_pool.processes * thread_pool.threads for thread_pool in shape.thread_pools)

    def is_ready() -> bool:
        rows = client.ask(table.EXECUTORS).executors
        able = [row for row in rows if row.gets_work and _slots(row) >= threads]
        return len(able) == shape.executors

    until(is_ready, f"{shape.executors} executors and their workers")


def _slots(row: Any) -> int:
    return sum(group.slots for group in row.groups if group.group)


def until(is_so: Callable[[], bool], what: str) -> None:
    """Return once it is so. Raises TimeoutError after START_S."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            if is_so():
                return
        except (Unavailable, OutcomeUnknown):
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not there after {START_S} s")
        time.sleep(POLL_S)


def ask(question: Callable[[], Answer]) -> Answer:
    """Return an answer, asking again while nobody leads, for START_S at most."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return question()
        except (Unavailable, OutcomeUnknown):
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def apply(client: Client, crontab: str) -> dict[str, int]:
    """Apply the crontab until it is certain, which may take several times under load."""
    file = SourceFile("bench", crontab.encode())
    request = ApplyRequest(files=[file], prune=True, is_confirmed=True, by="bench")
    attempts = 0

    def once() -> dict[str, int]:
        nonlocal attempts
        attempts += 1
        began = time.monotonic()
        client.ask(table.PUT_JOBS, request)
        return {
            "apply_ms": round((time.monotonic() - began) * 1000),
            "apply_attempts": attempts,
        }

    return ask(once)

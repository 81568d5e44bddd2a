"""Tasks from programs, beside Celery with Redis and a queue in PostgreSQL, in one run.

    python -m bench.tasks_peers [--rounds 3] [--seconds 5] [--run 10000] [--readme]

Each round starts every system with an empty directory on this machine and loopback, one after the
other, and asks it what `bench.tasks` asks: two programs submit calls of 1, 10 and 100 tasks one
after the other; then tasks that are due at once are submitted in calls of 100 and run by one
worker, whose handler does nothing. The table has medians of the rounds. CPU time is that of all
servers, and of worker and programs, for each task.

PostgreSQL and Redis have to be installed (Debian: postgresql, redis-server). Celery is installed
into an environment of its own below .cache. A program's CPU time counts from its first call.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.launches_cell import ROOT, ask, free_ports, running_cell
from bench.launches_tally import percentile
from bench.processes import cpu_us
from bench.section import figure, write_section
from bench.tasks import BATCHES, README, SHAPE
from cron.api import table
from cron.api.task_queues import TaskQueuesQuery

BEGIN: Final = "<!-- peers: written by `python -m bench.tasks_peers` -->"
END: Final = "<!-- end of the peers -->"
CELERY: Final = ROOT / ".cache" / "celery"
PACKAGES: Final = ("celery==5.7.0", "redis==8.1.0", "packaging")
PROGRAMS: Final = 2
RUN_BATCH: Final = 100
START_S: Final = 60.0
END_S: Final = 300.0
POLL_S: Final = 0.05
ROUNDED: Final = ("tasks_per_second", "p50_ms", "p95_ms", "cpu_us_servers", "cpu_us_all")


class Peer(msgspec.Struct):
    """A system that runs: its servers, the program that submits, what starts its workers for so
    many tasks and returns them, and what returns once so many are over."""

    servers: list[int]
    program: list[str]
    start_workers: Callable[[int], list[int]]
    await_over: Callable[[int], None]
    env: Mapping[str, str] = os.environ


def until(is_so: Callable[[], bool], what: str, most_s: float = START_S) -> None:
    """Return once it is so. Raises TimeoutError after so many seconds."""
    deadline = time.monotonic() + most_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not there after {most_s} s")
        time.sleep(POLL_S)


@contextmanager
def started(argv: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the context."""
    process = subprocess.Popen(argv, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# ---- the systems


@contextmanager
def raftcron(folder: Path) -> Iterator[Peer]:
    """Three replicas, an executor, and a worker with eight threads."""
    with running_cell(folder, SHAPE) as running:
        groups = running.groups(running.leader())

        def are_over(count: int) -> bool:
            queues = ask(lambda: running.client.ask(table.LIST_QUEUES, TaskQueuesQuery())).queues
            return sum(one.done + one.failed for one in queues) >= count

        yield Peer(
            [*groups["leader"], *groups["followers"]],
            [sys.executable, "-m", "bench.tasks", "--server", ",".join(running.servers)],
            lambda _count: [*groups["executors"], *groups["workers"]],
            lambda count: until(lambda: are_over(count), "the end", END_S),
        )


@contextmanager
def postgres(folder: Path) -> Iterator[Peer]:
    """One server with initdb's settings, and a worker that takes a hundred tasks at once."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda one: int(one.parent.name))
    folder.mkdir()
    user: list[str] = []
    if os.getuid() == 0:  # it refuses to run as root
        folder.parent.chmod(0o755)
        shutil.chown(folder, "postgres", "postgres")
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
    port = str(free_ports().client[0])
    made = [*user, str(programs / "initdb"), "-D", str(folder / "db"), "-A", "trust"]
    subprocess.run([*made, "-U", "postgres"], check=True, stdout=subprocess.DEVNULL, cwd=folder)
    words = [
        "-p",
        port,
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        f"unix_socket_directories={folder}",
    ]
    argv = [*user, str(programs / "postgres"), "-D", str(folder / "db"), *words]
    server = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    program = [sys.executable, "-m", "bench.peer_postgres", "--server", server]
    with ExitStack() as stack, (folder / "log").open("wb") as log:
        process = stack.enter_context(started(argv, stdout=log, stderr=log, cwd=folder))
        make = [*program, "--what", "table"]
        quiet: dict[str, Any] = {"cwd": ROOT, "stderr": subprocess.DEVNULL}
        until(lambda: subprocess.run(make, check=False, **quiet).returncode == 0, "PostgreSQL")
        workers: list[subprocess.Popen[bytes]] = []

        def start(count: int) -> list[int]:
            work = [*program, "--what", "work", "--count", str(count)]
            workers.append(stack.enter_context(started(work, cwd=ROOT)))
            return [workers[0].pid]

        yield Peer([process.pid], program, start, lambda _count: _ended(workers[0]))


def _ended(worker: subprocess.Popen[bytes]) -> None:
    """Return once a worker has ended. It stays a zombie, so that its CPU time can be read."""
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)


def celery_of(fsync: str) -> Callable[[Path], AbstractContextManager[Peer]]:
    """Return what runs Celery with a Redis whose append-only file is synced so often."""

    @contextmanager
    def celery(folder: Path) -> Iterator[Peer]:
        """One Redis, and a worker with eight threads."""
        folder.mkdir()
        python = str(CELERY / "bin" / "python")
        if not Path(python).exists():
            subprocess.run([sys.executable, "-m", "venv", str(CELERY)], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        port = str(free_ports().client[0])
        words = ["--port", port, "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        argv = ["redis-server", *words, "--appendonly", "yes", "--appendfsync", fsync]
        env = {**os.environ, "PEER_BROKER": f"redis://127.0.0.1:{port}/0"}
        program = [python, "-m", "bench.peer_celery"]
        to_redis = ["redis-cli", "-p", port]

        def said(*words: str) -> bytes:
            return subprocess.run([*to_redis, *words], check=False, capture_output=True).stdout

        with ExitStack() as stack:
            redis = stack.enter_context(started(argv, stdout=subprocess.DEVNULL))
            until(lambda: b"PONG" in said("ping"), "Redis")

            def start(_count: int) -> list[int]:
                said("flushall")
                work = [python, "-m", "celery", "-A", "bench.peer_celery", "worker"]
                work += ["-P", "threads", "-c", "8", "-l", "ERROR"]
                work += ["--without-gossip", "--without-mingle"]
                quiet: dict[str, Any] = {"cwd": ROOT, "env": env, "stdout": subprocess.DEVNULL}
                worker = stack.enter_context(started(work, **quiet))
                until(lambda: b"celery" in said("smembers", "_kombu.binding.celery"), "Celery")
                return [worker.pid]

            def are_over() -> bool:
                return said("llen", "celery").strip() == said("hlen", "unacked").strip() == b"0"

            over = lambda _count: until(are_over, "the end", END_S)  # noqa: E731
            yield Peer([redis.pid], program, start, over, env)

    return celery


SYSTEMS: Final[dict[str, Callable[[Path], AbstractContextManager[Peer]]]] = {
    "raftcron, three replicas": raftcron,
    "PostgreSQL, SKIP LOCKED": postgres,
    "Celery, Redis, fsync always": celery_of("always"),
    "Celery, Redis, fsync each second": celery_of("everysec"),
}


# ---- the questions


def from_programs(peer: Peer, name: str, *words: str) -> tuple[list[int], int]:
    """Run the programs beside each other; return what their calls took, and their CPU time, both in
    us."""
    argv = [*peer.program, *words]
    pipe: dict[str, Any] = {"cwd": ROOT, "env": peer.env, "stdout": subprocess.PIPE}
    children = [subprocess.Popen([*argv, "--name", f"{name}-{n}"], **pipe) for n in range(PROGRAMS)]
    took: list[int] = []
    spent_us = 0
    for child in children:
        said, _ = child.communicate()
        if child.returncode:
            raise SystemExit(f"{argv} ended with exit code {child.returncode}")
        its, its_us = json.loads(said)
        took, spent_us = took + its, spent_us + its_us
    return sorted(took), spent_us


def measure(peer: Peer, seconds: float, run: int) -> dict[str, dict[str, float]]:
    """Return a row for each question."""
    rows: dict[str, dict[str, float]] = {}
    for batch in BATCHES:
        before = sum(map(cpu_us, peer.servers))
        words = ("--batch", str(batch), "--seconds", str(seconds), "--delay", "1d")
        took, programs_us = from_programs(peer, f"b{batch}", *words)
        spent = sum(map(cpu_us, peer.servers)) - before
        tasks = len(took) * batch
        long_s = max(seconds, sum(took) / 1e6 / PROGRAMS)  # the last calls may end later
        rows[f"submit, {batch} a call"] = {
            "tasks_per_second": tasks / long_s,
            "p50_ms": (percentile(took, 50) or 0) / 1000,
            "p95_ms": (percentile(took, 95) or 0) / 1000,
            "cpu_us_servers": spent / tasks,
            "cpu_us_all": (spent + programs_us) / tasks,
        }
    each = run // PROGRAMS
    workers = peer.start_workers(each * PROGRAMS)
    before, before_workers = sum(map(cpu_us, peer.servers)), sum(map(cpu_us, workers))
    began = time.monotonic()
    limits = ("--batch", str(RUN_BATCH), "--count", str(each))
    _, programs_us = from_programs(peer, "run", *limits)
    peer.await_over(each * PROGRAMS)
    took_s, tasks = time.monotonic() - began, each * PROGRAMS
    spent = sum(map(cpu_us, peer.servers)) - before
    spent_workers = sum(map(cpu_us, workers)) - before_workers
    rows["submit and run"] = {
        "tasks_per_second": tasks / took_s,
        "cpu_us_servers": spent / tasks,
        "cpu_us_all": (spent + spent_workers + programs_us) / tasks,
    }
    return rows


def medians(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the median of each figure over the rounds."""
    return {
        question: {
            name: statistics.median(one[question][name] for one in rounds)
            for name in rounds[0][question]
        }
        for question in rounds[0]
    }


def table_of(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the medians as Markdown, question by question."""
    head = ["", "tasks/s", "p50 ms", "p95 ms", "CPU of the servers, us a task", "of all"]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " --: |" * (len(head) - 1)]
    for question in next(iter(found.values())):
        for system, rows in found.items():
            cells = [figure(rows[question].get(name)) for name in ROUNDED]
            lines.append(f"| {question}: {system} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all systems in turn, round by round."""
    parser = argparse.ArgumentParser(prog="bench.tasks_peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--run", type=int, default=10_000)
    parser.add_argument("--only", default="", help="systems whose names begin so")
    parser.add_argument("--readme", action="store_true", help="write the table into README.md")
    options = parser.parse_args()
    asked = [name for name in SYSTEMS if name.startswith(options.only)]
    rounds: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in asked}
    for number in range(options.rounds):
        for name in asked:
            with ExitStack() as stack:
                made = tempfile.TemporaryDirectory(prefix="raftcron-bench-")
                folder = Path(stack.enter_context(made)) / "peer"
                peer = stack.enter_context(SYSTEMS[name](folder))
                row = measure(peer, options.seconds, options.run)
            rounds[name].append(row)
            print(json.dumps({"round": number, "system": name, **row}), flush=True)
    found = {name: medians(rows) for name, rows in rounds.items()}
    if options.readme:
        load = (
            f"Medians of {options.rounds} rounds; load average at the end {os.getloadavg()[2]:.0f}."
        )
        write_section(README, BEGIN, END, f"{load}\n\n{table_of(found)}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()

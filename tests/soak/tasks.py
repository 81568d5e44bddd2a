"""A soak of tasks: programs hand over many, while leaders, an executor and a replica die.

    python -m tests.soak.tasks [--tasks 100000] [--seconds 60] [--programs 8] [--seed 1]

Programs are processes of their own that use the client library. Each submits its share of the tasks
within half of the time, with delays of 0 to `--seconds`. The leader is killed three times, one of
two executors once, and one replica is replaced by one with an empty disk. Handlers write a line for
each attempt into a file of their own. At the end that witness, the states of all tasks and the
audit must agree: every acknowledged task has succeeded, and no attempt has run twice; a task whose
executor died under it has another attempt. Prints one JSON row; exit code 1 says that they do not.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cron.api import table
from cron.api.tasks import TaskFilter, TaskListQuery
from cron.errors import OutcomeUnknown, Unavailable
from launcher.client.client import Client
from tests.cluster.harness import Cell, wait_until
from tests.cluster.worker_rig import Worker

BATCH: Final = 100
THREADS: Final = 16
END_S: Final = 300.0
DOWN_S: Final = 4.0
"""Between a death and the next start: longer than an election takes."""
APP: Final = """
import os, time
from raftcron import Context, handler

FD = os.open(os.environ["SHOP"] + "/witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

@handler("mark")
def mark(payload: dict, context: Context):
    line = f"{context.launch} {context.attempt} {time.time_ns() // 1000000}{chr(10)}"
    os.write(FD, line.encode())
"""


def program(options: argparse.Namespace) -> None:
    """One program: submit its share, and print the names and times that were acknowledged."""
    chance = random.Random(f"{options.seed}/{options.number}")
    share = options.tasks // options.programs
    calls = share // BATCH
    began, period = time.monotonic(), options.seconds / 2 / calls
    said: dict[str, str] = {}
    with Client(options.server, timeout=120) as client:
        for call in range(calls):
            time.sleep(max(0.0, began + call * period - time.monotonic()))
            items = [
                (
                    "mark",
                    {"n": n},
                    {
                        "key": f"p{options.number}-{call}-{n}",
                        "delay": chance.uniform(0, options.seconds),
                    },
                )
                for n in range(BATCH)
            ]
            said |= {task.name: task.scheduled_at for task in client.submit_many(items)}
    print(json.dumps(said))


class Soak:
    """One run in a folder."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.options = options
        self.cell = Cell(folder / "cell", executors=2, replica_extra="")
        self.workers: list[Worker] = []
        self.replaced: list[subprocess.Popen[bytes]] = []
        (folder / "tasks.py").write_text(APP)

    def ask(self, question: Callable[[], Any]) -> Any:
        """Return the answer to a question that is asked again while nobody leads."""

        def answer() -> list[Any]:
            try:
                return [question()]
            except (Unavailable, OutcomeUnknown):
                return []

        return wait_until(answer, END_S, "an answer")[0]

    def serve(self, executor: str) -> None:
        """Start a worker beside an executor."""
        socket = str(self.folder / "cell" / executor / "workers.sock")
        argv = ["-P", "-m", "cron.main", "worker", "tasks", "--threads", str(THREADS)]
        log = self.folder / f"{executor}-worker.log"
        self.workers.append(Worker(executor, [*argv, "--executor", socket], self.folder, log, {}))

    def run(self) -> dict[str, Any]:
        """Return the row of the run."""
        cell, options = self.cell, self.options
        cell.start()
        cell.leader()
        cell.wait_connected()
        for executor in cell.executors:
            self.serve(executor)
        count = len(cell.executors)
        self.ask(lambda: wait_until(self._served(count), END_S, "workers"))
        began = time.monotonic()
        children = [self._program(number) for number in range(options.programs)]
        self._strike()  # in this thread, with which all that it starts would end
        said: dict[str, str] = {}
        for child in children:
            text, _ = child.communicate()
            if child.returncode:
                raise SystemExit(f"a program ended with exit code {child.returncode}")
            said |= json.loads(text)
        said = {name.removeprefix("default/"): at for name, at in said.items()}
        states = self._await_end(len(said))
        return self._verdict(said, states) | {"seconds": round(time.monotonic() - began, 1)}

    def _served(self, count: int) -> Callable[[], bool]:
        def served() -> bool:
            rows = self.cell.client.ask(table.EXECUTORS).executors
            return sum(bool(row.groups and row.gets_work) for row in rows) >= count

        return served

    def _program(self, number: int) -> subprocess.Popen[bytes]:
        one = self.options
        numbers = {
            "tasks": one.tasks, "programs": one.programs, "seconds": one.seconds,
            "seed": one.seed, "number": number,
        }  # fmt: skip
        words = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
        argv = [sys.executable, "-m", "tests.soak.tasks", *words]
        argv += ["--server", ",".join(self.cell.ports.servers)]
        return subprocess.Popen(argv, stdout=subprocess.PIPE)

    def _strike(self) -> None:
        """Three leaders, an executor and the disk of a replica, spread over the time."""
        cell = self.cell
        pause_s = self.options.seconds / 6
        for _ in range(3):
            time.sleep(pause_s - DOWN_S)
            leader = cell.leader()
            cell.kill(leader)
            time.sleep(DOWN_S)
            cell.start(leader)
        time.sleep(pause_s - DOWN_S)
        executor = cell.executors[0]
        cell.kill(executor)
        time.sleep(DOWN_S)
        cell.start(executor)
        time.sleep(pause_s)
        name = cell.follower()
        cell.kill(name)
        self.ask(lambda: cell.cli("replica", "replace", name, "--yes"))
        argv = [sys.executable, "-P", "-m", "cron.main", "replica", "--join"]
        argv += ["--config", str(self.folder / "cell" / f"{name}.toml")]
        argv += ["--data", str(self.folder / "new-disk")]
        with (self.folder / "new.log").open("ab") as log:
            self.replaced.append(subprocess.Popen(argv, stdout=log, stderr=log))

        def votes() -> bool:
            rows = [row for row in cell.status() if row.id == name]
            return any(row.member_state == "votes" and row.incarnation == 2 for row in rows)

        wait_until(votes, END_S, f"{name} to vote with its new disk")

    def _tasks(self) -> dict[str, str]:
        """Return the states of all tasks."""
        states: dict[str, str] = {}
        page = ""
        while True:
            query = TaskListQuery(filter=TaskFilter(), limit=1_000, page=page)
            found = self.ask(lambda query=query: self.cell.client.ask(table.LIST, query))
            states |= {one.task: one.state for one in found.tasks}
            if not (page := found.next):
                return states

    def _await_end(self, count: int) -> dict[str, str]:
        """Return the states of all tasks once all are over; after END_S as they are."""
        until = time.monotonic() + END_S
        while True:
            states = self._tasks()
            is_over = not {"waiting", "due", "running"} & set(states.values())
            if (is_over and len(states) >= count) or time.monotonic() > until:
                return states
            time.sleep(1)

    def _verdict(self, said: dict[str, str], states: dict[str, str]) -> dict[str, Any]:
        runs: Counter[str] = Counter()
        attempts: Counter[tuple[str, str]] = Counter()
        late_ms: list[int] = []
        due_ms = {name: millis(text) for name, text in said.items()}
        for line in (self.folder / "witness").read_text().splitlines():
            launch, attempt, at_ms = line.split()
            name = launch.partition("@")[0].removeprefix("default/")
            attempts[launch, attempt] += 1
            runs[name] += 1
            if name in due_ms and runs[name] == 1:
                late_ms.append(int(at_ms) - due_ms[name])
        states = {name.removeprefix("default/"): state for name, state in states.items()}
        late_ms.sort()
        (audit,) = self.cell.rows("audit", expect=None)
        return {
            "acknowledged": len(said),
            "states": dict(Counter(states.get(name, "unknown") for name in said)),
            "missing": sum(not runs[one] for one in said),
            "doubled": sum(count > 1 for count in attempts.values()),
            "tried_again": sum(count > 1 for count in runs.values()),
            "invented": sum(name not in said for name in runs),
            "early": sum(late < 0 for late in late_ms),
            "late_p50_ms": late_ms[len(late_ms) // 2],
            "late_p95_ms": late_ms[len(late_ms) * 95 // 100],
            "late_p99_ms": late_ms[len(late_ms) * 99 // 100],
            "late_max_ms": late_ms[-1],
            "audit_ok": audit["ok"],
            "audit": {name: audit[name] for name in sorted(audit) if name != "ok"},
        }

    def close(self) -> None:
        """End everything."""
        for process in self.replaced:
            process.kill()
            process.wait()
        for worker in self.workers:
            worker.close()
        self.cell.close()


def millis(text: str) -> int:
    """Return an ISO time as milliseconds since the epoch."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def is_right(row: dict[str, Any]) -> bool:
    """Return whether nothing was missing, doubled, invented or early, and the audit agrees."""
    wrong = ("missing", "doubled", "invented", "early")
    ended = {"succeeded"} >= set(row["states"])
    return ended and bool(row["audit_ok"]) and not any(row[name] for name in wrong)


def main() -> None:
    """Run it once."""
    parser = argparse.ArgumentParser(prog="tests.soak.tasks")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--programs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--server", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.server:
        program(options)
        return
    with tempfile.TemporaryDirectory(prefix="raftcron-soak-") as name:
        soak = Soak(Path(name), options)
        try:
            row = soak.run()
        except BaseException:
            for log in sorted(Path(name).rglob("*.log")):
                print(
                    f"---- end of {log}\n{log.read_text(errors='replace')[-1500:]}", file=sys.stderr
                )
            raise
        finally:
            soak.close()
    print(json.dumps(row), flush=True)
    sys.exit(not is_right(row))


if __name__ == "__main__":
    main()

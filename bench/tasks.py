"""How many tasks a second does a cell take, how long does a program wait, at what cost?

    python -m bench.tasks [--seconds 10] [--programs 2] [--run 20000] [--only submit,paced,run]

Three replicas, one executor and a worker whose handlers do nothing, over loopback and real files.
Programs are processes of their own that use the client library. Three questions:

- `submit`: each program submits tasks that are due in a day, as fast as answers come, one call at a
  time, with 1, 10 and 100 tasks in each call. CPU time is that of all replicas, for each task.
- `paced`: 1,000 single submits a second of all programs together. How long does one take? The first
  second, in which programs start their threads and connect, is not counted.
- `run`: tasks that are due at once. CPU time is that of replicas, executor and worker, from the
  submit of the first to the end of the last.

Prints one JSON row for each, and writes a table into README.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from bench.launches_cell import ROOT, Running, Shape, ThreadPool, ask, running_cell
from bench.launches_tally import percentile
from bench.noop_tasks import HANDLERS
from bench.section import figure, write_section
from cron.api import table
from cron.api.task_queues import TaskQueuesQuery
from launcher.client.client import Client

README: Final = ROOT / "bench" / "README.md"
BEGIN: Final = "<!-- tasks: written by `python -m bench.tasks` -->"
END: Final = "<!-- end of the tasks -->"
SHAPE: Final = Shape(kind="handler", thread_pools=(ThreadPool(),))
BATCHES: Final = (1, 10, 100)
PACED_PER_S: Final = 1_000
PACED_THREADS: Final = 16
"""Of each program: a submit of 10 ms lets each thread make 100 a second."""
WARM_UP_S: Final = 1.0
HANDLER: Final = HANDLERS[0]
END_S: Final = 300.0


def submit(client: Client, options: argparse.Namespace) -> list[int]:
    """Submit calls of `batch` tasks one after the other, for some seconds or `count` tasks; return
    how long each call took, in us."""
    took: list[int] = []
    batch, name = options.batch, options.name
    until = time.monotonic() + options.seconds
    while time.monotonic() < until and len(took) * batch < options.count:
        handler = HANDLERS[len(took) % len(HANDLERS)]  # a queue takes 100,000
        items = [
            (handler, {"n": one}, {"key": f"{name}-{len(took)}-{one}", "delay": options.delay})
            for one in range(batch)
        ]
        began = time.monotonic_ns()
        client.submit_many(items)
        took.append((time.monotonic_ns() - began) // 1000)
    return took


def paced(client: Client, rate: float, seconds: float, name: str) -> list[int]:
    """Submit single tasks, `rate` a second; return how long each took, in us, since its time, but
    for those of the first second."""
    took: list[int] = []

    def thread(number: int) -> None:
        period, began = PACED_THREADS / rate, time.monotonic() + number / rate
        for n in range(int((WARM_UP_S + seconds) / period)):
            at = began + n * period
            time.sleep(max(0.0, at - time.monotonic()))
            client.submit(HANDLER, {"n": n}, key=f"{name}-{number}-{n}", delay="1d")
            if at >= began + WARM_UP_S:
                took.append(round((time.monotonic() - at) * 1_000_000))

    threads = [threading.Thread(target=thread, args=(n,)) for n in range(PACED_THREADS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return took


def program(options: argparse.Namespace) -> None:
    """One program: print how long its calls took, and its CPU time for them, in us."""
    with Client(options.server, timeout=60) as client:
        before = time.process_time()
        if options.rate:
            took = paced(client, options.rate, options.seconds, options.name)
        else:
            took = submit(client, options)
        spent_us = round((time.process_time() - before) * 1_000_000)
    print(json.dumps([took, spent_us]))


def from_programs(running: Running, count: int, name: str, *words: str) -> list[int]:
    """Run so many programs beside each other; return what all their calls took."""
    server = ",".join(running.servers)
    argv = [sys.executable, "-m", "bench.tasks", "--server", server, *words]
    children = [
        subprocess.Popen([*argv, "--name", f"{name}-{n}"], cwd=ROOT, stdout=subprocess.PIPE)
        for n in range(count)
    ]
    took: list[int] = []
    for child in children:
        said, _ = child.communicate()
        if child.returncode:
            raise SystemExit(f"a program ended with exit code {child.returncode}")
        took += json.loads(said)[0]
    return sorted(took)


def measure_submit(running: Running, batch: int, programs: int, seconds: float) -> dict[str, Any]:
    """Return the row of submits in calls of `batch` tasks."""
    leader = running.leader()
    before = running.spent_us(leader)
    words = ("--batch", str(batch), "--seconds", str(seconds), "--delay", "1d")
    took = from_programs(running, programs, f"b{batch}", *words)
    after = running.spent_us(leader)
    tasks = len(took) * batch
    return _row(f"submit, {batch} a call", took, tasks / seconds) | {
        "cpu_us_leader": (after["leader"] - before["leader"]) / tasks,
        "cpu_us_replicas": sum(after[k] - before[k] for k in ("leader", "followers")) / tasks,
    }


def measure_paced(running: Running, programs: int, seconds: float) -> dict[str, Any]:
    """Return the row of single submits at a fixed rate."""
    words = ("--rate", str(PACED_PER_S / programs), "--seconds", str(seconds))
    took = from_programs(running, programs, "paced", *words)
    return _row(f"submit, {PACED_PER_S:,} a second", took, len(took) / seconds)


def _row(what: str, took: list[int], per_second: float) -> dict[str, Any]:
    shares = {f"p{share}_ms": (percentile(took, share) or 0) / 1000 for share in (50, 95, 99)}
    return {"what": what, "tasks_per_second": per_second, **shares}


def measure_run(running: Running, tasks: int) -> dict[str, Any]:
    """Return the row of tasks that are due at once, from the first submit to the last end."""
    handler = HANDLERS[1]
    leader = running.leader()
    before, began = running.spent_us(leader), time.monotonic()
    with Client(",".join(running.servers), timeout=60) as client:
        client.submit_many((handler, {"n": n}, {"key": f"run-{n}"}) for n in range(tasks))
    submitted_s = time.monotonic() - began

    def over() -> int:
        queues = ask(lambda: running.client.ask(table.LIST_QUEUES, TaskQueuesQuery())).queues
        return sum(one.done + one.failed for one in queues if one.handler == handler)

    while over() < tasks:
        if time.monotonic() - began > END_S:
            raise SystemExit(f"{over()} of {tasks} tasks are over after {END_S} s")
        time.sleep(0.2)
    seconds = time.monotonic() - began
    after = running.spent_us(leader)
    return {
        "what": f"submit and run {tasks:,}",
        "tasks_per_second": tasks / seconds,
        "submitted_s": submitted_s,
        "seconds": seconds,
        "cpu_us_leader": (after["leader"] - before["leader"]) / tasks,
        "cpu_us_replicas": sum(after[k] - before[k] for k in ("leader", "followers")) / tasks,
        "cpu_us_all": sum(after[part] - before[part] for part in after) / tasks,
    }


COLUMNS: Final = {
    "what": "",
    "tasks_per_second": "tasks/s",
    "p50_ms": "p50 ms",
    "p95_ms": "p95 ms",
    "p99_ms": "p99 ms",
    "cpu_us_leader": "CPU of the leader, us a task",
    "cpu_us_replicas": "of all replicas",
    "cpu_us_all": "with executor and worker",
}


def table_of(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = ["| " + " | ".join(COLUMNS.values()) + " |", "| --- |" + " --: |" * (len(COLUMNS) - 1)]
    for row in rows:
        cells = [figure(row.get(name)) for name in list(COLUMNS)[1:]]
        lines.append(f"| {row['what']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure all, or what `--only` names."""
    parser = argparse.ArgumentParser(prog="bench.tasks")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--programs", type=int, default=2)
    parser.add_argument("--run", type=int, default=20_000)
    parser.add_argument("--only", default="submit,paced,run")
    for word in ("--server", "--name"):  # of one program
        parser.add_argument(word, default="", help=argparse.SUPPRESS)
    parser.add_argument("--delay", default="0s", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=1_000_000_000, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.server:
        program(options)
        return
    rows: list[dict[str, Any]] = []
    asked = options.only.split(",")
    with tempfile.TemporaryDirectory(prefix="raftcron-bench-") as name:
        with running_cell(Path(name), SHAPE) as running:
            if "submit" in asked:
                programs, seconds = options.programs, options.seconds
                rows += [measure_submit(running, batch, programs, seconds) for batch in BATCHES]
            if "paced" in asked:
                rows.append(measure_paced(running, options.programs, options.seconds))
        if "run" in asked:
            with running_cell(Path(name) / "run", SHAPE) as running:
                rows.append(measure_run(running, options.run))
    for row in rows:
        print(json.dumps(row), flush=True)
    if set(asked) == {"submit", "paced", "run"}:
        write_section(README, BEGIN, END, table_of(rows))


if __name__ == "__main__":
    main()

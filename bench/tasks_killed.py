"""Which share of submits does a cell take while its leader is killed again and again?

    python -m bench.tasks_killed [--seconds 180] [--every 15] [--programs 4] [--pause 0.25]

Three replicas, one executor and a worker, over loopback and real files. Programs, each with a
client of its own, submit a task that is due in a day, rest, and submit the next one. Meanwhile the
leader is killed (SIGKILL) every so many seconds, and started again after DOWN_S. A submit is taken
if the library returns the task within TIMEOUT_S; how long that took includes all that the library
tries again. At the end the cell is asked for each task that was taken: one that it does not know
was lost.

Prints one JSON row, and writes a table into README.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.launches_cell import ROOT, Running, Shape, ThreadPool, running_cell
from bench.launches_tally import percentile
from bench.noop_tasks import HANDLERS
from bench.section import figure, write_section
from launcher.client.client import Client
from launcher.client.errors import TaskError

README: Final = ROOT / "bench" / "README.md"
BEGIN: Final = "<!-- killed: written by `python -m bench.tasks_killed` -->"
END: Final = "<!-- end of the killed -->"
SHAPE: Final = Shape(kind="handler", thread_pools=(ThreadPool(),))
DOWN_S: Final = 5.0
TIMEOUT_S: Final = 10.0


class Submits(msgspec.Struct):
    """What became of the submits of all programs."""

    taken: list[str] = []
    took_ms: list[int] = []
    refused: list[str] = []


def program(server: str, name: str, pause_s: float, until: float, found: Submits) -> None:
    """Submit tasks until a time."""
    with Client(server, timeout=TIMEOUT_S) as client:
        number = 0
        while time.monotonic() < until:
            number += 1
            began = time.monotonic()
            try:
                task = client.submit(HANDLERS[0], {"n": number}, key=f"{name}-{number}", delay="1d")
                found.taken.append(task.name)
            except TaskError as error:
                found.refused.append(f"{type(error).__name__}: {error}")
            found.took_ms.append(round((time.monotonic() - began) * 1000))
            time.sleep(pause_s)


def kill_leaders(running: Running, every_s: float, until: float) -> int:
    """Kill the leader every so many seconds until a time, and start it again; return how often."""
    killed = 0
    while time.monotonic() + every_s < until:
        time.sleep(every_s - DOWN_S)
        leader = running.leader()
        child = next(one for one in running.children if one.member.id == leader)
        child.send(signal.SIGKILL)
        child.wait()
        killed += 1
        time.sleep(DOWN_S)
        child.start()
    return killed


def unknown(server: str, names: list[str]) -> int:
    """Return how many of these tasks the cell does not know."""
    known: set[str] = set()
    with Client(server, timeout=60) as client:
        known.update(view.task for view in client.list(queue=HANDLERS[0]))
    return sum(name not in known for name in names)


def measure(running: Running, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row."""
    server, found = ",".join(running.servers), Submits([], [], [])
    until = time.monotonic() + options.seconds
    threads = [
        threading.Thread(target=program, args=(server, f"p{n}", options.pause, until, found))
        for n in range(options.programs)
    ]
    for one in threads:
        one.start()
    killed = kill_leaders(running, options.every, until)
    for one in threads:
        one.join()
    took_ms = sorted(found.took_ms)
    return {
        "submits": len(took_ms),
        "taken": len(found.taken),
        "share_percent": 100 * len(found.taken) / len(took_ms),
        "lost": unknown(server, found.taken),
        "kills": killed,
        "p50_ms": percentile(took_ms, 50),
        "p99_ms": percentile(took_ms, 99),
        "longest_ms": took_ms[-1],
        "refused": found.refused[:10],
    }


COLUMNS: Final = {
    "submits": "submits",
    "taken": "taken",
    "share_percent": "%",
    "lost": "taken and lost",
    "kills": "leaders killed",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "longest_ms": "longest ms",
}


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(prog="bench.tasks_killed")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--every", type=float, default=15.0)
    parser.add_argument("--programs", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.25)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="raftcron-bench-") as name,
        running_cell(Path(name), SHAPE) as running,
    ):
        row = measure(running, options)
    print(json.dumps(row), flush=True)
    cells = [figure(row[name]) if name != "kills" else str(row[name]) for name in COLUMNS]
    head = "| " + " | ".join(COLUMNS.values()) + " |"
    rule = "| --: |" + " --: |" * (len(COLUMNS) - 1)
    write_section(README, BEGIN, END, "\n".join((head, rule, "| " + " | ".join(cells) + " |")))


if __name__ == "__main__":
    main()

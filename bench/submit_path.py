"""Where the time of a single submit goes, from the client to the disks and back.

    python -m bench.submit_path [--calls 500] [--readme]

One program submits one task at a time to a cell whose replicas stamp the functions of
`bench.submit_marks`. A row is the time between two stamps: median and 95th percentile over the
calls. Before and after the calls the disk is measured alone: appends of 4 KiB, each with fdatasync.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench import submit_marks as marks
from bench.launches_cell import ROOT, Shape, ThreadPool, running_cell
from bench.launches_tally import percentile
from bench.noop_tasks import HANDLERS
from bench.section import figure, write_section
from launcher.client.client import Client

README: Final = ROOT / "bench" / "README.md"
BEGIN: Final = "<!-- submit: written by `python -m bench.submit_path` -->"
END: Final = "<!-- end of the submit -->"
WARM_UP: Final = 50
APPEND_BYTES: Final = 4096
LEADER: Final = (
    ("service", "client to service: encoding, loopback, HTTP/2, gRPC, decoding, access"),
    ("put", "service: checks, until the change waits at the leader"),
    ("turn", "leader: until its turn begins"),
    ("built", "leader: handler known, digest, command"),
    ("offered", "leader: plan, encoding of the entry"),
    ("logged", "thread of the log: wakes up, writes the entry"),
    ("sync", "thread of the log: sends the entry to both followers"),
    ("synced", "leader: fdatasync"),
    ("accepted", "follower: the rest until its answer (its own fdatasync runs beside ours)"),
    ("committed", "thread of the log: counts the majority"),
    ("apply", "event loop wakes up"),
    ("applied", "leader: apply, and what follows State"),
    ("answered", "leader: its turn goes on"),
    ("report", "service goes on"),
)
"""What ends a stretch, and what the stretch is; each is looked for after the one before."""


def fdatasync_us(folder: Path, times: int) -> list[int]:
    """Return how long appends of 4 KiB took until they were on the disk, in us, sorted."""
    path, took = folder / "appends", []
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            began = time.monotonic_ns()
            file.write(b"x" * APPEND_BYTES)
            os.fdatasync(file.fileno())
            took.append((time.monotonic_ns() - began) // 1000)
    path.unlink()
    return sorted(took)


def stretches(stamps: list[tuple[int, str]], calls: list[tuple[int, int]]) -> dict[str, list[int]]:
    """Return the length of each stretch of each call, in us, sorted. A call in which a stamp is
    missing does not count."""
    found: dict[str, list[int]] = {mark: [] for mark, _ in LEADER}
    found["back"] = []
    at = 0
    for began, ended in calls:
        while at < len(stamps) and stamps[at][0] < began:
            at += 1
        passed, before, place = [], began, at
        for mark, _ in LEADER:
            while place < len(stamps) and stamps[place][1] != mark:
                place += 1
            if place == len(stamps) or stamps[place][0] > ended:
                break
            passed.append((mark, (stamps[place][0] - before) // 1000))
            before = stamps[place][0]
        else:
            for mark, took in passed:
                found[mark].append(took)
            found["back"].append((ended - before) // 1000)
    return {mark: sorted(took) for mark, took in found.items()}


def measure(folder: Path, calls_max: int) -> dict[str, Any]:
    """Return the stretches of so many calls, and what the disk does by itself."""
    folder.mkdir()
    disk = fdatasync_us(folder, calls_max)
    shape = Shape(kind="handler", thread_pools=(ThreadPool(),))
    known = dict(os.environ)
    os.environ.update(marks.environment(folder / "marks", known))
    calls: list[tuple[int, int]] = []
    try:
        with running_cell(folder / "cell", shape) as running:
            pids = [running.replicas[running.leader()]]
            with Client(",".join(running.servers), timeout=60) as client:
                for n in range(WARM_UP + calls_max):
                    began = time.monotonic_ns()
                    client.submit(HANDLERS[0], {"n": n}, key=f"path-{n}", delay="1d")
                    calls.append((began, time.monotonic_ns()))
                for n in range(marks.WRITE_EACH // 5):  # so that all stamps are written
                    client.submit(HANDLERS[0], {"n": n}, key=f"rest-{n}", delay="1d")
            stamps = marks.read(folder / "marks", pids)
    finally:
        os.environ.clear()
        os.environ.update(known)
    calls = calls[WARM_UP:]
    whole = sorted((ended - began) // 1000 for began, ended in calls)
    return {"disk": disk, "whole": whole, **stretches(stamps, calls)}


def table_of(measured: dict[str, Any]) -> str:
    """Return the stretches as Markdown."""
    named = {
        **dict(LEADER),
        "back": "answer: encoding, gRPC, loopback, client's threads",
        "whole": "**one submit**",
        "disk": "fdatasync of 4 KiB by itself, before the calls",
    }
    lines = ["| stretch | p50 ms | p95 ms |", "| --- | --: | --: |"]
    for mark, what in named.items():
        shares = (figure((percentile(measured[mark], share) or 0) / 1000) for share in (50, 95))
        lines.append(f"| {what} | {' | '.join(shares)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print a JSON row last."""
    parser = argparse.ArgumentParser(prog="bench.submit_path")
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--readme", action="store_true", help="write the table into README.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raftcron-bench-", dir=ROOT) as name:
        measured = measure(Path(name) / "path", options.calls)
    table = table_of(measured)
    print(table)
    if options.readme:
        write_section(README, BEGIN, END, table)
    print(json.dumps({mark: percentile(took, 50) for mark, took in measured.items()}))


if __name__ == "__main__":
    main()

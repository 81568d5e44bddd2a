"""What a replica keeps in memory while launches go on: `make bench-memory RATE=200 SECONDS=3600`.

    python -m bench.memory [--rate 200] [--seconds 3600] [--kind noop]

A cell launches so many jobs every second. Once in EVERY_S the RSS of each replica is read. The row
has the RSS at the end, and the slope of the second half: a straight line is fitted to it by least
squares. In the first half a replica fills what is bounded: caches, tails of history, the journal
up to its first dump. Prints a JSON row, and replaces its line of the table in README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.launches_cell import Shape, apply, running_cell
from bench.probes.load import Work
from bench.probes.window import rows_of
from bench.processes import cpu_us, resident_bytes
from bench.section import figure, merge_rows
from bench.trees import ROOT, end_by_signals, this_tree

README: Final = ROOT / "bench" / "README.md"
BEGIN: Final = "<!-- memory: written by `make bench-memory` -->"
END: Final = "<!-- end of the memory -->"
EVERY_S: Final = 10
COLUMNS: Final = (
    "launches", "s", "RSS at the start MB", "RSS at the end MB", "most MB",
    "slope of the second half, MB a minute", "of the last ten seconds launched", "commit",
)  # fmt: skip


def slope(seconds: list[float], values: list[float]) -> float:
    """Return how much the values grow in a minute."""
    return statistics.linear_regression(seconds, values).slope * 60


def measure(work: Work, rate: int, seconds: int) -> dict[str, Any]:
    """Return the RSS of the replicas in MB: at the start, at the end, the most, and its slope."""
    at: list[float] = []
    found: dict[str, list[float]] = {}
    shape = Shape(**msgspec.structs.asdict(work.shape()))  # history is sealed as by default
    with (
        tempfile.TemporaryDirectory(prefix="raftcron-bench-") as folder,
        running_cell(Path(folder), shape) as running,
    ):
        apply(running.client, work.crontab(rate))
        began, spent = time.monotonic(), sum(map(cpu_us, running.pids))
        while (now := time.monotonic() - began) < seconds:
            at.append(now)
            for name, pid in running.replicas.items():
                found.setdefault(name, []).append(resident_bytes(pid) / 1e6)
            time.sleep(EVERY_S)
        spent = sum(map(cpu_us, running.pids)) - spent
        now_s = int(time.time())
        rows = rows_of(running.client, (now_s - EVERY_S - 2, now_s - 2))
        leader = running.leader()
    half = len(at) // 2
    return {
        "kind": work.kind,
        "rate": rate,
        "seconds": seconds,
        "leader": leader,
        "launched_last": sum(row.state == "succeeded" for row in rows),
        "cpu_us_per_launch": round(spent / (rate * seconds), 1),
        "rss_mb_first": {name: round(mb[0], 1) for name, mb in found.items()},
        "rss_mb": {name: round(mb[-1], 1) for name, mb in found.items()},
        "rss_mb_max": round(max(map(max, found.values())), 1),
        "slope_mb_per_minute": {
            name: round(slope(at[half:], mb[half:]), 3) for name, mb in found.items()
        },
        "curve": {name: [round(one, 1) for one in mb[::30]] for name, mb in found.items()},
    }


def main() -> int:
    """Measure, write the line and print the row."""
    parser = argparse.ArgumentParser(prog="bench.memory", description="RSS of a replica over time")
    parser.add_argument("--rate", type=int, default=200, help="launches a second")
    parser.add_argument("--seconds", type=int, default=3_600)
    parser.add_argument("--kind", choices=("noop", "command"), default="noop")
    parser.add_argument("--json", action="store_true", help="leave README.md alone")
    options = parser.parse_args()
    if options.seconds < 4 * EVERY_S or options.rate < 1:
        parser.error(f"--seconds is at least {4 * EVERY_S}, --rate at least 1")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    end_by_signals()
    row = measure(Work(kind=options.kind), options.rate, options.seconds)
    if not options.json:
        cells = [
            f"{options.kind}, {options.rate} a second",
            figure(options.seconds),
            figure(max(row["rss_mb_first"].values())),
            figure(max(row["rss_mb"].values())),
            figure(row["rss_mb_max"]),
            figure(max(row["slope_mb_per_minute"].values())),
            figure(row["launched_last"]),
            this_tree().commit,
        ]
        merge_rows(README, BEGIN, END, COLUMNS, [cells])
    print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())

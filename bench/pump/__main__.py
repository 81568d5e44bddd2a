"""`python -m bench.pump`: Salsify's test through our pool, PostgreSQL and Redis, into README.md.

    python -m bench.pump [--rounds 3] [--seconds 3] [--only memory postgres redis cell] [--json]

Each round measures every queue once, with a server of its own that is ended and removed afterwards.
What is not installed is left out and said. All runs go to bench/results/pump.jsonl as they are.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from bench.physics import fdatasyncs_per_second
from bench.pump import cell, memory, postgres, redis
from bench.pump.run import Absent, Cores, Run
from bench.pump.table import Report, section, write
from bench.pump.workload import Workload

RESULTS: Final = Path(__file__).resolve().parents[1] / "results" / "pump.jsonl"
PARTS: Final = ("memory", "cell", "postgres", "redis")
BATCHES: Final = (1, 100)

Case = Callable[[], Run]


def cases(parts: list[str], workload: Workload, limit_s: float) -> list[Case]:
    """Return what a round consists of, ours first."""
    backlog = workload.backlog()
    of: dict[str, list[Case]] = {
        "memory": [partial(memory.measure, backlog, batch) for batch in BATCHES],
        "cell": [partial(cell.measure, backlog)],
        "postgres": [
            partial(postgres.measure, backlog, kind, batch, limit_s)
            for kind in ("FIFO", "fair")
            for batch in BATCHES
        ],
        "redis": [
            partial(redis.measure, backlog, fsync, batch, limit_s)
            for fsync in redis.FSYNCS
            for batch in BATCHES
        ],
    }
    return [case for part in PARTS if part in parts for case in of[part]]


def beside(case: Case) -> Run:
    """Return a run with what the machine could do and did besides. Raises Absent."""
    syncs, cores = fdatasyncs_per_second(), Cores()
    run = case()
    strangers = round(cores.strangers(), 3)
    return msgspec.structs.replace(run, fdatasync_per_second=syncs, strangers=strangers)


def measure(found: list[Case], report: Report) -> None:
    """Run every case in each round; what is absent is noted once."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("wb") as results:
        for number in range(report.rounds):
            for case in found:
                try:
                    run = beside(case)
                except Absent as absent:
                    if str(absent) not in report.absent:
                        report.absent.append(str(absent))
                    continue
                report.runs.append(run)
                results.write(msgspec.json.encode(run) + b"\n")
                results.flush()
                told = f"{run.name}, batch {run.batch}: {run.rate:,.0f} tasks/s"
                print(f"round {number + 1}: {told}", file=sys.stderr, flush=True)


def main() -> int:
    """Measure, then write the section of README.md or print the rows."""
    parser = argparse.ArgumentParser(
        prog="bench.pump", description="many tenants, one of them huge"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each queue")
    parser.add_argument("--seconds", type=float, default=3.0, help="longest run of a peer")
    parser.add_argument("--tasks", type=int, default=200_000, help="tasks of 200 tenants")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts of it")
    parser.add_argument("--json", action="store_true", help="print runs, leave README.md alone")
    options = parser.parse_args()
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    workload = Workload(tasks=options.tasks)
    report = Report(workload=workload, limit_s=options.seconds, rounds=options.rounds)
    report.absent = [
        f"Not measured in this run: {part}." for part in PARTS if part not in options.only
    ]
    measure(cases(options.only, workload, options.seconds), report)
    if options.json:
        print(msgspec.json.encode(report).decode())
    else:
        write(report)
    print(section(report), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

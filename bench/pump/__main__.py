"""`python -m bench.pump`: the test of Salsify's Job Pump through a whole cell, into README.md.

    python -m bench.pump [--rounds 3] [--tasks 200000] [--json]

Each round has a cell of its own. All runs go to bench/results/pump.jsonl as they are.
`bench/pump/peers.sh` measures PostgreSQL and Redis with their own tools.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from bench.physics import fdatasyncs_per_second
from bench.pump import cell
from bench.pump.table import Cores, Run, section, write
from bench.pump.workload import Workload

RESULTS: Final = Path(__file__).resolve().parents[1] / "results" / "pump.jsonl"


def measure(rounds: int, once: Callable[[], Run]) -> list[Run]:
    """Return a run of each round, with what the machine could do before and did besides."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    runs = []
    with RESULTS.open("wb") as results:
        for number in range(1, rounds + 1):
            syncs, cores = fdatasyncs_per_second(), Cores()
            run = msgspec.structs.replace(
                once(), fdatasync_per_second=syncs, strangers=round(cores.strangers(), 3)
            )
            runs.append(run)
            results.write(msgspec.json.encode(run) + b"\n")
            results.flush()
            print(f"round {number}: {run.rate:,.0f} tasks/s", file=sys.stderr, flush=True)
    return runs


def main() -> int:
    """Measure, then write the section of README.md or print the rows."""
    parser = argparse.ArgumentParser(
        prog="bench.pump", description="many tenants, one of them huge"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs, each with a new cell")
    parser.add_argument("--tasks", type=int, default=200_000, help="tasks of 200 tenants")
    parser.add_argument("--json", action="store_true", help="print runs, leave README.md alone")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    workload = Workload(tasks=options.tasks)
    backlog = workload.backlog()
    runs = measure(options.rounds, lambda: cell.measure(backlog))
    if options.json:
        print(msgspec.json.encode(runs).decode())
    else:
        write(workload, runs)
    print(section(workload, runs), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

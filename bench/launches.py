"""How many launches a second, how late, at what cost? No-op work through the whole path.

    python -m bench.launches --rate 1000 --seconds 20 [--jobs 100000] [--snapshots 2]
    python -m bench.launches --kind handler --rate 10000 --seconds 60 [--executors 2] [--profile 20]
    python -m bench.launches --bend [--rates 2000 5000 10000] [--seconds 60] [--json]

Three replicas and executors, each a process of its own, on this machine, over loopback and real
files: both log points of each launch are on two of three disks. `--kind` says what is launched:

- `none`: the executor accepts and reports work without starting anything (`start = "none"`).
- `command`: it starts `true`, a process each.
- `handler`: real workers, `raftcron worker bench.noop_tasks`, with a hundred handlers that do
  nothing. This is the test of Dropbox's ATF: 10,000 a second for a minute, 95 % within 5 s.

All jobs are `@every` some whole seconds, since schedules know nothing shorter: all launches of
a second are due at its first instant, which is the worst case of that test, and cannot be spread.
With `--snapshots` one is taken, verified and put into object storage every so many seconds, with
all history, which is sealed as often. Prints one JSON row; `--bend` writes a table into README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench import launches_bend, launches_sampler
from bench.launches_cell import Running, Shape, ThreadPool, apply, running_cell
from bench.load import Load, make_load
from bench.noop_tasks import HANDLERS
from bench.physics import fdatasyncs_per_second, loops_per_second
from bench.probes.window import measure_window
from bench.processes import descendants

SOON_S: Final = 2
COSTS_MAX: Final = 25


def crontab(load: Load, shape: Shape) -> str:
    """Return the jobs; of handlers, each of the hundred has as many."""
    if shape.kind != "handler":
        return load.crontab()
    lines, number = [], 0
    for period, count in load.periods.items():
        for _ in range(count):
            name = HANDLERS[number % len(HANDLERS)]
            number += 1
            lines.append(f'#: name=j{number} handler={name}\n@every {period}s {{"n": {number}}}')
    return "\n".join(lines) + "\n"


def measure(load: Load, shape: Shape, seconds: int, warm_up_s: int) -> dict[str, Any]:
    """Return the row of one run."""
    with tempfile.TemporaryDirectory(prefix="raftcron-bench-") as name:
        folder = Path(name)
        with running_cell(folder, shape) as running:
            applied = apply(running.client, crontab(load, shape))
            from_s = int(time.time()) + SOON_S + warm_up_s
            row = measure_window(running, load, (from_s, from_s + seconds), warm_up_s)
            if shape.is_profiled:
                row["profile"] = _profile(running, from_s, seconds, row["launches_per_second"])
        stored = list((folder / "store").rglob("*.snap"))
    return {
        "kind": shape.kind,
        "rate": round(load.rate, 1),
        "jobs": load.jobs,
        "seconds": seconds,
        "executors": shape.executors,
        "snapshots_s": shape.snapshots_s,
        "snapshots_stored": len(stored),
        **row,
        **applied,
    }


def _profile(running: Running, from_s: int, seconds: int, rate: float) -> dict[str, list[str]]:
    """Return the dearest functions of each kind of process, with microseconds per launch."""
    launches = max(1, round(rate * seconds))
    told = {}
    for part, pids in running.groups(running.leader()).items():
        family = descendants(pids)
        stacks = launches_sampler.read(running.profile, family, from_s, from_s + seconds)
        told[part] = [
            f"{one.self_us:7.2f} self {one.total_us:7.2f} total  {one.function}"
            for one in launches_sampler.costs(stacks, launches)[:COSTS_MAX]
        ]
    return told


def shape_of(options: argparse.Namespace) -> Shape:
    """Return the cell that the options ask for."""
    thread_pool = ThreadPool(processes=options.processes, threads=options.threads)
    return Shape(
        kind=options.kind,
        executors=options.executors or (2 if options.kind == "handler" else 1),
        slots=options.slots,
        buffer=options.buffer,
        thread_pools=(thread_pool,) if options.kind == "handler" else (),
        snapshots_s=options.snapshots,
        is_profiled=options.profile,
    )


def measured(options: argparse.Namespace, rate: int, seconds: int) -> dict[str, Any]:
    """Return one row with what the machine could do just before."""
    physics = {
        "fdatasync_per_second": fdatasyncs_per_second(),
        "loops_per_second": loops_per_second(),
    }
    load = make_load(rate, options.jobs)
    return {**measure(load, shape_of(options), seconds, options.warm_up), **physics}


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    said = argparse.ArgumentParser(prog="bench.launches", description="launches of no-op work")
    said.add_argument("--rate", type=int, default=10_000, help="launches a second")
    said.add_argument("--seconds", type=int, default=60, help="length of the window")
    said.add_argument("--jobs", type=int, help="number of jobs; default as many as RATE")
    said.add_argument("--warm-up", type=int, default=5, help="seconds before the window")
    said.add_argument("--snapshots", type=int, default=0, help="seconds between them; 0 is none")
    said.add_argument("--kind", choices=("none", "command", "handler"), default="none")
    said.add_argument("--executors", type=int, help="default 2 with workers, else 1")
    said.add_argument("--slots", type=int, default=10_000, help="of each executor, for commands")
    said.add_argument("--buffer", type=int, default=5_000, help="may wait there for the worker")
    said.add_argument("--processes", type=int, default=1, help="of the worker at each executor")
    said.add_argument("--threads", type=int, default=8, help="of each of them")
    said.add_argument("--profile", action="store_true", help="where the CPU time goes, by function")
    said.add_argument("--bend", action="store_true", help="the test, then rising rates")
    said.add_argument("--rates", type=int, nargs="+", default=launches_bend.RATES)
    said.add_argument("--step", type=int, default=12, help="seconds of each of these rates")
    said.add_argument("--json", action="store_true", help="with --bend: leave README.md alone")
    return said


def main() -> int:
    """Measure, and print the row or write the table."""
    said = parser()
    options = said.parse_args()
    numbers = (
        options.rate,
        options.seconds,
        options.jobs or 1,
        options.executors or 1,
        options.step,
    )
    if min(*numbers, *options.rates) < 1:
        said.error("rates, seconds, jobs and executors are at least 1")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    if not options.bend:
        row = measured(options, options.rate, options.seconds)
        for part, lines in row.pop("profile", {}).items():
            print(f"{part}:", *lines, sep="\n  ", file=sys.stderr)
        print(json.dumps(row))
        return 0
    options.kind = "handler"
    plan = launches_bend.Plan(options.rate, options.seconds, tuple(options.rates), options.step)
    rows = launches_bend.climb(plan, lambda rate, seconds: measured(options, rate, seconds))
    launches_bend.report(rows, options.processes, options.threads, writes=not options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

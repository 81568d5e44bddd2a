"""How many launches a second, how late, at what cost? No-op work through the whole path.

    python -m bench.launches --rate 1000 --seconds 20 [--jobs 100000] [--snapshots 2]

Three replicas and one executor, each a process of its own, on this machine, over loopback and real
files. The executor accepts and reports work without starting a process (`start = "none"`), because
to start one costs more than all the rest and is the operating system's doing. Everything else is
what it is in earnest: both log points of each launch are on two of three disks. With `--snapshots`
one is taken, verified and put into object storage every so many seconds, with all history, which is
sealed as often. Prints one JSON row.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.load import Load, make_load
from bench.physics import fdatasyncs_per_second, loops_per_second
from bench.processes import Usage, usage
from cron.api.client import Client
from cron.api.views import ApplyRequest, HistoryQuery, LaunchView, SourceFile
from cron.clock import SystemClock
from cron.dev.cell import LocalCell
from cron.dev.files import Ports, write_cell
from cron.dev.ports import taken
from cron.errors import OutcomeUnknown, Unavailable

EXECUTOR: Final = 'start = "none"\nslots = 10000\n'
REPLICA: Final = "[limits]\nsnapshot_entries = 1000000\n"
"""No dump of the log within the window: what it grows by is what the launches wrote."""
APPLY_MS: Final = 300_000
START_S: Final = 60.0
SETTLE_S: Final = 15.0
ROWS_MAX: Final = 100_000


def free_ports() -> Ports:
    """Return ports that nobody listens on."""
    first = 20_000 + os.getpid() % 10_000
    while taken(Ports.from_first(first)):
        first += 20
    return Ports.from_first(first)


def keeping(folder: Path, interval_s: int) -> str:
    """Return the configuration of a cell that takes and stores a snapshot every so often."""
    if not interval_s:
        return REPLICA
    return (
        f'{REPLICA}[object_storage]\nurl = "{(folder / "store").as_uri()}"\n'
        f"[snapshots]\ninterval_s = {interval_s}\n"
        f"[history]\nsegment_age_s = {interval_s}\n"
    )


@contextmanager
def running_cell(folder: Path, snapshots_s: int = 0) -> Iterator[tuple[Client, list[int]]]:
    """A cell without jobs: its client and the process ids."""
    ports = free_ports()
    extra = keeping(folder, snapshots_s)
    members = write_cell(folder, ports, replica_extra=extra, executor_extra=EXECUTOR)
    cell = LocalCell(members, lambda member: member.argv, SystemClock(), os.environ)
    cell.start()
    try:
        with Client(ports.servers, timeout_ms=APPLY_MS) as client:
            yield client, [child.pid for child in cell.children]
    finally:
        cell.kill()


def measure(load: Load, seconds: int, warm_up_s: int, snapshots_s: int = 0) -> dict[str, Any]:
    """Return the row of one run."""
    with tempfile.TemporaryDirectory(prefix="raftcron-bench-") as folder:
        with running_cell(Path(folder), snapshots_s) as (client, pids):
            _wait_connected(client)
            applied = _apply(client, load)
            from_s = int(time.time()) + 2 + warm_up_s
            leader = _leader(client)
            journal = Path(folder) / leader / "raft"
            before = _usage_at(from_s, pids, journal)
            after = _usage_at(from_s + seconds, pids, journal)
            rows = _rows(client, from_s, from_s + seconds)
        stored = list((Path(folder) / "store").rglob("*.snap"))
        return {
            "rate": round(load.rate, 1),
            "jobs": load.jobs,
            "seconds": seconds,
            "snapshots_s": snapshots_s,
            "snapshots_stored": len(stored),
            **summarize(rows, load.due(from_s, from_s + seconds), seconds),
            **_costs(rows, before, after),
            **applied,
        }


def summarize(rows: list[LaunchView], due: int, seconds: int) -> dict[str, Any]:
    """Return what became of the launches of a window in which `due` instants lie."""
    started = [row for row in rows if row.lateness_ms is not None]
    late = sorted(row.lateness_ms or 0 for row in started)
    done = sum(row.state == "succeeded" for row in rows)
    return {
        "launches_per_second": round(done / seconds, 1),
        "lateness_p50_ms": percentile(late, 50),
        "lateness_p95_ms": percentile(late, 95),
        "lateness_p99_ms": percentile(late, 99),
        "lateness_max_ms": percentile(late, 100),
        "due": due,
        "succeeded": done,
        "skipped": sum(row.count for row in rows if row.state == "skipped"),
        "open": sum(row.is_open for row in rows),
        "missing": due - sum(row.count for row in rows),
    }


def percentile(ordered: list[int], share: int) -> int | None:
    """Return the smallest value that `share` per cent of the values do not exceed."""
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)] if ordered else None


def _costs(rows: list[LaunchView], before: Usage, after: Usage) -> dict[str, Any]:
    launches = max(1, sum(row.state == "succeeded" for row in rows))
    return {
        "cpu_us_per_launch": round((after.cpu_us - before.cpu_us) / launches, 1),
        "log_bytes_per_launch": round((after.log_bytes - before.log_bytes) / launches, 1),
    }


def _wait_connected(client: Client) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            if any(row.role == "connected" for row in client.status()):
                return
        except (Unavailable, OutcomeUnknown):
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"no executor is connected after {START_S} s")
        time.sleep(0.1)


def _leader(client: Client) -> str:
    return next(row.id for row in client.status() if row.role == "leader")


def _apply(client: Client, load: Load) -> dict[str, int]:
    """Apply the crontab until it is certain, which may take several times under load."""
    file = SourceFile("bench", load.crontab().encode())
    request = ApplyRequest(files=[file], prune=True, by="bench")
    deadline = time.monotonic() + START_S
    for number in itertools.count(1):
        began = time.monotonic()
        try:
            client.put_jobs(request)
        except (Unavailable, OutcomeUnknown):
            if time.monotonic() > deadline:
                raise
            continue
        return {"apply_ms": round((time.monotonic() - began) * 1000), "apply_attempts": number}
    raise AssertionError("itertools.count ended")


def _usage_at(moment_s: int, pids: list[int], journal: Path) -> Usage:
    """Wait for half a second before a whole one, when the launches of the last are over."""
    time.sleep(max(0.0, moment_s - 0.5 - time.time()))
    return usage(pids, journal)


def _rows(client: Client, from_s: int, to_s: int) -> list[LaunchView]:
    """Every row of the window, once nothing in it is open any more or has been long enough."""
    deadline = time.monotonic() + SETTLE_S
    time.sleep(1)
    rows: list[LaunchView] = []
    for second in range(from_s, to_s):
        while True:
            found = _second(client, second)
            if not any(row.is_open for row in found) or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        rows += found
    return rows


def _second(client: Client, second: int) -> list[LaunchView]:
    query = HistoryQuery(since_ms=second * 1000, until_ms=(second + 1) * 1000, limit=ROWS_MAX)
    return [row for row in client.history(query) if row.kind != "amendment"]


def main() -> int:
    """Measure once and print the row."""
    parser = argparse.ArgumentParser(prog="bench.launches", description="launches of no-op work")
    parser.add_argument("--rate", type=int, required=True, help="launches a second")
    parser.add_argument("--seconds", type=int, required=True, help="length of the window")
    parser.add_argument("--jobs", type=int, help="number of jobs; default as many as RATE")
    parser.add_argument("--warm-up", type=int, default=5, help="seconds before the window")
    parser.add_argument("--snapshots", type=int, default=0, help="seconds between them; 0 is none")
    options = parser.parse_args()
    if min(options.rate, options.seconds, options.jobs or 1) < 1:
        parser.error("--rate, --seconds and --jobs are at least 1")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    physics = {
        "fdatasync_per_second": fdatasyncs_per_second(),
        "loops_per_second": loops_per_second(),
    }
    row = measure(
        make_load(options.rate, options.jobs), options.seconds, options.warm_up, options.snapshots
    )
    print(json.dumps({**row, **physics}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

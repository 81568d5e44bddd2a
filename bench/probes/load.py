"""Launches that fall due every second: what one costs, and whether a rate is borne."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import launches, launches_cell
from bench.launches_cell import Kind, Running, Shape, apply, running_cell, until
from bench.launches_tally import percentile
from bench.load import Load
from bench.probes.calls import status
from bench.probes.window import measure_window, rows_of, sleep_until

WARM_UP_S: Final = 5
SOON_S: Final = 2
LATE_S: Final = 2
"""After the window; a launch that is open then was more than a second late."""
SAMPLES_MAX: Final = 12
SAMPLED_ROWS_MAX: Final = 300_000
NOT_DONE: Final = ("skipped", "failed", "lost", "cancelled")
OPEN: Final = ("due", "begun", "launched")
TENANTS: Final = 20
SEALED_S: Final = 20
# An older tree has other names for the processes with threads that run handlers.
HAS_POOLS: Final = hasattr(launches_cell, "ThreadPool")
_POOLS: Final = "thread_pools" if HAS_POOLS else "crews"
_ThreadPool: Final = getattr(launches_cell, "ThreadPool" if HAS_POOLS else "Crew")


class Sealing(Shape, frozen=True, kw_only=True):
    """A cell whose history is in segments soon after its last launch."""

    def replica_text(self, folder: Path) -> str:
        """Return what the configuration of a replica says about it."""
        return f"{super().replica_text(folder)}\n[history]\nsegment_age_s = {SEALED_S}\n"


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What is launched, and by whom.

    `kind` is `noop` (handlers that do nothing), `handler` (handlers that sleep 20 ms, so that
    `threads` bound the rate) or `command` (each runs `line`, `slots` of them at once).
    """

    kind: str = "noop"
    executors: int = 2
    threads: int = 8
    slots: int = 64
    line: str = "true"

    def shape(self) -> Shape:
        """Return the cell that does this work."""
        app = "bench.noop_tasks" if self.kind == "noop" else "bench.flood_tasks:shared"
        kind: Kind = "command" if self.kind == "command" else "handler"
        pools: dict[str, Any] = {}
        if kind == "handler":
            pools[_POOLS] = (_ThreadPool(app, threads=self.threads),)
        # The buffer of no-op handlers is that of `make bench-launches`.
        buffer = 5_000 if self.kind == "noop" else 1_000
        return Sealing(
            kind=kind,
            executors=self.executors,
            slots=self.slots,
            buffer=buffer,
            **pools,
        )

    def crontab(self, rate: int) -> str:
        """Return so many jobs of twenty tenants, each due every second."""
        if self.kind == "noop":
            return launches.crontab(Load({1: rate}), self.shape())
        tail, line = ("", self.line) if self.kind == "command" else (" handler=flooded", "")
        return "".join(
            f"#: name=t{number % TENANTS}/j{number}{tail}\n@every 1s {line}".rstrip() + "\n"
            for number in range(rate)
        )

    def names(self, rate: int) -> list[str]:
        """Return the full names of these jobs."""
        if self.kind == "noop":
            return [f"default/j{number + 1}" for number in range(rate)]
        return [f"t{number % TENANTS}/j{number}" for number in range(rate)]


@contextmanager
def cell_for(work: Work) -> Iterator[Running]:
    """A cell that does this work, in a folder of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="raftcron-bench-") as name,
        running_cell(Path(name), work.shape()) as running,
    ):
        yield running


def cost(work: Work, rate: int, seconds: int, warm_up_s: int = WARM_UP_S) -> dict[str, Any]:
    """Return what a launch costs at a rate: CPU by part, lateness, and bytes on the disk."""
    load = Load({1: rate})
    with cell_for(work) as running:
        began_s = int(time.time())
        apply(running.client, work.crontab(rate))
        from_s = int(time.time()) + SOON_S + warm_up_s
        row = measure_window(running, load, (from_s, from_s + seconds), warm_up_s)
        apply(running.client, "# no jobs\n")
        done = sum(
            len(rows_of(running.client, (second, second + 1), ("succeeded",)))
            for second in range(began_s, int(time.time()) + 1)
        )
        kept = _history_bytes(running)
        row["disk_bytes_per_launch"] = None if kept is None else round(kept / max(1, done), 1)
    row["cpu_without_commands_us"] = round(row["cpu_us_per_launch"] - row["commands_us"], 1)
    return {"rate": rate, "seconds": seconds, **row}


def _history_bytes(running: Running) -> int | None:
    """End a follower as an operator would, and return the size of what it keeps of history; None
    if some of it did not come into segments."""
    try:
        until(lambda: not _unsealed(running), "the last segment")
    except TimeoutError:
        return None
    leader = running.leader()
    name, pid = next(one for one in running.replicas.items() if one[0] != leader)
    os.kill(pid, signal.SIGTERM)  # SQLite then leaves no write-ahead log behind
    until(lambda: _is_over(pid), f"the end of {name}")
    kept = running.folder / name
    return sum(
        path.stat().st_size
        for path in kept.rglob("*")
        if path.is_file() and path.relative_to(kept).parts[0] not in ("raft", "snapshots")
    )


def _unsealed(running: Running) -> int:
    """Return how many rows of history are in no segment yet, at the replica that has most."""
    rows = status(running.client)
    return max(int(row.keeping.open_rows) for row in rows if row.keeping is not None)


def _is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def trial(work: Work, rate: int, seconds: int) -> dict[str, Any]:
    """Return whether a new cell bears a rate: how late launches of some seconds of the window were,
    and how many were not done."""
    with cell_for(work) as running:
        apply(running.client, work.crontab(rate))
        leader = running.leader()
        from_s = int(time.time()) + SOON_S + WARM_UP_S
        to_s = from_s + seconds
        sleep_until(to_s + LATE_S)
        still_open = len(rows_of(running.client, (from_s, to_s), OPEN, 1))
        apply(running.client, "# no jobs\n")
        not_done = len(rows_of(running.client, (from_s, to_s), NOT_DONE, 1))
        late, missing = [], 0
        for second in sampled(from_s, to_s, rate):
            rows = rows_of(running.client, (second, second + 1))
            missing += rate - sum(row.count for row in rows)
            late += [row.lateness_ms for row in rows if row.lateness_ms is not None]
        return {
            "rate": rate,
            "seconds": seconds,
            "lateness_p95_ms": percentile(sorted(late), 95),
            "open": still_open,
            "not_done": not_done,
            "missing": missing,
            "leader_changed": running.leader() != leader,
        }


def sampled(from_s: int, to_s: int, rate: int) -> list[int]:
    """Return the seconds of a window whose launches are read, evenly spread, the last included."""
    most = max(3, min(SAMPLES_MAX, SAMPLED_ROWS_MAX // rate))
    count = min(most, to_s - from_s)
    return [to_s - 1 - number * (to_s - from_s) // count for number in reversed(range(count))]

"""The probes that are not about a steady rate: a drain, a frozen leader, a command, starts."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.launches_cell import apply
from bench.probes.load import Work, cell_for
from bench.probes.window import rows_of, sleep_until
from bench.pump import cell as pump
from bench.pump.workload import Workload
from cron.dev.files import ports_of

COMMANDS: Final = Work(kind="command", executors=1)
FREEZE_AT_S: Final = 0.2
"""After a second began: its launches have started by then."""
SOURCE: Final = Path(__file__).resolve().parents[1] / "starts.c"
PROGRAM: Final = "/bin/true"
LEAD_S: Final = 15


def drain(tasks: int) -> dict[str, Any]:
    """Return how fast the whole pool does Salsify's tasks, which all fall due at once, and the CPU
    time of all processes for a task."""
    run = pump.measure(Workload(tasks=tasks).backlog())
    # An older tree has another name for the CPU time.
    cpu_us = getattr(run, "cpu_us" if hasattr(run, "cpu_us") else "server_us")
    return {
        "tasks": run.tasks,
        "tasks_per_second": round(run.rate, 1),
        "cpu_us_per_task": round(cpu_us, 1),
    }


def frozen(seconds: int, jobs: int = 20) -> dict[str, Any]:
    """Return the longest time in which no command was started while the leader is stopped."""
    with cell_for(COMMANDS) as running:
        apply(running.client, COMMANDS.crontab(jobs))
        from_s = int(time.time()) + 6
        freeze_s, to_s = from_s + 2, from_s + 2 + seconds
        leader = running.replicas[running.leader()]
        sleep_until(freeze_s + FREEZE_AT_S)
        os.kill(leader, signal.SIGSTOP)
        try:
            sleep_until(to_s + 1)
        finally:
            os.kill(leader, signal.SIGCONT)
        time.sleep(2)
        rows = rows_of(running.client, (from_s, to_s))
    return {
        "longest_gap_s": longest_gap_s([row.started_at_ms for row in rows if row.started_at_ms]),
        "missing": jobs * (to_s - from_s) - sum(row.count for row in rows),
        "skipped": sum(row.count for row in rows if row.state == "skipped"),
    }


def longest_gap_s(starts_ms: list[int]) -> float | None:
    """Return the longest time between two starts that follow each other; None of fewer."""
    ordered = sorted(starts_ms)
    gaps = [after - before for before, after in itertools.pairwise(ordered)]
    return max(gaps) / 1000 if gaps else None


def cli(calls: int, jobs: int = 10) -> dict[str, Any]:
    """Return how much longer `raftcron jobs` takes than `python -c pass`, called in turns."""
    program = str(Path(sys.executable).with_name("raftcron"))
    with cell_for(COMMANDS) as running:
        lines = (f"#: name=j{number}\n@daily true\n" for number in range(jobs))
        apply(running.client, "".join(lines))
        ports = ports_of(running.folder)
        if ports is None:
            raise RuntimeError(f"{running.folder}: no configuration of a cell")
        env = {**os.environ, "RAFTCRON_SERVER": ",".join(ports.servers)}
        took: list[float] = []
        bare: list[float] = []
        for _ in range(calls):
            bare.append(_took_s([sys.executable, "-c", "pass"], env))
            took.append(_took_s([program, "jobs"], env))
    call_s, pass_s = statistics.median(took), statistics.median(bare)
    return {
        "call_ms": round(call_s * 1000, 1),
        "pass_ms": round(pass_s * 1000, 1),
        "call_to_pass": round(call_s / pass_s, 2),
    }


def _took_s(argv: list[str], env: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def starts(commands: int) -> dict[str, Any]:
    """Return how many commands a second a whole cell starts, and a loop of posix_spawn in C.

    All commands fall due at one instant; the loop runs before and after, with as many at once.
    """
    work = Work(kind="command", executors=1, line=PROGRAM)
    with tempfile.TemporaryDirectory(prefix="raftcron-bench-") as name:
        program = build_peer(Path(name))
        with cell_for(work) as running:
            due = pump.moments(int(time.time()) + LEAD_S)[0]
            lines = (
                f"#: name=j{number}\n@every {due.period_s}s {PROGRAM}\n"
                for number in range(commands)
            )
            apply(running.client, "".join(lines))
            if time.time() > due.at_s - 4:
                raise TimeoutError(f"{commands} jobs were not applied in time")
            before = peer_per_second(program, commands, work.slots)
            ends = _ends_s(running, due.at_s, commands)
        after = peer_per_second(program, commands, work.slots)
    rate, peer = commands / (max(ends) - due.at_s), (before + after) / 2
    return {
        "starts_per_second": round(rate, 1),
        "loop_per_second": round(peer, 1),
        "starts_to_loop": round(rate / peer, 3),
    }


def _ends_s(running: Any, at_s: int, commands: int) -> list[float]:
    """Return when the commands of an instant ended, once all have."""
    sleep_until(at_s + 1)
    while True:
        time.sleep(1)
        if not rows_of(running.client, (at_s, at_s + 1), ("due", "begun", "launched"), 1):
            break
    rows = rows_of(running.client, (at_s, at_s + 1), ("succeeded",))
    if len(rows) != commands:
        raise RuntimeError(f"{len(rows)} of {commands} commands succeeded")
    return [row.finished_at_ms / 1000 for row in rows]


def build_peer(folder: Path) -> Path:
    """Compile the loop in C. Raises FileNotFoundError if there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError("cc: no C compiler is installed (Debian: apt install gcc)")
    program = folder / "starts"
    subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
    return program


def peer_per_second(program: Path, count: int, in_flight: int) -> float:
    """Return how many starts a second the loop in C makes."""
    argv = [str(program), str(count), str(in_flight), PROGRAM]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
    return float(count / json.loads(done.stdout)["seconds"])

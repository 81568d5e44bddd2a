"""What one run of the pump told, and the medians of all runs in README.md."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.processes import cpu_us
from bench.pump.fairness import Fairness
from bench.pump.workload import Workload
from bench.section import figure, write_section

README: Final = Path(__file__).resolve().parents[1] / "README.md"
BEGIN: Final = "<!-- the pump: written by `python -m bench.pump` -->"
END: Final = "<!-- end of the pump -->"
COLUMNS: Final = (
    "tasks/s", "least", "most", "CPU µs", "Jain, median", "least", "longest wait ms",
    "others meanwhile", "tasks done", "disk syncs/s", "cores others used",
)  # fmt: skip
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run: tasks that were reserved and completed in `seconds`, and what they cost.

    `cpu_us` is the CPU time of all processes for a task. `strangers` is how many cores were busy
    meanwhile with what does not belong to the bench.
    """

    tasks: int
    seconds: float
    cpu_us: float
    fairness: Fairness
    fdatasync_per_second: int = 0
    strangers: float = 0.0

    @property
    def rate(self) -> float:
        """Tasks a second."""
        return self.tasks / self.seconds


class Cores:
    """What all processes of this machine use, beside those of the bench, since this was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._machine_us, self._ours_us = machine_us(), cpu_us(os.getpid())

    def strangers(self) -> float:
        """Return how many cores others kept busy, on the average."""
        machine = machine_us() - self._machine_us
        ours = cpu_us(os.getpid()) - self._ours_us
        return max(0.0, (machine - ours) / 1e6 / (time.monotonic() - self._began))


def machine_us(stat: str | None = None) -> int:
    """Return the CPU time of this machine that was not idle, stolen by its host or waited for a
    disk, from the first line of /proc/stat (proc(5))."""
    line = Path("/proc/stat").read_text().partition("\n")[0] if stat is None else stat
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, line.split()[1:])
    return (user + nice + system + irq + softirq) * 1_000_000 // _TICKS_PER_S


def row(runs: Sequence[Run]) -> list[str]:
    """Return the cells of COLUMNS: medians of the runs, and the least and most tasks a second."""
    rates = [run.rate for run in runs]
    waits = [run.fairness.longest_wait for run in runs]
    over = "> " if any(wait.is_open for wait in waits) else ""
    least = [run.fairness.jain_least for run in runs if run.fairness.jain_least is not None]

    def middle(take: Callable[[Run], float | None]) -> str:
        found = [value for run in runs if (value := take(run)) is not None]
        return figure(statistics.median(found) if found else None)

    return [
        *(figure(statistics.median(rates)), figure(min(rates)), figure(max(rates))),
        middle(lambda run: run.cpu_us),
        middle(lambda run: run.fairness.jain_median),
        figure(min(least, default=None)),
        over + figure(statistics.median(wait.seconds * 1_000 for wait in waits)),
        over + figure(statistics.median(wait.others for wait in waits)),
        middle(lambda run: run.tasks),
        middle(lambda run: run.fdatasync_per_second),
        middle(lambda run: run.strangers),
    ]


def section(workload: Workload, runs: Sequence[Run]) -> str:
    """Return what stands between the marks of README.md."""
    many = f"{workload.tasks:,} tasks of {workload.tenants} tenants, medians of {len(runs)} runs"
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --: |" * len(COLUMNS)]
    lines.append("| " + " | ".join(row(runs)) + " |")
    shape = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    return "\n".join([f"{many}; {shape}.", "", *lines])


def write(workload: Workload, runs: Sequence[Run]) -> None:
    """Write the section into README.md."""
    write_section(README, BEGIN, END, section(workload, runs))

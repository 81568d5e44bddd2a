"""What bench.pump found: medians of its runs and the table in README.md."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.pump.run import Run
from bench.pump.workload import Workload
from bench.section import write_section

README: Final = Path(__file__).resolve().parents[1] / "README.md"
BEGIN: Final = "<!-- the pump: written by `python -m bench.pump` -->"
END: Final = "<!-- end of the pump -->"

COLUMNS: Final = (
    "queue", "batch", "clients", "tasks/s", "least", "most", "server CPU µs", "client CPU µs",
    "Jain, median", "least", "longest wait ms", "others meanwhile", "tasks done",
)  # fmt: skip


class Report(msgspec.Struct, kw_only=True):
    """All runs, and what was left out with the reason. `limit_s` is how long peers are measured."""

    workload: Workload
    limit_s: float
    rounds: int
    runs: list[Run] = []
    absent: list[str] = []

    def cases(self) -> list[list[Run]]:
        """Return the runs of each queue and batch, in the order in which they came first."""
        found: dict[tuple[str, int], list[Run]] = {}
        for run in self.runs:
            found.setdefault((run.name, run.batch), []).append(run)
        return list(found.values())


def figure(number: float | None) -> str:
    """Return a number as people read it: three digits, all of a large one; a dash for none."""
    if number is None:
        return "-"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def middle(runs: Sequence[Run], take: Callable[[Run], float | None]) -> float | None:
    """Return the median of a figure over the runs that have it."""
    found = [value for run in runs if (value := take(run)) is not None]
    return statistics.median(found) if found else None


def row(runs: list[Run]) -> list[str]:
    """Return the cells of one queue: medians, and the least and most tasks a second."""
    rates = [run.rate for run in runs]
    waits = [run.fairness.longest_wait for run in runs]
    over = "> " if any(wait.is_open for wait in waits) else ""
    least = [run.fairness.jain_least for run in runs if run.fairness.jain_least is not None]
    return [
        runs[0].name,
        figure(runs[0].batch or None),
        figure(runs[0].clients),
        figure(statistics.median(rates)),
        figure(min(rates)),
        figure(max(rates)),
        figure(middle(runs, lambda run: run.server_us)),
        figure(middle(runs, lambda run: run.client_us)),
        figure(middle(runs, lambda run: run.fairness.jain_median)),
        figure(min(least, default=None)),
        over + figure(statistics.median(wait.seconds * 1_000 for wait in waits)),
        over + figure(statistics.median(wait.others for wait in waits)),
        figure(statistics.median(run.tasks for run in runs)),
    ]


def table(report: Report) -> str:
    """Return the Markdown table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "| --- |" + " --: |" * (len(COLUMNS) - 1)]
    lines += ["| " + " | ".join(row(runs)) + " |" for runs in report.cases()]
    return "\n".join(lines)


def section(report: Report) -> str:
    """Return what stands between the marks of README.md."""
    shape = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    many = f"{report.workload.tasks:,} tasks of {report.workload.tenants} tenants"
    how = [
        f"{many}, medians of {report.rounds} runs; {shape}.",
        f"Where not all tasks are done, a peer's run ended after {figure(report.limit_s)} s.",
        f"Before, the disk could sync {spread(report, syncs_of)} small appends a second;",
        f"meanwhile, strangers kept {spread(report, strangers_of)} cores busy.",
    ]
    return "\n\n".join(["\n".join(how), table(report), *report.absent])


def syncs_of(run: Run) -> float:
    """Return how often the disk could sync just before a run."""
    return run.fdatasync_per_second


def strangers_of(run: Run) -> float:
    """Return how many cores others kept busy."""
    return run.strangers


def spread(report: Report, take: Callable[[Run], float]) -> str:
    """Return the least, the median and the greatest of a figure over all runs."""
    found = sorted(take(run) for run in report.runs)
    if not found:
        return "-"
    middle_one = statistics.median(found)
    return f"{figure(found[0])} to {figure(found[-1])} (median {figure(middle_one)})"


def write(report: Report) -> None:
    """Write the section into README.md."""
    write_section(README, BEGIN, END, section(report))

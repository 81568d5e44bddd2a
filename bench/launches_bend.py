"""Rising rates until launches are late: the test of ATF and what is beyond it, as a table."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.section import figure, write_section

ROOT: Final = Path(__file__).resolve().parents[1]
README: Final = ROOT / "bench" / "README.md"
RESULTS: Final = ROOT / "bench" / "results" / "launches_bend.jsonl"
BEGIN: Final = "<!-- handlers: written by `python -m bench.launches --bend` -->"
END: Final = "<!-- end of the handlers -->"
RATES: Final = (2_000, 5_000, 10_000, 15_000, 20_000, 30_000, 40_000, 50_000)
LATE_MS_MAX: Final = 5_000
"""ATF: 95 % of all tasks begin within 5 s of their time."""

COLUMNS: Final = {
    "rate": "wanted/s",
    "seconds": "s",
    "launches_per_second": "launches/s",
    "lateness_p50_ms": "late p50 ms",
    "lateness_p95_ms": "p95",
    "lateness_p99_ms": "p99",
    "lateness_max_ms": "max",
    "cpu_us_per_launch": "CPU µs/launch",
    "leader_us": "leader",
    "followers_us": "followers",
    "executors_us": "executors",
    "workers_us": "workers",
    "log_bytes_per_launch": "log B/launch",
    "missing": "missing",
    "skipped": "skipped",
    "failed": "failed",
    "open": "open",
    "fdatasync_per_second": "fdatasync/s",
    "loops_per_second": "loops/s",
}


class Plan(msgspec.Struct, frozen=True):
    """The test, a rate for some seconds; then rates, each for `step_s`."""

    rate: int
    seconds: int
    rates: tuple[int, ...]
    step_s: int


def climb(plan: Plan, measure: Callable[[int, int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the row of the test, and those of rising rates up to the first that bends."""
    rows = []
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("w") as results:
        for number, (rate, seconds) in enumerate(
            [(plan.rate, plan.seconds), *((rate, plan.step_s) for rate in sorted(plan.rates))]
        ):
            rows.append(measure(rate, seconds))
            print(json.dumps(rows[-1]), file=results, flush=True)
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            if number and bends(rows[-1]):
                break
    return rows


def bends(row: dict[str, Any]) -> str:
    """Return in which way a rate was too much, "" where it was borne."""
    p95 = row["lateness_p95_ms"]
    if p95 is None or p95 > LATE_MS_MAX:
        return "5 % are more than 5 s late"
    for what in ("missing", "skipped", "failed", "open"):
        if row[what]:
            return f"{row[what]:,} {what}"
    return "another leader" if row["leader_changed"] else ""


def table(rows: list[dict[str, Any]]) -> str:
    """Return the Markdown table."""
    lines = ["| " + " | ".join([*COLUMNS.values(), "bends"]) + " |"]
    lines.append("|" + " --: |" * len(COLUMNS) + " --- |")
    for row in rows:
        cells = [figure(row[key]) for key in COLUMNS]
        lines.append("| " + " | ".join([*cells, bends(row) or "-"]) + " |")
    return "\n".join(lines)


def section(rows: list[dict[str, Any]], processes: int, threads: int) -> str:
    """Return what stands between the marks of README.md."""
    shape = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    hosts = rows[0]["executors"]
    count = f"{processes} process{'es' * (processes > 1)}"
    beside = f"{hosts} executor{'s' * (hosts > 1)}, each with a worker of {count}"
    return f"Three replicas and {beside} of {threads} threads;\n{shape}.\n\n{table(rows)}"


def report(rows: list[dict[str, Any]], processes: int, threads: int, *, writes: bool) -> None:
    """Print the section, and put it into README.md."""
    text = section(rows, processes, threads)
    print(text)
    if writes:
        write_section(README, BEGIN, END, text)

"""`make bench`: launches at several rates and with several numbers of jobs, into bench/README.md;
then the log beside etcd (bench.consensus), into its own section.

Every case runs several times, each time in a new process with a new cell; the table has medians.
All rows go to bench/results/launches.jsonl as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.section import write_section

ROOT: Final = Path(__file__).resolve().parents[1]
README: Final = ROOT / "bench" / "README.md"
RESULTS: Final = ROOT / "bench" / "results" / "launches.jsonl"
BEGIN: Final = "<!-- measured: written by `make bench` -->"
END: Final = "<!-- end of what was measured -->"


class Case(msgspec.Struct, frozen=True):
    """One row of the table: launches a second wanted, and jobs that share them."""

    rate: int
    jobs: int


CASES: Final = (
    Case(10, 10),
    Case(100, 100),
    Case(1_000, 1_000),
    Case(1_000, 100_000),
    Case(2_000, 2_000),
    Case(5_000, 5_000),
)

COLUMNS: Final = {
    "jobs": "jobs",
    "rate": "wanted/s",
    "launches_per_second": "launches/s",
    "lateness_p50_ms": "late p50 ms",
    "lateness_p95_ms": "p95",
    "lateness_p99_ms": "p99",
    "cpu_us_per_launch": "CPU µs/launch",
    "log_bytes_per_launch": "log B/launch",
    "missing": "missing",
    "skipped": "skipped",
    "launches_per_fdatasync": "launches per fdatasync",
    "loops_per_launch": "loops per launch",
}


def measure(case: Case, seconds: int) -> dict[str, Any]:
    """Return one row of bench.launches, measured by a process of its own."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench.launches", "--rate", str(case.rate)),
            *("--jobs", str(case.jobs), "--seconds", str(seconds)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def with_ratios(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with what it is compared to the machine at that moment.

    `launches_per_fdatasync`: launches for each time that the disk could have been synced; above 1
    only because launches share entries. `loops_per_launch`: what else Python could have done.
    """
    return {
        **row,
        "launches_per_fdatasync": round(
            row["launches_per_second"] / row["fdatasync_per_second"], 3
        ),
        "loops_per_launch": round(row["cpu_us_per_launch"] * row["loops_per_second"] / 1e6),
    }


def medians(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of every column; of what is missing or skipped, the worst."""
    merged = {}
    for key in rows[0]:
        values = [row[key] for row in rows if row[key] is not None]
        middle = statistics.median(values) if values else "-"
        merged[key] = max(values, default=0) if key in ("missing", "skipped") else middle
    return merged


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table of merged rows."""
    lines = ["| " + " | ".join(COLUMNS.values()) + " |", "| " + "--: | " * len(COLUMNS)]
    lines += ["| " + " | ".join(_cell(row[key]) for key in COLUMNS) + " |" for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 or value.is_integer() else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def write_readme(text: str) -> None:
    """Replace what was measured before in bench/README.md; the prose around it stays."""
    write_section(README, BEGIN, END, text)


def main() -> int:
    """Measure all cases and write the table."""
    parser = argparse.ArgumentParser(prog="bench.run", description="measure and write README.md")
    parser.add_argument("--seconds", type=int, default=10, help="window of each run")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each case")
    parser.add_argument("--skip-log", action="store_true", help="launches only, not the log")
    options = parser.parse_args()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    merged = []
    with RESULTS.open("w") as results:
        for case in CASES:
            rows = []
            for _ in range(options.repeat):
                rows.append(with_ratios(measure(case, options.seconds)))
                print(json.dumps(rows[-1]), flush=True)
                print(json.dumps(rows[-1]), file=results, flush=True)
            merged.append(medians(rows))
    shape = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    how = f"Medians of {options.repeat} runs of {options.seconds} s each; {shape}."
    write_readme(f"{how}\n\n{table(merged)}")
    if not options.skip_log:
        subprocess.run([sys.executable, "-m", "bench.consensus"], cwd=ROOT, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What keeping costs: snapshots of a large State, and history of ten million launches.

`python -m bench.keeping` measures both, and launches with snapshots beside launches without, and
writes their section of bench/README.md; `--only snapshots|history|launches` measures one and prints
it, `--jobs` and `--launches` choose sizes. Every case runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.section import write_section

ROOT: Final = Path(__file__).resolve().parents[1]
README: Final = ROOT / "bench" / "README.md"
RESULTS: Final = ROOT / "bench" / "results" / "keeping.jsonl"
BEGIN: Final = "<!-- measured: written by `python -m bench.keeping` -->"
END: Final = "<!-- end of what was measured of keeping -->"

JOBS: Final = (1_000, 10_000, 100_000)
LAUNCHES: Final = (10_000, 100_000, 1_000_000, 10_000_000)

SNAPSHOTS: Final = {
    "jobs": "jobs",
    "open_launches": "open launches",
    "content_mb": "image MB",
    "file_mb": "file MB",
    "begin_ms": "begin ms",
    "pause_ms": "longest pause ms",
    "pause_idle_ms": "pause without ms",
    "write_s": "write and verify s",
    "raw_write_s": "dd of it s",
    "load_s": "load s",
}
BESIDE: Final = {
    "jobs": "jobs",
    "snapshots_s": "seconds between snapshots",
    "snapshots_stored": "snapshots stored",
    "launches_per_second": "launches/s",
    "lateness_p50_ms": "late p50 ms",
    "lateness_p95_ms": "p95",
    "lateness_p99_ms": "p99",
    "lateness_max_ms": "max",
    "cpu_us_per_launch": "CPU µs/launch",
    "missing": "missing",
}
HISTORY: Final = {
    "launches": "finished launches",
    "segments": "segments",
    "segment_bytes_per_launch": "B/launch in segments",
    "append_us": "CPU µs/launch to append",
    "seal_us": "to seal",
    "state_mb": "State image MB",
    "rss_mb": "RSS MB",
    "query_p50_ms": "history JOB p50 ms",
    "query_max_ms": "max ms",
    "all_ms": "history of all, in its middle, ms",
    "restart_s": "restart s",
}


def measure(kind: str, size: int) -> dict[str, Any]:
    """Return one row, measured by a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", f"bench.keeping_{kind}", str(size)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def measure_beside(case: tuple[int, int]) -> dict[str, Any]:
    """Return one row of bench.launches: so many jobs, so many seconds between snapshots."""
    jobs, snapshots_s = case
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench.launches", "--rate", "1000", "--seconds", "12"),
            *("--jobs", str(jobs), "--snapshots", str(snapshots_s)),
        ],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def medians(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def table(columns: dict[str, str], rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(columns.values()) + " |", "|" + " --: |" * len(columns)]
    lines += ["| " + " | ".join(_shown(row[name]) for name in columns) + " |" for row in rows]
    return "\n".join(lines)


def _shown(figure: float) -> str:
    if isinstance(figure, int) or figure >= 1_000:
        return f"{figure:,.0f}"
    return f"{figure:.3g}"


def repeated(
    kind: str, case: Any, take: Callable[[Any], dict[str, Any]], runs: int
) -> dict[str, Any]:
    """Measure a case several times; keep all rows and return the medians."""
    found = [take(case) for _ in range(1 if case == LAUNCHES[-1] else runs)]
    with RESULTS.open("a", encoding="utf-8") as results:
        results.writelines(json.dumps({"kind": kind} | row) + "\n" for row in found)
    row = medians(found)
    sys.stderr.write(f"{kind} {case}: {json.dumps(row)}\n")
    return row


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("snapshots", "launches", "history"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jobs", type=int, nargs="*", default=JOBS)
    parser.add_argument("--launches", type=int, nargs="*", default=LAUNCHES)
    options = parser.parse_args()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    beside = [(jobs, every) for jobs in options.jobs if jobs >= 1_000 for every in (0, 2)]
    kinds: dict[str, tuple[dict[str, str], list[Any], Callable[[Any], dict[str, Any]]]] = {
        "snapshots": (SNAPSHOTS, options.jobs, partial(measure, "snapshots")),
        "launches": (BESIDE, beside, measure_beside),
        "history": (HISTORY, options.launches, partial(measure, "history")),
    }
    parts = []
    for kind, (columns, cases, take) in kinds.items():
        if options.only in (None, kind):
            rows = [repeated(kind, case, take, options.runs) for case in cases]
            parts.append(table(columns, rows))
    text = "\n\n".join([f"Medians of {options.runs} runs, one of the largest history.", *parts])
    if options.only is None:
        write_section(README, BEGIN, END, text)
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()

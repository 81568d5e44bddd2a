"""Ten times what a cell bears: `make bench-overload FACTOR=10 SECONDS=300 KIND=command BUSY=2`.

    python -m bench.overload [--kind handler] [--factor 10] [--seconds 300] [--busy 2] [--json]
    python -m bench.overload --kind noop [--factor 2 4] [--borne 5000]

Slots set the capacity: `handler` has sixteen threads of workers for handlers that sleep 20 ms,
`command` 64 slots for commands that sleep 200 ms. With `noop` it is set by what the leader itself
bears. First the highest rate that a cell bears is searched, unless `--borne` says it. Then a new
cell is offered so many times as much, by jobs that are due every second, 100,000 at most. `--busy`
runs so many loops beside it all the time. Prints a JSON row for each factor; the table in README.md
keeps the rows of other kinds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

from bench.busy import busy_loops
from bench.search import search
from bench.section import figure, merge_rows
from bench.trees import ROOT, ProbeFailed, Tree, end_by_signals, run_probe, this_tree

README: Final = ROOT / "bench" / "README.md"
RESULTS: Final = ROOT / "bench" / "results" / "overload.jsonl"
BEGIN: Final = "<!-- overload: written by `make bench-overload` -->"
END: Final = "<!-- end of the overload -->"
WORKS: Final[dict[str, dict[str, Any]]] = {
    "handler": {"kind": "handler", "executors": 2, "threads": 8},
    "command": {"kind": "command", "executors": 1, "slots": 64, "line": "exec sleep 0.2"},
    "noop": {"kind": "noop"},
}
STARTS: Final = {"handler": 500, "command": 200, "noop": 6_000}
"""Where the search begins."""
FACTORS: Final = {"handler": [10], "command": [10], "noop": [2, 4]}
JOBS_MAX: Final = 100_000
SEARCH_S: Final = (10, 30)
SEARCH_LIMIT_S: Final = 480
RECOVERY_S: Final = 60
"""So long the cell is looked at when the overload is over."""
COUNT_S: Final = 600
"""For the cell to start, to be well again, and for its launches to be counted."""

COLUMNS: Final = {
    "offered_per_second": "offered/s",
    "borne_per_second": "borne/s",
    "goodput_per_second": "goodput/s",
    "goodput_ratio": "goodput : borne",
    "leader_changes": "leader changes",
    "executors_lost": "executors lost",
    "rss_mb_max": "RSS MB, most",
    "missing": "missing",
    "recovered_s": "normal again after s",
    "lateness_p95_ms": "late p95 ms",
    "seconds": "s",
}


def measure(
    tree: Tree, kind: str, factors: list[int], seconds: int, borne: int | None
) -> Iterator[dict[str, Any]]:
    """Yield the row of each factor, after a search of what is borne where that is not given."""
    work, start = WORKS[kind], STARTS[kind]
    if borne is None:
        borne, _ = search(tree, work, start, SEARCH_S, SEARCH_LIMIT_S)
    for factor in factors:
        row: dict[str, Any] = {"kind": kind, "factor": factor, **dict.fromkeys(COLUMNS)}
        row.update(seconds=seconds, borne_per_second=borne)
        if borne is None:
            yield {**row, "failure": "no rate was borne"}
            continue
        offered = min(JOBS_MAX, borne * factor)
        row["offered_per_second"] = offered
        options = {"work": work, "borne": borne, "offered": offered, "seconds": seconds}
        options["recovery_s"] = RECOVERY_S
        try:
            row.update(run_probe(tree, "overload", options, seconds + COUNT_S))
        except ProbeFailed as failed:
            row["failure"] = str(failed)
        yield row


def troubles(row: dict[str, Any]) -> list[str]:
    """Return what is worse than it must be, as issue 13 has it."""
    if "failure" in row:
        return [row["failure"]]
    found = []
    if row["goodput_ratio"] < 0.8:
        found.append("goodput below 0.8")
    counts = ("leader_changes", "executors_lost", "missing", "lost")
    found += [f"{row[what]:,} {what.replace('_', ' ')}" for what in counts if row[what]]
    if row["missing"] is None:
        found.append("no audit")
    if row["rss_mb_max"] >= 600:
        found.append("600 MB and more")
    if row["recovered_s"] is None or row["recovered_s"] > 15:
        found.append("not normal again within 15 s")
    if row["unanswered"]:
        found.append(f"status gave no answer {row['unanswered']:,} times")
    return found


def line(row: dict[str, Any]) -> list[str]:
    """Return the cells of a row; the first one says which variant it is."""
    loops = f", {row['busy']} busy loops" if row["busy"] else ""
    cells = [f"{row['kind']}, {row['factor']} times{loops}"]
    cells += [figure(row[key]) for key in COLUMNS]
    return [*cells, row["commit"], "; ".join(troubles(row)).replace("|", "/") or "-"]


def main() -> int:
    """Measure, write the table and print the rows."""
    parser = argparse.ArgumentParser(prog="bench.overload", description="more than a cell bears")
    parser.add_argument("--kind", choices=tuple(WORKS), default="handler")
    parser.add_argument("--factor", type=int, nargs="+", help="default 10; 2 and 4 of no-ops")
    parser.add_argument("--seconds", type=int, default=300, help="how long it is offered")
    parser.add_argument("--borne", type=int, help="the rate that a cell bears, of an earlier run")
    parser.add_argument("--busy", type=int, default=0, help="loops beside it")
    parser.add_argument("--json", action="store_true", help="leave README.md alone")
    options = parser.parse_args()
    factors = options.factor or FACTORS[options.kind]
    if min(options.seconds, *factors) < 1 or options.busy < 0:
        parser.error("--seconds and --factor are at least 1, --busy at least 0")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    end_by_signals()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    tree = this_tree()
    with RESULTS.open("a", encoding="utf-8") as results, busy_loops(options.busy):
        for row in measure(tree, options.kind, factors, options.seconds, options.borne):
            row.update(busy=options.busy, commit=tree.commit)
            print(json.dumps(row), file=results, flush=True)
            if not options.json:
                columns = ("launches", *COLUMNS.values(), "commit", "what went badly")
                merge_rows(README, BEGIN, END, columns, [line(row)])
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

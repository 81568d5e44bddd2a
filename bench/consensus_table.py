"""What bench.consensus found: medians, ratios within each round, and the tables of README.md."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import failover
from bench.section import write_section
from bench.workloads import WORKLOADS, Measured, Workload

README: Final = Path(__file__).resolve().parent / "README.md"
BEGIN: Final = "<!-- the log: written by `make bench` -->"
END: Final = "<!-- end of the log -->"

Round = dict[str, dict[str, Measured]]
"""What each kind of client (`inside`, `outside`, `etcd`, ...) measured, by workload."""


class Report(msgspec.Struct, kw_only=True):
    """All rows of a run; `etcd` is its version, or None where it is not installed."""

    etcd: str | None
    seconds: float
    rounds: int
    physics: list[dict[str, int]] = []
    rates: list[Round] = []
    failovers_ms: dict[str, dict[str, list[float]]] = {}
    idle: dict[str, dict[str, float]] = {}
    catching_up: list[dict[str, Any]] = []

    def median(self, kind: str, workload: Workload, field: str) -> float | None:
        """Return the median of one figure over the rounds; None if it was not measured."""
        values = [
            getattr(row[kind][workload.name], field)
            for row in self.rates
            if workload.name in row.get(kind, {})
        ]
        return statistics.median(values) if values else None

    def ratio(self, kind: str, workload: Workload) -> float | None:
        """Return the median over the rounds of our rate by etcd's in the same round."""
        pairs = [
            row[kind][workload.name].items_per_second / best
            for row in self.rates
            if (best := best_of_etcd(row, workload))
        ]
        return round(statistics.median(pairs), 2) if pairs else None

    def ratios(self) -> dict[str, float | None]:
        """Return every ratio of rates, and of the medians of failover and idle CPU, to etcd."""
        found = {
            f"{workload.name}, client {where}": self.ratio(kind, workload)
            for workload in WORKLOADS
            for kind, where in (("inside", "in the leader"), ("outside", "apart"))
        }
        for how, took in self.failovers_ms.items():
            if "etcd" in took:
                ours, theirs = (statistics.median(took[one]) for one in ("ours", "etcd"))
                found[f"failover time, {how}"] = round(ours / theirs, 2)
        if "etcd" in self.idle:
            ours, theirs = (self.idle[one]["cpu_percent_mean"] for one in ("ours", "etcd"))
            found["idle CPU"] = round(ours / theirs, 2) if theirs else None
        return found


def best_of_etcd(row: Round, workload: Workload) -> float:
    """Return etcd's best rate of a round, whatever client it was measured with; 0 without etcd."""
    rates = [
        kind[workload.name].items_per_second
        for name, kind in row.items()
        if name.startswith("etcd") and workload.name in kind
    ]
    return max(rates, default=0.0)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table; the first column is text, the others numbers."""
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " --: |" * (len(head) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def figure(value: float | None) -> str:
    """Return a number as a reader wants it: three digits, or all of a large one."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def rates_table(report: Report) -> str:
    """Return rates and latencies of each workload, and the ratios to etcd."""
    head = [
        "workload", "ours /s", "p50 ms", "p99 ms", "client apart /s", "p50 ms", "p99 ms",
        "etcd /s", "p50 ms", "p99 ms", "ours : etcd", "apart : etcd", "per fdatasync",
        "ours CPU µs", "etcd CPU µs",
    ]  # fmt: skip
    rows = []
    for workload in WORKLOADS:
        row = [workload.name]
        for kind in ("inside", "outside", "etcd"):
            row += [
                figure(report.median(kind, workload, field))
                for field in ("items_per_second", "p50_ms", "p99_ms")
            ]
        row += [figure(report.ratio(kind, workload)) for kind in ("inside", "outside")]
        row.append(figure(_per_fdatasync(report, workload)))
        costs = (
            report.median(kind, workload, "replicas_us_per_item") for kind in ("inside", "etcd")
        )
        row += [figure(cost) for cost in costs]
        rows.append(row)
    return markdown(head, rows)


def _per_fdatasync(report: Report, workload: Workload) -> float | None:
    size = "fdatasync_100" if workload.value_bytes == 100 else "fdatasync_2048"
    pairs = [
        row["inside"][workload.name].items_per_second / physics[size]
        for row, physics in zip(report.rates, report.physics, strict=True)
    ]
    return statistics.median(pairs) if pairs else None


def clients_table(report: Report) -> str:
    """Return what etcd's rate depended on: the client."""
    crowded = [w for w in WORKLOADS if w.items == 1 and w.in_flight > 1]
    kinds = {
        "etcd": "one client",
        "etcd_two_clients": "two clients, 25 in flight each",
        "etcd_grpcio": "one client, grpcio",
    }
    rows = [
        [
            f"{workload.name}, {label}",
            figure(report.median(kind, workload, "items_per_second")),
            figure(report.median(kind, workload, "cpu_percent")),
        ]
        for workload in crowded
        for kind, label in kinds.items()
    ]
    return markdown(["etcd", "puts/s", "CPU % of the busiest client"], rows)


def failover_table(report: Report) -> str:
    """Return how long the loss of a leader was felt."""
    keys = ("times", "median_ms", "p90_ms", "max_ms")
    rows = []
    for how, both in report.failovers_ms.items():
        for name, took in both.items():
            told = failover.summarize(took)
            rows.append([f"{how}, {name}", *(figure(told[key]) for key in keys)])
    return markdown(["failover", "times", "median ms", "p90 ms", "max ms"], rows)


def idle_table(report: Report) -> str:
    """Return what a replica costs that has nothing to do."""
    keys = ("cpu_percent", "cpu_percent_mean", "rss_mb")
    rows = [[name, *(figure(row[key]) for key in keys)] for name, row in report.idle.items()]
    return markdown(["idle", "CPU % of the busiest", "mean CPU %", "RSS MB, the largest"], rows)


CATCHING_UP: Final = {
    "behind": "behind by",
    "megabytes": "MB",
    "level_ms": "level after ms",
    "elections": "elections",
    "quiet_ack_gap_ms": "quiet: ack",
    "quiet_tick_gap_ms": "tick",
    "filling_ack_gap_ms": "filling: ack",
    "filling_tick_gap_ms": "tick",
    "dumping_ack_gap_ms": "dumping: ack",
    "dumping_tick_gap_ms": "tick",
    "catching_up_ack_gap_ms": "catching up: ack",
    "catching_up_tick_gap_ms": "tick",
}


def catching_up_table(report: Report) -> str:
    """Return the longest gaps, in milliseconds, before and while a follower catches up."""
    rows = [
        [row["behind"], *(figure(row.get(key)) for key in CATCHING_UP if key != "behind")]
        for row in report.catching_up
    ]
    return markdown(list(CATCHING_UP.values()), rows)


def section(report: Report) -> str:
    """Return what stands between the marks of README.md."""
    shape = f"{os.cpu_count()} cores, {_memory()}, Python {platform.python_version()}"
    rival = f"etcd {report.etcd}" if report.etcd else "etcd is not installed here: no ratios"
    how = (
        f"Medians of {report.rounds} rounds, {figure(report.seconds)} s a figure; {shape}; {rival}."
    )
    syncs = " and ".join(
        f"{figure(statistics.median(row[key] for row in report.physics))} of {label}"
        for key, label in (("fdatasync_100", "100 B"), ("fdatasync_2048", "2 KB"))
    )
    physics = f"The disk: appends that can be synced a second, one at a time: {syncs}."
    parts: list[tuple[object, Callable[[Report], str]]] = [
        (report.rates, rates_table),
        (report.rates and report.etcd, clients_table),
        (report.failovers_ms, failover_table),
        (report.idle, idle_table),
        (report.catching_up, catching_up_table),
    ]
    tables = [table for measured, table in parts if measured]
    return "\n\n".join([how, physics, *(table(report) for table in tables)])


def _memory() -> str:
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"


def write(report: Report) -> None:
    """Write the section into README.md."""
    write_section(README, BEGIN, END, section(report))

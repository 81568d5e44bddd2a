"""Does a flood of one tenant and one handler slow the others? Their lateness before and during it.

    python -m bench.flood [--seconds 20] [--flood 20000] [--json]

Three replicas and one executor with the default buffer. One worker with 64 threads serves both
handlers, so they share its slots and what may wait there. Ten small tenants launch each second
one launch of the handler `flooded`, one of the handler `other`, and one command each. Then a huge
tenant has `--flood` launches of `flooded` due in the same second, each 20 ms long. It is measured
twice, each time with a new cell: with the limit that an operator would set, `raftcron limit set
--each-tenant --handler flooded --concurrent 48`, which leaves threads to others at all times; and
with no limit at all, when only the order of service protects the others. Writes a table into
README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.launches_cell import Running, Shape, ThreadPool, apply, ask, running_cell
from bench.launches_tally import percentile
from bench.probes.window import rows_of
from bench.pump.cell import Moment, moments
from bench.section import write_section
from cron.api.launches import LaunchView
from cron.api.limits import LimitChange
from cron.api.table import SET_LIMIT

ROOT: Final = Path(__file__).resolve().parents[1]
README: Final = ROOT / "bench" / "README.md"
RESULTS: Final = ROOT / "bench" / "results" / "flood.jsonl"
BEGIN: Final = "<!-- flood: written by `python -m bench.flood` -->"
END: Final = "<!-- end of the flood -->"

TENANTS: Final = 10
HUGE: Final = "huge"
HANDLERS: Final = ("flooded", "other")
THREADS: Final = 64
"""Of the one worker, for both handlers."""
SHAPE: Final = Shape(
    kind="handler",
    slots=TENANTS * 4,
    thread_pools=(ThreadPool("bench.flood_tasks:shared", threads=THREADS),),
)
"""An executor with the default buffer: launches that wait there keep no order of service."""
SETTLED_S: Final = 5
"""Between the jobs' arrival and the first second that counts."""
LEAD_S: Final = 12
"""And the least time up to the flood beside that."""
SETTLE_S: Final = 60.0

WHOSE: Final = {
    "flooded": "small tenants, flooded handler",
    "other": "small tenants, other handler",
    "command": "small tenants, commands",
    HUGE: "huge tenant, flooded handler",
}


class Variant(msgspec.Struct, frozen=True):
    """A limit that is set: launches at once of each tenant for the flooded handler; 0 is none."""

    name: str
    concurrent: int = 0


VARIANTS: Final = (Variant("each tenant: 48 at once", 48), Variant("no limits"))


class Lateness(msgspec.Struct, frozen=True):
    """How late launches were, in milliseconds; None of none. `bad` did not succeed."""

    count: int
    p50: int | None
    p95: int | None
    p99: int | None
    most: int | None
    bad: int


def crontab(flood: int, due: Moment) -> str:
    """Return the jobs: those of each second, and the flood, due once."""
    lines = []
    for number in range(TENANTS):
        tenant = f"t{number}"
        lines += [f"#: name={tenant}/{who} handler={who}\n@every 1s" for who in HANDLERS]
        lines.append(f"#: name={tenant}/command\n@every 1s true")
    once = f"handler={HANDLERS[0]}\n@every {due.period_s}s"
    lines += [f"#: name={HUGE}/f{number} {once}" for number in range(flood)]
    return "\n".join(lines) + "\n"


def whose(row: LaunchView) -> str:
    """Return the key in WHOSE of whom a launch is of."""
    return HUGE if row.tenant == HUGE else row.job


def lateness(rows: Iterable[LaunchView]) -> Lateness:
    """Return how late these were; what has not started counts as bad, and not as on time."""
    found = list(rows)
    late = sorted(row.lateness_ms for row in found if row.lateness_ms is not None)
    bad = sum(row.count for row in found if row.state != "succeeded")
    p50, p95, p99, most = (percentile(late, share) for share in (50, 95, 99, 100))
    return Lateness(sum(row.count for row in found), p50, p95, p99, most, bad)


def compare(rows: list[LaunchView], flood_s: int, seconds: int) -> dict[str, dict[str, Lateness]]:
    """Return the lateness of everybody `before` the flood and `during` it, so many seconds each."""
    times = {"before": (flood_s - seconds, flood_s), "during": (flood_s, flood_s + seconds)}
    return {
        key: {
            when: lateness(
                row for row in rows if whose(row) == key and from_s <= row.scheduled_s < to_s
            )
            for when, (from_s, to_s) in times.items()
        }
        for key in WHOSE
    }


def measure(variant: Variant, flood: int, seconds: int) -> dict[str, Any]:
    """Return what a flood did to everybody, in a cell of its own.

    Raises:
        TimeoutError: the jobs were not there in time.
    """
    with (
        tempfile.TemporaryDirectory(prefix="raftcron-bench-") as name,
        running_cell(Path(name), SHAPE) as running,
    ):
        due = moments(int(time.time()) + LEAD_S + SETTLED_S + seconds)[0]
        if variant.concurrent:
            limit = LimitChange(tenant="*", pool="flooded", concurrent=variant.concurrent)
            ask(lambda: running.client.ask(SET_LIMIT, limit))
        apply(running.client, crontab(flood, due))
        if time.time() > due.at_s - seconds:
            raise TimeoutError(f"{flood} jobs were not applied in time")
        time.sleep(max(0.0, due.at_s + seconds + 1 - time.time()))
        rows = [*_rows(running, due.at_s - seconds, due.at_s + seconds)]
    return {
        "variant": variant.name,
        "flood": flood,
        "seconds": seconds,
        "whose": msgspec.to_builtins(compare(rows, due.at_s, seconds)),
    }


def _rows(running: Running, from_s: int, to_s: int) -> Iterator[LaunchView]:
    """Yield every row of these seconds, once those of small tenants are over or long enough."""
    deadline = time.monotonic() + SETTLE_S
    for second in range(from_s, to_s):
        period = (second, second + 1)
        while True:
            found = ask(lambda period=period: rows_of(running.client, period))  # type: ignore[misc]
            if not any(row.is_open for row in found) or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        yield from found


def table(runs: list[dict[str, Any]]) -> str:
    """Return the Markdown table."""
    heads = ("limits", "launches of", "when", "launches", "late p50 ms", "p95", "p99", "max", "bad")
    lines = ["| " + " | ".join(heads) + " |", "| --- | --- | --- |" + " --: |" * 6]
    for run in runs:
        for key, whom in WHOSE.items():
            for when, found in run["whose"][key].items():
                if found["count"]:
                    cells = [run["variant"], whom, when, *map(figure, found.values())]
                    lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figure(value: int | None) -> str:
    """Return a number as people read it; a dash for none."""
    return "-" if value is None else f"{value:,}"


def section(runs: list[dict[str, Any]]) -> str:
    """Return what stands between the marks of README.md."""
    shape = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    run = runs[0]
    many = f"{run['flood']:,} launches at once, {run['seconds']} s before and {run['seconds']} s"
    return f"A flood of {many} from its first second on;\n{shape}.\n\n{table(runs)}"


def main() -> int:
    """Measure both variants, and write or print the table."""
    parser = argparse.ArgumentParser(prog="bench.flood", description="a flood, and the others")
    parser.add_argument("--seconds", type=int, default=20, help="before the flood, and during it")
    parser.add_argument("--flood", type=int, default=20_000, help="launches of the huge tenant")
    parser.add_argument("--json", action="store_true", help="leave README.md alone")
    options = parser.parse_args()
    if min(options.seconds, options.flood) < 1:
        parser.error("--seconds and --flood are at least 1")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    runs = []
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("w") as results:
        for variant in VARIANTS:
            runs.append(measure(variant, options.flood, options.seconds))
            print(json.dumps(runs[-1]), file=results, flush=True)
    text = section(runs)
    print(text)
    if not options.json:
        write_section(README, BEGIN, END, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Ten thousand executors lose their leader and come back at once: who suffers, and for how long?

    python -m bench.reconnect --executors 10000 [--rate 50] [--crowds 4] [--readme]

Three replicas of a cell run as they do anywhere. Executors are light stand-ins, many in a process
(`bench/reconnect_stand.py`), which speak the whole protocol. While some launches are due each
second, the leader is killed with SIGKILL and stays dead. All executors notice in the same
millisecond.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from bench.launches_cell import REPLICA, ROOT, Running, Shape, apply, ask, running_cell
from bench.launches_tally import percentile
from bench.load import make_load
from bench.probes.window import rows_of
from bench.processes import cpu_us, resident_bytes
from bench.reconnect_stand import boot_ms
from bench.section import write_section
from cron.api.launches import LaunchView

README: Final = Path(__file__).with_name("README.md")
BEGIN: Final = "<!-- reconnect: written by `python -m bench.reconnect --readme` -->"
END: Final = "<!-- end of the reconnect -->"
LEASES: Final = "\n[lease]\nheartbeat_ms = 5000\nself_kill_ms = 20000\ngive_up_ms = 30000\n"
"""The product's own times."""
WORK_MS: Final = 300
BEFORE_S: Final = 10
STEADY_S: Final = 5
AFTER_S: Final = 15
SOON_S: Final = 3
GIVE_UP_S: Final = 180.0
POLL_S: Final = 0.5
JOBS_PERIOD_S: Final = 2


class BigShape(Shape, frozen=True, kw_only=True):
    """A cell whose executors are somewhere else."""

    def replica_text(self, folder: Path) -> str:
        """Return what the configuration of a replica says."""
        return f"{REPLICA}{LEASES}"


class Crowd:
    """A process full of executors."""

    def __init__(self, first: int, count: int, replicas: list[str], log: Path) -> None:
        argv = ["-m", "bench.reconnect_stand", "--first", str(first), "--count", str(count)]
        with log.open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, *argv, "--work-ms", str(WORK_MS), "--replicas", *replicas],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )

    def put(self, question: str) -> None:
        """Ask; `get` has the answer."""
        if self.process.stdin is not None:
            self.process.stdin.write(f"{question}\n")
            self.process.stdin.flush()

    def get(self) -> dict[str, Any]:
        """Return the answer to what was asked."""
        line = self.process.stdout.readline() if self.process.stdout is not None else ""
        if not line:
            raise ChildProcessError("a crowd of executors ended; RECONNECT_LOGS=DIR keeps its log")
        found: dict[str, Any] = json.loads(line)
        return found


class Crowds:
    """All executors."""

    def __init__(self, executors: int, crowds: int, replicas: list[str], folder: Path) -> None:
        bounds = [executors * i // crowds for i in range(crowds + 1)]
        self.crowds = [
            Crowd(first, end - first, replicas, folder / f"crowd-{first}.log")
            for first, end in itertools.pairwise(bounds)
            if end > first
        ]

    def ask(self, question: str) -> list[dict[str, Any]]:
        """Return every process's answer."""
        for crowd in self.crowds:
            crowd.put(question)
        return [crowd.get() for crowd in self.crowds]

    def leased(self, but: str = "") -> int:
        """Return how many have a lease, of another term than `but`."""
        found: Counter[str] = Counter()
        for one in self.ask("count"):
            found.update(one)
        return sum(count for term, count in found.items() if term not in ("0", but))

    def wait(self, number: int, but: str = "") -> float:
        """Return after how many seconds so many have a lease; GIVE_UP_S if they never do."""
        began = time.monotonic()
        while (leased := self.leased(but)) < number and time.monotonic() - began < GIVE_UP_S:
            sys.stderr.write(f"{leased} of {number}\n")
            time.sleep(POLL_S)
        return time.monotonic() - began

    def term(self) -> str:
        """Return the term of which most have a lease."""
        found: Counter[str] = Counter()
        for one in self.ask("count"):
            found.update(one)
        found.pop("0", None)
        return found.most_common(1)[0][0]

    def close(self) -> None:
        """End all."""
        for crowd in self.crowds:
            crowd.process.kill()
            crowd.process.wait()


def measure(executors: int, crowds: int, rate: int) -> dict[str, Any]:
    """Return the row of one run."""
    with tempfile.TemporaryDirectory(prefix="raftcron-reconnect-") as name:
        folder = Path(name)
        with running_cell(folder, BigShape(executors=0)) as running:
            many = Crowds(executors, crowds, servers(folder), folder)
            try:
                return through(running, many, executors, rate)
            finally:
                many.close()
                if keep := os.environ.get("RECONNECT_LOGS"):
                    for log in folder.glob("*.log"):
                        Path(keep).mkdir(parents=True, exist_ok=True)
                        (Path(keep) / log.name).write_bytes(log.read_bytes())


def servers(folder: Path) -> list[str]:
    """Return the client addresses, as they are configured."""
    texts = [(folder / f"r{n}.toml").read_text() for n in (1, 2, 3)]
    return [re.findall(r'^client = "(.+)"$', text, re.MULTILINE)[0] for text in texts]


def through(running: Running, many: Crowds, executors: int, rate: int) -> dict[str, Any]:
    """Kill the leader, and return what came of it."""
    joined_s = many.wait(executors)
    load = make_load(rate, rate * JOBS_PERIOD_S)
    apply(running.client, load.crontab())
    time.sleep(BEFORE_S)
    leader, term = running.leader(), many.term()
    from_s = int(time.time()) - BEFORE_S + SOON_S
    steady = cores(running.replicas[leader], STEADY_S)
    killed_ms, killed_wall_s = boot_ms(), time.time()
    os.kill(running.replicas[leader], signal.SIGKILL)
    back_s = many.wait(executors, but=term)
    heir = running.leader()
    peak_bytes = resident_bytes(running.replicas[heir])
    after = cores(running.replicas[heir], AFTER_S)
    until_s = int(time.time()) - SOON_S
    time.sleep(SOON_S)
    history, reports = history_of(running, from_s, until_s), many.ask("report")
    return {
        "executors": executors,
        "rate": rate,
        "joined_s": round(joined_s, 1),
        **elections(running.folder, killed_wall_s),
        **returns(reports, killed_ms),
        "back_s": round(back_s, 1),
        **lateness(history, killed_wall_s),
        **statuses(history, reports, load.due(from_s, until_s)),
        "leader_cores_before": steady,
        "heir_cores_after": after,
        "heir_mib": round(peak_bytes / (1 << 20)),
    }


def cores(pid: int, seconds: int) -> float:
    """Return how many cores a process takes for so many seconds."""
    spent = cpu_us(pid)
    time.sleep(seconds)
    return round((cpu_us(pid) - spent) / seconds / 1e6, 2)


def returns(reports: list[dict[str, Any]], killed_ms: int) -> dict[str, Any]:
    """Return when the executors had a lease again, and what they met on the way."""
    times, ends = [], Counter[str]()
    for report in reports:
        ends.update(report["ends"])
        for leased in report["leased"]:
            times += [at_ms - killed_ms for at_ms, _ in leased if at_ms > killed_ms][:1]
    times.sort()
    return {
        "back": len(times),
        "back_p50_ms": percentile(times, 50),
        "back_p95_ms": percentile(times, 95),
        "back_max_ms": percentile(times, 100),
        "streams": sum(len(one) for report in reports for one in report["leased"]),
        "visits": sum(report["visits"] for report in reports),
        "lapsed": sum(report["lapsed"] for report in reports),
        "ends": dict(ends.most_common(8)),
    }


def history_of(running: Running, from_s: int, until_s: int) -> list[LaunchView]:
    """Return the rows of all launches that were due in the window."""
    return ask(lambda: rows_of(running.client, (from_s, until_s)))


def elections(folder: Path, since_s: float) -> dict[str, Any]:
    """Return after how many milliseconds the first leader was elected since then, and how many."""
    found = []
    for path in folder.glob("r?.log"):
        for line in path.read_text(errors="replace").splitlines():
            if '"leader.elected"' in line:
                at = datetime.fromisoformat(json.loads(line)["at"]).timestamp()
                found += [round((at - since_s) * 1000)] if at > since_s else []
    return {"elected_ms": min(found, default=None), "elections": len(found)}


def lateness(rows: list[LaunchView], killed_s: float) -> dict[str, Any]:
    """Return how late launches were that were due before the kill, and after it."""
    told: dict[str, Any] = {}
    for name, wanted in (
        ("before", [row for row in rows if row.scheduled_s < killed_s - 1]),
        ("after", [row for row in rows if row.scheduled_s >= killed_s - 1]),
    ):
        late = sorted(row.lateness_ms for row in wanted if row.lateness_ms is not None)
        for share in (50, 95, 100):
            told[f"late_{name}_p{share}_ms"] = percentile(late, share)
    return told


def statuses(rows: list[LaunchView], reports: list[dict[str, Any]], due: int) -> dict[str, Any]:
    """Return what became of the launches, by the ledger and by those who ran them."""
    states = Counter(f"{row.state} {row.reason}".strip() for row in rows for _ in range(row.count))
    accepted: Counter[str] = Counter()
    for report in reports:
        for attempt, count in report["accepted"].items():
            accepted[attempt.partition("#")[0]] += count
    unseen = [row.launch for row in rows if row.state == "succeeded" and row.launch not in accepted]
    return {
        "due": due,
        "missing": due - sum(row.count for row in rows),
        "states": dict(states),
        "twice": sum(count > 1 for count in accepted.values()),
        "unseen": len(unseen),
    }


COLUMNS: Final = {
    "executors": "executors",
    "elected_ms": "leads after ms",
    "elections": "elections",
    "back_p50_ms": "50 % back ms",
    "back_p95_ms": "95 %",
    "back_max_ms": "all",
    "late_before_p95_ms": "late before p95 ms",
    "late_after_p50_ms": "after p50",
    "late_after_p95_ms": "after p95",
    "late_after_p100_ms": "after max",
    "due": "launches",
    "missing": "missing",
    "lost": "lost",
    "twice": "twice",
    "visits": "visits",
    "heir_mib": "leader MiB",
    "leader_cores_before": "leader cores",
}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = [f"| {' | '.join(COLUMNS.values())} |", f"| {' | '.join('--:' for _ in COLUMNS)} |"]
    for row in rows:
        lost = sum(count for state, count in row["states"].items() if state.startswith("lost"))
        cells = {**row, "lost": lost}
        lines.append(f"| {' | '.join(str(cells[key]) for key in COLUMNS)} |")
    return "\n".join(lines)


def main() -> int:
    """Measure, and print each row or write the table."""
    said = argparse.ArgumentParser(prog="python -m bench.reconnect")
    said.add_argument("--executors", type=int, nargs="+", default=[1_000, 10_000])
    said.add_argument("--crowds", type=int, default=4, help="processes that they are in")
    said.add_argument("--rate", type=int, default=50, help="launches a second meanwhile")
    said.add_argument("--readme", action="store_true", help="write the table into README.md")
    options = said.parse_args()
    if min(*options.executors, options.crowds, options.rate) < 1:
        said.error("executors, crowds and rate are at least 1")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    rows = []
    for executors in options.executors:
        rows.append(measure(executors, options.crowds, options.rate))
        print(json.dumps(rows[-1]), flush=True)
    if options.readme:
        write_section(README, BEGIN, END, table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

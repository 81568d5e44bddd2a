"""One witnessed crontab through a fault, and what must hold of it afterwards.

A `Scene` is a cell that runs jobs of every kind; a test breaks something, and `end` says all that
is wrong: instants without a row, launches that ran twice or beside one another, an audit that sees
it differently from the witness, replicas that differ at the same position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from cron.api.launches import LaunchView
from cron.api.members import StatusRow
from cron.errors import OutcomeUnknown, Unavailable
from cron.scheduler.policy import FAILOVER_MS
from tests.cluster.harness import Cell, wait_until
from tests.cluster.witness import Run, read_runs, witnessed

FIRST_LAUNCH_S_MAX: Final = 30.0
"""What a failover may take on the busiest machine; the aim is 5 s, and the time is reported."""
SETTLED_S: Final = 60.0
JUST_S: Final = 0.7
"""Who began so short a time ago still runs when the fault comes."""

ELECTION: Final = "[election]\nmin_ms = 400\nmax_ms = 800\nheartbeat_ms = 80\n"
PATIENT: Final = (
    "[election]\nmin_ms = 1500\nmax_ms = 3000\nheartbeat_ms = 100\n"
    "[lease]\nheartbeat_ms = 300\nself_kill_ms = 12000\ngive_up_ms = 15000\n"
    "[limits]\nstart_window_ms = 15000\n"
)
"""Leases that outlive any failover here, so nothing may be lost by one; and no other leader is
elected because a busy machine kept the first one waiting."""
IMPATIENT: Final = (
    ELECTION + "[lease]\nheartbeat_ms = 300\nself_kill_ms = 3000\ngive_up_ms = 4500\n"
    "[limits]\nstart_window_ms = 5000\n"
)
"""Leases that end while a test watches."""


Property = Callable[[str, object], None]
"""pytest's `record_property`."""


class Kind:
    """A kind of job: its period, its options, how long its command runs."""

    def __init__(self, every_s: int, options: str, body: str) -> None:
        self.every_s = every_s
        self.options = options
        self.body = body

    @property
    def may_overlap(self) -> bool:
        """Whether two launches of it may run at once."""
        return "overlap=" not in self.options or "overlap=allow" in self.options


JOBS: Final = {
    "tick": Kind(1, "catchup=all", ":"),
    "brief": Kind(2, "catchup=all", "sleep 0.2"),
    "long": Kind(2, "catchup=all", "sleep 4"),
    "forbid": Kind(2, "overlap=forbid catchup=all", "sleep 1.2"),
    "queue": Kind(2, "overlap=queue catchup=all", "sleep 1"),
    "replace": Kind(2, "overlap=replace", "sleep 2.6"),
}


def uptime_s() -> float:
    """The clock that witnessed commands write down: seconds since boot, in hundredths."""
    return float(Path("/proc/uptime").read_text().split()[0])


class Scene:
    """Witnessed jobs on a cell, from their apply to the verdict."""

    def __init__(self, cell: Cell, file: Path, jobs: Mapping[str, Kind] = JOBS) -> None:
        self.cell = cell
        self.file = file
        self.jobs = dict(jobs)
        self.applied_s = 0
        self.differences: list[str] = []
        self.gap_s = 0.0  # the longest time in which nobody launched anything

    def begin(self) -> str:
        """Apply the crontab once there is a leader and an executor; return who leads."""
        leader = self.cell.leader()
        self.cell.wait_connected()
        self.cell.apply("".join(self._line(name) for name in self.jobs))
        self.applied_s = int(time.time())
        return leader

    def epoch(self) -> str:
        """The epoch of the leader, once there is one."""
        leader = self.cell.leader()
        term = next(row.term for row in self.cell.status() if row.id == leader)
        return f"1.{term}.{leader}"

    def _line(self, name: str) -> str:
        kind = self.jobs[name]
        command = witnessed(self.file, kind.body)
        return f"#: name={name} {kind.options}\n@every {kind.every_s}s {command}\n"

    # ---- while it runs

    def runs(self) -> list[Run]:
        """What was witnessed so far, by first start."""
        return list(read_runs(self.file).values())

    def wait_runs(self, number: int, what: str = "", **wanted: Any) -> list[Run]:
        """Return the runs that `after` (uptime) and `but` (epochs) allow, once there are enough."""

        def enough() -> list[Run]:
            found = [run for run in self.runs() if is_wanted(run, **wanted)]
            return found if len(found) >= number else []

        return list(wait_until(enough, 2 * FIRST_LAUNCH_S_MAX, what or f"{number} runs"))

    def wait_running(self, *jobs: str) -> dict[str, Run]:
        """Return a run of each of these jobs that has just begun, of one moment."""
        wanted = {f"default/{job}" for job in jobs}

        def running() -> dict[str, Run]:
            since_s = uptime_s() - JUST_S
            found = {run.job: run for run in self.runs() if run.at_s > since_s and run.end < 0}
            return found if wanted <= set(found) else {}

        found = wait_until(running, FIRST_LAUNCH_S_MAX, f"{jobs} to run at once")
        return {job: found[f"default/{job}"] for job in jobs}

    def epochs(self) -> list[str]:
        """The epochs that launched something, in order."""
        return list(dict.fromkeys(run.epoch for run in self.runs() if run.starts))

    def report(self, record: Property, fault: str, since_s: float, but: Collection[str]) -> None:
        """Say how long after a fault another epoch than `but` first launched something."""
        first = self.wait_runs(1, "the first launch afterwards", after=since_s, but=but)[0]
        took_s = round(first.at_s - since_s, 2)
        record("first_launch_s", took_s)
        self.gap_s = max(self.gap_s, took_s)
        print(f"{fault}: first launch {took_s} s afterwards (aim: under 5 s)")
        assert took_s < FIRST_LAUNCH_S_MAX

    def look(self) -> list[StatusRow]:
        """The replicas' rows; notes each pair of different digests at one position."""
        rows = [row for row in self.cell.status() if row.kind == "replica" and row.digest]
        seen: dict[int, StatusRow] = {}
        for row in rows:
            other = seen.setdefault(row.applied, row)
            if other.digest != row.digest:
                text = f"{other.id} {other.digest} and {row.id} {row.digest} at {row.applied}"
                self.differences.append(text)
        return rows

    # ---- afterwards

    def ledger(self) -> list[LaunchView]:
        """All rows of the ledger, from whoever answers."""
        return list(asked(self.cell.history))

    def lost_or_missed(self) -> list[str]:
        """What a failover within all leases and deadlines may not bring about.

        On a machine so slow that nobody led for as long as an instant may be live, what was due
        then is missed, as it should be.
        """
        is_slow = self.gap_s * 1000 > FAILOVER_MS - 2_000
        reasons = ("fenced",) if is_slow else ("missed", "fenced")
        bad = [row for row in self.ledger() if row.state == "lost" or row.reason in reasons]
        return [f"{row.launch} {row.state} {row.reason} {row.count}" for row in bad]

    def row(self, run: Run) -> LaunchView:
        """The ledger's row of one witnessed run, once it has ended."""

        def ended() -> LaunchView | None:
            rows = [one for one in self.ledger() if one.kind != "amendment"]
            found = [row for row in rows if (row.launch, row.attempt) == (run.launch, run.attempt)]
            return found[0] if found and not found[0].is_open else None

        row = wait_until(ended, SETTLED_S, f"the end of {run.launch}")
        assert isinstance(row, LaunchView)
        return row

    def end(self) -> list[str]:
        """Pause all jobs, wait until nothing is open, and return all that is wrong."""
        self.cell.cli("pause", "*")
        paused_s = int(time.time())
        wait_until(self._is_settled, SETTLED_S, "no launch to be open")
        wait_until(self._agree, SETTLED_S, "three replicas at one position")
        audit = self.cell.cli("audit", expect=None)
        violations = [] if audit.returncode == 0 else [f"audit: {audit.returncode} {audit.stdout}"]
        wrong = self.cell.judge(
            self.file,
            every_s={f"default/{name}": kind.every_s for name, kind in self.jobs.items()},
            forbids=[f"default/{name}" for name, kind in self.jobs.items() if not kind.may_overlap],
        )
        return wrong + violations + self._missing(paused_s) + self.differences

    def _is_settled(self) -> bool:
        return not any(row.is_open for row in self.ledger())

    def _agree(self) -> bool:
        rows = self.look()
        return len(rows) == len(self.cell.replicas) and len({row.applied for row in rows}) == 1

    def _missing(self, until_s: int) -> list[str]:
        """Instants between apply and pause that the ledger says nothing of."""
        rows = self.ledger()
        wrong = []
        for name, kind in self.jobs.items():
            known = {at_s for row in rows if row.job == name for at_s in instants(row, kind)}
            first_s = -(-(self.applied_s + 1) // kind.every_s) * kind.every_s
            missing = sorted(set(range(first_s, until_s, kind.every_s)) - known)
            wrong += [f"{name} has no row for {missing}"] if missing else []
        return wrong


def is_wanted(run: Run, *, after: float = 0.0, but: Collection[str] = (), job: str = "") -> bool:
    """Whether a run began after an uptime, in another epoch than some, of some job."""
    is_its = not job or run.job == f"default/{job}"
    return bool(run.starts) and run.at_s >= after and run.epoch not in but and is_its


def instants(row: LaunchView, kind: Kind) -> range:
    """The instants that a row of the ledger speaks of."""
    return range(row.scheduled_s, max(row.scheduled_s, row.last_s) + 1, kind.every_s)


def asked(question: Callable[[], Any]) -> Any:
    """Return the answer to a question that is asked again while nobody leads."""

    def answer() -> list[Any]:
        try:
            return [question()]
        except (Unavailable, OutcomeUnknown):
            return []

    return wait_until(answer, FIRST_LAUNCH_S_MAX, "an answer")[0]

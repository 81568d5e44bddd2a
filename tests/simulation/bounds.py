"""What must not begin: more than limits allow, what a gate holds, and anything where is drained.

Judged by what the cell believes to run, which is what State has open, whoever leads. A leader may
not have seen yet what was changed just now; so a limit, a gate or a drain counts a while later.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

from cron.job import Overlap
from cron.state import commands as c
from cron.state import pool as p
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Outcome, Verdict
from cron.state.state import State
from launcher.protocol.names import split_job_name
from tests.batches import answered

UNSEEN_MS = 10_000
"""For so long an entry may be on its way that was written without knowing of a change."""
UNLIMITED = 1 << 30
EVERYBODY: p.Scope = ("", "command", -1)


class Bounds:
    """Reads the log, after it was applied."""

    def __init__(self, accuse: Callable[[str, str], None], wall_ms: Callable[[], int]) -> None:
        self._accuse = accuse
        self._wall_ms = wall_ms
        self._limits: list[tuple[int, dict[p.Scope, p.Limits]]] = [(0, {})]
        self._closed_ms: dict[int, int] = {}
        self._drained_ms: dict[str, int] = {}

    def restored(self, state: State) -> None:
        """The cell begins with this again."""
        self._limits = [(0, dict(state.limits))]
        self._closed_ms = dict.fromkeys(state.gates, 0)
        drained = [one.executor for one in state.executors.values() if one.drained_by]
        self._drained_ms = dict.fromkeys(drained, 0)

    def read(self, state: State, outcome: Outcome) -> None:
        """Read an entry that was accepted."""
        now_ms = self._wall_ms()
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, p.SetLimits):
                self._limits.append((now_ms, dict(state.limits)))
            elif isinstance(command, p.CloseGate) and result.verdict is Verdict.ACCEPTED:
                self._closed_ms[result.number] = now_ms
            elif isinstance(command, p.Drain) and result.verdict is Verdict.ACCEPTED:
                self._drained_ms[command.executor] = now_ms
            elif isinstance(command, c.Begin):
                verdicts = answered(command, result)
                begun = [item for item, verdict in verdicts if verdict == Verdict.ACCEPTED]
                self._begun(state, [state.active[item.key] for item in begun], now_ms)

    def _begun(self, state: State, rows: list[LaunchRow], now_ms: int) -> None:
        for tenant in dict.fromkeys(_tenant(state, row) for row in rows):
            mine = [row for row in state.active.values() if _tenant(state, row) == tenant]
            self._count(f"tenant {tenant}", len(mine), self._loosest(now_ms, tenant))
        if any(_is_command(row) for row in rows):
            commands = sum(map(_is_command, state.active.values()))
            self._count("everybody", commands, self._loosest(now_ms, ""))
        for number in dict.fromkeys(row.number for row in rows):
            job = state.by_number[number].job
            if job is not None and job.overlap is Overlap.ALLOW and job.concurrency:
                runs = sum(row.number == number for row in state.active.values())
                self._count(job.name, runs, job.concurrency)
        for row in rows:
            self._look_at_gates(state, row, now_ms)
            self._look_at_drains(state, row, now_ms)

    def _count(self, who: str, runs: int, limit: int) -> None:
        if runs > limit:
            self._accuse("m", f"{runs} launches of {who} run, {limit} may")

    def _loosest(self, now_ms: int, tenant: str) -> int:
        """The highest limit of those that a leader may go by, who has not heard of the newest."""
        newest = [0] + [i for i, (at, _) in enumerate(self._limits) if at < now_ms - UNSEEN_MS]
        return max(_most(limits, tenant) for _, limits in self._limits[newest[-1] :])

    def _look_at_gates(self, state: State, row: LaunchRow, now_ms: int) -> None:
        name = state.by_number[row.number].name
        for gate in state.gates.values():
            is_seen = self._closed_ms[gate.number] < now_ms - UNSEEN_MS
            is_closed = not gate.until_ms or state.at_ms < gate.until_ms
            fits = gate.tenant in ("", _tenant(state, row)) and fnmatchcase(name, gate.jobs or "*")
            if is_seen and is_closed and fits:
                self._accuse("m", f"{state.launch_name(row.key)} went through gate {gate.number}")

    def _look_at_drains(self, state: State, row: LaunchRow, now_ms: int) -> None:
        for start in row.starts():
            record = state.executors[start.executor]
            drained_ms = self._drained_ms.get(record.executor, now_ms)
            if record.drained_by and drained_ms < now_ms - UNSEEN_MS:
                name = state.launch_name(row.key)
                self._accuse("m", f"{name} was begun on {record.executor}, which is drained")


def _is_command(row: LaunchRow) -> bool:
    return row.job is not None and not row.job.work.handler


def _tenant(state: State, row: LaunchRow) -> str:
    return split_job_name(state.by_number[row.number].name)[0]


def _most(limits: dict[p.Scope, p.Limits], tenant: str) -> int:
    """How many launches of a tenant may run at once, or of all together."""
    scopes = [(tenant, "", -1), ("*", "", -1)] if tenant else [EVERYBODY]
    found = next((limits[scope] for scope in scopes if scope in limits), p.Limits())
    return max(found.concurrent, found.burst) if found.concurrent else UNLIMITED

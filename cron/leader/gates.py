"""Which closed gate holds the launches of a job: compared once for each change of either."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from cron.job import Job
from cron.state.pool import Gate, GateAction
from cron.state.state import JobRecord, State
from launcher.names import SCHEDULED_S_MAX, format_time, split_job_name

FOREVER_MS: Final = 1 << 62
"""Until somebody opens it."""


class Gates:
    """The gates of State, by job; `changed` when one was closed or opened."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[int, tuple[int, tuple[Gate, ...]]] = {}  # job number -> revision, gates

    def changed(self, numbers: Iterable[int]) -> list[int]:
        """Forget what was compared; return which of these jobs, by number, were or are held."""
        before = {number for number, (_, gates) in self._known.items() if gates}
        self._known.clear()
        records = [self._state.by_number[number] for number in numbers]
        return [
            record.number
            for record in records
            if record.job is not None and (record.number in before or self._of(record, record.job))
        ]

    def of(self, record: JobRecord, job: Job, now_ms: int) -> Gate | None:
        """Return the gate that holds its launches now, see `severest`."""
        if not self._state.gates:
            return None
        return severest(self._of(record, job), now_ms)

    def _of(self, record: JobRecord, job: Job) -> tuple[Gate, ...]:
        known = self._known.get(record.number)
        if known is None or known[0] != record.revision:
            gates = tuple(gate for gate in self._state.gates.values() if fits(gate, record, job))
            known = self._known[record.number] = (record.revision, gates)
        return known[1]


def fits(gate: Gate, record: JobRecord, job: Job) -> bool:
    """Whether a gate is for the launches of a job, whatever the time."""
    tenant, _ = split_job_name(record.name)
    named = (
        (gate.pool, job.pool),
        (gate.collection, job.collection),
        (gate.tenant, tenant),
    )
    if any(wanted and wanted != had for wanted, had in named):
        return False
    if gate.priority >= 0 and gate.priority != job.work.priority:
        return False
    return not gate.jobs or fnmatchcase(record.name, gate.jobs)


def severest(gates: Iterable[Gate], now_ms: int) -> Gate | None:
    """Return which of these gates decides now; one that drops goes before one that pauses, and of
    those that pause the one that lasts longest."""
    held = [gate for gate in gates if gate.holds(now_ms)]
    return max(held, key=_severity, default=None)


def gate_of(state: State, record: JobRecord, job: Job, now_ms: int) -> Gate | None:
    """Return the gate that holds the launches of a job now; compares all gates with it."""
    return severest((gate for gate in state.gates.values() if fits(gate, record, job)), now_ms)


def tell_gate(gate: Gate) -> str:
    """Return which gate, by whom, until when and why: once it is opened nothing else knows."""
    until_s = min(max(gate.until_ms // 1000, 0), SCHEDULED_S_MAX)  # later times have no names
    until = f"until {format_time(until_s)}" if gate.until_ms else "until it is opened"
    why = f": {gate.reason}" if gate.reason else ""
    return f"gate {gate.number}, closed by {gate.by or 'somebody'} {until}{why}"


def _severity(gate: Gate) -> tuple[bool, int]:
    return (gate.action is GateAction.DROP, gate.until_ms or FOREVER_MS)

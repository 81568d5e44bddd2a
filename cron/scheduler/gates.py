"""Which closed gate holds the launches of a job: computed once for each change of either. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase, translate
from typing import Final, NamedTuple

from cron.job import Job
from cron.launch_state import LaunchState
from cron.notes import Note, NoteCode
from cron.state.launch_row import LaunchRow
from cron.state.pool import HELD_MS_MAX, Gate, GateAction
from cron.state.state import JobRecord, State
from launcher.protocol.names import split_job_name

FOREVER_MS: Final = 1 << 62
"""Until somebody opens it."""


class Gates:
    """The gates of State, by job."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[int, tuple[int, tuple[Gate, ...]]] = {}  # job number -> revision, gates
        # Job number -> revision and format of State, times.
        self._times: dict[int, tuple[tuple[int, int], list[Closed]]] = {}
        self._index = _Index(state.gates)

    def changed(self, numbers: Iterable[int]) -> list[int]:
        """Update what is known of these jobs, by number, after a gate was closed or opened; return
        those that a changed gate holds or has held. Other jobs are compared when they are asked
        for."""
        before, self._index = self._index.gates, _Index(self._state.gates)
        came = [gate for number, gate in self._index.gates.items() if number not in before]
        went = before.keys() - self._index.gates.keys()
        known, self._known = self._known, {}
        self._times.clear()
        found = []
        for number in numbers:
            record = self._state.by_number[number]
            if record.job is None:
                continue
            had = known.get(number)
            if had is None or had[0] != record.revision:
                if self._of(record, record.job) or had is not None:
                    found.append(number)
                continue
            kept = tuple(gate for gate in had[1] if gate.number not in went)
            more = tuple(gate for gate in came if fits(gate, record, record.job))
            self._known[number] = (record.revision, kept + more)
            if more or len(kept) < len(had[1]):
                found.append(number)
        return found

    def forget(self, number: int) -> None:
        """Forget what is known of a job."""
        self._known.pop(number, None)
        self._times.pop(number, None)

    def of(self, record: JobRecord, job: Job, now_ms: int) -> Gate | None:
        """Return the gate that holds the launches of a job now, see `severest`."""
        if not self._state.gates:
            return None
        return severest(self._of(record, job), now_ms)

    def may_hold(self, record: JobRecord, job: Job) -> bool:
        """Return whether any gate, of any time, applies to the launches of a job."""
        return bool(self._state.gates) and bool(self._of(record, job))

    def times_closed(self, record: JobRecord, job: Job) -> list[Closed]:
        """Return when gates paused the launches of a job, the earliest first; computed once."""
        stands = (record.revision, self._state.format)
        known = self._times.get(record.number)
        if known is None or known[0] != stands:
            known = (stands, times_closed(self._state, record, job))
            self._times[record.number] = known
        return known[1]

    def _of(self, record: JobRecord, job: Job) -> tuple[Gate, ...]:
        known = self._known.get(record.number)
        if known is None or known[0] != record.revision:
            gates = tuple(gate for gate in self._index.of(record) if fits(gate, record, job))
            known = self._known[record.number] = (record.revision, gates)
        return known[1]


class _Index:
    """Gates by what they name, so that a job is not compared with all of them. Gates with patterns
    are compared only with jobs that match one of the patterns, which a single match tells."""

    def __init__(self, gates: Mapping[int, Gate]) -> None:
        self.gates = dict(gates)
        self._of_tenant: dict[str, list[Gate]] = {}
        self._of_jobs = [gate for gate in gates.values() if gate.jobs]
        self._fits_some: Callable[[str], object] | None = None
        for gate in gates.values():
            if not gate.jobs:
                self._of_tenant.setdefault(gate.tenant, []).append(gate)

    def of(self, record: JobRecord) -> list[Gate]:
        """Return the gates that may apply to a job, by number."""
        tenant, _ = split_job_name(record.name)
        found = [*self._of_tenant.get("", ()), *self._of_tenant.get(tenant, ())]
        if self._of_jobs:
            if self._fits_some is None:
                patterns = dict.fromkeys(translate(gate.jobs) for gate in self._of_jobs)
                self._fits_some = re.compile("|".join(f"(?:{one})" for one in patterns)).match
            if self._fits_some(record.name):
                found += self._of_jobs
        found.sort(key=lambda gate: gate.number)
        return found


def fits(gate: Gate, record: JobRecord, job: Job) -> bool:
    """Return whether a gate applies to the launches of a job, whatever the time."""
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


class Closed(NamedTuple):
    """From when to when a gate paused launches; `to_ms` is 0 if that is not known yet."""

    from_ms: int
    to_ms: int


def times_closed(state: State, record: JobRecord, job: Job) -> list[Closed]:
    """Return when gates paused the launches of a job, the earliest first."""
    times = [
        Closed(one.gate.since_ms, one.at_ms) for one in state.opened if fits(one.gate, record, job)
    ]
    times += [
        Closed(gate.since_ms, gate.until_ms)
        for gate in state.gates.values()
        if gate.action is GateAction.PAUSE and fits(gate, record, job)
    ]
    return sorted(times)


def held_deadline_ms(times: Iterable[Closed], since_ms: int, deadline_ms: int, now_ms: int) -> int:
    """Return until when a launch that waits since `since_ms` may begin: the time behind a gate that
    pauses it does not count, up to `HELD_MS_MAX`.

    Behind a gate of unknown end, that is what is left of its time from now on.
    """
    left_ms, at_ms, held_ms = deadline_ms - since_ms, since_ms, 0
    for from_ms, to_ms in times:
        passed_ms = max(0, from_ms - at_ms)
        if passed_ms >= left_ms:
            break  # its deadline was over before that gate was closed
        ends_ms = to_ms or max(now_ms, from_ms)
        if ends_ms <= at_ms:
            continue
        left_ms -= passed_ms
        at_ms += passed_ms
        may_hold_ms = min(ends_ms - at_ms, HELD_MS_MAX - held_ms)
        held_ms += may_hold_ms
        at_ms += may_hold_ms
    return at_ms + left_ms


def shown_deadline_ms(state: State, row: LaunchRow, record: JobRecord, now_ms: int) -> int:
    """Return until when an open launch may begin, as far as known now."""
    has_gates = bool(state.gates or state.opened)
    if not has_gates or record.job is None or row.state is not LaunchState.DUE:
        return row.deadline_ms
    since_ms = max(row.due_at_ms or row.scheduled_s * 1000, row.held_to_ms)
    times = times_closed(state, record, record.job)
    return held_deadline_ms(times, since_ms, row.deadline_ms, now_ms)


def severest(gates: Iterable[Gate], now_ms: int) -> Gate | None:
    """Return the gate that decides now: one that drops goes before one that pauses, and of those
    that pause the one that lasts longest."""
    held = [gate for gate in gates if gate.holds(now_ms)]
    return max(
        held,
        key=lambda gate: (gate.action is GateAction.DROP, gate.until_ms or FOREVER_MS),
        default=None,
    )


def gate_of(state: State, record: JobRecord, job: Job, now_ms: int) -> Gate | None:
    """Return the gate that holds the launches of a job now; compares all gates with it."""
    return severest((gate for gate in state.gates.values() if fits(gate, record, job)), now_ms)


def note_of(gate: Gate) -> Note:
    """Return a note that names the gate, who closed it, until when and why."""
    return Note(NoteCode.GATE, (gate.number, gate.by, gate.until_ms, gate.reason))

"""Proof and explanation: what an audit finds, and why a job did or did not run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from cron import limits
from cron.api.checks import unknown_job
from cron.api.launches import (
    AuditReport,
    StoryLine,
    Violation,
    WhyReport,
)
from cron.history.audit import audit
from cron.history.audited import AuditedJob, Finding, OpenRow, RevisionSpan, judged
from cron.history.census import Census, count
from cron.history.order import Query
from cron.history.story import tell_dead, tell_manual, tell_newer
from cron.history.why import PauseState, explain
from cron.service.launches import LaunchReads, open_row
from cron.state.rows import Row
from cron.state.state import JobRecord, LaunchRow, State
from launcher.protocol.status import Reason

HELD = "its instants get rows once a leader can read the schedule"
SILENT_S = 30
"""An instant that is older than this and has no row although a leader ticks is a violation."""
NEWER_LOOKED_AT = 100
"""What replaced a launch is looked for among so many rows before its end."""
CLOCKS_APART_MS = 10_000
"""The end of a launch and the next ScheduledTime may be told by two leaders' clocks (rule R10)."""
WINDOW_MAX = 20_000
"""Instants that an audit looks at in one go: about 0.1 s of a thread."""


class Tally:
    """What an audit has counted and found so far."""

    def __init__(self) -> None:
        self.census = Census()
        self.violations: list[Violation] = []
        self.end_ms = 0  # of the monotonic clock: when it gives up
        self.forgotten_s = 0  # newest time in the period of which schedules are not known

    def found(self, job: str, scheduled_s: int, kind: str, message: str) -> None:
        """Note a violation."""
        self.violations.append(
            Violation(job=job, scheduled_s=scheduled_s, kind=kind, message=message)
        )

    def report(self, jobs: int, since_ms: int, until_ms: int) -> AuditReport:
        """Return all of it."""
        counts = msgspec.structs.asdict(self.census)
        return AuditReport(
            jobs=jobs,
            launches=self.census.ran + self.census.manual,
            since_ms=since_ms,
            until_ms=until_ms,
            violations=self.violations,
            forgotten_until_ms=self.forgotten_s * 1000,
            **counts,
        )


class Proofs:
    """Audits and explanations, on any replica. `awaits_row(number)` says why a job's newest
    instants have no rows yet."""

    def __init__(self, history: LaunchReads) -> None:
        self._history = history
        self._row_store = history.row_store
        self._clock = history.clock
        self.awaits_row: Callable[[int], str] = lambda number: ""

    @property
    def _state(self) -> State:
        return self._history.state

    async def audit(self, job: str, since_ms: int) -> AuditReport:
        """Return what the ledger proves about a job, or about all, since a time."""
        if job and job not in self._state.jobs:
            raise unknown_job(job)
        names = [job] if job else list(self._state.jobs)
        since_s, until_s = -(-since_ms // 1000) - 1, self._clock.wall_ms() // 1000
        tally = Tally()
        if not job and self._state.forgotten_s > since_s:
            tally.forgotten_s = self._state.forgotten_s
        tally.end_ms = self._clock.mono_ms() + limits.AUDIT_MS_MAX
        for done, name in enumerate(names):
            record = self._state.jobs.get(name)
            if record is None:  # State has forgotten it meanwhile
                continue
            if not await self._audit_job(record, since_s, until_s, tally):
                seconds, left = limits.AUDIT_MS_MAX // 1000, len(names) - done
                message = f"{left:,} of {len(names):,} jobs could not be audited within {seconds} s"
                tally.found("", 0, "unproven", f"{message}; name a job, or a later --since")
                break
        for gap in self._row_store.gaps():
            message = (
                f"history after log index {gap.from_index} up to {gap.to_index} "
                "is not on this replica"
            )
            tally.found("", 0, "unproven", message)
        return tally.report(len(names), since_ms, until_s * 1000)

    async def _audit_job(self, record: JobRecord, since_s: int, until_s: int, tally: Tally) -> bool:
        """Audit one job, window by window: its history may be longer than one look can take. Return
        whether the time of the audit was enough for it."""
        audited, open_rows, index = (
            audited_job(record),
            _open(self._state, record),
            self._state.index,
        )
        if audited.forgotten_s > since_s:
            tally.forgotten_s = max(tally.forgotten_s, audited.forgotten_s)
            since_s = audited.forgotten_s
        if reason := await asyncio.to_thread(audited.unreadable, since_s, until_s):
            tally.found(record.name, 0, "unproven", f"{record.name}: {reason}")
            return True
        begin_s = since_s
        while since_s < until_s:
            if self._clock.mono_ms() >= tally.end_ms:
                return False
            end_s = await asyncio.to_thread(_window_end, audited, since_s, until_s)
            rows = await self._row_store.of_job(record.name, since_s, end_s)
            rows = [row for row in rows if row.ended_index <= index]
            rows, judged_open = judged(audited, rows, open_rows, self._state.resets)
            counted, found = await asyncio.to_thread(
                partial(
                    _look, audited, rows, judged_open, since_s, end_s, is_first=since_s == begin_s
                )
            )
            tally.census.add(counted)
            for finding in found:
                if finding.is_violation:
                    tally.found(
                        record.name, finding.scheduled_s, str(finding.kind), finding.message
                    )
            since_s = end_s
        silent = await asyncio.to_thread(_silent, audited, until_s)
        if record.job is not None and silent is not None and not self.awaits_row(record.number):
            tally.found(record.name, silent, "silent", "it is over and nothing accounted for it")
        return True

    async def why(self, job: str, at_s: int, *, is_nearest: bool = False) -> WhyReport:
        """Return why a job did or did not run at an instant, or, with `is_nearest`, at the newest
        instant that is not after it, if there is one."""
        record = self._state.jobs.get(job)
        if record is None:
            raise unknown_job(job)
        audited, index = audited_job(record), self._state.index
        newest_s = audited.newest_at(at_s) if is_nearest else None
        at_s = at_s if newest_s is None else newest_s
        mine = self._state.open_of(record).values()
        open_rows = [self._open_row(row, at_s) for row in mine]
        open_views = [self._history.of_open(row) for row in mine if row.scheduled_s == at_s]
        open_row = next(
            (row for row in open_rows if (row.scheduled_s, row.trigger) == (at_s, 0)), None
        )
        pause = _pause_of(record)
        found = await self._row_store.of_job(job, at_s, at_s)
        found = sorted(  # of all launches of that second, in log order
            (row for row in found if row.ended_index <= index), key=lambda row: row.ended_index
        )
        rows = [row for row in found if not row.trigger]
        told = explain(
            audited,
            pause,
            at_s,
            rows,
            open_row,
            self._clock.wall_ms() // 1000,
            self._state.leader_terms,
        )
        if not found and (reason := audited.unreadable(at_s - 1, at_s)):
            verdict = f"this replica cannot tell whether it is due: {reason}; {HELD}"
            told = msgspec.structs.replace(told, verdict=verdict)
        is_due = record.horizon_s < at_s <= self._clock.wall_ms() // 1000
        if is_due and not found and (held_up := self.awaits_row(record.number)):
            verdict = f"it waits for its turn and has no row yet: {held_up}"
            told = msgspec.structs.replace(told, verdict=verdict)
        newer = await self._newer(rows[-1], open_rows) if rows and open_row is None else ""
        at_ms = at_s * 1000
        views = [view for row in found for view in self._history.expanded(row, at_ms, at_ms, 1)]
        return WhyReport(
            job=job,
            at_s=at_s,
            verdict=told.verdict
            + newer
            + tell_dead(record.dead.get((at_s, 0)), job, at_s)
            + tell_manual(found, open_rows, job, at_s),
            story=[StoryLine(line_ms, text) for line_ms, text in told.story],
            launches=views + open_views,
        )

    async def _newer(self, row: Row, open_rows: list[OpenRow]) -> str:
        """Say which launch replaced an ended one, if one did: it was due when that one ended."""
        if row.reason is not Reason.REPLACED:
            return ""
        since_ms, until_ms = row.scheduled_s * 1000, row.ended_at_ms + CLOCKS_APART_MS
        newest = Query(row.job, None, since_ms, until_ms, NEWER_LOOKED_AT)
        return tell_newer(row, await self._row_store.newest(newest), open_rows)

    def _open_row(self, row: LaunchRow, asked_s: int) -> OpenRow:
        """Return an open launch; one of the second that is asked about says what it waits for."""
        executor = self._state.executors.get(row.executor) if row.begun_index else None
        waiting = self._history.of_open(row).waiting if row.scheduled_s == asked_s else ""
        return open_row(row, executor.executor if executor is not None else "", waiting)


def audited_job(record: JobRecord) -> AuditedJob:
    """Return a job's past as audits see it."""
    spans = tuple(
        RevisionSpan(span.revision, span.from_s, span.to_s or None, span.schedule, span.overlap)
        for span in record.spans
    )
    return AuditedJob(record.name, spans, record.horizon_s, record.forgotten_s)


def _open(state: State, record: JobRecord) -> list[OpenRow]:
    return [open_row(row) for row in state.open_of(record).values()]


def _pause_of(record: JobRecord) -> PauseState | None:
    paused = record.paused
    if paused is None:
        return None
    return PauseState(paused.reason, paused.by, paused.since_ms, paused.until_ms)


def _look(
    audited: AuditedJob,
    rows: list[Row],
    open_rows: list[OpenRow],
    since_s: int,
    until_s: int,
    *,
    is_first: bool,
) -> tuple[Census, list[Finding]]:
    """Count and audit one window of a job's history."""
    counted = count(audited, rows, open_rows, since_s, until_s, is_first=is_first)
    return counted, list(audit(audited, rows, open_rows, since_s, until_s))


def _window_end(audited: AuditedJob, since_s: int, until_s: int) -> int:
    """Return the end of a window that holds few enough instants for one look."""
    end_s = until_s
    while audited.count(since_s, end_s) > WINDOW_MAX and end_s - since_s > 1:
        end_s = since_s + (end_s - since_s) // 2
    return end_s


def _silent(audited: AuditedJob, until_s: int) -> int | None:
    """Return an instant after the horizon that is old by now: the ticks have passed it over."""
    tick = next(audited.instants(audited.horizon_s, until_s - SILENT_S), None)
    return tick.scheduled_s if tick is not None else None

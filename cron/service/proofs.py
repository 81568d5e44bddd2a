"""Proof and explanation: what an audit finds, and why a job did or did not run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from cron import limits
from cron.api.checks import unknown_job
from cron.api.launches import (
    TASKS_BEGIN,
    AuditReport,
    AuditRequest,
    StoryLine,
    Violation,
    WhyReport,
    WhyRequest,
)
from cron.history.audit import audit
from cron.history.audited import AuditedJob, Finding, judged
from cron.history.census import Census, count
from cron.history.order import Query
from cron.history.store import RowStore
from cron.history.story import dead_letter, manual_launches, newer_launch
from cron.history.why import explain
from cron.scheduler.forgetting import history_from_s
from cron.service.launches import expanded, open_viewer, with_limits
from cron.service.replica import Replica
from cron.service.task_proofs import Part, TaskCensus, audit_tasks, why_task
from cron.service.task_views import unknown_task
from cron.state.context import row_of
from cron.state.letters import find
from cron.state.rows import Row
from cron.state.state import JobRecord, State
from launcher.protocol.names import TASK_MARK
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
    """What an audit has counted and found so far. `end_ms` of the monotonic clock is when it gives
    up; `forgotten_s` is the newest time in its period of which schedules are not known."""

    def __init__(self, end_ms: int) -> None:
        self.census = Census()
        self.violations: list[Violation] = []
        self.end_ms = end_ms
        self.forgotten_s = 0

    def found(self, job: str, scheduled_s: int, kind: str, message: str) -> None:
        """Note a violation."""
        self.violations.append(
            Violation(job=job, scheduled_s=scheduled_s, kind=kind, message=message)
        )


async def audit_jobs(replica: Replica, request: AuditRequest) -> AuditReport:
    """Return what the ledger proves about a job or a task, or about all, since a time.

    Raises:
        UnknownJob, UnknownTask: there is no such job or task.
    """
    state, clock, job = replica.state, replica.clock, request.job
    is_task = TASK_MARK in job
    if is_task and job not in state.tasks and state.spilled.find(job) is None:
        raise unknown_task(job)
    if job and not is_task and job not in state.jobs:
        raise unknown_job(job)
    is_later_part = request.tasks_after not in ("", TASKS_BEGIN)
    names = [] if is_task or is_later_part else [job] if job else list(state.jobs)
    since_s, until_s = -(-request.since_ms // 1000) - 1, clock.wall_ms() // 1000
    tally = Tally(clock.mono_ms() + limits.AUDIT_MS_MAX)
    if not job and state.forgotten_s > since_s:
        tally.forgotten_s = _unproven_s(state, state.forgotten_s)
    for done, name in enumerate(names):
        record = replica.state.jobs.get(name)
        if record is None:  # State has forgotten it meanwhile
            continue
        if not await _audit_job(replica, record, since_s, until_s, tally):
            seconds, left = limits.AUDIT_MS_MAX // 1000, len(names) - done
            message = f"{left:,} of {len(names):,} jobs could not be audited within {seconds} s"
            tally.found("", 0, "unproven", f"{message}; name a job, or a later --since")
            break
    tasks = TaskCensus()
    if is_task or not job:
        chosen = [job] if is_task else None
        part = Part(request.tasks_after, tally.end_ms)
        tasks, wrong = await audit_tasks(replica, chosen, since_s, part)
        tally.violations += wrong
    for gap in replica.row_store.gaps() if not is_later_part else ():
        message = (
            f"history after log index {gap.from_index} up to {gap.to_index} is not on this replica"
        )
        tally.found("", 0, "unproven", message)
    return AuditReport(
        jobs=len(names),
        launches=tally.census.ran + tally.census.not_started + tally.census.manual,
        since_ms=request.since_ms,
        until_ms=until_s * 1000,
        violations=tally.violations,
        forgotten_until_ms=tally.forgotten_s * 1000,
        **msgspec.structs.asdict(tally.census),
        **msgspec.structs.asdict(tasks),
    )


async def _audit_job(
    replica: Replica, record: JobRecord, since_s: int, until_s: int, tally: Tally
) -> bool:
    """Audit one job, window by window: its history may be longer than one look can take. Return
    whether the time of the audit was enough for it."""
    state, audited = replica.state, audited_job(record)
    if state.resets:
        audited = msgspec.structs.replace(audited, reset_index=state.resets[-1].index)
    open_rows, index = [row_of(state, row) for row in state.open_of(record).values()], state.index
    if audited.forgotten_s > since_s:
        tally.forgotten_s = max(tally.forgotten_s, _unproven_s(state, audited.forgotten_s))
        since_s = audited.forgotten_s
    if reason := await asyncio.to_thread(audited.unreadable, since_s, until_s):
        tally.found(record.name, 0, "unproven", f"{record.name}: {reason}")
        return True
    begin_s = since_s
    while since_s < until_s:
        if replica.clock.mono_ms() >= tally.end_ms:
            return False
        end_s = await asyncio.to_thread(_window_end, audited, since_s, until_s)
        rows = await replica.row_store.of_job(record.name, since_s, end_s)
        rows = [*(row for row in rows if row.ended_index <= index), *open_rows]
        rows.sort(key=lambda row: row.scheduled_s)
        mine = judged(audited, rows, state.resets)
        counted, found = await asyncio.to_thread(
            partial(_look, audited, mine, since_s, end_s, is_first=since_s == begin_s)
        )
        tally.census.add(counted)
        for one in found:
            if one.is_violation:
                tally.found(record.name, one.scheduled_s, str(one.kind), one.message)
        since_s = end_s
    silent = await asyncio.to_thread(_silent, audited, until_s)
    awaits_row = replica.leader.awaits_row(record.number)
    if record.job is not None and silent is not None and not awaits_row:
        tally.found(record.name, silent, "silent", "it is over and nothing accounted for it")
    return True


def _unproven_s(state: State, forgotten_s: int) -> int:
    """Return `forgotten_s`, up to which schedules are forgotten; 0 if that leaves nothing to prove:
    all history is there, and none of its rows is of that time."""
    history = state.history
    if not history.retired and forgotten_s < history_from_s(history, state.at_ms // 1000 + 1):
        return 0
    return forgotten_s


async def why(replica: Replica, request: WhyRequest) -> WhyReport:
    """Return why a job did or did not run at an instant, or, with `is_nearest`, at the newest
    instant that is not after it, if there is one; or what became of a task.

    Raises:
        UnknownJob, UnknownTask: there is no such job or task.
    """
    if TASK_MARK in request.job:
        return await why_task(replica, request)
    state, job, at_s = replica.state, request.job, request.at_s
    record = state.jobs.get(job)
    if record is None:
        raise unknown_job(job)
    audited, index = audited_job(record), state.index
    newest_s = audited.newest_at(at_s) if request.is_nearest else None
    at_s = at_s if newest_s is None else newest_s
    mine, shown = list(state.open_of(record).values()), open_viewer(replica)
    views = {row.key: shown(row) for row in mine if row.scheduled_s == at_s}
    open_rows = [row_of(state, row) for row in mine]
    asked = views.get((record.number, at_s, 0))
    waiting = asked.waiting if asked is not None else ""
    now_s = replica.clock.wall_ms() // 1000
    its = (row for row in open_rows if (row.scheduled_s, row.trigger) == (at_s, 0))
    still_open = next(its, None)
    found = await replica.row_store.of_job(job, at_s, at_s)
    found = sorted(  # of all launches of that second, in log order
        (row for row in found if row.ended_index <= index), key=lambda row: row.ended_index
    )
    rows = [row for row in found if not row.trigger]
    terms = state.leader_terms
    explained = explain(audited, at_s, rows, still_open, now_s, terms, waiting=waiting)
    verdict = explained.verdict
    if not found and (reason := audited.unreadable(at_s - 1, at_s)):
        verdict = f"this replica cannot tell whether it is due: {reason}; {HELD}"
    is_due = record.horizon_s < at_s <= now_s
    if is_due and not found and (held_up := replica.leader.awaits_row(record.number)):
        verdict = f"it waits for its turn and has no row yet: {held_up}"
    if rows and still_open is None:
        verdict += await _newer(replica.row_store, rows[-1], open_rows)
    letter = find(record, (at_s, 0))
    verdict += dead_letter(letter[0] if letter is not None else None, job, at_s)
    verdict += manual_launches(found, open_rows, job, at_s)
    at_ms = at_s * 1000
    ended = [view for row in found for view in expanded(state, row, at_ms, at_ms, 1)]
    launches = [with_limits(replica, job, view) for view in (*ended, *views.values())]
    if launches and launches[-1].limits:
        verdict += f"; its limits: {launches[-1].limits}"
    return WhyReport(
        job=job,
        at_s=at_s,
        verdict=verdict,
        story=[StoryLine(line_ms, text) for line_ms, text in explained.story],
        launches=launches,
    )


async def _newer(row_store: RowStore, row: Row, open_rows: list[Row]) -> str:
    """Return which launch replaced an ended one, if one did: it was due when that one ended."""
    if row.reason is not Reason.REPLACED:
        return ""
    since_ms, until_ms = row.scheduled_s * 1000, row.ended_at_ms + CLOCKS_APART_MS
    newest = Query(frozenset((row.job,)), None, since_ms, until_ms, NEWER_LOOKED_AT)
    return newer_launch(row, await row_store.newest(newest), open_rows)


def audited_job(record: JobRecord) -> AuditedJob:
    """Return a job's past as audits see it."""
    spans, forgotten_s = tuple(record.spans), record.forgotten_s
    return AuditedJob(
        record.name,
        spans,
        record.horizon_s,
        forgotten_s,
        record.paused,
        revision=record.revision,
    )


def _look(
    audited: AuditedJob, rows: Sequence[Row], since_s: int, until_s: int, *, is_first: bool
) -> tuple[Census, list[Finding]]:
    """Count and audit one window of a job's history."""
    counted = count(audited, rows, since_s, until_s, is_first=is_first)
    return counted, list(audit(audited, rows, since_s, until_s))


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

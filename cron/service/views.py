"""Rows and records as people and programs see them: State and history to the API's views."""

from __future__ import annotations

import msgspec

from cron.api.gates import GateView
from cron.api.jobs import JobNeeds, JobView
from cron.api.launches import LaunchView, PartView
from cron.calendar.schedule import next_times, unreadable
from cron.history.audited import OpenRow
from cron.history.story import memory_of
from cron.job import Job
from cron.notes import sentence
from cron.scheduler.gates import shown_deadline_ms
from cron.scheduler.why import Queued, why_waiting
from cron.state.pool import Gate
from cron.state.rows import RESTORED_BY, PartRow, Row, RowKind
from cron.state.state import JobRecord, LaunchRow, Part, Paused, State
from launcher.launch import ACTIVE
from launcher.names import LaunchName, format_time, split_job_name
from launcher.work import Epoch

NEXT_SHOWN = 3
"""Times at which a job is launched next, in the list of jobs."""

PAYLOAD_SHOWN_BYTES = 1_000
"""Of each job's payload, in lists of a hundred thousand jobs."""

_KINDS = {RowKind.ENDED: "launch", RowKind.RANGE: "range", RowKind.AMENDMENT: "amendment"}


def of_row(row: Row) -> LaunchView:
    """Return an ended launch as it is shown."""
    tenant, job = split_job_name(row.job)
    return LaunchView(
        launch=str(LaunchName(row.job, row.scheduled_s, row.trigger)),
        job=job,
        tenant=tenant,
        scheduled_s=row.scheduled_s,
        attempt=row.attempt,
        state=row.state.label,
        reason=row.reason.label,
        begun_at_ms=row.begun_at_ms,
        launched_at_ms=row.launched_at_ms,
        started_at_ms=row.started_ms,
        finished_at_ms=row.finished_ms,
        exit_code=row.exit_code if row.exit_code >= 0 else None,
        executor=row.executor,
        term=row.epoch.term,
        lateness_ms=_lateness_ms(row),
        epoch=_epoch(row.epoch),
        replica=row.epoch.replica,
        begun_index=row.begun_index,
        launched_index=row.launched_index,
        ended_index=row.ended_index,
        ended_at_ms=row.ended_at_ms,
        local_time=_local_time(row.local_min),
        revision=row.revision,
        by="" if row.by == RESTORED_BY else row.by,
        detail="; ".join(filter(None, (sentence(row.note, row.detail), memory_of(row)))),
        kind=_KINDS[row.kind],
        last_s=row.last_s,
        count=row.count,
        output_bytes=row.output_bytes,
        parts=[_ended_part(number, part) for number, part in enumerate(row.parts, 1)],
        number=row.number if row.number >= 0 else None,
        amends=_key(row.amends),
        cpu_ms=row.cpu_ms or None,
        memory_peak_bytes=row.memory_peak_bytes or None,
    )


def amended(row: Row, news: Row) -> LaunchView:
    """Return a lost attempt as it is shown with the newest news of it, which amend it: begun as
    the one says, ended as the other."""
    known = of_row(row)
    late = of_row(news)
    return msgspec.structs.replace(
        late,
        begun_at_ms=known.begun_at_ms or late.begun_at_ms,
        launched_at_ms=known.launched_at_ms or late.launched_at_ms,
        started_at_ms=late.started_at_ms or known.started_at_ms,
        executor=late.executor or known.executor,
        term=late.term or known.term,
        lateness_ms=late.lateness_ms if known.lateness_ms is None else known.lateness_ms,
        epoch=late.epoch or known.epoch,
        replica=late.replica or known.replica,
        begun_index=known.begun_index or late.begun_index,
        launched_index=known.launched_index or late.launched_index,
        revision=known.revision,
        by=known.by,
        parts=late.parts or known.parts,
        amends=late.amends or _key((row.ended_index, row.number)),
        kind="launch",
        is_amended=True,
    )


def _key(key: tuple[int, int] | None) -> str:
    """`ended_index.number` of a row; its index alone where it has no number."""
    if key is None:
        return ""
    return f"{key[0]}.{key[1]}" if key[1] >= 0 else str(key[0])


def _ended_part(number: int, part: PartRow) -> PartView:
    return PartView(
        part=number,
        executor=part.executor,
        state=part.state.label,
        reason=part.reason.label,
        started_at_ms=part.started_ms,
        finished_at_ms=part.finished_ms,
        exit_code=part.exit_code if part.exit_code >= 0 else None,
        output_bytes=part.output_bytes,
        detail=sentence(part.note, part.detail),
        cpu_ms=part.cpu_ms or None,
        memory_peak_bytes=part.memory_peak_bytes or None,
    )


def _open_part(state: State, number: int, part: Part) -> PartView:
    executor = state.executors.get(part.executor)
    name = executor.executor if executor is not None else part.name
    ended = PartRow(
        name, "", part.state, part.reason, part.exit_code, part.started_ms, part.finished_ms,
        part.output_bytes, part.detail, part.note, part.cpu_ms, part.memory_peak_bytes,
    )  # fmt: skip
    return _ended_part(number, ended)


def of_open(
    state: State,
    row: LaunchRow,
    connected: frozenset[int],
    now_ms: int,
    queued: Queued | None = None,
) -> LaunchView:
    """Return an open launch as it is shown. `connected`: executors that are, by number."""
    record = state.by_number[row.number]
    tenant, job = split_job_name(record.name)
    executor = state.executors.get(row.executor) if row.begun_index else None
    is_active = row.state in ACTIVE
    return LaunchView(
        launch=str(LaunchName(record.name, row.scheduled_s, row.trigger)),
        job=job,
        tenant=tenant,
        scheduled_s=row.scheduled_s,
        attempt=row.attempt,
        state=row.state.label,
        reason=row.cancel.label,
        begun_at_ms=row.begun_at_ms,
        launched_at_ms=row.launched_at_ms,
        started_at_ms=row.started_ms,
        executor=executor.executor if executor else "",
        term=row.epoch.term,
        lateness_ms=_lateness_ms(row),
        epoch=_epoch(row.epoch),
        replica=row.epoch.replica,
        begun_index=row.begun_index,
        launched_index=row.launched_index,
        local_time=_local_time(row.local_min),
        revision=row.revision,
        by=row.cancel_by or ("" if row.by == RESTORED_BY else row.by),
        detail=sentence(row.note, row.detail)
        or _memory_of(row, executor.executor if executor else ""),
        in_doubt=is_active and any(one.executor not in connected for one in row.starts()),
        waiting="" if is_active else why_waiting(state, row, connected, now_ms, queued).text,
        deadline_at_ms=shown_deadline_ms(state, row, record, now_ms),
        is_open=True,
        last_s=row.scheduled_s,
        parts=[_open_part(state, number, part) for number, part in enumerate(row.parts, 1)],
    )


def _memory_of(row: LaunchRow, executor: str) -> str:
    """Whose word it is that an open launch began, "" where the log has it."""
    return memory_of(
        OpenRow(
            row.scheduled_s,
            row.trigger,
            row.attempt,
            row.state,
            row.begun_index,
            launched_index=row.launched_index,
            executor=executor,
            by=row.by,
        )
    )


def of_job(
    record: JobRecord, job: Job, last: LaunchView | None, now_ms: int, runs: int = 0
) -> JobView:
    """Return a job as it is shown; `runs`: how many of its launches do."""
    paused = record.paused if record.paused and record.paused.holds(now_ms) else None
    return JobView(
        name=record.name,
        schedule=job.schedule.text,
        resolved=job.schedule.resolved,
        zone=job.schedule.zone,
        next_s=_next_s(record, job, paused, now_ms),
        overlap=job.overlap.name.lower(),
        catchup=job.catchup.name.lower(),
        on_lost=job.on_lost.name.lower(),
        deadline_s=job.deadline_s,
        timeout_ms=job.work.timeout_ms,
        paused=paused is not None,
        pause_reason=paused.reason if paused else "",
        paused_by=paused.by if paused else "",
        paused_until_ms=paused.until_ms if paused else 0,
        source=record.source,
        revision=record.revision,
        command=job.work.argv[-1] if job.work.argv else "",
        user=job.work.user,
        running=runs,
        last=last,
        needs=_needs(record, job),
        held=unreadable(job.schedule),
        changed_by=record.changed_by,
        changed_ms=record.changed_ms,
    )


def of_gate(gate: Gate, number: int) -> GateView:
    """Return a gate as it is shown."""
    return GateView(
        number=number,
        action=gate.action.name.lower(),
        reason=gate.reason,
        by=gate.by,
        since_ms=gate.since_ms,
        until_ms=gate.until_ms,
        pool=gate.pool,
        collection=gate.collection,
        tenant=gate.tenant,
        jobs=gate.jobs,
        priority=gate.priority,
    )


def _needs(record: JobRecord, job: Job) -> JobNeeds:
    work, retry = job.work, job.retry
    return JobNeeds(
        handler=work.handler,
        payload=work.payload[:PAYLOAD_SHOWN_BYTES].decode(errors="replace"),
        priority=work.priority,
        collection=job.collection,
        concurrency=job.concurrency,
        where=job.where,
        cpu_milli=work.cpu_milli,
        memory_bytes=work.memory_bytes,
        heartbeat_ms=work.heartbeat_ms,
        tries=retry.tries,
        backoff_ms=retry.backoff_ms,
        backoff_max_ms=retry.backoff_max_ms,
        retry_codes=list(retry.retry_codes),
        fatal_codes=list(retry.fatal_codes),
        dead=len(record.dead),
        parts=job.parts,
        each=job.each,
    )


def _next_s(record: JobRecord, job: Job, paused: Paused | None, now_ms: int) -> list[int]:
    """The next times at which the job is launched: none within a pause."""
    after_s = max(now_ms // 1000, record.horizon_s)
    if paused is not None:
        if not paused.until_ms:
            return []
        after_s = max(after_s, -(-paused.until_ms // 1000) - 1)
    return next_times(job.schedule, after_s, NEXT_SHOWN)


def _lateness_ms(row: Row | LaunchRow) -> int | None:
    """started - scheduled; that of a manual trigger counts from when it was asked for."""
    if not row.started_ms:
        return None
    return row.started_ms - (row.due_at_ms or row.scheduled_s * 1000)


def _epoch(epoch: Epoch) -> str:
    return str(epoch) if epoch.term else ""


def _local_time(local_min: int) -> str:
    """`2026-11-20T15:00` of the nominal local time; empty where there is none."""
    if local_min < 0:
        return ""
    return format_time(local_min * 60)[:16]

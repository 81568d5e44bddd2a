"""How commands about jobs and executors change State: rule R2, pauses, who takes part."""

from __future__ import annotations

from typing import Final

import msgspec

from cron.job import Job
from cron.launch_state import LaunchState
from cron.limits import DEADLINE_S_MAX, DEADLINE_S_MIN, NOTE_CHARS_MAX
from cron.state import commands as c
from cron.state import earlier, followed, forgetting
from cron.state.context import Context
from cron.state.outcome import Result, Verdict
from cron.state.state import ExecutorRecord, JobRecord, Paused, Span
from launcher.protocol.names import SCHEDULED_S_MAX

DUE: Final = LaunchState.DUE  # members of an enumeration are slow to look up


def put_jobs(context: Context, command: c.PutJobs) -> Result:
    """Add, change and remove the jobs of one source, all or nothing."""
    jobs = _assemble(context, command)
    if jobs is None:
        return Result(Verdict.INCOMPLETE)
    if command.part < command.parts:
        context.jobs_changed = 0
        return Result(Verdict.ACCEPTED)
    verdict = _check(context, command, jobs)
    if verdict is not Verdict.ACCEPTED:
        return Result(verdict)
    context.state.catalog += 1
    context.jobs_changed = len(jobs) + len(command.removed)
    names = (*(job.name for job in jobs), *command.removed)
    known = context.state.jobs
    context.state.make_detailed([known[name] for name in names if name in known])
    for job in jobs:
        _put(context, command, job)
    for name in command.removed:
        _remove(context, command, context.state.jobs[name])
    if context.state.unfollowed:
        followed.forget_ends(context)
    return Result(Verdict.ACCEPTED, number=context.state.catalog)


def _assemble(context: Context, command: c.PutJobs) -> tuple[Job, ...] | None:
    """Return all jobs of the change once its last part is here; None where a part is missing."""
    if command.parts == 1:
        return command.jobs
    staged = context.state.staged
    if command.part == 1:
        staged.clear()
        staged[command.change] = []
    parts = staged.get(command.change)
    if parts is None or len(parts) != command.part - 1:
        staged.pop(command.change, None)
        return None
    parts.append(command.jobs)
    if command.part < command.parts:
        return ()
    del staged[command.change]
    return tuple(job for part in parts for job in part)


def _check(context: Context, command: c.PutJobs, jobs: tuple[Job, ...]) -> Verdict:
    """Whether the whole change may happen."""
    state = context.state
    if command.base != state.catalog:
        return Verdict.STALE_REVISION
    # Not before any time in the log: an instant that is over belongs to the revision of its time.
    if not state.at_ms // 1000 <= command.effective_s <= SCHEDULED_S_MAX:
        return Verdict.BAD_TIMES
    if not all(DEADLINE_S_MIN <= job.deadline_s <= DEADLINE_S_MAX for job in jobs):
        return Verdict.BAD_TIMES
    names = [job.name for job in jobs] + list(command.removed)
    if len(dict.fromkeys(names)) < len(names):
        return Verdict.REPEATED
    for name in command.removed:
        record = state.jobs.get(name)
        if record is None or record.job is None:
            return Verdict.UNKNOWN_JOB
    records = [record for name in names if (record := state.jobs.get(name)) is not None]
    refused = next(filter(None, (_check_known(command, one) for one in records)), None)
    told = (name for job in jobs if job.alerts is not None for name in job.alerts.to)
    if refused is None and state.alerts.lacks_channel(told):
        return Verdict.UNKNOWN_CHANNEL
    return refused or followed.check(state, jobs, command.removed)


def _check_known(command: c.PutJobs, record: JobRecord) -> Verdict:
    """Whether the change may happen to a job that there is, or has been."""
    if record.job is not None:
        if record.source != command.source:
            return Verdict.WRONG_SOURCE
        is_level = record.horizon_s == command.effective_s
        return Verdict.ACCEPTED if is_level else Verdict.WRONG_HORIZON
    if record.horizon_s > command.effective_s:
        return Verdict.WRONG_HORIZON
    return Verdict.LEAVING if _waits(record) else Verdict.ACCEPTED


def _put(context: Context, command: c.PutJobs, job: Job) -> None:
    state = context.state
    record = state.jobs.get(job.name)
    span = Span(state.catalog, command.effective_s, 0, job.schedule, job.overlap)
    if record is None:
        state.job_numbers += 1
        record = JobRecord(
            number=state.job_numbers,
            name=job.name,
            source=command.source,
            revision=state.catalog,
            horizon_s=command.effective_s,
            job=job,
            spans=[span],
        )
        state.jobs[job.name] = record
        state.put_record(record)
        state.note_job(record)
        _note_change(context, record, command)
        return
    state.touch(record)
    earlier.keep(state, record)
    _close_span(record, command.effective_s)
    before = record.job
    if before is None or before.schedule.zone != job.schedule.zone:
        # Nominal local times of another zone say nothing about this one (rule R11).
        record.local_horizon_min = -1
    record.source = command.source
    record.removed_by = ""
    record.revision = state.catalog
    record.horizon_s = command.effective_s
    record.job = job
    record.failed_in_a_row = 0  # of what the job was
    state.note_job(record)
    record.spans.append(span)
    forgetting.compact(record, 0)
    _note_change(context, record, command)


def _note_change(context: Context, record: JobRecord, command: c.PutJobs) -> None:
    record.changed_by, record.changed_ms = command.by[:NOTE_CHARS_MAX], context.at_ms


def _remove(context: Context, command: c.PutJobs, record: JobRecord) -> None:
    """Delete a job; its horizon and past stay, and what has begun goes on. The leader cancels its
    due launches by later entries, a portion in each."""
    context.state.touch(record)
    earlier.keep(context.state, record)
    _close_span(record, command.effective_s)
    if _waits(record):
        record.removed_by = command.by
    record.revision = context.state.catalog
    record.job = None
    record.marks = None
    record.failed_in_a_row = 0
    context.state.note_job(record)
    record.paused = None


def _waits(record: JobRecord) -> bool:
    return any(row.state is DUE for row in record.open.values())


def _close_span(record: JobRecord, to_s: int) -> None:
    last = record.spans[-1]
    if last.to_s == 0:
        record.spans[-1] = Span(last.revision, last.from_s, to_s, last.schedule, last.overlap)


def pause(context: Context, command: c.Pause) -> Result:
    """Pause jobs that exist; an item each."""
    paused = Paused(command.reason, command.by, context.at_ms, command.until_ms)
    return _each_job(context, command.jobs, paused)


def resume(context: Context, command: c.Resume) -> Result:
    """Resume jobs that exist; an item each."""
    return _each_job(context, command.jobs, None)


def _each_job(context: Context, names: tuple[str, ...], paused: Paused | None) -> Result:
    items = []
    for name in names:
        record = context.state.jobs.get(name)
        if record is None or record.job is None:
            items.append(Verdict.UNKNOWN_JOB)
        elif (paused is None and record.paused is None) or (
            paused is not None and outlasts(record.paused, paused)
        ):
            items.append(Verdict.ALREADY)
        else:
            set_pause(context, record, paused)
            items.append(Verdict.ACCEPTED)
    return Result(Verdict.ACCEPTED, tuple(items))


def set_pause(context: Context, record: JobRecord, paused: Paused | None) -> None:
    """Pause a job; None resumes it, and its failures in a row are counted anew."""
    context.state.touch(record)
    record.paused = paused
    if paused is None:
        record.failed_in_a_row = 0
        context.state.note_failures(record)
    if record.marks is not None and record.marks.success_ms:
        # The time of a pause does not count as time without a success.
        record.marks = msgspec.structs.replace(record.marks, success_ms=context.at_ms)


def outlasts(held: Paused | None, paused: Paused) -> bool:
    """Whether a pause that holds lasts longer than a new one: then it stays, with its reason.

    A short pause of everything must not set a job going that somebody has stopped for good.
    """
    if held is None or not held.holds(paused.since_ms):
        return False
    return held.until_ms == 0 or 0 < paused.until_ms < held.until_ms


def executor_joined(context: Context, command: c.ExecutorJoined) -> Result:
    """Give the pair of executor and ledger a number, or keep the one it has."""
    state = context.state
    known = state.executor_of(command.executor, command.ledger)
    if known is not None:
        _describe(known, command)
        known.joined_ms = context.at_ms
        return Result(Verdict.ALREADY, number=known.number)
    state.executor_numbers += 1
    record = ExecutorRecord(
        number=state.executor_numbers,
        executor=command.executor,
        ledger=command.ledger,
        slots=command.slots,
        host=command.host,
        joined_ms=context.at_ms,
    )
    _describe(record, command)
    state.executors[record.number] = record
    state.by_ledger[(record.executor, record.ledger)] = record
    return Result(Verdict.ACCEPTED, number=state.executor_numbers)


def _describe(record: ExecutorRecord, command: c.ExecutorJoined) -> None:
    """Note what an executor says of itself; it may say something else each time it joins."""
    record.slots = command.slots
    record.host = command.host
    record.version = command.version
    record.labels = command.labels
    record.cpu_milli = command.cpu_milli
    record.memory_bytes = command.memory_bytes


def executor_left(context: Context, command: c.ExecutorLeft) -> Result:
    """Forget a pair on which nothing is open."""
    record = context.state.executors.get(command.number)
    if record is None:
        return Result(Verdict.UNKNOWN_EXECUTOR)
    if record.batches:
        return Result(Verdict.STILL_OPEN)
    del context.state.executors[command.number]
    del context.state.by_ledger[(record.executor, record.ledger)]
    return Result(Verdict.ACCEPTED)

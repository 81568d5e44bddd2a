"""How instants get their rows: Account, rules R1 and R11."""

from __future__ import annotations

from typing import Final

from cron.notes import written
from cron.state import commands as c
from cron.state.context import Context, pause_note
from cron.state.outcome import Result, Verdict
from cron.state.rows import Row, RowKind
from cron.state.state import JobRecord, LaunchRow
from launcher.launch import LaunchState
from launcher.names import SCHEDULED_S_MAX

ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up
DUE: Final = LaunchState.DUE


def account(context: Context, command: c.Account) -> Result:
    """Give instants their rows and move horizons (rule R1)."""
    return Result(Verdict.ACCEPTED, tuple(_account(context, item) for item in command.items))


def _account(context: Context, item: c.AccountItem) -> Verdict:
    record = context.state.by_number.get(item.number)
    if record is None or record.job is None:
        return Verdict.UNKNOWN_JOB
    if item.revision != record.revision:
        return Verdict.STALE_REVISION
    if item.from_s != record.horizon_s:
        return Verdict.WRONG_HORIZON
    verdict = _check_rows(record, item) if not _repeats(record, item) else Verdict.BAD_TIMES
    if verdict is not ACCEPTED:
        return verdict
    context.state.touch(record)
    for skip_item in item.skipped:
        _record_skipped(context, record, skip_item)
    deadline_s = record.job.deadline_s
    for due in item.due:
        # By place, in the order of LaunchRow: with names it takes several times as long.
        row = LaunchRow(
            record.number,
            due.scheduled_s,
            0,
            DUE,
            (due.scheduled_s + deadline_s) * 1000,
            due.local_min,
            due.is_late,
            0,  # attempt
            record.revision,
        )
        context.open_due(record, row)
        if due.local_min > record.local_horizon_min:
            record.local_horizon_min = due.local_min
    record.horizon_s = item.to_s
    if record.spent:
        record.spent = [at_s for at_s in record.spent if at_s > item.to_s]
    return ACCEPTED


def _repeats(record: JobRecord, item: c.AccountItem) -> bool:
    """Whether a name would get a second row that has begun before the clock was reset."""
    if not record.spent:  # the usual case, cheap
        return False
    spans = [(due.scheduled_s, due.scheduled_s) for due in item.due]
    spans += [(skip.first_s, skip.last_s) for skip in item.skipped]
    return any(first_s <= at_s <= last_s for at_s in record.spent for first_s, last_s in spans)


def _check_rows(record: JobRecord, item: c.AccountItem) -> Verdict:
    """Whether the rows lie inside (from, to], apart, and repeat no fixed local time (R1, R11)."""
    if not item.from_s < item.to_s <= SCHEDULED_S_MAX:
        return Verdict.BAD_TIMES
    if not item.skipped and len(item.due) == 1:  # the usual case, cheap
        due = item.due[0]
        if not item.from_s < due.scheduled_s <= item.to_s:
            return Verdict.BAD_TIMES
        if 0 <= due.local_min <= record.local_horizon_min:
            return Verdict.REPEATED_LOCAL_TIME
        return ACCEPTED
    spans = [(due.scheduled_s, due.scheduled_s, due.local_min) for due in item.due]
    spans += [(skip.first_s, skip.last_s, skip.local_min) for skip in item.skipped]
    spans.sort()
    before_s, local_before_min = item.from_s, record.local_horizon_min
    for first_s, last_s, local_min in spans:
        if not before_s < first_s <= last_s <= item.to_s:
            return Verdict.BAD_TIMES
        if 0 <= local_min <= local_before_min:
            return Verdict.REPEATED_LOCAL_TIME
        before_s, local_before_min = last_s, max(local_before_min, local_min)
    if not all(_can_be_a_run(skip) for skip in item.skipped):
        return Verdict.BAD_TIMES
    return Verdict.ACCEPTED


def _can_be_a_run(item: c.SkipItem) -> bool:
    """Whether so many instants can lie between the first and the last, both included."""
    seconds = item.last_s - item.first_s + 1
    return item.count == 1 if seconds == 1 else 2 <= item.count <= seconds


def _record_skipped(context: Context, record: JobRecord, item: c.SkipItem) -> None:
    counts = record.counts
    counts[LaunchState.SKIPPED] = counts.get(LaunchState.SKIPPED, 0) + item.count
    record.local_horizon_min = max(record.local_horizon_min, item.local_min)
    detail, note = written(pause_note(context.state, record, item.reason))
    context.record(
        Row(
            kind=RowKind.ENDED if item.count == 1 else RowKind.RANGE,
            job=record.name,
            revision=record.revision,
            scheduled_s=item.first_s,
            trigger=0,
            attempt=0,
            state=LaunchState.SKIPPED,
            reason=item.reason,
            ended_index=context.index,
            ended_at_ms=context.at_ms,
            last_s=item.last_s,
            count=item.count,
            local_min=item.local_min,
            detail=detail,
            note=note,
        )
    )

"""How commands about single launches change State: rules R1, R2, R7, R8, R9, R11.

Rows of batches that go as usual are changed by `ends.py`, a column at a time.
"""

from __future__ import annotations

from typing import Final

from cron.launch_state import ACTIVE, REOPENABLE, LaunchState, may_follow
from cron.limits import ATTEMPTS_MAX, REQUEST_IDS_KEPT
from cron.notes import Note, NoteCode, written
from cron.state import commands as c
from cron.state import parts
from cron.state.clock import first_trigger
from cron.state.context import Context, pause_note, with_gate
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Result, Verdict
from cron.state.retries import (
    after_failure,
    after_late_report,
    after_loss,
    after_skip,
    after_success,
    hold_slot,
    next_after,
    with_reason,
)
from cron.state.rows import Part, Row, RowKind
from launcher.protocol.status import Reason

ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up
BEGUN: Final = LaunchState.BEGUN
LAUNCHED: Final = LaunchState.LAUNCHED
SUCCEEDED: Final = LaunchState.SUCCEEDED
RESULTS: Final = (LaunchState.SUCCEEDED, LaunchState.FAILED, LaunchState.CANCELLED)
"""What can have become of an attempt that ran."""
_REPORTED: Final = (LAUNCHED, *RESULTS, LaunchState.SKIPPED, LaunchState.LOST)


def change_one(context: Context, key: c.Key, attempt: int, end: Part) -> Verdict:
    """Write what became of an attempt, or of one part of it; return why not, if so."""
    if end.state not in _REPORTED:
        return Verdict.WRONG_STATE
    row = context.state.active.get(key)
    if row is None or row.attempt != attempt:
        amended = _amend(context, key, attempt, end) if end.state in RESULTS else None
        return amended or (Verdict.NOT_OPEN if row is None else Verdict.WRONG_ATTEMPT)
    context.touch(row)
    part = row.parts[end.number - 1] if 1 <= end.number <= len(row.parts) else None
    before = row.state if part is None else part.state
    if (part is None and (row.parts or end.number != 1)) or before not in ACTIVE:
        return Verdict.NOT_OPEN
    if before is LAUNCHED and end.state is LAUNCHED:
        return Verdict.ALREADY
    if not may_follow(before, end.state):
        return Verdict.WRONG_STATE
    if part is None:
        row = context.change(row)
    is_unknown = before is BEGUN if part is not None else not row.launched_index
    # A result may come before log point 2 was written: then one entry is both.
    if end.state is LAUNCHED or (end.state in RESULTS and end.started_ms and is_unknown):
        _log_point_2(context, row, part, end.started_ms)
    if end.state is LAUNCHED:
        return ACCEPTED
    if part is not None:
        parts.end_part(part, end)
        context.leave_part(row, part)
        if any(one.state in ACTIVE for one in row.parts):
            return ACCEPTED
        end = parts.end_of(context, row)
    _end(context, row, end)
    return ACCEPTED


def _end(context: Context, row: LaunchRow, end: Part) -> None:
    """End a launch, or take it back, and decide what follows."""
    record = context.state.by_number[row.number]
    if end.state is LaunchState.SKIPPED:
        _take_back(context, row, written(end.note, end.detail))
    elif end.state is LaunchState.LOST:
        if row.job is not None:
            hold_slot(context, record, row.job, end.held_until_ms)
        said = (end.detail, end.note)
        lost = _end_unrun(context, row, end.state, Reason.EXECUTOR_LOST, said)
        after_loss(context, record, row, lost, end.held_until_ms)
    elif end.state is SUCCEEDED:
        context.end(row, end)
        if context.state.budgets or context.state.unpaid:
            after_success(context, record)
    else:
        following = next_after(context, record, row, end)
        end = with_reason(context.state, row, end, following)
        context.end(row, end)
        if following is not None:
            after_failure(context, record, row, end, following)


def _end_unrun(
    context: Context,
    row: LaunchRow,
    state: LaunchState,
    reason: Reason,
    said: tuple[str, Note | None],
) -> Part:
    """End a launch that never ran, or of whose run nothing is known; `said` is its detail and note.
    Return the end."""
    end = Part(row.executor, state, reason, detail=said[0], note=said[1])
    context.end(row, end)
    return end


def _log_point_2(context: Context, row: LaunchRow, part: Part | None, started_ms: int) -> None:
    """Write log point 2 of a launch, or of a part; that of the first part is the launch's."""
    if part is not None:
        part.state, part.started_ms = LAUNCHED, started_ms
    if part is None or row.state is BEGUN:
        row.state = LAUNCHED
        row.launched_index = context.index
        row.launched_at_ms = context.at_ms
        row.started_ms = started_ms


def _amend(context: Context, key: c.Key, attempt: int, end: Part) -> Verdict | None:
    """Append what became known of a lost attempt, None where nothing did; nothing reopens (R9).

    Of an attempt of several parts each lost part may have a late report. The attempt is amended to
    the end that follows from all of them: it succeeded only if all did, and is lost while one is.
    """
    lost, name = context.state.lost, (key, attempt)
    known = lost.get(name)
    if known is None:
        return None
    if known.parts and not any(
        part.number == end.number and part.state is LaunchState.LOST for part in known.parts
    ):
        return None  # what became of it is known, or there is no such part
    job = context.state.by_number[key[0]].job
    if known.parts:
        known = parts.with_report(known, end)
        end = parts.amended(known.parts, end)
    elif end.number != 1 or (job is not None and job.has_parts):
        end = parts.late_part(end)  # nobody knows of the others
    if known.parts and end.state is LaunchState.LOST:
        lost[name] = known  # where it was begun is as it was
    else:
        context.state.forget_lost(*name)
    late, record = _amendment(context, known, end), context.state.by_number[key[0]]
    context.record(late)
    after_late_report(context, record, key, late)
    if record.task:
        context.task_ends.setdefault(key[0], (end.state, end.reason, end.detail))
    return Verdict.AMENDED


def _amendment(context: Context, known: Row, end: Part) -> Row:
    detail, note = written(end.note, end.detail)
    return Row(
        kind=RowKind.AMENDMENT,
        job=known.job,
        revision=known.revision,
        scheduled_s=known.scheduled_s,
        trigger=known.trigger,
        attempt=known.attempt,
        state=end.state,
        reason=end.reason,
        ended_index=context.index,
        ended_at_ms=context.at_ms,
        last_s=known.scheduled_s,
        local_min=known.local_min,
        epoch=known.epoch,
        executor=known.executor,
        ledger=known.ledger,
        started_ms=end.started_ms,
        finished_ms=end.finished_ms,
        exit_code=end.exit_code,
        detail=detail,
        output_bytes=end.output_bytes,
        parts=known.parts,
        note=note,
        amends=known.key,
        cpu_ms=end.cpu_ms,
        memory_peak_bytes=end.memory_peak_bytes,
    )


def _take_back(context: Context, row: LaunchRow, said: tuple[str, Note | None]) -> None:
    """Make a launch due again that was begun and never ran; or end it, if nobody wants it now.
    `said` is what its executor said, as State holds it."""
    if row.cancel is not Reason.NONE:
        _end_unrun(context, row, LaunchState.CANCELLED, row.cancel, said)
    elif context.state.by_number[row.number].job is None:
        removed = Note(NoteCode.REMOVED)
        _end_unrun(context, row, LaunchState.CANCELLED, Reason.NONE, ("", removed))
    else:
        row.state = LaunchState.DUE
        row.detail, row.note = said
        context.set_due(row)


def skip(context: Context, command: c.Skip) -> Result:
    """End due launches that will not be started."""
    items, state = [], context.state
    for item in command.items:
        row = state.due.get(item.key)
        if row is None:
            items.append(Verdict.NOT_DUE)
        else:
            record = state.by_number[row.number]
            paused = pause_note(record, item.reason)
            said = ("", paused) if paused else (item.detail, with_gate(state, item.note))
            end = _end_unrun(context, row, LaunchState.SKIPPED, item.reason, said)
            after_skip(context, record, row, end)
            items.append(Verdict.ACCEPTED)
    return Result(Verdict.ACCEPTED, tuple(items))


def cancel(context: Context, command: c.Cancel) -> Result:
    """End what is due; mark what may be running, so that its kill is committed first (rule R8).
    No reason is one only for what is due of a removed job."""
    items, by_number = [], context.state.by_number
    for item in command.items:
        row = context.state.row(item.key)
        if row is None:
            items.append(Verdict.NOT_OPEN)
            continue
        is_removed = row.state is LaunchState.DUE and by_number[row.number].job is None
        if item.reason is Reason.NONE and not is_removed:
            items.append(Verdict.WRONG_STATE)
        elif row.state is LaunchState.DUE:
            context.touch(row)
            row.cancel_by = item.by
            note = Note(NoteCode.REMOVED) if item.reason is Reason.NONE else None
            _end_unrun(context, row, LaunchState.CANCELLED, item.reason, ("", note))
            items.append(Verdict.ACCEPTED)
        elif row.cancel is not Reason.NONE:
            items.append(Verdict.ALREADY)
        else:
            row = context.change(row)
            row.cancel = item.reason
            row.cancel_by = item.by
            items.append(Verdict.ACCEPTED)
    return Result(Verdict.ACCEPTED, tuple(items))


def trigger(context: Context, command: c.Trigger) -> Result:
    """Make a launch due by hand; the name is the entry's second and +tN (rule R8)."""
    state = context.state
    known = state.requests.get(command.request)
    if known is not None:
        return Result(Verdict.ALREADY, number=known[2], scheduled_s=known[1])
    record = state.jobs.get(command.job)
    if record is None or record.job is None:
        return Result(Verdict.UNKNOWN_JOB)
    second = context.at_ms // 1000
    state.touch(record)
    is_same = record.trigger_s == second
    record.trigger_n = record.trigger_n + 1 if is_same else first_trigger(state, record, second)
    record.trigger_s = second
    row = LaunchRow(
        number=record.number,
        scheduled_s=second,
        trigger=record.trigger_n,
        state=LaunchState.DUE,
        deadline_ms=context.at_ms + record.job.deadline_s * 1000,
        revision=record.revision,
        by=command.by,
        due_at_ms=context.at_ms,
    )
    context.open_due(record, row)
    state.requests[command.request] = row.key
    while len(state.requests) > REQUEST_IDS_KEPT:
        del state.requests[next(iter(state.requests))]
    return Result(Verdict.ACCEPTED, number=row.trigger, scheduled_s=second)


def reopen(context: Context, command: c.Reopen) -> Result:
    """Make ended or never accounted instants due, as the next attempt of the same row (rule R1)."""
    items = [_reopen(context, command, item) for item in command.items]
    return Result(Verdict.ACCEPTED, tuple(items))


def _reopen(context: Context, command: c.Reopen, item: c.ReopenItem) -> Verdict:
    record = context.state.by_number.get(item.key[0])
    if record is None or record.job is None:
        return Verdict.UNKNOWN_JOB
    if context.state.row(item.key) is not None:
        return Verdict.ALREADY
    if record.ended_index > command.read_at:
        return Verdict.STALE_REVISION
    if item.key[1] < 0:
        return Verdict.BAD_TIMES
    if item.key[1] > record.horizon_s and not item.key[2]:
        return Verdict.WRONG_HORIZON
    if item.was_state and item.was_state not in REOPENABLE:
        return Verdict.WRONG_STATE
    if not 0 <= item.was_attempt < ATTEMPTS_MAX or (item.was_state == 0 and item.was_attempt):
        return Verdict.WRONG_ATTEMPT
    # A manual launch that never was: the next trigger would be given its name (rule R8).
    is_manual, newest = item.key[2] != 0, (record.trigger_s, record.trigger_n)
    if is_manual and (item.key[2] < 0 or not item.was_state or item.key[1:] > newest):
        return Verdict.WRONG_STATE
    context.open_due(
        record,
        LaunchRow(
            number=record.number,
            scheduled_s=item.key[1],
            trigger=item.key[2],
            state=LaunchState.DUE,
            deadline_ms=context.at_ms + record.job.deadline_s * 1000,
            local_min=item.local_min,
            is_late=True,
            attempt=item.was_attempt,
            revision=record.revision,
            by=command.by,
        ),
    )
    return Verdict.ACCEPTED

"""How a restored cell accounts for the time that nobody remembers (rule R13): Recover, Resolve.

Theory of operation. Between the snapshot and the end of the cell that made it, launches may have
run of which this State knows nothing. The executors' ledgers remember them by name; what they say
is recorded here as if it had been in the log. Every other instant is in doubt: it may have run on
an executor whose ledger is gone. So it is `lost`, and not repeated, unless its job says
`on-lost=retry`. Until that is done for every job, State refuses whatever could lead to a launch.
"""

from __future__ import annotations

from collections.abc import Container
from copy import copy
from typing import Final

import msgspec

from cron.job import OnLost
from cron.launch_state import LaunchState
from cron.notes import Note, NoteCode, about_part, written
from cron.state import commands as c
from cron.state.alerts import QUEUE as ALERTS_QUEUE
from cron.state.chains import Predecessor, is_over
from cron.state.context import Context
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Result, Verdict
from cron.state.retries import after_doubt, after_late_report, after_loss, after_recovery
from cron.state.rows import RESTORED_BY, Part, Row, RowKind
from cron.state.state import JobRecord, State
from cron.state.tasking import give_up_waiting, kept_result, make_ready, on_lost_of
from cron.state.tasks import TaskRecord
from launcher.protocol.names import SCHEDULED_S_MAX
from launcher.protocol.status import Reason

STRANGERS_MAX: Final = 10_000
"""Jobs that the snapshot does not know, whose launches are recorded once by name."""
_MAY_RUN: Final = (LaunchState.BEGUN, LaunchState.LAUNCHED, LaunchState.LOST)


def recover(context: Context, command: c.Recover) -> Result:
    """Record what ran since the snapshot, and what is in doubt; a verdict for each job."""
    state = context.state
    if state.restored is None:
        return Result(Verdict.WRONG_STATE, tuple(Verdict.WRONG_STATE for _ in command.items))
    items = [
        _recover(context, item) if state.is_resolving else _amend(context, item)
        for item in command.items
    ]
    for number in command.recalled:
        executor = state.executors.get(number)
        if executor is not None:
            executor.recalled = state.restored.generation
    return Result(Verdict.ACCEPTED, tuple(items))


def resolve(context: Context, command: c.Resolve) -> Result:
    """Let the cell launch again; refused while a job is not accounted for up to then."""
    state = context.state
    if state.restored is None or not state.is_resolving:
        return Result(Verdict.ALREADY)
    for record in state.by_number.values():
        is_behind = record.horizon_s < command.to_s and not record.task
        if record.job is not None and is_behind:
            return Result(Verdict.WRONG_HORIZON, number=record.number)
    if state.spilled.has_any(command.to_s * 1000 + 999):
        return Result(Verdict.WRONG_HORIZON)
    for task in state.tasks_by_number.values():
        is_lost = not may_repeat(state, task)
        if is_lost and is_doubtful(state, task, command.to_s):
            return Result(Verdict.WRONG_HORIZON, number=task.number)
    state.restored = msgspec.structs.replace(
        state.restored, resolved_at_ms=max(context.at_ms, 1), resolved_s=command.to_s
    )
    return Result(Verdict.ACCEPTED)


def _recover(context: Context, item: c.RecoverItem) -> Verdict:
    if not item.number:
        task = context.state.tasks.get(item.name)
        if task is not None:
            return _recover_task(context, task, item)
        return _record_stranger(context, item)
    record = context.state.by_number.get(item.number)
    if record is None:
        return Verdict.UNKNOWN_JOB
    if item.revision != record.revision:
        return Verdict.STALE_REVISION
    if item.from_s != record.horizon_s:
        return Verdict.ALREADY if record.horizon_s >= item.to_s else Verdict.WRONG_HORIZON
    if not item.from_s <= item.to_s <= SCHEDULED_S_MAX or not _fits(item):
        return Verdict.BAD_TIMES
    context.state.touch(record)
    _account(context, record, _not_again(context, record, item))
    return Verdict.ACCEPTED


def _recover_task(context: Context, task: TaskRecord, item: c.RecoverItem) -> Verdict:
    """Record what became of a task that waited in the snapshot: what ran of it; or, if nobody
    remembers it, that it is in doubt, because its time has come since."""
    state = context.state
    if not task.is_waiting:
        return Verdict.ALREADY
    if item.ran:
        at_s = item.ran[0].scheduled_s
        if at_s != task.at_ms // 1000:  # it was put off since, or made due
            task = context.put_task(task, at_ms=at_s * 1000)
        record = make_ready(context, task)
        record.recovered = context.epoch.generation
        for ran in item.ran:
            _record_ran(context, record, ran, item.not_before_ms)
        for row in record.open.values():
            if row.state is LaunchState.DUE:
                row.not_before_ms = max(row.not_before_ms, item.not_before_ms)
    elif may_repeat(state, task):
        context.put_task(task, at_ms=max(task.at_ms, item.not_before_ms))
    else:
        give_up_waiting(context, task, _lost(NoteCode.IN_DOUBT))
    return Verdict.ACCEPTED


def may_repeat(state: State, task: TaskRecord) -> bool:
    """Return whether a task in doubt would rather run twice than not at all. People are not told
    again of alerts that the life before may have told of."""
    is_delivery = task.queue == ALERTS_QUEUE
    return not is_delivery and on_lost_of(task, state.queues[task.queue]) is OnLost.RETRY


def is_doubtful(
    state: State, task: TaskRecord, to_s: int, ended: Container[Predecessor] = ()
) -> bool:
    """Return whether a task may have run up to `to_s`, as far as the snapshot of a restored cell
    tells. One that follows others has not, unless these are over or will be recorded as `ended`."""
    if not task.is_waiting or task.at_ms // 1000 > to_s:
        return False
    hold = state.holds.get(task.number)
    if hold is None or hold.is_released:
        return True
    return all(is_over(state, one) or one in ended for one in hold.predecessors)


def _not_again(context: Context, record: JobRecord, item: c.RecoverItem) -> c.RecoverItem:
    """Return the item without what a leader before has recorded that died half way; the horizon
    alone cannot tell, since it may be ahead, or be moved again a little later."""
    generation = context.epoch.generation
    if record.recovered != generation:
        record.recovered = generation
        return item
    ran = tuple(ran for ran in item.ran if not ran.trigger and ran.scheduled_s > item.from_s)
    return msgspec.structs.replace(item, ran=ran)


def _account(context: Context, record: JobRecord, item: c.RecoverItem) -> None:
    for ran in item.ran:
        _record_ran(context, record, ran, item.not_before_ms)
    for key in item.doubtful:
        row = context.state.due.get(key)
        if row is not None and row.number == record.number:
            _end_in_doubt(context, record, row, NoteCode.IN_DOUBT)
    for lost in item.lost:
        _record_lost(context, record, lost)
    for due in item.due:
        _make_due(context, record, due)
    context.state.make_detailed([record])
    for row in record.open.values():
        if row.state is LaunchState.DUE:
            row.not_before_ms = max(row.not_before_ms, item.not_before_ms)
    forgotten = any(not part.executor for ran in item.ran for part in ran.parts)
    if item.lost or item.doubtful or forgotten:
        # What is in doubt may be running where nobody has asked; it holds its slot (rule R6).
        record.held_until_ms = max(record.held_until_ms, item.not_before_ms)
        context.state.doubtful[record.number] = None
    record.horizon_s = item.to_s
    record.spent = [at_s for at_s in record.spent if at_s > item.to_s]


def _fits(item: c.RecoverItem) -> bool:
    """Whether no instant is spoken for twice, and none is outside of (from, to]."""
    spans = [(due.scheduled_s, due.scheduled_s) for due in item.due]
    spans += [(lost.scheduled_s, lost.last_s) for lost in item.lost]
    attempts = [
        (ran.scheduled_s, ran.scheduled_s)
        for ran in item.ran
        if not ran.trigger and item.from_s < ran.scheduled_s <= item.to_s
    ]
    spans += dict.fromkeys(attempts)  # several attempts of one launch are one instant
    before_s = item.from_s
    for first_s, last_s in sorted(spans):
        if not before_s < first_s <= last_s <= item.to_s:
            return False
        before_s = last_s
    return True


def _record_ran(context: Context, record: JobRecord, ran: Row, not_before_ms: int) -> None:
    """Take an attempt that an executor remembers into the ledger, open if it still runs."""
    state = context.state
    key = (record.number, ran.scheduled_s, ran.trigger)
    row = state.due.get(key)
    if row is None:
        if key in state.active:
            return  # decided in the ordinary way: its executor is connected
        row = _new_row(record, ran)
        context.open_due(record, row)
    if not ran.trigger and ran.local_min > record.local_horizon_min:
        record.local_horizon_min = ran.local_min
    if (ran.scheduled_s, ran.trigger) > (record.trigger_s, record.trigger_n) and ran.trigger:
        record.trigger_s, record.trigger_n = ran.scheduled_s, ran.trigger
    _begin(context, row, record, ran, not_before_ms)
    if key in state.active:
        return
    if ran.state is LaunchState.LAUNCHED:
        _end_in_doubt(context, record, row, NoteCode.NOBODYS)
        return
    end = Part(
        0,
        ran.state,
        ran.reason,
        ran.exit_code,
        ran.started_ms,
        ran.finished_ms,
        ran.output_bytes,
        detail=ran.detail,
        note=ran.note,
    )
    context.end(row, end)
    if ran.state is LaunchState.LOST:
        after_loss(context, record, row, end, not_before_ms)
    else:
        after_recovery(context, record, row, end)


def _end_in_doubt(context: Context, record: JobRecord, row: LaunchRow, code: NoteCode) -> None:
    """End a launch of which nobody knows whether it ran; it is a dead letter."""
    end = _lost(code)
    context.end(row, end)
    after_doubt(context, record, row, end)


def _lost(code: NoteCode) -> Part:
    return Part(0, LaunchState.LOST, Reason.RESTORED, note=Note(code))


def _new_row(record: JobRecord, ran: Row) -> LaunchRow:
    deadline_s = record.job.deadline_s if record.job is not None else 0
    return LaunchRow(
        number=record.number,
        scheduled_s=ran.scheduled_s,
        trigger=ran.trigger,
        state=LaunchState.DUE,
        deadline_ms=(ran.scheduled_s + deadline_s) * 1000,
        local_min=ran.local_min,
        revision=record.revision,
        by=RESTORED_BY,
        due_at_ms=ran.scheduled_s * 1000 if ran.trigger else 0,
    )


def _begin(
    context: Context, row: LaunchRow, record: JobRecord, ran: Row, not_before_ms: int
) -> None:
    """Give a row both log points: one entry is both, and the executor's ledger the witness. It is
    open while something of it runs."""
    state = context.state
    executor = state.executor_of(ran.executor, ran.ledger)
    row.state = LaunchState.LAUNCHED
    row.attempt = ran.attempt
    row.revision = record.revision
    row.job = record.job
    row.begun_index = ran.begun_index
    row.begun_at_ms = ran.started_ms
    row.epoch = ran.epoch
    row.executor = executor.number if executor is not None else 0
    row.row = ran.row
    row.launched_index = context.index if ran.started_ms else 0
    row.launched_at_ms = context.at_ms if ran.started_ms else 0
    row.started_ms = ran.started_ms
    row.detail, row.note = "", None
    row.parts = list(map(copy, ran.parts)) if len(ran.parts) > 1 else []
    for number, part in enumerate(row.parts, 1):
        part.number = number
        if part.executor not in state.executors and part.state in _MAY_RUN:
            part.state, part.reason = LaunchState.LOST, Reason.RESTORED
            part.held_until_ms = not_before_ms
    runs = row.starts() if ran.state is LaunchState.LAUNCHED else []
    if any(start.executor in state.executors for start in runs):
        context.set_active(row)


def _record_lost(context: Context, record: JobRecord, item: c.Instants) -> None:
    record.local_horizon_min = max(record.local_horizon_min, item.local_min)
    context.record(
        Row(
            kind=RowKind.ENDED if item.count == 1 else RowKind.RANGE,
            job=record.name,
            revision=record.revision,
            scheduled_s=item.scheduled_s,
            trigger=0,
            attempt=0,
            state=LaunchState.LOST,
            reason=Reason.RESTORED,
            ended_index=context.index,
            ended_at_ms=context.at_ms,
            last_s=item.last_s,
            count=item.count,
            local_min=item.local_min,
        )
    )


def _make_due(context: Context, record: JobRecord, due: c.Instants) -> None:
    """An instant in doubt of a job that would rather run twice than not at all."""
    if record.job is None or record.job.on_lost is not OnLost.RETRY:
        return
    row = LaunchRow(
        number=record.number,
        scheduled_s=due.scheduled_s,
        trigger=0,
        state=LaunchState.DUE,
        deadline_ms=(due.scheduled_s + record.job.deadline_s) * 1000,
        local_min=due.local_min,
        is_late=True,
        revision=record.revision,
    )
    context.open_due(record, row)
    record.local_horizon_min = max(record.local_horizon_min, due.local_min)


def _record_stranger(context: Context, item: c.RecoverItem) -> Verdict:
    """Record launches of a job that was made after the snapshot: rows, and nothing else."""
    restored = context.state.restored
    if restored is None or not item.name or item.name in context.state.jobs:
        return Verdict.UNKNOWN_JOB
    if item.name in restored.strangers:
        return Verdict.ALREADY
    if len(restored.strangers) >= STRANGERS_MAX:
        return Verdict.WRONG_STATE
    strangers = (*restored.strangers, item.name)
    context.state.restored = msgspec.structs.replace(restored, strangers=strangers)
    for ran in item.ran:
        _record_row(context, item.name, ran, RowKind.ENDED)
    return Verdict.ACCEPTED


def _amend(context: Context, item: c.RecoverItem) -> Verdict:
    """Record the late reports of an executor that came after the resolution (rule R9)."""
    state = context.state
    record = state.by_number.get(item.number)
    name = record.name if record is not None else item.name
    if not name:
        return Verdict.UNKNOWN_JOB
    for ran in item.ran:
        attempt = ((item.number, ran.scheduled_s, ran.trigger), ran.attempt)
        if ran.state is not LaunchState.LAUNCHED:
            late = _late_report(record, ran)
            known = state.lost.get(attempt)
            if late.state is not LaunchState.LOST:
                state.forget_lost(*attempt)
            _record_row(context, name, late, RowKind.AMENDMENT, known.key if known else None)
            task = state.tasks.get(name)
            _settle_letter(context, record or state.record_of(name), late)
            if task is not None and task.state is LaunchState.LOST:
                is_done = late.state is LaunchState.SUCCEEDED
                result = kept_result(state, task, late.detail) if is_done else ""
                context.put_task(task, state=late.state, reason=late.reason, result=result)
                if not task.job:
                    context.amended_tasks[task.number] = None
        elif record is not None and state.row(attempt[0]) is None:
            # It runs on an executor that came too late: its end will be reported.
            runs = msgspec.structs.replace(ran, revision=record.revision, parts=(), number=-1)
            state.remember_lost(*attempt, runs)
    return Verdict.AMENDED


def _settle_letter(context: Context, record: JobRecord | None, late: Row) -> None:
    """Settle the dead letter of a launch of which there is a late report, the newest row."""
    if record is not None:
        key = (record.number, late.scheduled_s, late.trigger)
        now = {"ended_index": context.index, "ended_at_ms": context.at_ms}
        late = msgspec.structs.replace(late, revision=record.revision, **now)
        after_late_report(context, record, key, late)


def _late_report(record: JobRecord | None, ran: Row) -> Row:
    """Return what a late report of an attempt says: one part that succeeded is not the launch, and
    nobody knows of the others."""
    job = record.job if record is not None else None
    number = ran.parts[0].number if ran.parts else 1
    is_part = number != 1 or (job is not None and job.has_parts)
    if not is_part or ran.state is not LaunchState.SUCCEEDED:
        return ran
    note = about_part(NoteCode.LATE_PART, (number, int(ran.state)), ran.note)
    return msgspec.structs.replace(ran, state=LaunchState.LOST, reason=Reason.RESTORED, note=note)


def _record_row(
    context: Context,
    job: str,
    ran: Row,
    kind: RowKind,
    amends: tuple[int, int] | None = None,
) -> None:
    """Append an attempt that an executor remembers to history: nothing else of it is known."""
    runs_on = ran.state is LaunchState.LAUNCHED
    detail, note = written(ran.note, ran.detail)
    context.record(
        Row(
            kind=kind,
            job=job,
            revision=0,
            scheduled_s=ran.scheduled_s,
            trigger=ran.trigger,
            attempt=ran.attempt,
            state=LaunchState.LOST if runs_on else ran.state,
            reason=Reason.RESTORED if runs_on else ran.reason,
            ended_index=context.index,
            ended_at_ms=context.at_ms,
            last_s=ran.scheduled_s,
            begun_index=ran.begun_index,
            begun_at_ms=ran.started_ms,
            epoch=ran.epoch,
            executor=ran.executor,
            ledger=ran.ledger,
            launched_index=context.index if ran.started_ms else 0,
            launched_at_ms=context.at_ms if ran.started_ms else 0,
            started_ms=ran.started_ms,
            finished_ms=ran.finished_ms,
            exit_code=ran.exit_code,
            by=RESTORED_BY,
            detail=detail,
            output_bytes=ran.output_bytes,
            note=note,
            amends=amends,
        )
    )

"""What a restored cell must record before it may launch again: pure (rule R13).

Between the snapshot and the end of the cell that made it, launches ran of which State knows
nothing. What executors' ledgers remember of them is recorded as it was. Every other instant is in
doubt, and is recorded as lost. Only a job with `on-lost=retry` has its instants caught up as after
any other outage: it would rather run twice than not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final

import msgspec

from cron.calendar.schedule import Ticks, compile_or_none, unreadable
from cron.calendar.schedule import compile as compile_schedule
from cron.job import OnLost
from cron.launch_state import LaunchState
from cron.notes import Note, NoteCode, written
from cron.scheduler.policy import Given, account_for, skipped_run
from cron.scheduler.reports import kept_detail
from cron.state import commands as c
from cron.state.chains import Predecessor
from cron.state.ends import state_of
from cron.state.recovery import is_doubtful, may_repeat
from cron.state.rows import NO_ROW, Part, Row, RowKind
from cron.state.state import ExecutorRecord, JobRecord, State
from cron.state.tasks import TaskRecord
from launcher.protocol.names import SCHEDULED_S_MAX, AttemptName, parse_attempt_name
from launcher.protocol.reports import BatchReport, RowReport, lost_rows
from launcher.protocol.status import Reason, Status
from launcher.protocol.work import Epoch

AHEAD_S_MAX: Final = 3_600
"""How far ahead of this leader's clock the one before may have been, and still be believed."""
_NOBODY: Final = ("", "")
"""The executor and ledger of a part that no executor remembered."""
_RAN: Final = (Status.ACCEPTED, Status.ENDED, Status.INTERRUPTED)

Memories = Mapping[int, Mapping[str, RowReport]]
"""By the executor's number in State, what its ledger remembers, by attempt name."""


class Gathered(msgspec.Struct):
    """What ran since the snapshot: by job number, or by name if State has no such job."""

    by_job: dict[int, list[Row]] = {}
    strangers: dict[str, list[Row]] = {}


def gather(state: State, memories: Memories) -> Gathered:
    """Return the attempts that ran and that neither State nor its history knows.

    An attempt is known if it began before the snapshot: it is then open in State, or its end is in
    history. An attempt whose instant is after the job's horizon is new, whenever it began.
    """
    gathered = Gathered()
    for number in sorted(memories):
        for recalled in memories[number].values():
            if recalled.status in _RAN:
                _gather_one(state, state.executors[number], recalled, gathered)
    for job_number, items in gathered.by_job.items():
        job = state.by_number[job_number].job
        _join_parts(items, job.parts if job is not None else 1)
    for items in gathered.strangers.values():
        _join_parts(items, 1)
    return gathered


def _join_parts(items: list[Row], count: int) -> None:
    items.sort(key=_place)
    items[:] = [
        one for _, parts in groupby(items, key=_place) for one in _whole(list(parts), count)
    ]


def _place(item: Row) -> tuple[int, int, int]:
    return (item.scheduled_s, item.trigger, item.attempt)


def _whole(told: list[Row], count: int) -> list[Row]:
    """Return what is recorded of one attempt, which may have run in several parts: in `count`, if
    its job was then as it is in the snapshot. A part that nobody remembers is lost.

    The attempt runs while one of its parts does. If all parts are over, the worst end counts.
    """
    known = {part.number: (one, part) for one in told for part in one.parts}
    numbers = range(1, max(count, *known) + 1)
    if len(numbers) == 1:
        return [msgspec.structs.replace(one, parts=()) for one in told]
    forgotten = Part(0, LaunchState.LOST, Reason.RESTORED, note=Note(NoteCode.FORGOTTEN))
    nobody = msgspec.structs.replace(
        told[0],
        state=LaunchState.LOST,
        reason=Reason.RESTORED,
        executor="",
        ledger="",
        exit_code=-1,
        started_ms=0,
        finished_ms=0,
        detail="",
        output_bytes=0,
        row=NO_ROW,
    )
    found = [known.get(number, (nobody, forgotten)) for number in numbers]
    ends = (LaunchState.LAUNCHED, LaunchState.LOST, LaunchState.FAILED, LaunchState.CANCELLED)
    of_state = {one.state: one for one, _ in reversed(found)}
    worst = next((of_state[end] for end in ends if end in of_state), found[0][0])
    said = Note(NoteCode.PARTS, tuple(int(one.state) for one, _ in found))
    detail, note = written(said, worst.detail)
    parts = tuple(
        msgspec.structs.replace(part, number=number) for number, (_, part) in enumerate(found, 1)
    )
    return [msgspec.structs.replace(worst, detail=detail, note=note, parts=parts)]


def _gather_one(
    state: State, executor: ExecutorRecord, recalled: RowReport, into: Gathered
) -> None:
    launch = parse_attempt_name(recalled.name).launch
    item = _remembered(executor, recalled)
    record = state.record_of(launch.job)
    if record is None:
        if _is_new(state, recalled):
            into.strangers.setdefault(launch.job, []).append(item)
        return
    key = (record.number, launch.scheduled_s, launch.trigger)
    due = state.due.get(key)
    if key in state.active or _is_of_others(state, key, item):
        return
    if due is not None:
        is_wanted = item.attempt > due.attempt
    elif launch.trigger or launch.scheduled_s <= record.horizon_s:
        is_wanted = _is_new(state, recalled)
    else:
        is_wanted = True
    if is_wanted:
        item = msgspec.structs.replace(item, local_min=_local_min(record, launch.scheduled_s))
        into.by_job.setdefault(record.number, []).append(item)


def _is_of_others(state: State, key: c.Key, item: Row) -> bool:
    """Return whether State holds an attempt as lost, and all its parts as begun on other executors
    than the one that remembers it as `item`. No executor reports what others ran (rule R9)."""
    lost = state.lost.get((key, item.attempt))
    if lost is None:
        return False
    owners = {(executor, ledger) for _, executor, ledger, _ in lost.places()}
    return owners.isdisjoint(((item.executor, item.ledger), _NOBODY))


def _is_new(state: State, recalled: RowReport) -> bool:
    """Return whether an attempt began after the snapshot, in an earlier generation of the cell. An
    executor that answers late may have work of this generation too."""
    restored = state.restored
    if restored is None or not restored.index < recalled.index < state.index:
        return False
    return _epoch(recalled.epoch).generation < restored.generation


def _remembered(executor: ExecutorRecord, recalled: RowReport) -> Row:
    """Return an attempt as its executor remembers it, with the part of it that ran there."""
    name, is_over = parse_attempt_name(recalled.name), recalled.status is Status.ENDED
    launch, state = name.launch, state_of(recalled)
    is_lost = recalled.status is Status.INTERRUPTED
    reason = Reason.EXECUTOR_LOST if is_lost else recalled.reason
    part = Part(
        executor.number,
        state,
        reason,
        recalled.exit_code if is_over else -1,
        recalled.started_ms,
        recalled.finished_ms,
        recalled.output_bytes if is_over else 0,
        detail=kept_detail(recalled),
        name=executor.executor,
        ledger=executor.ledger,
        row=recalled.row,
        number=name.part,
    )
    return Row(
        RowKind.OPEN,
        launch.job,
        0,  # revision
        launch.scheduled_s,
        launch.trigger,
        name.attempt,
        state,
        reason,
        0,  # ended_index
        0,  # ended_at_ms
        launch.scheduled_s,
        begun_index=recalled.index,
        epoch=_epoch(recalled.epoch),
        executor=executor.executor,
        ledger=executor.ledger,
        started_ms=recalled.started_ms,
        finished_ms=recalled.finished_ms,
        exit_code=part.exit_code,
        detail=part.detail,
        output_bytes=part.output_bytes,
        parts=(part,),
        row=recalled.row,
    )


def _epoch(text: str) -> Epoch:
    parts = text.split(".", 2)
    if len(parts) != 3 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return Epoch()
    return Epoch(int(parts[0]), int(parts[1]), parts[2])


def _local_min(record: JobRecord, scheduled_s: int) -> int:
    """Return the nominal local time of an instant of the job's present schedule (rule R11)."""
    if record.job is None:
        return -1
    ticks = compile_or_none(record.job.schedule)
    tick = ticks.tick_after(scheduled_s - 1)
    return tick.nominal_min if tick is not None and tick.scheduled_s == scheduled_s else -1


# --- up to when


def resolve_to(gathered: Gathered, now_s: int) -> int:
    """Return the second up to which all instants are accounted for: now, or as far ahead as a
    leader with a fast clock has launched."""
    ran = [
        item.scheduled_s
        for items in gathered.by_job.values()
        for item in items
        if not item.trigger and item.scheduled_s <= now_s + AHEAD_S_MAX
    ]
    return min(max([now_s, *ran]), SCHEDULED_S_MAX)


# --- a job at a time


def recover_items(
    state: State, gathered: Gathered, to_s: int, not_before_ms: int = 0
) -> Iterator[c.RecoverItem]:
    """Yield what to record of each job that is not accounted for up to `to_s`, or of which anything
    ran or was due: the clock of the last leader may have been ahead of this one.

    An executor that State does not know may be running what is caught up until `not_before_ms`;
    then it has killed it (rule R6).
    """
    doubtful, restored = _doubtful(state), state.restored
    for record in state.by_number.values():
        is_new = restored is not None and record.recovered != restored.generation
        ran = gathered.by_job.get(record.number, []) if is_new else []
        due = doubtful.get(record.number, ())
        # The job of a task has one instant, which has its row.
        until_s = max(to_s, record.horizon_s) if not record.task else record.horizon_s
        if record.horizon_s < until_s or ran or due:
            item = recover_job(record, ran, due, until_s)
            yield msgspec.structs.replace(item, not_before_ms=not_before_ms)
    for name, items in gathered.strangers.items():
        if restored is not None and name not in restored.strangers:
            held_ms = not_before_ms if name in state.tasks else 0
            yield c.RecoverItem(0, 0, 0, 0, ran=tuple(items), name=name, not_before_ms=held_ms)
    for task in _doubtful_tasks(state, gathered, to_s):
        yield c.RecoverItem(0, 0, 0, 0, name=task.name, not_before_ms=not_before_ms)


def _doubtful_tasks(state: State, gathered: Gathered, to_s: int) -> Iterator[TaskRecord]:
    """Yield the tasks that may have run and that no executor remembers, each after those that it
    follows; then those of them that are only put off, whose times say no more when they were due.

    `ended` are those that may have been over. What follows one that is repeated may have run too.
    """
    ended, put_off = dict[Predecessor, None](), list[TaskRecord]()
    left = {one.name: one.waiting + one.running for one in state.groups.values()}
    for task in list(state.tasks_by_number.values()):
        if task.is_over:
            continue
        if task.job or task.name in gathered.strangers:
            # It may be over: it has a launch, or an executor remembers it. If that is known to
            # run still, it is not.
            ran = gathered.by_job.get(task.job, []) if task.job else gathered.strangers[task.name]
            runs_on = any(row.state is LaunchState.LAUNCHED for row in ran)
            record = state.by_number.get(task.job)
            rows = record.open.values() if record is not None else ()
            may_be_over = not runs_on and all(row.state is LaunchState.DUE for row in rows)
        else:
            may_be_over = is_doubtful(state, task, to_s, ended)
            if not may_repeat(state, task):
                yield from (task,) if may_be_over else ()
            elif task.at_ms // 1000 <= to_s:
                put_off.append(task)
        if may_be_over:
            ended[task.number] = None
            if task.group:
                left[task.group] -= 1
                if not left[task.group] and state.groups[task.group].is_closed:
                    ended[task.group] = None
    yield from put_off


def _doubtful(state: State) -> dict[int, tuple[c.Key, ...]]:
    rows = sorted(state.due.values(), key=lambda row: row.number)
    return {
        number: tuple(row.key for row in group)
        for number, group in groupby(rows, key=lambda row: row.number)
    }


def recover_job(
    record: JobRecord, ran: Iterable[Row], due: Iterable[c.Key], to_s: int
) -> c.RecoverItem:
    """Return what to record of one job in (horizon, to_s], and of its launches that were due."""
    ran = tuple(ran)
    ended = {(item.scheduled_s, item.trigger) for item in ran}
    retries = record.job is not None and record.job.on_lost is OnLost.RETRY
    doubtful = () if retries else tuple(key for key in due if key[1:] not in ended)
    caught_up: tuple[c.Instants, ...] = ()
    lost: tuple[c.Instants, ...] = ()
    if record.job is not None and unreadable(record.job.schedule):
        # The cell must not wait for ever for a schedule that nobody here can read: one row says
        # that whatever was due in that time is lost.
        lost = _whole_gap(record.horizon_s, to_s, {item.scheduled_s for item in ran})
    elif record.job is not None:
        ticks = compile_schedule(record.job.schedule)
        taken = {item.scheduled_s for item in ran if not item.trigger} | set(record.spent)
        if retries:
            item = account_for(record, ticks, Given(to_s * 1000))
            due_items = item.due if item is not None else ()
            caught_up = tuple(one for one in due_items if one.scheduled_s not in taken)
            taken |= {one.scheduled_s for one in caught_up}
        lost = _runs_between(ticks, record.horizon_s, to_s, taken)
    return c.RecoverItem(
        record.number, record.revision, record.horizon_s, to_s, ran, caught_up, lost, doubtful
    )


def _whole_gap(after_s: int, until_s: int, taken: set[int]) -> tuple[c.Instants, ...]:
    """Return one range row for (after_s, until_s] except for what ran, whatever was due in it."""
    first_s = max([after_s, *(at_s for at_s in taken if at_s <= until_s)]) + 1
    if first_s > until_s:
        return ()
    count = 1 if first_s == until_s else 2
    return (c.Instants(first_s, -1, False, Reason.RESTORED, count, until_s),)


def _runs_between(
    ticks: Ticks, after_s: int, until_s: int, taken: Iterable[int]
) -> tuple[c.Instants, ...]:
    """Return runs of all instants in (after, until] except those in `taken`."""
    runs: list[c.Instants] = []
    for taken_s in sorted(taken):
        if after_s < taken_s <= until_s:
            runs += skipped_run(ticks, after_s, taken_s - 1, Reason.RESTORED)
            after_s = taken_s
    runs += skipped_run(ticks, after_s, until_s, Reason.RESTORED)
    return tuple(runs)


# --- after the resolution


def amend_items(state: State, number: int, memory: Mapping[str, RowReport]) -> list[c.RecoverItem]:
    """Return what an executor remembers that answered after the resolution (rule R9)."""
    gathered = Gathered()
    for recalled in memory.values():
        if recalled.status in _RAN and _is_new(state, recalled):
            launch = parse_attempt_name(recalled.name).launch
            key = state.key_of(launch)
            if key is not None and state.row(key) is not None:
                continue  # it is open again, or still, and has reports of its own
            item = _remembered(state.executors[number], recalled)
            if key is not None and _is_of_others(state, key, item):
                continue
            if key is None:
                gathered.strangers.setdefault(launch.job, []).append(item)
            else:
                gathered.by_job.setdefault(key[0], []).append(item)
    items = [
        c.RecoverItem(number, 0, 0, 0, ran=tuple(ran)) for number, ran in gathered.by_job.items()
    ]
    items += [
        c.RecoverItem(0, 0, 0, 0, ran=tuple(ran), name=name)
        for name, ran in gathered.strangers.items()
    ]
    return items


def facts_of_open(
    state: State, record: ExecutorRecord, memory: Mapping[str, RowReport], floor: int
) -> list[BatchReport]:
    """Return a report for each launch that State holds open on an executor that has sent all its
    ledger remembers.

    The executor knew this generation's epoch before it answered, so no older start can arrive: an
    attempt that it does not remember never ran there, unless it may have been forgotten.
    """
    facts: list[BatchReport] = []
    for row in record.launches():
        start = row.start_on(record.number)
        if start is None:
            continue
        name = AttemptName(state.launch_name(row.key), row.attempt, start.number)
        recalled = memory.get(str(name))
        if recalled is not None:
            # Names count here: a generation may have forgotten the numbers of the one before.
            place = {"index": row.begun_index, "row": start.row}
            facts.append(msgspec.structs.replace(recalled, **place).as_batch())
        elif start.state is LaunchState.BEGUN and row.begun_index > floor:
            never = RowReport(row.begun_index, start.row, Status.REFUSED, is_recorded=False)
            facts.append(never.as_batch())
        else:
            facts.append(lost_rows(row.begun_index, [start.row]))
    return facts

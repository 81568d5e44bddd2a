"""How rows of batches start and end: log point 2, results, refusals and losses.

What is usual goes a column at a time; whatever is not is left to `launches.py`, row by row. Both
ways come to the same State, and rows reach history in their order whatever is detailed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress, count, groupby
from operator import attrgetter
from typing import Final, TypeAlias

import msgspec

from cron.job import OnLost
from cron.launch_state import LaunchState
from cron.notes import Note, NoteCode
from cron.state import commands as c
from cron.state.batches import Batch, taken
from cron.state.columns import spread
from cron.state.context import Context
from cron.state.launches import change_one
from cron.state.outcome import Result, Verdict
from cron.state.retries import after_losses, after_success, hold_slot, is_kept
from cron.state.rows import Chunk, Column, Part, column
from cron.state.state import JobRecord, State
from launcher.protocol.reports import BatchReport, RowReport
from launcher.protocol.status import Reason, Status

ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up
BEGUN: Final = LaunchState.BEGUN
LAUNCHED: Final = LaunchState.LAUNCHED
SUCCEEDED: Final = LaunchState.SUCCEEDED
LOST: Final = LaunchState.LOST
_STATES: Final = {
    Status.ACCEPTED: LAUNCHED,
    Status.REFUSED: LaunchState.SKIPPED,
    Status.FENCED: LaunchState.SKIPPED,
    Status.UNKNOWN: LaunchState.SKIPPED,  # its order was never sent
    Status.INTERRUPTED: LOST,
}
_WITHOUT_WORDS: Final = {
    Status.INTERRUPTED: NoteCode.DIED,
    Status.REFUSED: NoteCode.REFUSED,
    Status.FENCED: NoteCode.FENCED,
    Status.UNKNOWN: NoteCode.UNSENT,
}
_name: Final = attrgetter("name")
_revision: Final = attrgetter("revision")
Named: TypeAlias = tuple[c.Key, int, int]
"""A launch, its attempt, and the part of it that a row is."""


def named(state: State, executor: int, begun_index: int, row: int) -> Named | None:
    """Return what is, or was until it was lost, that row; None where nobody knows."""
    record = state.executors.get(executor)
    if record is None:
        return None
    launch = record.find(begun_index, row)
    start = None if launch is None else launch.start_on(executor)
    if launch is not None and start is not None:
        return launch.key, launch.attempt, start.number
    place = (begun_index, record.executor, record.ledger, row)
    lost = state.lost_at.get(place)
    if lost is None:
        return None
    return (*lost, state.lost[lost].places().index(place) + 1)


def report(context: Context, command: c.Report) -> Result:
    """Write what became of attempts: log point 2, ends, refusals and losses. Late reports of
    lost ones become amendments (rule R9)."""
    verdicts: list[Verdict] = []
    for executor, said in command.rows:
        beside = (said.output_bytes, said.cpu_ms, said.memory_peak_bytes, said.retry_after_ms)
        times, code = (said.started_ms, said.finished_ms), (said.exit_code,)
        columns = spread(said.rows, times, (*beside, code))
        if columns is None:
            verdicts += [Verdict.WRONG_STATE] * len(said.rows)
        else:
            verdicts += _report_rows(context, said.index, end_of(executor, said), columns[:-1])
    of_rows = verdicts if any(verdicts) else ()
    result = Result(ACCEPTED, (*of_rows, *[change_one(context, *item) for item in command.items]))
    for gone in command.executors:
        record = context.state.executors.get(gone.executor)
        batches = record.batches if record is not None else {}
        for index in sorted(batches):
            if index <= gone.through_index:
                _lose_batch(context, batches[index], gone)
    return result


def state_of(said: BatchReport | RowReport) -> LaunchState:
    """Return what has become of the rows of a report. Those that ran have their result."""
    if said.status is not Status.ENDED:
        return _STATES[said.status]
    if said.exit_code == 0 and said.reason is Reason.NONE:
        return SUCCEEDED
    if said.reason in (Reason.KILLED, Reason.REPLACED, Reason.SNOOZE):
        return LaunchState.CANCELLED
    return LaunchState.FAILED


def end_of(executor: int, said: BatchReport | RowReport) -> Part:
    """Return what an executor reports of a row, or of each of its rows, but for usage and times;
    without words of the executor, with a note."""
    detail, code = said.detail, _WITHOUT_WORDS.get(said.status)
    if not said.is_recorded:
        detail, code = "", NoteCode.NO_RECORD
    note = None if detail or code is None else Note(code)
    exit_code = said.exit_code if said.status is Status.ENDED else -1
    return Part(executor, state_of(said), said.reason, exit_code, detail=detail, note=note)


def _report_rows(
    context: Context, index: int, said: Part, columns: Sequence[Sequence[int]]
) -> list[Verdict]:
    """Write what became of rows that were begun at a log index; `columns` are the rows, and what
    their executor said of each of them. What is usual goes a column at a time, in the order of the
    rows."""
    record = context.state.executors.get(said.executor)
    batch = None if record is None else record.batches.get(index)
    rows, started_ms = columns[:2]
    if batch is None:
        return [_change_row(context, index, said, *one) for one in zip(*columns, strict=True)]
    states, size = batch.states, len(batch.states)
    if rows[-1] < size:
        seen = bytes(taken(states, rows))
    else:
        seen = bytes([states[row] if row < size else 0 for row in rows])
    verdicts = [ACCEPTED] * len(rows)
    if said.state is LAUNCHED and seen.count(BEGUN) == len(rows):
        batch.start(rows, context.index, context.at_ms, started_ms)
        return verdicts
    # What ended without log point 2 was started all the same, or is not usual.
    is_started = BEGUN not in seen or min(started_ms) > 0
    is_plain = said.state is SUCCEEDED and not said.detail and said.note is None
    if is_plain and 0 not in seen and is_started:
        _end(context, batch, said, columns)
    else:
        usual = _usual(context.state, batch, said, seen, columns)
        for is_usual, run in groupby(range(len(rows)), key=usual.__getitem__):
            places = list(run)
            part = [column[places[0] : places[-1] + 1] for column in columns]
            if not is_usual:
                for place, one in zip(places, zip(*part, strict=True), strict=True):
                    verdicts[place] = _change_row(context, index, said, *one)
            elif said.state is LAUNCHED:
                batch.start(part[0], context.index, context.at_ms, part[1])
            else:
                _end(context, batch, said, part)
    context.state.shrink(batch)
    return verdicts


def _usual(
    state: State, batch: Batch, said: Part, seen: bytes, columns: Sequence[Sequence[int]]
) -> list[bool]:
    """Return which rows are usual, and start, or end without anything to follow."""
    if said.state is LAUNCHED:
        return [before == BEGUN for before in seen]
    if said.state not in (SUCCEEDED, LaunchState.FAILED) or said.detail or said.note is not None:
        return [False] * len(seen)
    rows, started_ms = columns[:2]
    usual = [
        before > 0 and (at_ms > 0 or before == LAUNCHED)
        for before, at_ms in zip(seen, started_ms, strict=True)
    ]
    if said.state is not SUCCEEDED:
        jobs = [
            state.by_number[batch.numbers[row]].job if fits else None
            for row, fits in zip(rows, usual, strict=True)
        ]
        usual = [job is not None and not is_kept(job, said.state, said.reason) for job in jobs]
    return usual


def _change_row(
    context: Context,
    index: int,
    said: Part,
    row: int,
    started_ms: int,
    finished_ms: int,
    *beside: int,
) -> Verdict:
    """Write what became of a row that is not usual."""
    found = named(context.state, said.executor, index, row)
    if found is None:
        return Verdict.NOT_OPEN
    key, attempt, part = found
    output_bytes, cpu_ms, memory_peak_bytes, retry_after_ms = beside
    end = msgspec.structs.replace(
        said,
        started_ms=started_ms,
        finished_ms=finished_ms,
        output_bytes=output_bytes,
        retry_after_ms=retry_after_ms,
        cpu_ms=cpu_ms,
        memory_peak_bytes=memory_peak_bytes,
        number=part,
    )
    return change_one(context, key, attempt, end)


def _end(
    context: Context, batch: Batch, end: Part, columns: Sequence[Sequence[int]]
) -> tuple[Chunk, list[JobRecord]]:
    """End usual rows: they leave State, and become a chunk of history. Return it, and their
    jobs."""
    state, index = context.state, context.index
    rows, started_ms, finished_ms, output_bytes, cpu_ms, memory_peak_bytes = columns[:6]
    numbers, scheduled_s = taken(batch.numbers, rows), taken(batch.scheduled_s, rows)
    records = list(map(state.by_number.__getitem__, numbers))
    if state.imagings:
        for record in records:
            state.touch(record)
    before = taken(batch.states, rows)
    if end.state is not LOST and LAUNCHED not in before:
        # The results came before log point 2 was written: one entry is both.
        launched: tuple[Column, Column, Column] = (index, context.at_ms, column(started_ms))
    else:
        if end.state is not LOST and BEGUN in before:
            begun = [place for place, one in enumerate(before) if one == BEGUN]
            new, times_ms = taken(rows, begun), taken(started_ms, begun)
            batch.start(new, index, context.at_ms, times_ms)
        launched = (
            column(taken(batch.launched_index, rows)),
            column(taken(batch.launched_at_ms, rows)),
            column(taken(batch.started_ms, rows)),
        )
    executor = state.executors[batch.executor]
    chunk = Chunk(
        end.state,
        end.reason,
        end.exit_code,
        index,
        context.at_ms,
        batch.index,
        batch.at_ms,
        batch.epoch,
        executor.executor,
        executor.ledger,
        "\n".join(map(_name, records)),
        column(array("q", map(_revision, records))),
        column(scheduled_s),
        0,  # triggers
        column(taken(batch.attempts, rows)),
        column(taken(batch.local_mins, rows)),
        *launched,
        column(finished_ms),
        column(output_bytes),
        context.rows,  # the number of the first
        end.note,
        cpu_ms=column(cpu_ms),
        memory_peak_bytes=column(memory_peak_bytes),
    )
    context.record(chunk)
    for record in records:
        record.ended_index = index
    if end.state is SUCCEEDED and (state.budgets or state.unpaid):
        for record in records:
            after_success(context, record)
    state.end_rows(batch, rows, numbers, scheduled_s)
    context.ended_rows.append((batch.executor, numbers, scheduled_s))
    return chunk, records


def _lose_batch(context: Context, batch: Batch, gone: c.LostExecutor) -> None:
    """Give up all that is open of a batch, in the order of the rows. What is usual, and is not to
    begin again, goes in columns."""
    by_number, states = context.state.by_number, batch.states
    usual = dict.fromkeys(compress(count(), states), False)
    for row in usual:
        job = by_number[batch.numbers[row]].job
        usual[row] = job is not None and job.on_lost is not OnLost.RETRY
    rows = sorted((*usual, *batch.detailed))
    for is_usual, run in groupby(rows, key=lambda row: usual.get(row, False)):
        mine = list(run)
        if is_usual:
            _lose(context, batch, gone, mine)
            continue
        for row in mine:
            launch = batch.launch(row)
            start = launch.start_on(gone.executor) if launch is not None else None
            if launch is not None and start is not None:
                end = Part(gone.executor, LOST, held_until_ms=gone.held_until_ms, note=gone.note)
                end.number = start.number
                change_one(context, launch.key, launch.attempt, end)
    context.state.shrink(batch)


def _lose(context: Context, batch: Batch, gone: c.LostExecutor, rows: list[int]) -> None:
    """Give up usual rows of a batch that do not begin again. State remembers each of them for a
    late report."""
    none = array("q", bytes(8 * len(rows)))
    end = Part(batch.executor, LOST, Reason.EXECUTOR_LOST, note=gone.note)
    chunk, records = _end(context, batch, end, [rows, none, none, none, none, none])
    ended = [chunk.row(place, record.name) for place, record in enumerate(records)]
    for row, record, known in zip(rows, records, ended, strict=True):
        if record.job is not None:
            hold_slot(context, record, record.job, gone.held_until_ms)
        known = msgspec.structs.replace(known, row=row)
        key = (record.number, known.scheduled_s, 0)
        context.state.remember_lost(key, known.attempt, known)
    after_losses(context, records, ended)

"""How rows of batches start and end: log point 2, results, refusals and losses.

What is usual goes a column at a time; whatever is not is left to `launches.py`, row by row. Both
ways come to the same State, and rows reach history in their order whatever is odd.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress, count, groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from cron.job import OnLost
from cron.notes import Note
from cron.state import commands as c
from cron.state.batches import Batch, taken
from cron.state.columns import full, spread
from cron.state.context import Context
from cron.state.launches import Item, change_one
from cron.state.outcome import Result, Verdict
from cron.state.retries import after_success, hold_slot, is_kept
from cron.state.rows import Chunk, column
from cron.state.state import JobRecord, LostRow, State
from launcher.launch import LaunchState, Reason

ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up
BEGUN: Final = LaunchState.BEGUN
LAUNCHED: Final = LaunchState.LAUNCHED
SUCCEEDED: Final = LaunchState.SUCCEEDED
LOST: Final = LaunchState.LOST
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
        return launch.key, launch.attempt, start.part
    place = (begun_index, record.executor, record.ledger, row)
    lost = state.lost_at.get(place)
    if lost is None:
        return None
    return (*lost, state.lost[lost].places().index(place) + 1)


def _found(
    state: State, said: c.Starts | c.Ends, rows: Sequence[int]
) -> tuple[Batch | None, bytes]:
    """Return the batch that a command speaks of, None where nothing of it is open, and the states
    of these rows of it, 0 for those that are not usual."""
    record = state.executors.get(said.executor)
    batch = None if record is None else record.batches.get(said.begun_index)
    if batch is None:
        return None, bytes(len(rows))
    states, size = batch.states, len(batch.states)
    if rows[-1] < size:
        return batch, bytes(taken(states, rows))
    return batch, bytes([states[row] if row < size else 0 for row in rows])


def _change_row(
    context: Context, said: c.Starts | c.Ends | c.Rows, row: int, kind: type[Item], **fields: Any
) -> Verdict:
    """Do what a command says of a row that is not usual."""
    found = named(context.state, said.executor, said.begun_index, row)
    if found is None:
        return Verdict.NOT_OPEN
    key, attempt, part = found
    return change_one(context, kind(key=key, attempt=attempt, part=part, **fields))


def _result(context: Context, of_rows: list[Verdict], items: Sequence[Item]) -> Result:
    """Do what a command says of single attempts; return all verdicts, those of rows first, and
    these left out where all are accepted."""
    told = of_rows if any(of_rows) else ()
    return Result(ACCEPTED, (*told, *[change_one(context, item) for item in items]))


# ---- log point 2


def launched(context: Context, command: c.Launched) -> Result:
    """Write log point 2."""
    verdicts: list[Verdict] = []
    for starts in command.starts:
        columns = spread(starts.rows, starts.started_ms)
        if columns is None:
            verdicts += [Verdict.WRONG_STATE] * len(starts.rows)
            continue
        rows, times = columns
        batch, seen = _found(context.state, starts, rows)
        if batch is not None and seen.count(BEGUN) == len(rows):
            batch.start(rows, context.index, context.at_ms, times)
            verdicts += [ACCEPTED] * len(rows)
            continue
        for before, row, started_ms in zip(seen, rows, times, strict=True):
            if before == LAUNCHED:
                verdicts.append(Verdict.ALREADY)
            elif batch is not None and before:
                batch.start([row], context.index, context.at_ms, [started_ms])
                verdicts.append(ACCEPTED)
            else:
                told = {"started_ms": started_ms}
                verdicts.append(_change_row(context, starts, row, c.LaunchedItem, **told))
    return _result(context, verdicts, command.items)


# ---- ends


class _Told(NamedTuple):
    """What an executor reported of some rows: columns with an item for each row."""

    rows: Sequence[int]
    started_ms: Sequence[int]
    finished_ms: Sequence[int]
    output_bytes: Sequence[int]
    cpu_ms: Sequence[int]
    memory_peak_bytes: Sequence[int]


class _End(NamedTuple):
    """How rows end: as in Row."""

    state: LaunchState
    reason: Reason
    exit_code: int = -1
    note: Note | None = None


def finished(context: Context, command: c.Finished) -> Result:
    """Write the ends of attempts; late news about lost ones become amendments (rule R9)."""
    verdicts: list[Verdict] = []
    for ends in command.ends:
        columns = spread(ends.rows, ends.started_ms, ends.finished_ms)
        beside = (ends.output_bytes, ends.cpu_ms, ends.memory_peak_bytes)
        more = [full(plain, len(ends.rows)) for plain in beside]
        if columns is None or None in more or full((ends.exit_code,), 1) is None:
            verdicts += [Verdict.WRONG_STATE] * len(ends.rows)
            continue
        told = _Told(*columns, *(one for one in more if one is not None))
        batch, seen = _found(context.state, ends, told.rows)
        end = _End(ends.state, ends.reason, ends.exit_code)
        is_usual = batch is not None and ends.state is SUCCEEDED and 0 not in seen
        # What ended without log point 2 was started all the same, or is not usual.
        if batch is not None and is_usual and (BEGUN not in seen or min(told.started_ms) > 0):
            _end(context, batch, end, told)
            verdicts += [ACCEPTED] * len(told.rows)
        else:
            usual = _usual(context.state, batch, ends, seen, told)
            for may_be, run in groupby(range(len(usual)), key=usual.__getitem__):
                places = list(run)
                part = _Told(*(column[places[0] : places[-1] + 1] for column in told))
                if may_be and batch is not None:
                    _end(context, batch, end, part)
                    verdicts += [ACCEPTED] * len(places)
                    continue
                for row in zip(*part, strict=True):
                    fields = dict(zip(_Told._fields, row, strict=True))
                    verdicts.append(
                        _change_row(
                            context, ends, fields.pop("rows"), c.FinishedItem, **fields,
                            state=ends.state, reason=ends.reason, exit_code=ends.exit_code,
                        )
                    )  # fmt: skip
        if batch is not None:
            context.state.shrink(batch)
    return _result(context, verdicts, command.items)


def _usual(state: State, batch: Batch | None, ends: c.Ends, seen: bytes, told: _Told) -> list[bool]:
    """Return which rows are usual, and end without anything to follow."""
    if batch is None or ends.state not in (SUCCEEDED, LaunchState.FAILED):
        return [False] * len(seen)
    usual = [
        before > 0 and (at_ms > 0 or before == LAUNCHED)
        for before, at_ms in zip(seen, told.started_ms, strict=True)
    ]
    if ends.state is not SUCCEEDED:
        jobs = [
            state.by_number[batch.numbers[row]].job if fits else None
            for row, fits in zip(told.rows, usual, strict=True)
        ]
        usual = [job is not None and not is_kept(job, ends.state, ends.reason) for job in jobs]
    return usual


def _end(context: Context, batch: Batch, end: _End, told: _Told) -> list[JobRecord]:
    """End usual rows: they leave State, and become a chunk of history. Return their jobs."""
    state, rows, index = context.state, told.rows, context.index
    numbers, scheduled_s = taken(batch.numbers, rows), taken(batch.scheduled_s, rows)
    records = list(map(state.by_number.__getitem__, numbers))
    if state.imagings:
        for record in records:
            state.touch(record)
    before = taken(batch.states, rows)
    if BEGUN in before and end.state is not LOST:
        # The result came before log point 2 was written: one entry is both.
        begun = [place for place, state_before in enumerate(before) if state_before == BEGUN]
        new, times = taken(rows, begun), taken(told.started_ms, begun)
        batch.start(new, index, context.at_ms, times)
    executor = state.executors[batch.executor]
    context.record(
        Chunk(
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
            column(list(map(_revision, records))),
            column(scheduled_s),
            0,  # triggers
            1,  # attempts
            column(taken(batch.local_mins, rows)),
            column(taken(batch.launched_index, rows)),
            column(taken(batch.launched_at_ms, rows)),
            column(taken(batch.started_ms, rows)),
            column(told.finished_ms),
            column(told.output_bytes),
            context.rows,  # the number of the first
            end.note,
            cpu_ms=column(told.cpu_ms),
            memory_peak_bytes=column(told.memory_peak_bytes),
        )
    )
    for record in records:
        record.ended_index = index
        record.counts[end.state] = record.counts.get(end.state, 0) + 1
    if end.state is SUCCEEDED and state.budgets:
        for record in records:
            after_success(context, record)
    state.end_rows(batch, rows, numbers, scheduled_s)
    context.moved_rows.append((numbers, scheduled_s))
    return records


# ---- refusals and losses


def refused(context: Context, command: c.Refused) -> Result:
    """Take back attempts that the executor's journal proves never ran: due again (rule R7)."""
    verdicts: list[Verdict] = []
    for said in command.rows:
        columns = spread(said.rows)
        if columns is None:
            verdicts += [Verdict.NOT_OPEN] * len(said.rows)
            continue
        told = {"detail": said.detail, "note": said.note}
        verdicts += [_change_row(context, said, row, c.RefusedItem, **told) for row in columns[0]]
    return _result(context, verdicts, command.items)


def lost(context: Context, command: c.Lost) -> Result:
    """Give up attempts whose fate cannot be known; they hold their job's slot for a while."""
    verdicts = [change_one(context, item) for item in command.items]
    for gone in command.executors:
        record = context.state.executors.get(gone.executor)
        batches = record.batches if record is not None else {}
        for index in sorted(batches):
            if index <= gone.through_index:
                _lose_batch(context, batches[index], gone)
    return Result(ACCEPTED, tuple(verdicts))


def _lose_batch(context: Context, batch: Batch, gone: c.LostExecutor) -> None:
    """Give up all that is open of a batch, in the order of the rows. What is usual, and is not to
    begin again, goes in columns."""
    by_number, states = context.state.by_number, batch.states
    usual = dict.fromkeys(compress(count(), states), False)
    for row in usual:
        job = by_number[batch.numbers[row]].job
        usual[row] = job is not None and job.on_lost is not OnLost.RETRY
    rows = sorted((*usual, *batch.odd))
    for is_usual, run in groupby(rows, key=lambda row: usual.get(row, False)):
        mine = list(run)
        if is_usual:
            _lose(context, batch, gone, mine)
            continue
        for row in mine:
            launch = batch.launch(row)
            start = launch.start_on(gone.executor) if launch is not None else None
            if launch is not None and start is not None:
                held_ms, note = gone.held_until_ms, gone.note
                item = c.LostItem(launch.key, launch.attempt, held_ms, "", start.part, note)
                change_one(context, item)
    context.state.shrink(batch)


def _lose(context: Context, batch: Batch, gone: c.LostExecutor, rows: list[int]) -> None:
    """Give up usual rows of a batch that do not begin again. State remembers each of them for late
    news."""
    state, number = context.state, context.rows
    executor = state.executors[gone.executor]
    none = array("q", bytes(8 * len(rows)))
    end = _End(LOST, Reason.EXECUTOR_LOST, note=gone.note)
    records = _end(context, batch, end, _Told(rows, none, none, none, none, none))
    for place, (row, record) in enumerate(zip(rows, records, strict=True)):
        if record.job is not None:
            hold_slot(context, record, record.job, gone.held_until_ms)
        known = LostRow(
            record.revision,
            batch.local_mins[row],
            context.index,
            number + place,
            batch.epoch,
            executor.executor,
            executor.ledger,
            (),  # parts
            batch.index,
            (row,),
        )
        key = (record.number, batch.scheduled_s[row], 0)
        state.remember_lost(key, 1, known)

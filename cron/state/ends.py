"""How the usual rows of a batch start and end: log point 2 and results, a column at a time.

Whatever is not usual is left to `launches.py`, row by row: both ways come to the same State.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, repeat
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeAlias

from cron.state import commands as c
from cron.state.batches import Batch
from cron.state.columns import all_fit, spread, sums
from cron.state.context import Context
from cron.state.outcome import Verdict
from cron.state.retries import after_success, is_kept
from cron.state.rows import Chunk, column, joined
from cron.state.state import JobRecord, State
from launcher.launch import LaunchState

ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up
BEGUN: Final = LaunchState.BEGUN
_name: Final = attrgetter("name")
_revision: Final = attrgetter("revision")
LAUNCHED: Final = LaunchState.LAUNCHED
SUCCEEDED: Final = LaunchState.SUCCEEDED
Named: TypeAlias = tuple[c.Key, int, int]
"""A launch, its attempt, and the part of it that a row is."""
Started: TypeAlias = Callable[[Context, c.LaunchedItem], Verdict]
Ended: TypeAlias = Callable[[Context, c.FinishedItem], Verdict]


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


def all_on(state: State, executor: int, through_index: int) -> list[Named]:
    """Return what is open on an executor and was begun up to a log index: the same order on every
    replica."""
    record = state.executors.get(executor)
    if record is None:
        return []
    return [
        (launch.key, launch.attempt, start.part)
        for index in sorted(record.batches)
        for launch in record.batches[index].launches()
        if index <= through_index and (start := launch.start_on(executor)) is not None
    ]


def all_named(state: State, said: c.Rows | c.LostRows) -> Iterator[Named | None]:
    """Yield what each row is, as `named` says, just before it is asked for."""
    rows = row_numbers(said.rows)
    if rows is None:
        yield from repeat(None, len(said.rows))
        return
    for row in rows:
        yield named(state, said.executor, said.begun_index, row)


def batch_of(state: State, executor: int, begun_index: int) -> Batch | None:
    """Return the batch, None where nothing of it is open."""
    record = state.executors.get(executor)
    return None if record is None else record.batches.get(begun_index)


def row_numbers(coded: tuple[int, ...]) -> list[int] | None:
    """Return the rows that a command means; None unless they ascend from 0 or above."""
    rows = sums(coded)
    if rows and (rows[0] < 0 or min(coded[1:], default=1) < 1 or not all_fit(rows)):
        return None
    return rows


def launched(context: Context, starts: c.Starts, one: Started) -> list[Verdict]:
    """Write log point 2 of rows; `one` does for what is not usual."""
    state = context.state
    rows = row_numbers(starts.rows)
    times = None if rows is None else spread(starts.started_ms, len(rows))
    if rows is None or times is None:
        return [Verdict.WRONG_STATE] * len(starts.rows)
    batch = batch_of(state, starts.executor, starts.begun_index)
    size = 0 if batch is None else len(batch.states)
    verdicts: list[Verdict] = []
    for row, started_ms in zip(rows, times, strict=True):
        before = batch.states[row] if batch is not None and row < size else 0
        if batch is not None and before == BEGUN:
            batch.start(row, context.index, context.at_ms, started_ms)
            verdicts.append(ACCEPTED)
        elif before:
            verdicts.append(Verdict.ALREADY)
        else:
            found = named(state, starts.executor, starts.begun_index, row)
            if found is None:
                verdicts.append(Verdict.NOT_OPEN)
            else:
                key, attempt, part = found
                verdicts.append(one(context, c.LaunchedItem(key, attempt, started_ms, part)))
    return verdicts


def finished(context: Context, ends: c.Ends, one: Ended) -> list[Verdict]:
    """Write the ends of rows; `one` does for what is not usual."""
    rows = row_numbers(ends.rows)
    if rows is None:
        return [Verdict.WRONG_STATE] * len(ends.rows)
    started, finished_ms = spread(ends.started_ms, len(rows)), spread(ends.finished_ms, len(rows))
    output = list(ends.output_bytes) or [0]
    if len(output) == 1:
        output *= len(rows)
    is_whole = started is not None and finished_ms is not None and len(output) == len(rows)
    if not is_whole or not all_fit((ends.exit_code, *output)):
        return [Verdict.WRONG_STATE] * len(rows)
    told = list(zip(rows, started or (), finished_ms or (), output, strict=True))
    batch = batch_of(context.state, ends.executor, ends.begun_index)
    usual = _usual(context.state, batch, ends, rows, started or [])
    if batch is not None and rows and all(usual):
        _end(context, batch, ends, rows, told)
        return [ACCEPTED] * len(rows)
    verdicts: list[Verdict] = []
    # In the order of the rows, so that history has them in the same order whatever is odd.
    for is_usual, run in groupby(zip(usual, told, strict=True), key=itemgetter(0)):
        part = [item for _, item in run]
        if is_usual and batch is not None:
            _end(context, batch, ends, [item[0] for item in part], part)
            verdicts += [ACCEPTED] * len(part)
        else:
            verdicts += [_end_one(context, ends, item, one) for item in part]
    return verdicts


_Told: TypeAlias = tuple[int, int, int, int]
"""Row, started_ms, finished_ms, output_bytes."""


def _usual(
    state: State, batch: Batch | None, ends: c.Ends, rows: list[int], started_ms: list[int]
) -> list[bool]:
    """Return which rows are usual, and end without anything to follow."""
    if batch is None or ends.state not in (SUCCEEDED, LaunchState.FAILED):
        return [False] * len(rows)
    states, size = batch.states, len(batch.states)
    # A row that ended without having started has no log point 2.
    usual = [
        row < size and states[row] > 0 and (at_ms > 0 or states[row] == LAUNCHED)
        for row, at_ms in zip(rows, started_ms, strict=True)
    ]
    if ends.state is not SUCCEEDED:
        jobs = [
            state.by_number[batch.numbers[row]].job if fits else None
            for row, fits in zip(rows, usual, strict=True)
        ]
        usual = [job is not None and not is_kept(job, ends.state, ends.reason) for job in jobs]
    return usual


def _end_one(context: Context, ends: c.Ends, told: _Told, one: Ended) -> Verdict:
    row, started_ms, finished_ms, output_bytes = told
    found = named(context.state, ends.executor, ends.begun_index, row)
    if found is None:
        return Verdict.NOT_OPEN
    key, attempt, part = found
    return one(
        context,
        c.FinishedItem(
            key, attempt, ends.state, ends.reason, ends.exit_code, started_ms, finished_ms,
            output_bytes=output_bytes, part=part,
        ),
    )  # fmt: skip


def _end(
    context: Context, batch: Batch, ends: c.Ends, rows: Sequence[int], told: Sequence[_Told]
) -> None:
    """End usual rows: they leave State, and become a chunk of history."""
    state = context.state
    numbers = _taken(batch.numbers, rows)
    scheduled_s = _taken(batch.scheduled_s, rows)
    records = list(map(state.by_number.__getitem__, numbers))
    if state.imagings:
        for record in records:
            state.touch(record)
    before = _taken(batch.states, rows)
    if BEGUN in before:
        # The result came before log point 2 was written: one entry is both.
        for row, started_ms, _, _ in told:
            if batch.states[row] == BEGUN:
                batch.start(row, context.index, context.at_ms, started_ms)
    executor = state.executors[batch.executor]
    context.record_chunk(
        Chunk(
            ends.state,
            ends.reason,
            ends.exit_code,
            context.index,
            context.at_ms,
            batch.index,
            batch.at_ms,
            batch.epoch,
            executor.executor,
            executor.ledger,
            joined(map(_name, records)),
            column(list(map(_revision, records))),
            column(scheduled_s),
            0,  # triggers
            column(_taken(batch.attempts, rows)),
            column(_taken(batch.local_mins, rows)),
            column(_taken(batch.launched_index, rows)),
            column(_taken(batch.launched_at_ms, rows)),
            column(_taken(batch.started_ms, rows)),
            column([one[2] for one in told]),
            column([one[3] for one in told]),
        )
    )
    _count(context, ends.state, records)
    for row in rows:
        batch.states[row] = 0
    batch.usual -= len(rows)
    for number in numbers:
        state.stop_running(number)
    state.active.leave_all(numbers, scheduled_s)
    context.move_rows(batch, rows)
    state.leave_batch(batch)


def _count(context: Context, ended: LaunchState, records: list[JobRecord]) -> None:
    index = context.index
    for record in records:
        record.ended_index = index
        counts = record.counts
        counts[ended] = counts.get(ended, 0) + 1
    if ended is SUCCEEDED and context.state.budgets:
        for record in records:
            after_success(context, record)


def _taken(values: Sequence[int], rows: Sequence[int]) -> Any:
    """Return the items of a column, or of states, in these ascending places."""
    first, last = rows[0], rows[-1]
    if last - first == len(rows) - 1:
        return values[first : last + 1]
    items = itemgetter(*rows)(values)
    return bytes(items) if isinstance(values, bytearray) else array("q", items)

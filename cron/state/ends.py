"""How the usual rows of a batch start and end: log point 2 and results, a column at a time.

Whatever is not usual is left to `launches.py`, row by row: both ways come to the same State.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from typing import Final, TypeAlias

from cron.state import commands as c
from cron.state.batches import Batch
from cron.state.columns import all_fit, spread, sums
from cron.state.context import Context
from cron.state.outcome import Verdict
from cron.state.retries import after_success, is_kept
from cron.state.rows import Chunk, column, joined
from cron.state.state import State
from launcher.launch import LaunchState

ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up
BEGUN: Final = LaunchState.BEGUN
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


def all_named(state: State, said: c.Rows) -> Iterator[Named | None]:
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
            batch.states[row] = LAUNCHED
            batch.launched_index[row] = context.index
            batch.launched_at_ms[row] = context.at_ms
            batch.started_ms[row] = started_ms
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
    if batch is not None and all(usual):
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
    state, index = context.state, context.index
    states = batch.states
    numbers = [batch.numbers[row] for row in rows]
    records = [state.by_number[number] for number in numbers]
    if state.imagings:
        for record in records:
            state.touch(record)
    for row, started_ms, _, _ in told:
        if states[row] == BEGUN:
            # The result came before log point 2 was written: one entry is both.
            batch.launched_index[row] = index
            batch.launched_at_ms[row] = context.at_ms
            batch.started_ms[row] = started_ms
    executor = state.executors[batch.executor]
    context.record_chunk(
        Chunk(
            ends.state,
            ends.reason,
            ends.exit_code,
            index,
            context.at_ms,
            batch.index,
            batch.at_ms,
            batch.epoch,
            executor.executor,
            executor.ledger,
            joined([record.name for record in records]),
            column([record.revision for record in records]),
            column([batch.scheduled_s[row] for row in rows]),
            0,  # triggers
            column([batch.attempts[row] for row in rows]),
            column([batch.local_mins[row] for row in rows]),
            column([batch.launched_index[row] for row in rows]),
            column([batch.launched_at_ms[row] for row in rows]),
            column([batch.started_ms[row] for row in rows]),
            column([one[2] for one in told]),
            column([one[3] for one in told]),
        )
    )
    ended = ends.state
    for row, record in zip(rows, records, strict=True):
        states[row] = 0
        record.ended_index = index
        counts = record.counts
        counts[ended] = counts.get(ended, 0) + 1
        state.active.leave(record.number, batch.scheduled_s[row])
        state.stop_running(record.number)
    batch.usual -= len(rows)
    context.move_rows(batch, rows)
    state.leave_batch(batch)
    if ended is SUCCEEDED and state.budgets:
        for record in records:
            after_success(context, record)

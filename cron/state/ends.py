"""How the usual rows of a batch start and end: log point 2 and results, a column at a time.

Whatever is not usual is left to `launches.py`, row by row: both ways come to the same State.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, repeat
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from cron.state import commands as c
from cron.state.batches import Batch, taken
from cron.state.columns import all_fit, spread
from cron.state.context import Context
from cron.state.outcome import Verdict
from cron.state.retries import after_success, is_kept
from cron.state.rows import Chunk, column, joined
from cron.state.state import JobRecord, State
from launcher.columns import sums
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


def count_on(state: State, gone: c.LostExecutor) -> int:
    """Return how many rows are open on an executor that is lost with them."""
    record = state.executors.get(gone.executor)
    batches = record.batches.items() if record is not None else ()
    return sum(
        batch.usual + len(batch.odd) for index, batch in batches if index <= gone.through_index
    )


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
    seen = _states(batch, rows)
    if batch is not None and rows and seen.count(BEGUN) == len(rows):
        batch.start(rows, context.index, context.at_ms, times)
        return [ACCEPTED] * len(rows)
    verdicts: list[Verdict] = []
    for row, started_ms, before in zip(rows, times, seen, strict=True):
        if batch is not None and before == BEGUN:
            batch.start([row], context.index, context.at_ms, [started_ms])
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


def _states(batch: Batch | None, rows: list[int]) -> bytes:
    """Return the states of these rows of a batch, 0 for those that are not usual."""
    if batch is None or not rows:
        return bytes(len(rows))
    if rows[-1] < len(batch.states):
        return bytes(taken(batch.states, rows))
    size = len(batch.states)
    return bytes(batch.states[row] if row < size else 0 for row in rows)


class _Told(NamedTuple):
    """What an executor reported of some rows: columns with an item for each row."""

    rows: Sequence[int]
    started_ms: Sequence[int]
    finished_ms: Sequence[int]
    output_bytes: Sequence[int]
    cpu_ms: Sequence[int]
    memory_peak_bytes: Sequence[int]

    def between(self, first: int, last: int) -> _Told:
        """Return the reports of the rows from one place to before another."""
        return _Told(*(column[first:last] for column in self))


def _told(ends: c.Ends) -> _Told | None:
    """Return the reports of rows, None where a column does not fit the number of rows."""
    rows = row_numbers(ends.rows)
    if rows is None:
        return None
    started, finished = spread(ends.started_ms, len(rows)), spread(ends.finished_ms, len(rows))
    if started is None or finished is None or not all_fit((ends.exit_code,)):
        return None
    beside: list[Sequence[int]] = []
    for kept in (ends.output_bytes, ends.cpu_ms, ends.memory_peak_bytes):
        values = kept * len(rows) if len(kept) == 1 else kept or (0,) * len(rows)
        if len(values) != len(rows) or not all_fit(kept):
            return None
        beside.append(values)
    return _Told(rows, started, finished, *beside)


def finished(context: Context, ends: c.Ends, one: Ended) -> list[Verdict]:
    """Write the ends of rows; `one` does for what is not usual."""
    told = _told(ends)
    if told is None:
        return [Verdict.WRONG_STATE] * len(ends.rows)
    batch = batch_of(context.state, ends.executor, ends.begun_index)
    seen = _states(batch, list(told.rows))
    is_success = ends.state is SUCCEEDED
    if batch is not None and is_success and _all_ran(seen, told) and told.rows:
        _end(context, batch, ends, told)
        context.state.shrink(batch)
        return [ACCEPTED] * len(told.rows)
    usual = _usual(context.state, batch, ends, seen, told)
    verdicts: list[Verdict] = []
    # In the order of the rows, so that history has them in the same order whatever is odd.
    for is_usual, run in groupby(range(len(usual)), key=usual.__getitem__):
        places = list(run)
        part = told.between(places[0], places[-1] + 1)
        if is_usual and batch is not None:
            _end(context, batch, ends, part)
            verdicts += [ACCEPTED] * len(places)
        else:
            verdicts += [_end_one(context, ends, item, one) for item in zip(*part, strict=True)]
    if batch is not None:
        context.state.shrink(batch)
    return verdicts


def _all_ran(seen: bytes, told: _Told) -> bool:
    """Whether all rows are usual, and started. What ended without that has no log point 2."""
    return 0 not in seen and (BEGUN not in seen or min(told.started_ms, default=1) > 0)


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


def _end_one(context: Context, ends: c.Ends, told: tuple[int, ...], one: Ended) -> Verdict:
    row, started_ms, finished_ms, output_bytes, cpu_ms, memory_peak_bytes = told
    found = named(context.state, ends.executor, ends.begun_index, row)
    if found is None:
        return Verdict.NOT_OPEN
    key, attempt, part = found
    return one(
        context,
        c.FinishedItem(
            key, attempt, ends.state, ends.reason, ends.exit_code, started_ms, finished_ms,
            output_bytes=output_bytes, part=part, cpu_ms=cpu_ms,
            memory_peak_bytes=memory_peak_bytes,
        ),
    )  # fmt: skip


def _end(context: Context, batch: Batch, ends: c.Ends, told: _Told) -> None:
    """End usual rows: they leave State, and become a chunk of history."""
    state, rows = context.state, told.rows
    numbers, scheduled_s = taken(batch.numbers, rows), taken(batch.scheduled_s, rows)
    records = list(map(state.by_number.__getitem__, numbers))
    if state.imagings:
        for record in records:
            state.touch(record)
    # Where the result came before log point 2 was written one entry is both.
    before = taken(batch.states, rows)
    if BEGUN in before:
        begun = [place for place, state_before in enumerate(before) if state_before == BEGUN]
        new, times = taken(rows, begun), taken(told.started_ms, begun)
        batch.start(new, context.index, context.at_ms, times)
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
            column(taken(batch.attempts, rows)),
            column(taken(batch.local_mins, rows)),
            column(taken(batch.launched_index, rows)),
            column(taken(batch.launched_at_ms, rows)),
            column(taken(batch.started_ms, rows)),
            column(told.finished_ms),
            column(told.output_bytes) if ends.output_bytes else 0,
            cpu_ms=column(told.cpu_ms) if ends.cpu_ms else 0,
            memory_peak_bytes=column(told.memory_peak_bytes) if ends.memory_peak_bytes else 0,
        )
    )
    _count(context, ends.state, records)
    batch.end(rows)
    state.stop_all(numbers)
    state.active.leave_all(numbers, scheduled_s)
    context.move_rows(numbers, scheduled_s)
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

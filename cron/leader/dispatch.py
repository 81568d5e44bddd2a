"""From applied outcomes to orders for executors: the only place from which anything is started.

What is sent follows from what was applied in the leader's own epoch, never from the return of an
append, which may be lost (cron/DESIGN.md, "One turn of the leader").
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, cast

import msgspec

from cron.errors import InvariantViolated
from cron.failpoints import hit
from cron.job import Job
from cron.scheduler.reports import Source
from cron.state import commands as c
from cron.state.batches import Batch
from cron.state.codec import encode_work
from cron.state.outcome import Outcome, Result, Verdict
from cron.state.state import ExecutorRecord, LaunchRow, Start, State
from launcher.launch import LaunchState, Reason
from launcher.pool.orders import BatchRows, KillOrder, StartBatch, Work, work_of
from launcher.pool.pool import Pool

BEGUN: Final = LaunchState.BEGUN  # members of an enumeration are slow to look up
_ENDED = (
    Verdict.ACCEPTED,
    Verdict.AMENDED,
    Verdict.NOT_OPEN,
    Verdict.WRONG_ATTEMPT,
    Verdict.WRONG_STATE,
)
"""Verdicts after which an executor need not report the end of that attempt again."""


class Dispatcher:
    """Sends what applied entries ask for, while this replica leads."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._works: dict[tuple[int, int], Work] = {}  # by job number and revision
        self._current: dict[int, Work] = {}  # by job number: those of the jobs as they are now
        self.unsent = Unsents()

    def clear(self) -> None:
        """Forget what was encoded; at a takeover."""
        self._works.clear()
        self._current.clear()

    def follow(self, state: State, outcome: Outcome) -> None:
        """Send starts and kills for one applied entry of our own."""
        if any(isinstance(command, c.PutJobs) for command in outcome.commands):
            self._forget_changed(state)
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Begin):
                hit("after-begin")
            elif isinstance(command, c.Cancel):
                self._kill(state, command, result)
            elif isinstance(command, c.Launched):
                hit("after-launched")
        for record, batch in _begun(state, outcome):
            orders = self.orders(
                state, batch, rows_in(batch, BEGUN), sorted(batch.odd), is_first=True
            )
            if orders:
                self._pool.start(record.executor, record.ledger, orders)

    def _forget_changed(self, state: State) -> None:
        """Let go of the works of jobs that are not so any more. Those of the others stay the same
        ones, which no stream has to be sent again."""
        self._current.clear()
        self._works = {
            (number, revision): work
            for (number, revision), work in self._works.items()
            if number in state.by_number and state.by_number[number].revision == revision
        }

    def orders(
        self,
        state: State,
        batch: Batch,
        usual: Sequence[int],
        odd: Sequence[int],
        *,
        is_first: bool = False,
    ) -> list[StartBatch]:
        """Return the orders to start rows of a batch: of usual ones, in columns, and of odd ones.
        An odd one is left out if it has started, or its job cannot be found."""
        found = []
        if usual:
            found.append(self._usual(state, batch, usual, is_first=is_first))
        launches = []
        for row in odd:
            launch = batch.odd[row]
            start = launch.start_on(batch.executor)
            if launch.job is not None and start is not None and row >= 0 and start.state is BEGUN:
                launches.append((launch, start, self._work(state, launch.number, launch)))
        if launches:
            found.append(_odd(batch.index, launches, is_first=is_first))
        return found

    def _usual(
        self, state: State, batch: Batch, rows: Sequence[int], *, is_first: bool
    ) -> StartBatch:
        def picked(column: array[int]) -> list[int]:
            whole = len(rows) == len(column)
            return column.tolist() if whole else list(map(column.__getitem__, rows))

        numbers = picked(batch.numbers)
        works = list(map(self._current.get, numbers))
        if None in works:
            works = [self._work(state, number) for number in numbers]
        return StartBatch(
            batch.index,
            rows,
            cast("list[Work]", works),
            picked(batch.scheduled_s),
            picked(batch.not_after_ms),
            picked(batch.deadlines_ms),
            picked(batch.attempts),
            is_first=is_first,
        )

    def _work(self, state: State, number: int, launch: LaunchRow | None = None) -> Work:
        """Return the work of a job as it is now, or as it was when a launch began."""
        record = state.by_number[number]
        revision = record.revision if launch is None else launch.revision
        job = record.job if launch is None else launch.job
        work = self._works.get((number, revision))
        if work is None:
            if job is None:
                raise InvariantViolated(f"job {number} has begun, and is not there")
            work = self._works[(number, revision)] = _encoded(record.name, job)
        if revision == record.revision:
            self._current[number] = work
        return work

    def _kill(self, state: State, command: c.Cancel, result: Result) -> None:
        for item, verdict in zip(command.items, result.items, strict=True):
            launch = state.active.get(item.key) if verdict == Verdict.ACCEPTED else None
            if launch is not None:
                self.kill(state, launch)

    def kill(self, state: State, launch: LaunchRow) -> None:
        """Order the end of an attempt whose Cancel is committed, part by part (rule R8)."""
        for start in launch.starts():
            record = state.executors.get(start.executor)
            if record is not None:
                self.kill_on(record, launch, start)

    def kill_on(self, record: ExecutorRecord, launch: LaunchRow, start: Start) -> None:
        """Order the end of a part of an attempt whose Cancel is committed. Its executor knows none
        below row 0: State numbers so what nobody knows the row of."""
        if launch.cancel is not Reason.NONE and start.row >= 0:
            order = KillOrder(launch.begun_index, start.row, launch.cancel)
            self._pool.kill(record.executor, record.ledger, [order])


def _begun(state: State, outcome: Outcome) -> Iterator[tuple[ExecutorRecord, Batch]]:
    """Yield what the entry that was just applied has begun, with the executors."""
    commands = [command for command in outcome.commands if isinstance(command, c.Begin)]
    executors = dict.fromkeys(spec.executor for one in commands for spec in one.batches)
    for number in executors:
        record = state.executors.get(number)
        batch = record.batches.get(state.index) if record is not None else None
        if record is not None and batch is not None:
            yield record, batch


def late_begun(state: State, outcome: Outcome) -> int:
    """Return how many launches that catch up the entry has begun that was just applied."""
    return sum(
        batch.lates.count(True)
        + sum(one.is_late and one.executor == batch.executor for one in batch.odd.values())
        for _, batch in _begun(state, outcome)
    )


def rows_in(batch: Batch, state: LaunchState) -> list[int]:
    """Return the usual rows of a batch that are in a state, in order."""
    wanted, states = int(state), batch.states
    count = states.count(wanted)
    if count == len(states):
        return list(range(count))
    return [row for row, one in enumerate(states) if one == wanted] if count else []


def _odd(
    index: int, found: Sequence[tuple[LaunchRow, Start, Work]], *, is_first: bool
) -> StartBatch:
    launches = [launch for launch, _, _ in found]
    return StartBatch(
        index,
        [start.row for _, start, _ in found],
        [work for _, _, work in found],
        [launch.scheduled_s for launch in launches],
        [launch.not_after_ms for launch in launches],
        [launch.deadline_ms for launch in launches],
        [launch.attempt for launch in launches],
        [launch.trigger for launch in launches],
        [start.part for _, start, _ in found],
        is_first,
    )


class Unsents:
    """Starts that never left and never will, by the executor and ledger that they were for, until
    the log has taken them back: nothing may order them meanwhile."""

    def __init__(self) -> None:
        self._rows: dict[Source, dict[int, set[int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def clear(self) -> None:
        """Forget all; at the end of leadership."""
        self._rows.clear()

    def add(self, source: Source, batches: Sequence[BatchRows]) -> None:
        """Note what the pool gave back."""
        of_source = self._rows.setdefault(source, {})
        for index, rows in batches:
            of_source.setdefault(index, set()).update(rows)

    def has(self, source: Source, index: int, row: int) -> bool:
        """Whether that row was given back."""
        return row in self._rows.get(source, {}).get(index, ())

    def keep(self, source: Source, index: int, rows: set[int]) -> None:
        """Forget all rows of a batch but these: the log has taken them back, or they are over."""
        if rows:
            self._rows[source][index] = rows
            return
        del self._rows[source][index]
        if not self._rows[source]:
            del self._rows[source]

    def batches(self) -> list[tuple[Source, int, set[int]]]:
        """Return the source, the index and the rows of each batch, oldest first for each source."""
        return [
            (source, index, rows)
            for source, batches in self._rows.items()
            for index, rows in sorted(batches.items())
        ]


def is_settled(verdict: int) -> bool:
    """Whether the end of an attempt needs no further report after this verdict."""
    return verdict in _ENDED


def _encoded(name: str, job: Job) -> Work:
    work = job.work
    if job.is_limited and not work.guarded:  # declared to an older release
        work = msgspec.structs.replace(work, guarded=True)
    return work_of(name, encode_work(work))

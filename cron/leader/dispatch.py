"""From applied outcomes to orders for executors: the only place from which anything is started.

What is sent follows from what was applied in the leader's own epoch, never from the return of an
append, which may be lost (cron/DESIGN.md, "One turn of the leader").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from operator import not_
from typing import Any, Final

import msgspec

from cron.errors import InvariantViolated
from cron.failpoints import hit
from cron.launch_state import ACTIVE, LaunchState
from cron.scheduler.reports import Source, kill_order
from cron.state import commands as c
from cron.state.batches import Batch
from cron.state.codec import encode_work
from cron.state.ends import state_of
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Outcome, Verdict
from cron.state.rows import Part
from cron.state.state import State
from cron.state.tasks import CancelTasks
from launcher.pool.pool import Pool
from launcher.protocol.orders import JobWork, KillOrder, StartBatch, work_of
from launcher.protocol.status import Reason

BEGUN: Final = LaunchState.BEGUN  # members of an enumeration are slow to look up
_COLUMNS: Final = (
    *("rows", "works", "scheduled_s", "not_after_ms", "deadlines_ms"),
    *("attempts", "triggers", "parts"),
)
"""The columns of orders for usual rows up to `attempts`, and for detailed ones."""


class Dispatcher:
    """Sends the orders that follow from applied entries, in one term of this leader.

    `unsent` has the rows whose first order never left and never will, by executor, ledger and
    batch, until the log has taken them back: nothing may order them meanwhile.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._works: dict[tuple[int, int], JobWork] = {}  # by job number and revision
        self._current: dict[int, JobWork] = {}  # by job number: those of the jobs as they are now
        self.unsent: dict[tuple[Source, int], set[int]] = {}

    def follow(self, state: State, outcome: Outcome) -> int:
        """Send starts and kills for one applied entry of this term; return how many late launches
        it began."""
        begun: dict[int, None] = {}
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Begin):
                hit("after-begin")
                begun.update(dict.fromkeys(spec.executor for spec in command.batches))
            elif reports_any(command, LaunchState.LAUNCHED):
                hit("after-launched")
            elif isinstance(command, c.PutJobs):
                # The works of jobs that were changed or removed are forgotten. Those of other jobs
                # stay the same objects, which streams do not send again.
                self._current.clear()
                self._works = {
                    (number, revision): work
                    for (number, revision), work in self._works.items()
                    if number in state.by_number and state.by_number[number].revision == revision
                }
            elif isinstance(command, c.Cancel):
                for item, verdict in zip(command.items, result.items, strict=True):
                    launch = state.active.get(item.key) if verdict == Verdict.ACCEPTED else None
                    if launch is not None:
                        self._kill(state, launch)
            elif isinstance(command, CancelTasks):
                self._kill_tasks(state, compress(command.names, map(not_, result.items)))
        late = 0
        for number in begun:
            record = state.executors.get(number)
            batch = record.batches.get(state.index) if record is not None else None
            if record is None or batch is None:
                continue
            starts = self.orders(state, batch, is_first=True)
            if starts:
                self._pool.order(record.executor, record.ledger, starts=starts)
            detailed = (one for one in batch.detailed.values() if one.executor == number)
            late += batch.lates.count(True) + sum(one.is_late for one in detailed)
        return late

    def _kill_tasks(self, state: State, names: Iterable[str]) -> None:
        """Order the ends of launches of tasks whose cancels are committed."""
        for name in names:
            record = state.record_of(name)
            for launch in [] if record is None else record.open.values():
                if launch.state in ACTIVE:
                    self._kill(state, launch)

    def _kill(self, state: State, launch: LaunchRow) -> None:
        """Order the end of each part of an attempt whose Cancel is committed (rule R8)."""
        for start in launch.starts():
            record, kill = state.executors.get(start.executor), kill_of(state, launch, start)
            if record is not None and kill is not None:
                self._pool.order(record.executor, record.ledger, kills=[kill])

    def orders(
        self,
        state: State,
        batch: Batch,
        rows: Sequence[int] | None = None,
        *,
        is_first: bool = False,
    ) -> list[StartBatch[JobWork]]:
        """Return the orders to start rows of a batch, in ascending order; all begun rows by
        default.

        The usual rows among `rows` must be begun. A detailed row is left out if it is not begun, or
        if its job is unknown.
        """
        asked = rows_in(batch, BEGUN) if rows is None else rows
        usual = (
            [row for row in asked if row not in batch.detailed] if batch.detailed else list(asked)
        )
        found: list[dict[str, Any]] = []
        if usual:
            columns = (
                batch.numbers,
                batch.scheduled_s,
                batch.not_after_ms,
                batch.deadlines_ms,
                batch.attempts,
            )
            is_whole = len(usual) == len(batch.numbers)
            numbers, *others = (
                one.tolist() if is_whole else list(map(one.__getitem__, usual)) for one in columns
            )
            works: list[JobWork | None] = list(map(self._current.get, numbers))
            if None in works:
                works = [self._work(state, number) for number in numbers]
            found.append(dict(zip(_COLUMNS, (usual, works, *others), strict=False)))
        detailed = []
        for row in sorted(batch.detailed if rows is None else batch.detailed.keys() & rows):
            launch = batch.detailed[row]
            start = launch.start_on(batch.executor)
            if launch.job is not None and start is not None and row >= 0 and start.state is BEGUN:
                work = self._work(state, launch.number, launch)
                times = (launch.scheduled_s, launch.not_after_ms, launch.deadline_ms)
                detailed.append(
                    (start.row, work, *times, launch.attempt, launch.trigger, start.number)
                )
        if detailed:
            found.append(dict(zip(_COLUMNS, zip(*detailed, strict=True), strict=True)))
        return [StartBatch(index=batch.index, **one, is_first=is_first) for one in found]

    def _work(self, state: State, number: int, launch: LaunchRow | None = None) -> JobWork:
        """Return the work of a job as it is now, or as it was when a launch began."""
        record = state.by_number[number]
        if record.task and launch is not None and launch.job is not None:  # it has one launch
            return work_of(record.name, encode_work(launch.job.work))
        revision = record.revision if launch is None else launch.revision
        job = record.job if launch is None else launch.job
        work = self._works.get((number, revision))
        if work is None:
            if job is None:
                raise InvariantViolated(f"job {number} has begun, and is not there")
            spec = job.work
            if job.is_limited and not spec.guarded:  # declared to an older release
                spec = msgspec.structs.replace(spec, guarded=True)
            work = self._works[(number, revision)] = work_of(record.name, encode_work(spec))
        if revision == record.revision:
            self._current[number] = work
        return work


def reports_any(command: c.Command, *states: LaunchState) -> bool:
    """Return whether a command reports that an attempt or a row is in one of these states."""
    if not isinstance(command, c.Report):
        return False
    rows, items = command.rows, command.items
    of_rows = (state_of(said) for _, said in rows)
    return any(one in states for one in of_rows) or any(end.state in states for _, _, end in items)


def kill_of(state: State, launch: LaunchRow, start: Part) -> KillOrder | None:
    """Return the order to end a part of an attempt whose Cancel is committed (rule R8), else None.
    State gives a row below 0 to a part whose row is unknown; its executor knows none."""
    if launch.cancel is Reason.NONE or start.row < 0:
        return None
    return kill_order(state, launch, start)


def rows_in(batch: Batch, state: LaunchState) -> list[int]:
    """Return the usual rows of a batch that are in a state, in order."""
    wanted, states = int(state), batch.states
    count = states.count(wanted)
    if count == len(states):
        return list(range(count))
    return [row for row, one in enumerate(states) if one == wanted] if count else []


def begun_rows(batch: Batch) -> list[int]:
    """Return the rows of a batch that are begun and not launched, in no order."""
    starts = ((row, launch.start_on(batch.executor)) for row, launch in batch.detailed.items())
    detailed = [row for row, start in starts if start is not None and start.state is BEGUN]
    return [*rows_in(batch, BEGUN), *detailed]

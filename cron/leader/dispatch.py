"""From applied outcomes to orders for executors: the only place from which anything is started.

What is sent follows from what was applied in the leader's own epoch, never from the return of an
append, which may be lost (cron/DESIGN.md, "One turn of the leader").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import msgspec

from cron.errors import InvariantViolated
from cron.failpoints import hit
from cron.launch_state import LaunchState
from cron.scheduler.reports import Source
from cron.state import commands as c
from cron.state.batches import Batch
from cron.state.codec import encode_work
from cron.state.outcome import Outcome, Verdict
from cron.state.state import LaunchRow, Start, State
from launcher.pool.pool import Pool
from launcher.protocol.orders import JobWork, KillOrder, StartBatch, work_of
from launcher.protocol.status import Reason

BEGUN: Final = LaunchState.BEGUN  # members of an enumeration are slow to look up


class Dispatcher:
    """Sends what applied entries ask for, while this replica leads.

    `unsent` has the rows, by executor, ledger and batch, whose first order never left and never
    will, until the log has taken them back: nothing may order them meanwhile.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._works: dict[tuple[int, int], JobWork] = {}  # by job number and revision
        self._current: dict[int, JobWork] = {}  # by job number: those of the jobs as they are now
        self.unsent: dict[tuple[Source, int], set[int]] = {}

    def clear(self) -> None:
        """Forget what was encoded; at a takeover."""
        self._works.clear()
        self._current.clear()

    def follow(self, state: State, outcome: Outcome) -> int:
        """Send starts and kills for one applied entry of our own; return how many launches that
        catch up it has begun."""
        begun: dict[int, None] = {}
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Begin):
                hit("after-begin")
                begun.update(dict.fromkeys(spec.executor for spec in command.batches))
            elif says(command, LaunchState.LAUNCHED):
                hit("after-launched")
            elif isinstance(command, c.PutJobs):
                self._forget_changed(state)
            elif isinstance(command, c.Cancel):
                for item, verdict in zip(command.items, result.items, strict=True):
                    launch = state.active.get(item.key) if verdict == Verdict.ACCEPTED else None
                    if launch is not None:
                        self._kill(state, launch)
        late = 0
        for number in begun:
            record = state.executors.get(number)
            batch = record.batches.get(state.index) if record is not None else None
            if record is None or batch is None:
                continue
            starts = self.orders(state, batch, is_first=True)
            if starts:
                self._pool.order(record.executor, record.ledger, starts=starts)
            odd = (one for one in batch.odd.values() if one.executor == number)
            late += batch.lates.count(True) + sum(one.is_late for one in odd)
        return late

    def _kill(self, state: State, launch: LaunchRow) -> None:
        """Order the end of an attempt whose Cancel is committed, part by part (rule R8)."""
        for start in launch.starts():
            record, kill = state.executors.get(start.executor), kill_of(launch, start)
            if record is not None and kill is not None:
                self._pool.order(record.executor, record.ledger, kills=[kill])

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
        rows: Sequence[int] | None = None,
        *,
        is_first: bool = False,
    ) -> list[StartBatch]:
        """Return the orders to start rows of a batch, which ascend; all that are begun if left out.

        Usual rows are begun. An odd one is left out if it is not, or its job cannot be found.
        """
        asked = rows_in(batch, BEGUN) if rows is None else rows
        usual = [row for row in asked if row not in batch.odd] if batch.odd else list(asked)
        found = []
        if usual:
            columns = (
                batch.numbers,
                batch.scheduled_s,
                batch.not_after_ms,
                batch.deadlines_ms,
                batch.attempts,
            )
            is_whole = len(usual) == len(batch.numbers)
            numbers, at_s, ends_ms, deadlines_ms, attempts = (
                one.tolist() if is_whole else list(map(one.__getitem__, usual)) for one in columns
            )
            works = list(map(self._current.get, numbers))
            if None in works:
                works = [self._work(state, number) for number in numbers]
            found.append(
                StartBatch(
                    batch.index,
                    usual,
                    cast("list[JobWork]", works),
                    at_s,
                    ends_ms,
                    deadlines_ms,
                    attempts,
                    is_first=is_first,
                )
            )
        odd = []
        for row in sorted(batch.odd if rows is None else batch.odd.keys() & rows):
            launch = batch.odd[row]
            start = launch.start_on(batch.executor)
            if launch.job is not None and start is not None and row >= 0 and start.state is BEGUN:
                odd.append((launch, start))
        if odd:
            found.append(
                StartBatch(
                    batch.index,
                    [start.row for _, start in odd],
                    [self._work(state, launch.number, launch) for launch, _ in odd],
                    [launch.scheduled_s for launch, _ in odd],
                    [launch.not_after_ms for launch, _ in odd],
                    [launch.deadline_ms for launch, _ in odd],
                    [launch.attempt for launch, _ in odd],
                    [launch.trigger for launch, _ in odd],
                    [start.part for _, start in odd],
                    is_first,
                )
            )
        return found

    def _work(self, state: State, number: int, launch: LaunchRow | None = None) -> JobWork:
        """Return the work of a job as it is now, or as it was when a launch began."""
        record = state.by_number[number]
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


def says(command: c.Command, *states: LaunchState) -> bool:
    """Return whether a command says that one of these became of an attempt or a row."""
    if not isinstance(command, c.Report):
        return False
    rows, items = command.rows, command.items
    return any(one.state in states for one in rows) or any(one.state in states for one in items)


def kill_of(launch: LaunchRow, start: Start) -> KillOrder | None:
    """Return the order to end a part of an attempt whose Cancel is committed (rule R8), None where
    none is. Its executor knows none below row 0: State numbers so what nobody knows the row of."""
    if launch.cancel is Reason.NONE or start.row < 0:
        return None
    return KillOrder(launch.begun_index, start.row, launch.cancel)


def rows_in(batch: Batch, state: LaunchState) -> list[int]:
    """Return the usual rows of a batch that are in a state, in order."""
    wanted, states = int(state), batch.states
    count = states.count(wanted)
    if count == len(states):
        return list(range(count))
    return [row for row, one in enumerate(states) if one == wanted] if count else []

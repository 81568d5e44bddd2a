"""From applied outcomes to orders for executors: the only place from which anything is started.

What is sent follows from what was applied in the leader's own epoch, never from the return of an
append, which may be lost (DESIGN.md, "A reign").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final, TypeAlias

import msgspec

from cron.failpoints import hit
from cron.job import Job
from cron.state import commands as c
from cron.state.codec import encode_work
from cron.state.outcome import Outcome, Result, Verdict
from cron.state.state import NO_ROW, ExecutorRecord, LaunchRow, Start, State
from launcher.launch import Reason
from launcher.names import AttemptName
from launcher.pool.orders import BatchRows, FenceOrder, KillOrder, StartBatch
from launcher.pool.pool import Pool
from launcher.pool.works import Work, work_of

_ENDED = (
    Verdict.ACCEPTED,
    Verdict.AMENDED,
    Verdict.NOT_OPEN,
    Verdict.WRONG_ATTEMPT,
    Verdict.WRONG_STATE,
)
"""Verdicts after which an executor need not report the end of that attempt again."""
Source: TypeAlias = tuple[str, str]
"""Executor id and the UUID of its ledger."""


class Dispatcher:
    """Sends what applied entries ask for, while this replica leads."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._works: dict[tuple[int, int], Work] = {}  # by job number and revision
        self.unsent = Unsents()

    def clear(self) -> None:
        """Forget what was encoded; at a takeover and when jobs change."""
        self._works.clear()

    def follow(self, state: State, outcome: Outcome) -> None:
        """Send starts, kills and acknowledgements for one applied entry of our own."""
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Begin):
                hit("after-begin")
                self._start(state, command, result)
            elif isinstance(command, c.Cancel):
                self._kill(state, command, result)
            elif isinstance(command, c.Launched):
                hit("after-launched")

    def _start(self, state: State, command: c.Begin, result: Result) -> None:
        by_executor: dict[int, StartRows] = {}
        for item, verdict in zip(command.items, result.items, strict=True):
            launch = None if verdict else state.active.get(item.key)  # 0 is ACCEPTED
            if launch is None:
                continue
            for start in launch.starts():
                rows = by_executor.setdefault(start.executor, StartRows())
                self.add_start(state, rows, launch, start)
        for number, rows in by_executor.items():
            record = state.executors.get(number)
            if record is not None:
                self._pool.start(record.executor, record.ledger, rows.batches(is_first=True))

    def add_start(self, state: State, rows: StartRows, launch: LaunchRow, start: Start) -> None:
        """Add the start of a part of a begun attempt to rows that are to be ordered; not if its job
        cannot be found."""
        if launch.job is None or start.row == NO_ROW:
            return
        work = self._works.get((launch.number, launch.revision))
        if work is None:
            name = state.by_number[launch.number].name
            work = self._works[(launch.number, launch.revision)] = _work(name, launch.job)
        rows.add(launch, start, work)

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
        """Order the end of a part of an attempt whose Cancel is committed."""
        if launch.cancel is not Reason.NONE and start.row != NO_ROW:
            order = KillOrder(launch.begun_index, start.row, launch.cancel)
            self._pool.kill(record.executor, record.ledger, [order])

    def acknowledge(self, source: Source, rows: Sequence[BatchRows]) -> None:
        """Tell an executor that these ends are committed."""
        if rows:
            self._pool.ack(*source, rows)


class StartRows:
    """Starts for one executor, in columns, by the log index of their Begin."""

    def __init__(self) -> None:
        self._found: dict[int, list[tuple[int, LaunchRow, int, Work]]] = {}

    def add(self, launch: LaunchRow, start: Start, work: Work) -> None:
        """Add a part of a begun attempt."""
        found = self._found.setdefault(launch.begun_index, [])
        found.append((start.row, launch, start.part, work))

    def batches(self, *, is_first: bool = False) -> list[StartBatch]:
        """Return the orders, oldest batch first."""
        return [
            _batch(index, sorted(found, key=_ROW), is_first=is_first)
            for index, found in sorted(self._found.items())
        ]


_ROW: Final = itemgetter(0)


def _batch(
    index: int, found: Sequence[tuple[int, LaunchRow, int, Work]], *, is_first: bool
) -> StartBatch:
    launches = [launch for _, launch, _, _ in found]
    return StartBatch(
        index,
        [row for row, _, _, _ in found],
        [work for _, _, _, work in found],
        [launch.scheduled_s for launch in launches],
        [launch.not_after_ms for launch in launches],
        [launch.deadline_ms for launch in launches],
        [launch.attempt for launch in launches],
        [launch.trigger for launch in launches],
        [part for _, _, part, _ in found],
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

    def remove(self, source: Source, index: int, row: int) -> None:
        """Forget a row: the log has taken it back, or it is over; no error where there is none."""
        rows = self._rows.get(source, {}).get(index)
        if rows is None:
            return
        rows.discard(row)
        if not rows:
            del self._rows[source][index]
        if not self._rows[source]:
            del self._rows[source]

    def __iter__(self) -> Iterator[tuple[Source, int, int]]:
        """Yield source, index and row of each, the oldest batch of an executor first."""
        for source, batches in self._rows.items():
            for index, rows in sorted(batches.items()):
                for row in sorted(rows):
                    yield source, index, row


def fence_order(state: State, launch: LaunchRow, start: Start) -> FenceOrder:
    """Return the order to leave a tombstone for a part of an attempt."""
    name = attempt_name(state, launch.key, launch.attempt, start.part)
    return FenceOrder(launch.begun_index, start.row, name)


def source_of(record: ExecutorRecord) -> Source:
    """Return the executor and ledger of a record."""
    return (record.executor, record.ledger)


def is_settled(verdict: int) -> bool:
    """Whether the end of an attempt needs no further report after this verdict."""
    return verdict in _ENDED


def attempt_name(state: State, key: c.Key, attempt: int, part: int = 1) -> AttemptName:
    """Return the name that people and a restored cell know it by."""
    return AttemptName(state.launch_name(key), attempt, part)


def _work(name: str, job: Job) -> Work:
    work = job.work
    if job.is_limited and not work.guarded:  # declared to an older release
        work = msgspec.structs.replace(work, guarded=True)
    return work_of(name, encode_work(work))

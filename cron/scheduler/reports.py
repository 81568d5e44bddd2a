"""Executors' reports as commands: pure, given State.

An executor repeats a report until it is acknowledged, and two leaders may receive the same one.
What State knows already is only acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from cron.launch_state import LaunchState
from cron.limits import DETAIL_CHARS_MAX, RESULT_BYTES_MAX, ROW_TEXT_BYTES
from cron.notes import Note, NoteCode
from cron.scheduler.older_log import OTHER_LAUNCH, has_ordered
from cron.state import commands as c
from cron.state.ends import end_of, state_of
from cron.state.launch_row import LaunchRow
from cron.state.rows import Part
from cron.state.state import ExecutorRecord, State
from launcher.protocol.columns import sums
from launcher.protocol.names import AttemptName
from launcher.protocol.orders import FenceOrder, KillOrder
from launcher.protocol.reports import BatchReport, RowReport
from launcher.protocol.status import Reason, Status
from launcher.texts import cut

ACCEPTED: Final = Status.ACCEPTED  # members of an enumeration are slow to look up
BEGUN: Final = LaunchState.BEGUN
LAUNCHED: Final = LaunchState.LAUNCHED
ENDED: Final = Status.ENDED
NONE: Final = Reason.NONE


_BEFORE_IT_RUNS: Final = (ACCEPTED, Status.REFUSED, Status.FENCED)
Source: TypeAlias = tuple[str, str]
"""Executor id and the UUID of its ledger."""
End: TypeAlias = tuple[c.Key, int, int]
"""Key, attempt and part of what is to end."""


class ReportCommands(msgspec.Struct):
    """What reports amount to: commands to append, rows to acknowledge and to fence, kills to
    repeat.

    `ended_at` has the batch and row of each end that is an item: it is acknowledged once it is
    committed. `foreign` are rows that cannot be acknowledged: nothing was begun at that log index
    yet. `contradicted` are rows that came to the executor by orders of another life of the log,
    and are open here as other launches.
    """

    rows: list[tuple[int, BatchReport]] = []
    items: list[c.Ended] = []
    ended_at: dict[End, tuple[int, int]] = {}
    acks: dict[int, list[int]] = {}
    fences: list[FenceOrder] = []
    kills: list[KillOrder] = []
    foreign: list[tuple[int, int]] = []
    contradicted: list[tuple[int, int]] = []

    def commands(self) -> list[c.Report]:
        """Return what to append, as one command or none; starts before ends."""
        if not self.rows and not self.items:
            return []
        items = sorted(self.items, key=lambda one: one[2].state is not LAUNCHED)
        rows = sorted(self.rows, key=lambda one: one[1].status is not ACCEPTED)
        return [c.Report(tuple(items), tuple(rows))]

    def portions(self, rows_max: int) -> Iterator[c.Report]:
        """Yield the same in commands of at most `rows_max` items, for an entry each."""
        for command in self.commands():
            first, room = 0, rows_max
            for place, (_, _, end) in enumerate(command.items):
                room -= 1 + text_weight(end.detail)
                if room <= 0:
                    yield c.Report(command.items[first : place + 1], () if first else command.rows)
                    first, room = place + 1, rows_max
            if first < len(command.items) or not first:
                yield c.Report(command.items[first:], () if first else command.rows)


def digest(
    state: State,
    executor: ExecutorRecord | None,
    batches: Iterable[BatchReport],
    into: ReportCommands,
    source: Source,
) -> None:
    """Add to `into` the reports of an executor and ledger, `source`, about their rows.

    `executor` is its record, None if the cell has forgotten it: then its reports can only be late
    (rule R9). What is over, and what cannot be, is acknowledged so that it is not reported again.
    """
    for batch in batches:
        if batch.detail:
            batch.detail = kept_detail(batch)
        for fact in _of_batch(state, executor, batch, into):
            launch = executor.find(fact.index, fact.row) if executor is not None else None
            start = launch.start_on(executor.number) if launch is not None and executor else None
            if launch is None or start is None or start.row != fact.row:
                _of_closed(state, fact, into, source)
            else:
                _of_open(state, launch, start, fact, into)


def kept_detail(said: BatchReport | RowReport) -> str:
    """Return what the cell keeps of what an executor says: the result of a success, and of other
    ends the beginning, which says what is wrong."""
    if state_of(said) is LaunchState.SUCCEEDED:
        return cut(said.detail, RESULT_BYTES_MAX)
    return said.detail[:DETAIL_CHARS_MAX]


def text_weight(text: str) -> int:
    """Return how many rows of an entry a text counts as, besides its own."""
    return min(len(text.encode("utf-8", "replace")), RESULT_BYTES_MAX) // ROW_TEXT_BYTES


def _of_batch(
    state: State, executor: ExecutorRecord | None, said: BatchReport, into: ReportCommands
) -> Iterable[RowReport]:
    """Add a report about open rows of one batch as it is: starts, refusals and ends, which is
    nearly all. Return the reports about other rows, one by one."""
    batch = executor.batches.get(said.index) if executor is not None else None
    is_end = said.status is ENDED
    is_plain = is_end and not said.detail and not any(said.retry_after_ms)
    is_plain = is_plain or (said.status in _BEFORE_IT_RUNS and said.is_recorded)
    if batch is None or not is_plain or not has_ordered(state, said.mark, batch.epoch):
        return said.row_reports()
    said.mark = b""  # the log needs it no more
    wanted = {BEGUN, LAUNCHED} if is_end else {BEGUN}
    others: Iterable[RowReport] = ()
    rows, states, size = sums(said.rows), batch.states, len(batch.states)
    if rows[-1] >= size or not wanted.issuperset(map(states.__getitem__, rows)):
        is_open = [row < size and states[row] in wanted for row in rows]
        others = said.pick([place for place, one in enumerate(is_open) if not one]).row_reports()
        if not any(is_open):
            return others
        said = said.pick([place for place, one in enumerate(is_open) if one])
    into.rows.append((batch.executor, said))
    return others


def _of_closed(state: State, fact: RowReport, into: ReportCommands, source: Source) -> None:
    """Add a report about a row that is not open at its executor."""
    if fact.index > state.index:
        into.foreign.append((fact.index, fact.row))
    place = (fact.index, *source, fact.row)
    found = state.lost_at.get(place)
    if found is not None and not has_ordered(state, fact.mark, state.lost[found].epoch):
        found = None  # it is the end of another launch
    if found is not None and fact.status is ENDED:
        key, attempt = found
        part = state.lost[found].places().index(place) + 1
        into.ended_at[(key, attempt, part)] = (fact.index, fact.row)
        into.items.append((key, attempt, _ended(part, fact)))
    elif fact.status is not ACCEPTED:
        into.acks.setdefault(fact.index, []).append(fact.row)


def _of_open(
    state: State, launch: LaunchRow, start: Part, fact: RowReport, into: ReportCommands
) -> None:
    """Add a report about an open part of an attempt."""
    key, attempt, part = launch.key, launch.attempt, start.number
    if not has_ordered(state, fact.mark, launch.epoch):
        # Its row is taken there: it has never run, and never will. But what else does this log not
        # know?
        into.contradicted.append((fact.index, fact.row))
        into.ended_at[(key, attempt, part)] = (fact.index, fact.row)
        end = Part(0, LaunchState.LOST, detail=OTHER_LAUNCH, number=part)
        into.items.append((key, attempt, end))
        return
    if fact.status is ACCEPTED:
        if start.state is BEGUN:
            into.items.append((key, attempt, _ended(part, fact)))
        if launch.cancel is not NONE:
            into.kills.append(kill_order(state, launch, start))
        return
    if fact.status is Status.UNKNOWN:
        if start.state is BEGUN:
            into.fences.append(fence_order(state, launch, start))
        return
    into.ended_at[(key, attempt, part)] = (fact.index, fact.row)
    # Of an interrupted row, the executor killed what survived before it connected (rule R4):
    # nothing holds the slot.
    end = _ended(part, fact)
    if end.state is LaunchState.SKIPPED and start.state is LAUNCHED:
        # It was reported as started, and now as never started: nobody knows which is true.
        end = Part(0, LaunchState.LOST, note=Note(NoteCode.CONTRADICTED), number=part)
    into.items.append((key, attempt, end))


def _ended(part: int, fact: RowReport) -> Part:
    """Return what the log keeps of a part of an attempt."""
    end = end_of(0, fact)
    end.number = part
    end.started_ms, end.finished_ms = fact.started_ms, fact.finished_ms
    end.output_bytes, end.retry_after_ms = fact.output_bytes, fact.retry_after_ms
    end.cpu_ms, end.memory_peak_bytes = fact.cpu_ms, fact.memory_peak_bytes
    return end


def fence_order(state: State, launch: LaunchRow, start: Part) -> FenceOrder:
    """Return the order to fence a part of an attempt: to leave a tombstone for it."""
    return FenceOrder(launch.begun_index, start.row, _name_of(state, launch, start))


def kill_order(state: State, launch: LaunchRow, start: Part) -> KillOrder:
    """Return the order to end a part of an attempt, for the reason of its Cancel."""
    name = _name_of(state, launch, start)
    return KillOrder(launch.begun_index, start.row, launch.cancel, name)


def _name_of(state: State, launch: LaunchRow, start: Part) -> AttemptName:
    return AttemptName(state.launch_name(launch.key), launch.attempt, start.number)


def source_of(record: ExecutorRecord) -> Source:
    """Return the executor and ledger of a record."""
    return (record.executor, record.ledger)

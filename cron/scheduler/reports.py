"""What executors report, turned into commands: pure, given State.

A fact is repeated until it is acknowledged, and two leaders may hear the same one; what State knows
already is only acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from cron.launch_state import LaunchState
from cron.limits import DETAIL_CHARS_MAX
from cron.notes import Note, NoteCode
from cron.state import commands as c
from cron.state.columns import deltas, uniform
from cron.state.state import ExecutorRecord, LaunchRow, Start, State
from launcher.protocol.names import AttemptName
from launcher.protocol.orders import FenceOrder, KillOrder
from launcher.protocol.reports import BatchReport, RowReport
from launcher.protocol.status import Reason, Status

ACCEPTED: Final = Status.ACCEPTED  # members of an enumeration are slow to look up
BEGUN: Final = LaunchState.BEGUN
LAUNCHED: Final = LaunchState.LAUNCHED
ENDED: Final = Status.ENDED
NONE: Final = Reason.NONE
SUCCEEDED: Final = LaunchState.SUCCEEDED


_WITHOUT_WORDS: Final = {
    Status.INTERRUPTED: NoteCode.DIED,
    Status.REFUSED: NoteCode.REFUSED,
    Status.FENCED: NoteCode.FENCED,
}


_BEFORE_IT_RUNS: Final = (ACCEPTED, Status.REFUSED, Status.FENCED)
Source: TypeAlias = tuple[str, str]
"""Executor id and the UUID of its ledger."""
End: TypeAlias = tuple[c.Key, int, int]
"""Key, attempt and part of what is to end."""


class ReportCommands(msgspec.Struct):
    """What facts amount to: commands to append, rows to acknowledge, to fence, to kill again.

    `ended_at` has the batch and row of each end that is an item: once that is committed it is
    acknowledged. `foreign` are rows that cannot be: nothing was begun at that log index yet.
    """

    rows: list[c.AttemptRows] = []
    items: list[c.AttemptItem] = []
    ended_at: dict[End, tuple[int, int]] = {}
    acks: dict[int, list[int]] = {}
    fences: list[FenceOrder] = []
    kills: list[KillOrder] = []
    foreign: list[tuple[int, int]] = []

    def commands(self) -> list[c.Command]:
        """Return what is to be appended, as one command, or none; starts before ends."""
        if not self.rows and not self.items:
            return []
        items = sorted(self.items, key=lambda one: one.state is not LAUNCHED)
        rows = sorted(self.rows, key=lambda one: one.state is not LAUNCHED)
        return [c.Report(tuple(items), tuple(rows))]


def digest(
    state: State,
    executor: ExecutorRecord | None,
    batches: Iterable[BatchReport],
    into: ReportCommands,
    source: Source,
) -> None:
    """Add to `into` what an executor and ledger, `source`, say of their rows.

    `executor` is their record, None where the cell has let go of it: then what they say can only be
    late news (rule R9). What is over is acknowledged, and so is what cannot be, so that it is not
    said again.
    """
    for batch in batches:
        for fact in _of_batch(executor, batch, into):
            launch = executor.find(fact.index, fact.row) if executor is not None else None
            start = launch.start_on(executor.number) if launch is not None and executor else None
            if launch is None or start is None or start.row != fact.row:
                _of_closed(state, fact, into, source)
            else:
                _of_open(state, launch, start, fact, into)


def _of_batch(
    executor: ExecutorRecord | None, facts: BatchReport, into: ReportCommands
) -> Iterable[RowReport]:
    """Take what is said alike of rows of one batch. Starts, refusals and ends of those that are
    open, which is nearly all, are told on by columns. Return what is said of the others, to be
    looked at one by one."""
    batch = executor.batches.get(facts.index) if executor is not None else None
    is_end = facts.status is ENDED
    is_plain = is_end and not facts.detail and not any(facts.retry_after_ms)
    is_usual = is_plain or (facts.status in _BEFORE_IT_RUNS and facts.is_recorded)
    if batch is None or not is_usual:
        return facts.row_reports()
    wanted = {BEGUN, LAUNCHED} if is_end else {BEGUN}
    others: Iterable[RowReport] = ()
    states, size = batch.states, len(batch.states)
    if facts.rows[-1] >= size or not wanted.issuperset(map(states.__getitem__, facts.rows)):
        is_open = [row < size and states[row] in wanted for row in facts.rows]
        others = facts.pick([place for place, one in enumerate(is_open) if not one]).row_reports()
        facts = facts.pick([place for place, one in enumerate(is_open) if one])
        if not facts.rows:
            return others
    state, detail, note = LaunchState.SKIPPED, "", None
    if facts.status is ACCEPTED:
        state = LAUNCHED
    elif is_end:
        state = result_of(facts.reason, facts.exit_code)
    else:
        detail = facts.detail[:DETAIL_CHARS_MAX]
        note = None if detail else Note(_WITHOUT_WORDS[facts.status])
    into.rows.append(
        c.AttemptRows(
            batch.index,
            batch.executor,
            state,
            deltas(facts.rows),
            facts.reason,
            facts.exit_code,
            uniform(facts.started_ms),
            uniform(facts.finished_ms),
            uniform(facts.output_bytes),
            uniform(facts.cpu_ms),
            uniform(facts.memory_peak_bytes),
            note,
            detail,
        )
    )
    return others


def _of_closed(state: State, fact: RowReport, into: ReportCommands, source: Source) -> None:
    """A fact about a row that is not open at the executor that has it."""
    if fact.index > state.index:
        into.foreign.append((fact.index, fact.row))
    place = (fact.index, *source, fact.row)
    found = state.lost_at.get(place)
    if found is not None and fact.status is ENDED:
        key, attempt = found
        part = state.lost[found].places().index(place) + 1
        into.ended_at[(key, attempt, part)] = (fact.index, fact.row)
        into.items.append(_finished(key, attempt, part, fact))
    elif fact.status is not ACCEPTED:
        into.acks.setdefault(fact.index, []).append(fact.row)


def _of_open(
    state: State, launch: LaunchRow, start: Start, fact: RowReport, into: ReportCommands
) -> None:
    """A fact about an open part of an attempt, from the executor that has it."""
    key, attempt, part = launch.key, launch.attempt, start.part
    if fact.status is ACCEPTED:
        if start.state is BEGUN:
            into.items.append(
                c.AttemptItem(key, attempt, LAUNCHED, started_ms=fact.started_ms, part=part)
            )
        if launch.cancel is not NONE:
            into.kills.append(KillOrder(fact.index, fact.row, launch.cancel))
        return
    if fact.status is Status.UNKNOWN:
        if start.state is BEGUN:
            into.fences.append(fence_order(state, launch, start))
        return
    into.ended_at[(key, attempt, part)] = (fact.index, fact.row)
    if fact.status is ENDED:
        into.items.append(_finished(key, attempt, part, fact))
        return
    # Why it is given up or taken back: what its executor says, or else what is known without that.
    code = _WITHOUT_WORDS[fact.status] if fact.is_recorded else NoteCode.NO_RECORD
    detail = fact.detail[:DETAIL_CHARS_MAX] if fact.is_recorded else ""
    note = None if detail else Note(code)
    end = LaunchState.SKIPPED
    if fact.status is Status.INTERRUPTED:
        # The executor killed what survived before it connected (rule R4): nothing holds the slot.
        end = LaunchState.LOST
    elif start.state is LAUNCHED:
        # It was said to have started, and now never to have: nobody knows which is true.
        end, detail, note = LaunchState.LOST, "", Note(NoteCode.CONTRADICTED)
    into.items.append(c.AttemptItem(key, attempt, end, detail=detail, part=part, note=note))


def result_of(reason: Reason, exit_code: int) -> LaunchState:
    """Return what an attempt is that ran and ended so."""
    if exit_code == 0 and reason is NONE:
        return SUCCEEDED
    if reason in (Reason.KILLED, Reason.REPLACED, Reason.SNOOZE):
        return LaunchState.CANCELLED
    return LaunchState.FAILED


def _finished(key: c.Key, attempt: int, part: int, fact: RowReport) -> c.AttemptItem:
    """Return what the log keeps of a part of an attempt that ran and is over."""
    return c.AttemptItem(
        key,
        attempt,
        result_of(fact.reason, fact.exit_code),
        fact.reason,
        fact.exit_code,
        fact.started_ms,
        fact.finished_ms,
        fact.detail[:DETAIL_CHARS_MAX],  # the beginning says what is wrong
        fact.output_bytes,
        fact.retry_after_ms,
        part,
        None,  # note
        fact.cpu_ms,
        fact.memory_peak_bytes,
    )


def fence_order(state: State, launch: LaunchRow, start: Start) -> FenceOrder:
    """Return the order to leave a tombstone for a part of an attempt."""
    name = AttemptName(state.launch_name(launch.key), launch.attempt, start.part)
    return FenceOrder(launch.begun_index, start.row, name)


def source_of(record: ExecutorRecord) -> Source:
    """Return the executor and ledger of a record."""
    return (record.executor, record.ledger)

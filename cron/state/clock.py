"""The cell's time set back: what a leader with a wrong clock left behind (rule R10).

`ResetClock` sets State's time back and moves every stored time that came from the wrong clock. Then
`ResetHorizons` sets the horizons back, a job at a time. Nothing that began is repeated: its name is
*spent*, and a job steps over it when its time comes. Instants that were skipped or missed in the
stretch between never began. Their rows stay in history and are void: those that come later count.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cron.launch_state import LaunchState
from cron.state.commands import HorizonItem, ResetClock, ResetHorizons
from cron.state.context import Context
from cron.state.outcome import Result, Verdict
from cron.state.state import JobRecord, Paused, Reset, Span, State

LEAST_MS: Final = 1_000
"""By less a clock is not set back: the log stands still for that long all by itself."""
HELD_MS_MAX: Final = 600_000
"""Until when a lost launch may run after the reset: far longer than any lease."""
RESETS_MAX: Final = 64
"""Resets of one life; history needs all of them to tell rows that are void."""
TRIGGERS_APART: Final = 1_000_000
"""Manual launches of a second that comes again are counted from here on, so that no name is used
twice; no job has as many in a second."""


def reset_clock(context: Context, command: ResetClock) -> Result:
    """Set State's time back to `to_ms`; refused where it is not ahead."""
    state = context.state
    if state.is_resolving:
        return Result(Verdict.RESOLVING)
    if len(state.resets) >= RESETS_MAX:
        return Result(Verdict.WRONG_STATE)
    if not 0 < command.to_ms <= state.at_ms - LEAST_MS:
        return Result(Verdict.ALREADY)
    reset = Reset(context.index, state.at_ms, command.to_ms, command.by)
    state.make_detailed(state.by_number.values())
    for record in state.by_number.values():
        state.touch(record)
        _move_times(record, reset)
        if record.held_until_ms or record.held:  # what was over may not be over now
            state.doubtful[record.number] = None
    state.note_all_unpaid()
    _move_tasks(context, reset)
    for number, gate in state.gates.items():
        if gate.since_ms > reset.to_ms:
            until_ms = gate.until_ms and reset.moved(gate.until_ms)
            state.gates[number] = msgspec.structs.replace(
                gate, since_ms=reset.to_ms, until_ms=until_ms
            )
    state.opened = [
        msgspec.structs.replace(one, at_ms=min(one.at_ms, reset.to_ms))
        for one in state.opened
        if one.gate.since_ms <= reset.to_ms
    ]
    state.alerts.move_times(reset.to_ms, reset.moved)
    state.resets.append(reset)
    state.at_ms = reset.to_ms
    return Result(Verdict.ACCEPTED)


def reset_horizons(context: Context, command: ResetHorizons) -> Result:
    """Set horizons back, each job by itself."""
    if not context.state.resets or context.state.is_resolving:
        verdicts = tuple(Verdict.WRONG_STATE for _ in command.items)
        return Result(Verdict.WRONG_STATE, verdicts)
    items = tuple(_reset_horizon(context, item) for item in command.items)
    return Result(Verdict.ACCEPTED, items)


def first_trigger(state: State, record: JobRecord, second: int) -> int:
    """Return the number of the first manual launch of a job in a second."""
    if second > record.triggered_s:
        return 1
    return 1 + len(state.resets) * TRIGGERS_APART


def _move_tasks(context: Context, reset: Reset) -> None:
    """Move the times of tasks that wait, and of groups, as far as the wrong clock made them."""
    state, to_ms = context.state, reset.to_ms
    for task in list(state.tasks_by_number.values()):
        if not task.is_waiting or task.at_ms <= to_ms:
            continue
        if task.timed_ms > to_ms:  # as long a delay as is left of it
            context.put_task(task, at_ms=reset.moved(task.at_ms), timed_ms=to_ms)
        elif task.at_ms == task.submitted_ms:  # it was due when it was submitted
            context.put_task(task, at_ms=to_ms)
    for name, group in list(state.groups.items()):
        if max(group.changed_ms, group.completed_ms) > to_ms:
            group = state.groups.changeable(name)
            group.completed_ms = min(group.completed_ms, to_ms)


def _move_times(record: JobRecord, reset: Reset) -> None:
    paused = record.paused
    if paused is not None and paused.since_ms > reset.to_ms:
        until_ms = paused.until_ms and reset.moved(paused.until_ms)
        record.paused = Paused(paused.reason, paused.by, reset.to_ms, until_ms)
    # It may have been written by a clock that was right, so it is not simply moved.
    record.held_until_ms = min(record.held_until_ms, reset.to_ms + HELD_MS_MAX)
    if record.held:
        moved: dict[int, int] = {}
        for until_ms, count in record.held.items():
            end_ms = min(until_ms, reset.to_ms + HELD_MS_MAX)
            moved[end_ms] = moved.get(end_ms, 0) + count
        record.held = moved
    if record.marks is not None:
        since_ms, success_ms = record.marks.since_ms, record.marks.success_ms
        record.marks = msgspec.structs.replace(
            record.marks,
            since_ms=min(since_ms, reset.to_ms),
            success_ms=min(success_ms, reset.to_ms),
        )
    record.triggered_s = max(record.triggered_s, record.trigger_s)
    for row in record.open.values():
        is_ahead = max(row.begun_at_ms, row.due_at_ms, row.scheduled_s * 1000) > reset.to_ms
        if is_ahead:
            row.not_before_ms = row.not_before_ms and reset.moved(row.not_before_ms)
            row.unpaid_ms = row.unpaid_ms and reset.moved(row.unpaid_ms)
            row.deadline_ms = reset.moved(row.deadline_ms)
        for part in row.parts:
            part.held_until_ms = min(part.held_until_ms, reset.to_ms + HELD_MS_MAX)


def _reset_horizon(context: Context, item: HorizonItem) -> Verdict:
    state = context.state
    record = state.by_number.get(item.number)
    if record is None or record.task:  # the one instant of a task never comes again
        return Verdict.UNKNOWN_JOB
    if record.horizon_s != item.from_s:
        return Verdict.WRONG_HORIZON
    if record.ended_index > item.read_at:
        return Verdict.STALE_REVISION  # what ended since may have begun
    if not 0 < item.to_s < item.from_s:
        return Verdict.BAD_TIMES
    state.make_detailed([record])
    state.touch(record)
    spent = dict.fromkeys((*item.spent, *record.spent))
    for key, row in list(record.open.items()):
        if row.trigger or row.scheduled_s <= item.to_s:
            continue
        if row.attempt > 0 or row.state is not LaunchState.DUE:
            spent[row.scheduled_s] = None
        else:
            # It has no row yet, and comes up again when its time has come.
            del record.open[key]
            state.due.detailed.pop(row.key, None)
            context.moved.setdefault(row.key, 0)
    record.spent = sorted(at_s for at_s in spent if at_s > item.to_s)
    if record.ends is not None:
        record.ends = record.ends.reset(item.to_s, record.spent)
    state.doubtful[record.number] = None
    record.horizon_s = item.to_s
    record.local_horizon_min = item.local_min
    record.spans = _clipped(record.spans, item.to_s)
    return Verdict.ACCEPTED


def _clipped(spans: list[Span], to_s: int) -> list[Span]:
    """Return the revisions as they would be had nothing happened after `to_s`: what was changed
    since holds from then on."""
    kept: list[Span] = []
    for place, span in enumerate(spans):
        from_s = min(span.from_s, to_s)
        end_s = min(span.to_s, to_s)
        if place == len(spans) - 1 or end_s > from_s:
            kept.append(msgspec.structs.replace(span, from_s=from_s, to_s=end_s))
    return kept

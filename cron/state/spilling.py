"""How tasks that wait for a time far ahead leave State for the disk, and come back."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from cron.limits import (
    TASK_PAYLOADS_BYTES_MAX,
    TASK_PAYLOADS_LOADED_MAX,
    TASKS_LOADED_MAX,
    TASKS_SPILLED_MAX,
    TASKS_WAITING_MAX,
)
from cron.state import tasks as t
from cron.state.context import Context
from cron.state.outcome import Result, Verdict
from cron.state.spilled import ROWS_MAX, SLOTS, Place, SpilledRows, SpilledSegment, name_hash
from cron.state.state import State

ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up


def spill(context: Context, command: t.SpillTasks) -> Result:
    """Make a segment of tasks that wait, and take them out of State; a verdict for each."""
    state = context.state
    history, spilled = state.history, state.spilled
    count = len(command.numbers)
    is_full = spilled.count + count > TASKS_SPILLED_MAX or count > ROWS_MAX
    if is_full or (history.spills + 1) % SLOTS in history.spilled:
        return Result(Verdict.TOO_MANY, (Verdict.TOO_MANY,) * count)
    chosen: dict[int, t.TaskRecord] = {}  # by the hash of its name
    items = []
    for number in command.numbers:
        task = state.tasks.by_number.get(number)
        if task is None:
            items.append(Verdict.UNKNOWN_TASK)
            continue
        hashed = name_hash(task.name)
        if not task.is_waiting or number in state.holds or number in state.holds.followed:
            verdict = Verdict.WRONG_STATE
        elif hashed in chosen or spilled.find_hash(hashed) is not None:
            verdict = Verdict.ALREADY  # of another task: it stays in memory
        else:
            verdict = ACCEPTED
            state.tasks.spill(task)
            chosen[hashed] = task
        items.append(verdict)
    if chosen:
        ordered = sorted(chosen.items(), key=lambda item: (item[1].at_ms, item[1].number))
        rows = SpilledRows.of_tasks(task for _, task in ordered)
        sealed = history.spill(context.epoch.generation, context.index, context.at_ms, rows)
        generation, number, _ = sealed.record.key
        queues = Counter(task.queue for _, task in ordered)
        groups = Counter(task.group for _, task in ordered if task.group)
        count, first_ms = len(rows), rows.times_ms[0]
        segment = SpilledSegment(
            generation, number, count, count, first_ms, dict(queues), dict(groups)
        )
        spilled.add(segment, (hashed for hashed, _ in ordered))
        context.sealed.append(sealed)
        context.encoded += sealed.record.digest
    return Result(ACCEPTED, tuple(items), number=history.spills)


def load(context: Context, command: t.LoadTasks) -> Result:
    """Have tasks that are on disk wait in State again, under new numbers; a verdict for each."""
    state, items = context.state, [_load(context, item) for item in command.items]
    if Verdict.TOO_MANY not in items:
        for read in command.read:
            segment = state.spilled.segments.get(read.slot)
            if segment is None or segment.number != read.number:
                continue
            segment.next_row, segment.next_ms = read.next_row, read.next_ms
            if segment.next_row >= segment.rows and segment.left:
                segment.next_row = segment.next_ms = 0  # some were passed over: look again
    return Result(ACCEPTED, tuple(items))


def _load(context: Context, item: t.LoadItem) -> Verdict:
    state, task = context.state, item.task
    if state.spilled.find(task.name) != Place(item.slot, item.row):
        return Verdict.ALREADY if task.name in state.tasks else Verdict.UNKNOWN_TASK
    tasks, weight = state.tasks, task.weight
    most, most_bytes = TASKS_WAITING_MAX + TASKS_LOADED_MAX, TASK_PAYLOADS_BYTES_MAX
    most_bytes += TASK_PAYLOADS_LOADED_MAX
    if tasks.waiting >= most or tasks.payload_bytes + weight > most_bytes:
        return Verdict.TOO_MANY
    state.spilled.remove(task, context.index)
    state.task_numbers += 1
    queue = state.queues[task.queue]
    group = state.groups[task.group].name if task.group else ""
    at_ms, timed_ms = task.at_ms, task.timed_ms
    for reset in state.resets:  # since it was written: they move its delay as those in State
        if task.revision < reset.index and reset.to_ms < min(at_ms, timed_ms):
            at_ms, timed_ms = reset.moved(at_ms), reset.to_ms
    loaded = msgspec.structs.replace(
        task,
        number=state.task_numbers,
        queue=queue.name,
        own=queue.shared(task.own),
        group=group,
        at_ms=at_ms,
        timed_ms=timed_ms,
    )
    tasks.unspill(loaded)
    context.moved_tasks[loaded.number] = None
    return ACCEPTED


def is_of_wrong_clock(state: State, segment: SpilledSegment) -> bool:
    """Return whether a segment was made while the clock was ahead, and reset since: its tasks may
    be due before the times that it has."""
    if not state.resets:
        return False
    record = state.history.task_segment(segment.slot)
    return any(
        record.to_index < reset.index and record.sealed_at_ms > reset.to_ms
        for reset in state.resets
    )


def unknown(state: State, name: str) -> Verdict:
    """Return the verdict on a task that is not in State: its name may be that of one on disk."""
    return Verdict.UNKNOWN_TASK if state.spilled.find(name) is None else Verdict.ON_DISK

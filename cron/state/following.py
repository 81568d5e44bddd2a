"""How the commands about groups and chains of tasks change State."""

from __future__ import annotations

import msgspec

from cron.launch_state import LaunchState
from cron.limits import TASK_TEXT_CHARS_MAX
from cron.notes import Note, NoteCode
from cron.state import chains, groups
from cron.state import tasks as t
from cron.state.context import Context
from cron.state.outcome import Result, Verdict
from cron.state.rows import Part
from cron.state.state import State
from cron.state.tasking import (
    ACCEPTED,
    defaults_said,
    end_waiting,
    give_up_waiting,
    submit_one,
)
from launcher.protocol.names import TASK_MARK, short_job_name
from launcher.protocol.status import Reason


def release(context: Context, command: chains.ReleaseTasks) -> Result:
    """Release tasks whose predecessors are over, and cancel those of which one has failed; a
    verdict for each."""
    by_number = context.state.tasks.by_number
    items = [
        Verdict.UNKNOWN_TASK if task is None else _release(context, task)
        for task in map(by_number.get, command.numbers)
    ]
    return Result(ACCEPTED, tuple(items))


def _release(context: Context, task: t.TaskRecord) -> Verdict:
    state = context.state
    if task.is_over:
        return Verdict.ENDED
    hold = state.holds.get(task.number)
    if hold is None or hold.is_released:
        return Verdict.ALREADY
    failure = chains.failure_of(state, hold)
    if failure is not None:
        ended = chains.end_of(state, failure)
        name = short_job_name(chains.name_of(state, failure))
        note = Note(NoteCode.PREDECESSOR, (name, int(ended)))
        end = Part(0, LaunchState.CANCELLED, Reason.PREDECESSOR, note=note)
        if _is_willed(state, failure):
            end_waiting(context, task, end)
        else:
            give_up_waiting(context, task, end)
        return ACCEPTED
    if chains.waits_for(state, hold):
        return Verdict.NOT_DUE
    state.holds.put(msgspec.structs.replace(hold, is_released=True))
    if task.at_ms < context.at_ms:
        context.put_task(task, at_ms=context.at_ms, timed_ms=context.at_ms)
    else:
        context.put_task(task)
    return ACCEPTED


def _is_willed(state: State, failure: chains.Predecessor) -> bool:
    """Return whether a person ended the task that did not succeed, and so what follows it. One that
    was given up by nobody's will is a dead letter."""
    task = state.tasks_by_number.get(failure) if isinstance(failure, int) else None
    record = state.by_number.get(task.job) if task is not None else None
    return task is not None and (record is None or not record.dead)


def close_groups(context: Context, command: groups.CloseGroups) -> Result:
    """Close groups, and submit their hooks; a verdict for each."""
    by, defaults = command.by[:TASK_TEXT_CHARS_MAX], defaults_said(command.defaults)
    return Result(ACCEPTED, tuple([_close(context, one, by, defaults) for one in command.items]))


def _close(context: Context, item: groups.GroupClose, by: str, defaults: t.TaskOptions) -> Verdict:
    table, hook = context.state.groups, item.hook
    group = table.get(item.name)
    if group is None:
        return Verdict.UNKNOWN_GROUP
    if hook is None and group.is_closed:
        return Verdict.ALREADY
    if hook is None:
        table.changeable(item.name).is_closed = True
        return ACCEPTED
    if group.hook:
        known = context.state.tasks_by_number.get(group.hook)
        if known is None:  # it is forgotten
            return Verdict.ALREADY
        is_same = (known.queue, known.key, known.digest) == (hook.queue, hook.key, hook.digest)
        return Verdict.ALREADY if is_same else Verdict.OTHER_CONTENT
    if hook.group == item.name:
        return Verdict.GROUP_CLOSED
    group = table.changeable(item.name)
    was_closed, group.is_closed = group.is_closed, True  # only a closed group can be followed
    hook = msgspec.structs.replace(hook, after_any=(*hook.after_any, item.name))
    verdict = submit_one(context, hook, by, defaults)
    if verdict not in (ACCEPTED, Verdict.ALREADY):
        group.is_closed = was_closed
        return verdict
    group.hook = context.state.tasks[f"{hook.queue}{TASK_MARK}{hook.key}"].number
    return ACCEPTED


def forget_groups(context: Context, command: groups.ForgetGroups) -> Result:
    """Forget groups that have been complete for long enough; a verdict for each."""
    return Result(ACCEPTED, tuple([_forget(context, name) for name in command.names]))


def _forget(context: Context, name: str) -> Verdict:
    state = context.state
    group = state.groups.get(name)
    if group is None:
        return Verdict.UNKNOWN_GROUP
    if not group.is_complete or group.members or name in state.holds.followed:
        return Verdict.STILL_OPEN
    if group.completed_ms + groups.REMEMBER_MS > context.at_ms:
        return Verdict.BAD_TIMES
    state.groups.forget(name)
    return ACCEPTED


def settle_groups(context: Context) -> None:
    """Note when the groups that this entry changed were complete."""
    table = context.state.groups
    context.moved_groups, table.moved = table.moved, {}
    for name in context.moved_groups:
        group = table.get(name)
        if group is not None:
            # The time after a reset of the clock, which may be what has changed the group.
            group.revision, group.changed_ms = context.index, context.state.at_ms
            completed_ms = group.completed_ms or context.state.at_ms
            group.completed_ms = completed_ms if group.is_complete else 0

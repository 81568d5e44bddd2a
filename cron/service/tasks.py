"""Tasks that programs cancel, reschedule and run now: each has a verdict of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from cron.api import tasks as api
from cron.errors import CronError, InvalidInput, LimitExceeded, NotNow, RevisionConflict
from cron.launch_state import LaunchState
from cron.service import spilled
from cron.service.replica import Replica
from cron.service.submitting import BYTES_AT_ONCE, DONE, error_view
from cron.service.task_views import listed, unknown_task, view_of, way_out
from cron.state import tasks as t
from cron.state.commands import Command
from cron.state.outcome import Verdict
from cron.state.state import State
from launcher.protocol.names import CELL_TENANT, short_job_name

SHOWN_MAX: Final = api.TASKS_MAX
"""Tasks that one call changes at most, in an entry or a few."""


async def cancel(replica: Replica, request: api.CancelRequest) -> api.TasksReport:
    """Cancel tasks by name, or a portion of those that a filter means and are not over; or say
    which would be.

    Raises:
        UnknownTask, NotNow: the only task that is named is not there, or over.
        UnknownQueue: the filter names a queue that is not there. As `listed` for a page.
    """
    if request.filter is not None:
        query = api.TaskListQuery(filter=request.filter, limit=SHOWN_MAX, page=request.page)
        return await cancel_page(replica, query, request.by, is_dry_run=request.is_dry_run)
    if request.is_dry_run:
        found = [await spilled.read(replica, name) for name in request.names]
        verdicts = [
            Verdict.UNKNOWN_TASK
            if task is None
            else (Verdict.ENDED if task.is_over else Verdict.ACCEPTED)
            for task in found
        ]
    else:
        verdicts = await _cancel_some(replica, request.names, request.by)
    return _named_report(replica, request.names, verdicts, "cancel")


async def cancel_page(
    replica: Replica, query: api.TaskListQuery, by: str, *, is_dry_run: bool
) -> api.TasksReport:
    """Cancel those tasks on one page of a list that are not over, or say which would be."""
    page = await listed(replica, query)
    views = [one for one in page.tasks if one.is_open]
    if views and not is_dry_run:
        names = [one.task for one in views]
        verdicts = zip(names, await _cancel_some(replica, names, by), strict=True)
        done = [name for name, verdict in verdicts if verdict in DONE]
        views = _report(replica, done, ()).tasks
    return api.TasksReport(count=len(views), tasks=views, truncated=bool(page.next), next=page.next)


async def _cancel_some(replica: Replica, names: Sequence[str], by: str) -> list[Verdict]:
    return await spilled.change(replica, names, lambda some, _now_ms: t.CancelTasks(some, by))


async def run_now(replica: Replica, request: api.TaskNames) -> api.TasksReport:
    """Make tasks due that wait; those that are due already stay as they are.

    Raises:
        UnknownTask, NotNow: the only task that is named is not there, or over.
    """
    by = request.by
    verdicts = await spilled.change(
        replica, request.names, lambda some, _now_ms: t.RunTasks(some, by)
    )
    return _named_report(replica, request.names, verdicts, "run")


def _named_report(
    replica: Replica, names: Sequence[str], verdicts: Sequence[Verdict], what: str
) -> api.TasksReport:
    """Return what a change did to tasks that were named. A task that is cancelled already is no
    error for whoever cancels it again."""
    state, done = replica.state, list[str]()
    refused: list[tuple[str, CronError]] = []
    for name, verdict in zip(names, verdicts, strict=True):
        task = state.tasks.get(name)
        if verdict in DONE:
            done.append(name)
        elif verdict is Verdict.ON_DISK:
            refused.append((name, spilled.no_room(name)))
        elif verdict is Verdict.UNKNOWN_TASK or task is None:
            refused.append((name, unknown_task(name)))
        elif what != "cancel" or task.state is not LaunchState.CANCELLED:
            label = task.state.label if task.is_over else verdict.label
            text = f"task {short_job_name(name)} is over: {label}"
            hint = way_out(state, task) or f"nothing is left to {what}"
            refused.append((name, NotNow(text, hint)))
    if refused and len(names) == 1:
        raise refused[0][1]
    return _report(replica, done, refused)


def _report(
    replica: Replica, names: Sequence[str], refused: Sequence[tuple[str, CronError]]
) -> api.TasksReport:
    state, now_ms = replica.state, replica.clock.wall_ms()
    shown = [state.tasks[name] for name in names if name in state.tasks]
    return api.TasksReport(
        count=len(names),
        tasks=[view_of(state, task, now_ms) for task in shown],
        errors=[api.RefusedTask(name, error_view(error)) for name, error in refused],
    )


async def get_many(replica: Replica, request: api.TasksQuery) -> api.TasksReport:
    """Return tasks by name as a list shows them; those that are not there are errors."""
    found = [await spilled.read(replica, name) for name in request.names]
    state, now_ms = replica.state, replica.clock.wall_ms()
    views = [view_of(state, one, now_ms) for one in found if one and one.queue in state.queues]
    known = {view.task for view in views}
    lacks = [name for name in request.names if name not in known]
    return api.TasksReport(
        count=len(views),
        tasks=views,
        errors=[api.RefusedTask(name, error_view(unknown_task(name))) for name in lacks],
    )


async def reschedule(replica: Replica, request: api.RescheduleRequest) -> api.TaskView:
    """Give a task that waits another time, priority or payload.

    Raises:
        UnknownTask: there is no such task. NotNow: it has begun or is over. RevisionConflict: it
            was changed meanwhile. InvalidInput, LimitExceeded: the time or payload cannot be.
    """
    refused = await _rescheduled(replica, [request], request.by)
    if request.name in refused:
        raise refused[request.name]
    task = replica.state.tasks.get(request.name)
    if task is None:  # another entry has forgotten it
        raise unknown_task(request.name)
    return view_of(replica.state, task, replica.clock.wall_ms())


async def reschedule_many(replica: Replica, request: api.RescheduleManyRequest) -> api.TasksReport:
    """Reschedule tasks, each by itself; those that are refused are errors of the report."""
    refused = await _rescheduled(replica, request.tasks, request.by)
    done = [name for name in request.names if name not in refused]
    return _report(replica, done, [*refused.items()])


async def _rescheduled(
    replica: Replica, asked: Sequence[api.RescheduleRequest], by: str
) -> dict[str, CronError]:
    """Commit changes of tasks that wait, in portions that fit into an entry; return why some were
    refused, by name."""
    by_name, refused = {one.name: one for one in asked}, dict[str, CronError]()

    def build(names: tuple[str, ...], now_ms: int) -> Command:
        items = tuple(_item(by_name[name], now_ms) for name in names)
        return t.RescheduleTasks(items, by)

    good: list[api.RescheduleRequest] = []
    for one in asked:
        try:
            _item(one, replica.clock.wall_ms())
            good.append(one)
        except InvalidInput as error:
            refused[one.name] = error
    for names in _portions(good):
        for name, verdict in zip(names, await spilled.change(replica, names, build), strict=True):
            why = _refusal(replica.state, by_name[name], verdict)
            if why is not None:
                refused[name] = why
    return refused


def _portions(asked: Sequence[api.RescheduleRequest]) -> Iterator[list[str]]:
    """Yield the names of tasks in portions whose new payloads fit into an entry."""
    names: list[str] = []
    size = 0
    for one in asked:
        more = 0 if one.payload is msgspec.UNSET else len(one.payload)
        if names and size + more > BYTES_AT_ONCE:
            yield names
            names, size = [], 0
        names.append(one.name)
        size += more
    if names:
        yield names


def _item(asked: api.RescheduleRequest, now_ms: int) -> t.RescheduleItem:
    """Return a change as State takes it.

    Raises:
        InvalidInput: its time is too far ahead, or it is a payload of the cell.
    """
    if asked.payload is not msgspec.UNSET and asked.name.startswith(f"{CELL_TENANT}/"):
        text = f"task {asked.name} is one of the cell: only the cell says what is in its payload"
        raise InvalidInput(text, "change its time or priority, or cancel it")
    return t.RescheduleItem(
        asked.name,
        asked.revision,
        asked.due_ms(now_ms) if asked.has_time else -1,
        asked.priority,
        None if asked.payload is msgspec.UNSET else bytes(asked.payload).strip(),
        asked.delay_ms >= 0,
    )


def _refusal(state: State, asked: api.RescheduleRequest, verdict: Verdict) -> CronError | None:
    """Return why State has not changed a task, None if it has."""
    task, short = state.tasks.get(asked.name), short_job_name(asked.name)
    if verdict is Verdict.ON_DISK:
        return spilled.no_room(asked.name)
    if verdict is Verdict.UNKNOWN_TASK or task is None:
        return unknown_task(asked.name)
    if verdict is Verdict.ENDED:
        hint = way_out(state, task) or "submit another one"
        return NotNow(f"task {short} is over: {task.state.label}", hint)
    if verdict is Verdict.WRONG_STATE:
        return NotNow(f"task {short} has its launch already", "cancel it, or let it run")
    if verdict is Verdict.STALE_REVISION:
        text = f"task {short} has revision {task.revision}, not {asked.revision}"
        return RevisionConflict(text, "look at it again")
    if verdict is Verdict.TOO_MANY:
        return LimitExceeded("the cell has no room for more payloads", "try again later")
    if verdict is not Verdict.ACCEPTED:
        return InvalidInput(f"task {short} is not changed: {verdict.label}")
    return None

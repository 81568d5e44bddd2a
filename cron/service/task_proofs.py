"""Proof and explanation of tasks: what became of one, and whether each has its launch and no more.

A task that is over and remembered has rows of one launch in history, and its record says the same
end as the last of them. What was forgotten with its key is not proven.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from cron.api.launches import TASKS_BEGIN, StoryLine, Violation, WhyReport, WhyRequest
from cron.api.tasks import show_iso_ms
from cron.history.attempts import audit_launch
from cron.history.segment import job_hash
from cron.history.story import dead_letter
from cron.history.why import explain
from cron.launch_state import LaunchState
from cron.scheduler.why import why_held
from cron.service import spilled
from cron.service.launches import expanded, open_viewer
from cron.service.replica import Replica
from cron.service.task_views import launch_of, no_launch_yet, open_row, unknown_task
from cron.state.context import row_of
from cron.state.rows import Row, RowKind
from cron.state.state import State
from cron.state.tasking import handler_of
from cron.state.tasks import TaskRecord
from launcher.protocol.names import LaunchName

PORTION: Final = 500
"""Tasks that an audit looks at in one go: some hundredths of a second."""


class TaskCensus(msgspec.Struct):
    """What became of the tasks of a period."""

    tasks: int = 0
    tasks_open: int = 0
    tasks_ran: int = 0
    tasks_dropped: int = 0
    tasks_lost: int = 0
    tasks_next: str = ""

    def add(self, task: TaskRecord, rows: Sequence[Row]) -> None:
        """Count a task."""
        self.tasks += 1
        if not task.is_over:
            self.tasks_open += 1
        elif task.state is LaunchState.LOST:
            self.tasks_lost += 1
        elif any(row.begun_index for row in rows):
            self.tasks_ran += 1
        else:
            self.tasks_dropped += 1


async def why_task(replica: Replica, request: WhyRequest) -> WhyReport:
    """Return what became of a task.

    Raises:
        UnknownTask: there is no such task, and history has no launch of it at that time.
    """
    name = request.job
    task = await spilled.read(replica, name)
    state = replica.state
    at_s = request.at_s
    if task is not None and request.is_nearest:
        at_s = task.at_ms // 1000
    row = open_row(state, task) if task is not None else None
    if row is not None and row.scheduled_s != at_s:
        row = None
    index, now_ms = state.index, replica.clock.wall_ms()
    view = open_viewer(replica)(row) if row is not None else None
    still_open = row_of(state, row) if row is not None else None
    letter = state.dead.get(row.key) if row is not None else None
    found = await replica.row_store.of_launch(LaunchName(name, at_s))
    found = [one for one in found if one.ended_index <= index]
    if task is None and not found:
        raise unknown_task(name)
    waiting = view.waiting if view is not None else ""
    terms = state.leader_terms
    explained = explain(None, at_s, found, still_open, now_ms // 1000, terms, waiting=waiting)
    verdict = explained.verdict
    if task is not None and task.is_waiting and not found:
        when = show_iso_ms(task.at_ms)
        verdict = why_held(state, task) or (
            f"it waits for its time, {when}"
            if task.at_ms > now_ms
            else f"it is due since {when}: {no_launch_yet(replica, _handler(state, task))}"
        )
    verdict += dead_letter(letter, name, at_s)
    at_ms = at_s * 1000
    ended = [one for row in found for one in expanded(state, row, at_ms, at_ms, 1)]
    return WhyReport(
        job=name,
        at_s=at_s,
        verdict=verdict,
        story=[StoryLine(line_ms, text) for line_ms, text in explained.story],
        launches=[*ended, *([view] if view is not None else [])],
    )


def _handler(state: State, task: TaskRecord) -> str:
    return handler_of(task, state.queues[task.queue])


class Part(msgspec.Struct):
    """The part of an audit: of the tasks whose hashes follow `after`, "" for all that there are. It
    ends at `end_ms` of the monotonic clock; then the tasks that are left are the next part, or, of
    an audit that has no parts, unproven."""

    after: str
    end_ms: int


async def audit_tasks(
    replica: Replica, names: Sequence[str] | None, since_s: int, part: Part
) -> tuple[TaskCensus, list[Violation]]:
    """Return the counts of the tasks that the cell remembers, of all or of those that are named, as
    far as they are due after `since_s`; and what is wrong."""
    state, census, found = replica.state, TaskCensus(), list[Violation]()
    if names is None:
        if part.after in ("", TASKS_BEGIN):
            census.tasks = census.tasks_open = state.spilled.count
        known = [one for one in state.tasks_by_number.values() if one.at_ms // 1000 > since_s]
        chosen = await asyncio.to_thread(_following, known, int(part.after or "0", 16))
    else:
        found_tasks = [await spilled.read(replica, one) for one in names]
        chosen = [one for one in found_tasks if one is not None]
        on_disk = sum(one.number not in state.tasks_by_number for one in chosen)
        census.tasks = census.tasks_open = on_disk
    for done in range(0, len(chosen), PORTION):
        is_late = replica.clock.mono_ms() >= part.end_ms
        if is_late and part.after and done:
            census.tasks_next = f"{job_hash(chosen[done - 1].name):016x}"
            break
        if is_late and not part.after:
            left = len(chosen) - done
            message = f"{left:,} tasks could not be audited in time; choose a later --since"
            found.append(_violation("", 0, "unproven", message))
            break
        await asyncio.sleep(0)
        index = state.index
        numbers = [one.number for one in chosen[done : done + PORTION]]
        tasks = [one for one in map(state.tasks_by_number.get, numbers) if one is not None]
        tasks = [one for one in tasks if one.at_ms // 1000 > since_s]
        still_open = {one.number: list(_open_rows(state, one)) for one in tasks}
        rows = await replica.row_store.of_launches([launch_of(one) for one in tasks])
        reset_index = state.resets[-1].index if state.resets else 0
        for task in tasks:
            mine = [one for one in rows.get(launch_of(task), []) if one.ended_index <= index]
            census.add(task, mine)
            found += _judge(task, mine, still_open[task.number], reset_index)
    return census, found


def _following(tasks: Iterable[TaskRecord], after: int) -> list[TaskRecord]:
    """Return the tasks whose hashes follow one, in the order of segments, so that a portion reads
    each block of them once."""
    hashed = [(job_hash(one.name), one.number, one) for one in tasks]
    return [one for number, _, one in sorted(hashed) if number > after]


def _open_rows(state: State, task: TaskRecord) -> Iterator[Row]:
    record = state.by_number.get(task.job) if task.job else None
    if record is not None:
        yield from (row_of(state, row) for row in record.open.values())


def _judge(
    task: TaskRecord, rows: Sequence[Row], still_open: list[Row], reset_index: int
) -> Iterator[Violation]:
    """Yield what is wrong with one task. Times of what began up to `reset_index` prove nothing."""
    name = launch_of(task)
    ended = [row for row in rows if row.kind is RowKind.ENDED]
    for one in audit_launch(name, ended, still_open, reset_index):
        if one.is_violation:
            yield _violation(one.job, one.scheduled_s, str(one.kind), one.message)
    if task.is_waiting and (ended or still_open):
        message = "it has a launch, and is said to wait"
        yield _violation(task.name, name.scheduled_s, "no-instant", message)
    if not task.is_over:
        return
    if not rows:
        message = "it is over and has no row in history"
        yield _violation(task.name, name.scheduled_s, "missing", message)
    elif task.state not in {row.state for row in rows}:
        said = ", ".join(sorted({row.state.label for row in rows}))
        message = f"its record says {task.state.label}, its rows say {said}"
        yield _violation(task.name, name.scheduled_s, "wrong-end", message)


def _violation(job: str, scheduled_s: int, kind: str, message: str) -> Violation:
    return Violation(job=job, scheduled_s=scheduled_s, kind=kind, message=message)

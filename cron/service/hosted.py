"""What runs on one executor, and which of its slots that takes."""

from __future__ import annotations

from heapq import nsmallest

import msgspec

from cron.api.executors import ExecutorDetail, ExecutorView, RunView
from cron.job import COMMAND
from cron.state.state import ExecutorRecord, LaunchRow, State
from launcher.launch import LaunchState, Reason


def detail(state: State, record: ExecutorRecord, view: ExecutorView, limit: int) -> ExecutorDetail:
    """Return an executor with what is open on it: how much in each group of workers, and the
    `limit` launches that began first."""
    counts: dict[str, int] = {}  # by pool
    for row in record.launches():
        pool = _pool_of(state, row)
        counts[pool] = counts.get(pool, 0) + 1
    commands = counts.pop(COMMAND, 0)
    groups = [
        msgspec.structs.replace(
            group, open=sum(counts.get(handler, 0) for handler in group.handlers)
        )
        for group in view.groups
    ]
    first = nsmallest(limit, record.launches(), key=lambda row: (row.begun_at_ms, row.key))
    return ExecutorDetail(
        executor=msgspec.structs.replace(view, groups=groups),
        commands=commands,
        runs=[_run(state, row, record.number) for row in first],
    )


def _pool_of(state: State, row: LaunchRow) -> str:
    """The pool of a launch as it began."""
    job = row.job or state.by_number[row.number].job
    return job.pool if job is not None else ""


def _run(state: State, row: LaunchRow, executor: int) -> RunView:
    start = row.start_on(executor)
    number = start.part if start is not None and row.parts else 0
    part = row.parts[number - 1] if number else None
    began = LaunchState(part.state) if part is not None else row.state
    return RunView(
        launch=str(state.launch_name(row.key)),
        attempt=row.attempt,
        part=number,
        state=began.label,
        pool=_pool_of(state, row),
        begun_at_ms=row.begun_at_ms,
        started_at_ms=part.started_ms if part is not None else row.started_ms,
        is_cancelled=row.cancel is not Reason.NONE,
    )

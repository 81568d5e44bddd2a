"""`raftcron clock reset`: the plan of it, and how horizons go back, a portion of jobs in an entry.

Done in two steps, since what began in the stretch between stands in history, not in State. The
first entry sets the time back; from then on nothing that lies ahead falls due. Then the leader
reads what began, and sends the horizons. One that was interrupted goes on when it is asked again.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from cron.api.members import ClockReport, ClockRequest
from cron.calendar.schedule import compile as compile_schedule
from cron.calendar.schedule import unreadable
from cron.errors import Conflict, NotNow
from cron.service.replica import Replica
from cron.state import commands as c
from cron.state.clock import LEAST_MS
from cron.state.outcome import Verdict
from cron.state.state import JobRecord, State
from launcher.protocol.names import format_time

_log = structlog.get_logger()

JOBS_AT_ONCE: Final = 500
"""Jobs whose horizons one entry sets back: each is a look at history."""
SPENT_MAX: Final = 100_000
"""Names that one job may have begun in the stretch: a day of seconds, and a bit."""
TRIES: Final = 20
"""So often the leader reads a job again of which a launch ended meanwhile."""


async def reset(replica: Replica, request: ClockRequest) -> ClockReport:
    """Return what a reset does, after doing it unless the request is a dry run.

    Raises:
        NotNow: the time is not ahead, or this leader's clock is off itself.
        Conflict: an old replica is in the cell, or one job cannot be set back.
        OutcomeUnknown: a part of it may be done; to ask again finishes it.
    """
    await replica.cluster_status.poll()  # a clock that was set right a moment ago counts
    if reason := replica.leader.may_tick():
        raise NotNow(f"this leader's clock is wrong itself: {reason}", "set the clock first")
    now_ms, before_ms = replica.clock.wall_ms(), replica.state.at_ms
    is_ahead = before_ms - now_ms >= LEAST_MS
    to_ms = now_ms if is_ahead or not replica.state.resets else replica.state.resets[-1].to_ms
    jobs = len(_ahead(replica.state, to_ms // 1000)) if is_ahead or replica.state.resets else 0
    if not is_ahead and not jobs:
        raise NotNow(
            f"the cell's time, {format_time(before_ms // 1000)}, is not ahead of this leader's"
            " clock",
            "nothing is to be reset",
        )
    report = ClockReport(cell_ms=before_ms, clock_ms=now_ms, jobs=jobs)
    if request.is_dry_run:
        return report
    if is_ahead:
        _, results = await replica.leader.append(c.ResetClock(now_ms, request.by))
        if results[0].verdict is not Verdict.ACCEPTED:
            raise NotNow(f"the cell's time was not reset: {results[0].verdict.label}")
    to_s = replica.state.resets[-1].to_ms // 1000
    spent = await _reset_horizons(replica, to_s)
    _log.warning("clock.reset", by=request.by, jobs=jobs, spent=spent)
    await replica.log.transfer()  # the next leader remembers nothing of the wrong time
    return ClockReport(cell_ms=before_ms, clock_ms=now_ms, jobs=jobs, spent=spent, is_done=True)


def _ahead(state: State, to_s: int) -> list[JobRecord]:
    """Return the jobs, removed ones too, whose horizons lie after `to_s`, as a clock that was wrong
    has left them. A horizon goes with the clock, or a change of jobs: one that is ahead of
    State's time by more than a moment is one of these."""
    state_s = max(to_s, state.at_ms // 1000 if state.resets else to_s)
    return [one for one in state.by_number.values() if one.horizon_s > state_s and not one.task]


async def _reset_horizons(replica: Replica, to_s: int) -> int:
    """Set all horizons back; return how many names were found to have begun."""
    spent = 0
    for _ in range(TRIES):
        waiting = _ahead(replica.state, to_s)
        if not waiting:
            return spent
        for start in range(0, len(waiting), JOBS_AT_ONCE):
            portion = waiting[start : start + JOBS_AT_ONCE]
            # To the present: what fell due since the time was reset is caught up.
            items = [
                await _item(replica, record, min(to_s, replica.state.at_ms // 1000))
                for record in portion
            ]
            command = c.ResetHorizons(tuple(items))
            _, results = await replica.leader.append(command, changes_jobs=True)
            for item, verdict in zip(items, results[0].items, strict=True):
                spent += len(item.spent) * (verdict is Verdict.ACCEPTED)
    raise Conflict(
        f"{len(_ahead(replica.state, to_s))} jobs end launches too fast to be set back",
        "pause them, and ask again: the rest is done",
    )


async def _item(replica: Replica, record: JobRecord, to_s: int) -> c.HorizonItem:
    read_at, from_s = replica.state.index, record.horizon_s
    rows = await replica.row_store.of_job(record.name, to_s + 1, from_s, SPENT_MAX + 1)
    if len(rows) > SPENT_MAX:
        raise Conflict(
            f"{record.name} has more than {SPENT_MAX} rows in the stretch",
            "remove the job, and apply it under another name",
        )
    reset = replica.state.resets[-1].index
    begun = [
        row
        for row in rows
        # What was skipped after the reset has its row for good.
        if not row.trigger and (row.begun_index or row.ended_index > reset)
    ]
    spent = sorted({row.scheduled_s for row in begun if row.scheduled_s > to_s})
    local_min = await asyncio.to_thread(_local_min, record, to_s)
    return c.HorizonItem(record.number, from_s, to_s, read_at, tuple(spent), local_min)


def _local_min(record: JobRecord, to_s: int) -> int:
    """Return the newest nominal local time of a job up to `to_s` (rule R11), -1 for none."""
    if record.job is None or unreadable(record.job.schedule):
        return -1
    ticks = compile_schedule(record.job.schedule)
    tick = ticks.tick_before(to_s + 1)
    return tick.nominal_min if tick is not None else -1

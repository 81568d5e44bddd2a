"""How long launches of jobs usually take, by the newest ones in history, and the load of jobs by
which `?` gets its value."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cron.calendar import spread
from cron.calendar.load import Load
from cron.clock import Clock
from cron.errors import CronError
from cron.history.store import RowStore
from cron.job import Job, Schedule
from cron.launch_state import LaunchState
from cron.service.replica import Replica
from cron.state.rows import Row, RowKind
from cron.state.state import JobRecord

READ_ROWS: Final = 9
"""Newest launches of a job that are looked at; the median of those that succeeded counts."""
READ_MAX: Final = 1_000
"""Jobs that one question reads of history. Further ones are read by the next question."""
KEPT_MS: Final = 86_400_000
NONE_RUNS_LONG: Final[Mapping[str, int]] = {}
_MINUTE_MS: Final = 60_000


class UsualTimes:
    """How many minutes launches of jobs take; of a job without a launch that succeeded, one. Each
    job is read of history once a day at most, and only when somebody asks."""

    def __init__(self, row_store: RowStore, clock: Clock) -> None:
        self._row_store = row_store
        self._clock = clock
        self._known: dict[str, tuple[int, int]] = {}  # minutes, and when they were read

    async def of(self, names: Sequence[str]) -> dict[str, int]:
        """Return the minutes of those jobs whose launches take more than one, by name; `names` are
        all jobs of the cell."""
        now_ms, known = self._clock.mono_ms(), self._known
        if len(known) > 2 * len(names):  # most of them were removed
            kept = {*names}
            known = self._known = {name: one for name, one in known.items() if name in kept}
        old_ms = now_ms - KEPT_MS
        unread = [name for name in names if name not in known or known[name][1] < old_ms]
        if unread := unread[:READ_MAX]:
            with contextlib.suppress(CronError):  # the next question reads them
                newest = await self._row_store.newest_of_each(unread, READ_ROWS)
                for name in unread:
                    known[name] = run_min(newest.get(name, ())), now_ms
        return {name: known[name][0] for name in names if name in known and known[name][0] > 1}


def run_min(rows: Sequence[Row]) -> int:
    """Return how many minutes the launches of a job take, by its newest rows: the median of those
    that succeeded, rounded up."""
    took_ms = sorted(
        row.finished_ms - row.started_ms
        for row in rows
        if row.state is LaunchState.SUCCEEDED and row.kind is not RowKind.AMENDMENT
        if 0 < row.started_ms <= row.finished_ms
    )
    return max(1, -(-took_ms[len(took_ms) // 2] // _MINUTE_MS)) if took_ms else 1


async def usual_times(
    replica: Replica, declared: Iterable[Job], records: Iterable[JobRecord]
) -> Mapping[str, int]:
    """Return how many minutes launches of the cell's jobs take, where a job of those that are
    `declared` needs a value for its `?`."""
    if replica.usual is None or all(job.schedule.is_placed for job in declared):
        return NONE_RUNS_LONG
    return await replica.usual.of([one.name for one in records if one.job is not None])


class JobLoad:
    """The load of jobs, each weighed by its parts and by how many minutes it usually runs."""

    def __init__(self, run_min: Mapping[str, int], jobs: Iterable[Job]) -> None:
        self._run_min = run_min
        self._load = Load()
        # A hundred thousand jobs have few schedules: they are added together.
        alike = Counter[tuple[str, str, int, int, int]]()
        minutes, default = run_min.get, 1
        for job in jobs:
            schedule = job.schedule
            ran = minutes(job.name, default)
            alike[schedule.resolved, schedule.zone, schedule.every_s, job.parts, ran] += 1
        for (resolved, zone, every_s, parts, ran), count in alike.items():
            same = Schedule(resolved, resolved, zone, every_s)
            self._load.add(same, max(1, parts) * count, ran)

    def add(self, job: Job) -> None:
        """Add a job whose schedule is placed."""
        self._load.add(job.schedule, *self._weight(job))

    def remove(self, job: Job) -> None:
        """Subtract a job that was added."""
        self._load.remove(job.schedule, *self._weight(job))

    def place(self, job: Job) -> Schedule:
        """Return the schedule of a job with a value for each `?`."""
        return spread.place(job.schedule, self._load, self._weight(job)[1])

    def _weight(self, job: Job) -> tuple[int, int]:
        return max(1, job.parts), self._run_min.get(job.name, 1)

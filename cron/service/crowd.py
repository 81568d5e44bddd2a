"""How many launches fall due in each minute of the next day, by the schedules of the jobs, and
whether the executors have slots for the jobs of a file."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from cron.calendar.crowding import Crowding
from cron.calendar.schedule import compile_or_none
from cron.errors import Problem
from cron.job import COMMAND, Job, Schedule, ScheduleKey
from cron.service.replica import Replica
from cron.state.alerts import is_own
from cron.state.state import JobRecord, State

MINUTES_AHEAD: Final = 24 * 60
HOUR: Final = 60
LOOKS_MAX: Final = 200_000
"""Instants of different schedules that are looked at for a day, a second of a thread. Where there
are more, only the next hour is counted."""
SCHEDULES_MAX: Final = 4_000
"""Different schedules that are counted. Some have to be compiled first, a millisecond each."""
WAIT_S: Final = 0.1
COUNT_EVERY: Final = 10
"""Minutes for which an answer is used: the minutes that are over are cut off."""
_MINUTE_S: Final = 60
_MINUTE_MS: Final = 60_000


class Crowd:
    """The counts of the next day. They are counted in a thread, when somebody asks, and used for
    COUNT_EVERY minutes; jobs that are declared or paused meanwhile count from then on. `wait_s`:
    how long an answer waits for the thread."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._state_of = state
        self.wait_s = WAIT_S
        self._minute = -1
        self._counting: asyncio.Task[list[int]] | None = None

    async def next_day(self, now_ms: int) -> list[int]:
        """Return the counts, the running minute's first; none while they are counted, and
        where the schedules are too many. The last minutes of the day may be left out, and all after
        the next hour where the schedules are many and often due."""
        minute = now_ms // _MINUTE_MS
        if self._counting is None or not 0 <= minute - self._minute < COUNT_EVERY:
            self._minute = minute
            records = list(self._state_of().jobs.values())
            self._counting = asyncio.create_task(
                asyncio.to_thread(count_due, records, minute * _MINUTE_S), name="crowd"
            )
        counting, first = self._counting, minute - self._minute
        await asyncio.wait({counting}, timeout=self.wait_s)
        return counting.result()[first:] if counting.done() else []


def count_due(records: Iterable[JobRecord], from_s: int) -> list[int]:
    """Return how many launches fall due in each of the minutes from `from_s` on, those that a pause
    skips and those of the cell itself left out. Jobs of one schedule are counted together. An empty
    list: there are more than `SCHEDULES_MAX` schedules. Only an hour: it takes more than LOOKS_MAX
    looks."""
    alike: Counter[tuple[ScheduleKey, int]] = Counter()
    schedules: dict[tuple[ScheduleKey, int], Schedule] = {}
    for record in records:
        if record.job is None or record.task or is_own(record.name):
            continue
        schedule, since_s = record.job.schedule, from_s
        if record.paused is not None and record.paused.holds(from_s * 1000):
            if not record.paused.until_ms:
                continue
            since_s = -(-record.paused.until_ms // 1000)
        key = (schedule.key, since_s)
        alike[key] += 1
        schedules[key] = schedule
    if len(alike) > SCHEDULES_MAX:
        return []
    groups = [(jobs, schedules[key], key[1]) for key, jobs in alike.items()]
    return _counts(groups, from_s, MINUTES_AHEAD) or _counts(groups, from_s, HOUR)


def _counts(groups: Iterable[tuple[int, Schedule, int]], from_s: int, minutes: int) -> list[int]:
    """Return the counts of so many minutes, none if a day takes more than LOOKS_MAX looks. `groups`
    have how many jobs have a schedule, and since when they are not paused."""
    counts, until_s, looks = [0] * minutes, from_s + minutes * _MINUTE_S, 0
    for jobs, schedule, since_s in groups:
        ticks = compile_or_none(schedule)
        due_s = ticks.next(since_s - 1)
        while due_s is not None and due_s < until_s:
            looks += 1
            if looks > LOOKS_MAX and minutes > HOUR:
                return []
            place = (due_s - from_s) // _MINUTE_S
            end_s = from_s + (place + 1) * _MINUTE_S - 1
            counts[place] += jobs * ticks.count(due_s - 1, end_s)
            due_s = ticks.next(end_s)
    return counts


def warnings(
    replica: Replica, found: Crowding | None, jobs: Iterable[Job], source: str
) -> list[Problem]:
    """Return a warning if more jobs of a file are due in one minute than there are slots."""
    if found is None:
        return []
    pools = {job.pool for job in jobs}
    slots = 0
    for session in replica.leader.pool.sessions():
        slots += session.greeting.slots if COMMAND in pools else 0
        slots += sum(
            offer.running_max for offer in session.offers if not pools.isdisjoint(offer.handlers)
        )
    if found.launches <= slots:
        return []
    room = f"the executors have {slots} slots for them" if slots else "no executor is connected"
    return [Problem(source, 0, 0, found.text(room), found.hint(), is_warning=True)]

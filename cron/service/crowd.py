"""How many launches fall due in each minute of the next hour, by the schedules of the jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from cron.calendar.schedule import compile_or_none
from cron.job import Schedule, ScheduleKey
from cron.state.state import JobRecord, State

MINUTES_AHEAD: Final = 60
SCHEDULES_MAX: Final = 4_000
"""Different schedules that are counted. Some have to be compiled first, a millisecond each."""
WAIT_S: Final = 0.1
_MINUTE_S: Final = 60
_MINUTE_MS: Final = 60_000


class Crowd:
    """The answer of the running minute. It is counted once a minute, when somebody asks, and in a
    thread; jobs that are declared or paused meanwhile count from the next minute on. `wait_s`: how
    long an answer waits for the thread."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._state_of = state
        self.wait_s = WAIT_S
        self._minute = -1
        self._counting: asyncio.Task[list[int]] | None = None

    async def next_hour(self, now_ms: int) -> list[int]:
        """Return the counts, the running minute's first; none while they are counted, and
        where the schedules are too many."""
        minute = now_ms // _MINUTE_MS
        if self._counting is None or minute != self._minute:
            self._minute = minute
            records = list(self._state_of().jobs.values())
            self._counting = asyncio.create_task(
                asyncio.to_thread(count_due, records, minute * _MINUTE_S), name="crowd"
            )
        await asyncio.wait({self._counting}, timeout=self.wait_s)
        return self._counting.result() if self._counting.done() else []


def count_due(records: Iterable[JobRecord], from_s: int) -> list[int]:
    """Return how many launches fall due in each of the minutes from `from_s` on, those that a pause
    skips left out. Jobs of one schedule are counted together. An empty list: there are more
    than `SCHEDULES_MAX` schedules."""
    alike: Counter[tuple[ScheduleKey, int]] = Counter()
    schedules: dict[tuple[ScheduleKey, int], Schedule] = {}
    for record in records:
        if record.job is None or record.task:
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
    counts, until_s = [0] * MINUTES_AHEAD, from_s + MINUTES_AHEAD * _MINUTE_S
    for key, jobs in alike.items():
        ticks = compile_or_none(schedules[key])
        due_s = ticks.next(key[1] - 1)
        while due_s is not None and due_s < until_s:
            place = (due_s - from_s) // _MINUTE_S
            end_s = from_s + (place + 1) * _MINUTE_S - 1
            counts[place] += jobs * ticks.count(due_s - 1, end_s)
            due_s = ticks.next(end_s)
    return counts

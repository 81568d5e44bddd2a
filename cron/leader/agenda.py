"""Which jobs have an instant by now: a heap over groups of jobs with one schedule.

Derived from State and from schedules, in the leader's memory only; rebuilt at takeover. A hundred
thousand jobs share a few thousand schedules and zones, one heap entry each, so a tick costs what is
due, not what exists. Where more is due than one turn takes, tenants take turns: one with twenty
thousand jobs in a second holds up no other.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Final

from cron.calendar.schedule import Ticks, unreadable
from cron.calendar.schedule import compile as compile_schedule
from cron.job import Schedule
from cron.state.state import JobRecord, State
from launcher.names import split_job_name

SHARE: Final = 8
"""Jobs of a tenant that are taken before it is the next one's turn."""

_GroupKey = tuple[str, str, int]


class _Group:
    """Jobs with one schedule, by tenant and number, in the order they came."""

    def __init__(self, key: _GroupKey, ticks: Ticks) -> None:
        self.key = key
        self.ticks = ticks
        self.numbers: dict[str, dict[int, None]] = {}
        self.next_s: int | None = None

    def add(self, tenant: str, number: int) -> None:
        """Let a job be one of its tenant's."""
        self.numbers.setdefault(tenant, {})[number] = None

    def remove(self, tenant: str, number: int) -> None:
        """Let go of a job."""
        theirs = self.numbers[tenant]
        del theirs[number]
        if not theirs:
            del self.numbers[tenant]


def _group_key(schedule: Schedule) -> _GroupKey:
    return (schedule.resolved, schedule.zone, schedule.every_s)


class DueJob:
    """A job that has instants to account for, and the schedule that says which."""

    __slots__ = ("number", "ticks")

    def __init__(self, number: int, ticks: Ticks) -> None:
        self.number = number
        self.ticks = ticks


class Agenda:
    """All live jobs of a State, by when they are due next.

    `held` are those whose schedules this program cannot read, by number, with the reason. They are
    never taken, so their horizons stand still: a leader that can read them gives their instants
    rows, by their catch-up policies.
    """

    def __init__(self, state: State) -> None:
        self.held: dict[int, str] = {}
        self._groups: dict[_GroupKey, _Group] = {}
        self._of_job: dict[int, tuple[_Group, str]] = {}  # with its tenant
        self._heap: list[tuple[int, int, _Group]] = []
        self._order = 0
        # Jobs to look at, by tenant and number: each once, however often it was asked for, and
        # always with the schedule that it has when it is taken.
        self._backlog: OrderedDict[str, OrderedDict[int, None]] = OrderedDict()
        for record in state.by_number.values():
            self.put(record)

    def put(self, record: JobRecord) -> None:
        """Take a job in, anew after a change, or out if it was removed.

        The job itself is looked at once in the next `take`, from its own horizon on; from then on
        it goes with its group.
        """
        self.remove(record.number)
        if record.job is None:
            return
        key = _group_key(record.job.schedule)
        group = self._groups.get(key)
        if group is None:
            if reason := unreadable(record.job.schedule):
                self.held[record.number] = reason
                return
            group = self._groups[key] = _Group(key, compile_schedule(record.job.schedule))
        tenant, _ = split_job_name(record.name)
        group.add(tenant, record.number)
        self._of_job[record.number] = group, tenant
        self.retry(record.number)

    def remove(self, number: int) -> None:
        """Take a job out; unknown numbers are no error."""
        self.held.pop(number, None)
        found = self._of_job.pop(number, None)
        if found is not None:
            group, tenant = found
            group.remove(tenant, number)
            theirs = self._backlog.get(tenant)
            if theirs is not None and number in theirs:
                del theirs[number]
                if not theirs:
                    del self._backlog[tenant]

    def retry(self, number: int) -> None:
        """Look at a job again in the next `take`, whatever its group does."""
        found = self._of_job.get(number)
        if found is not None:
            self._put_off(found[1], {number: None})

    def _put_off(self, tenant: str, numbers: dict[int, None]) -> None:
        theirs = self._backlog.get(tenant)
        if theirs is None:
            theirs = self._backlog[tenant] = OrderedDict()
        theirs.update(numbers)

    def next_s(self) -> int | None:
        """Return when the next group is due; None if nothing ever is. A backlog is due at once."""
        if self._backlog:
            return 0
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def take(self, now_s: int, *, limit: int) -> list[DueJob]:
        """Return up to `limit` jobs that may have instants up to `now_s`; the rest comes next time.

        Groups move on to their next instant after `now_s`. Who takes a job must account for it up
        to `now_s`, or `retry` it.
        """
        self._fill_backlog(now_s)
        taken: list[DueJob] = []
        while self._backlog and len(taken) < limit:
            tenant, theirs = next(iter(self._backlog.items()))
            for _ in range(min(SHARE, len(theirs), limit - len(taken))):
                number, _ = theirs.popitem(last=False)
                group, _ = self._of_job[number]
                if group.next_s is None:
                    self._schedule(group, now_s)
                taken.append(DueJob(number, group.ticks))
            if theirs:
                self._backlog.move_to_end(tenant)
            else:
                del self._backlog[tenant]
        return taken

    def _fill_backlog(self, now_s: int) -> None:
        self._drop_stale()
        while self._heap and self._heap[0][0] <= now_s:
            _, _, group = heapq.heappop(self._heap)
            group.next_s = None
            for tenant, numbers in group.numbers.items():
                self._put_off(tenant, numbers)
            self._schedule(group, now_s)
            self._drop_stale()

    def _schedule(self, group: _Group, now_s: int) -> None:
        """Put the group on the heap for its next instant, unless it is there already."""
        if group.next_s is not None:
            return
        group.next_s = group.ticks.next(now_s)
        if group.next_s is not None:
            self._order += 1
            heapq.heappush(self._heap, (group.next_s, self._order, group))

    def _drop_stale(self) -> None:
        """Let go of groups that have lost all their jobs."""
        while self._heap and not self._heap[0][2].numbers:
            _, _, group = heapq.heappop(self._heap)
            group.next_s = None
            if self._groups.get(group.key) is group:
                del self._groups[group.key]

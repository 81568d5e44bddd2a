"""Which jobs have an instant by now: a heap over groups of jobs with one schedule.

Derived from State and from schedules, in the leader's memory only; rebuilt at takeover. A hundred
thousand jobs share a few thousand schedules and zones, one heap entry each, so a tick costs what is
due, not what exists. Where more is due than one turn takes, or than can begin, jobs wait in the
lines of a `Backlog`, and cost nothing there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from cron.calendar.schedule import Ticks, unreadable
from cron.calendar.schedule import compile as compile_schedule
from cron.job import Job, Schedule
from cron.scheduler.backlog import Backlog, IsDue, IsServed, IsWaiting, Line, LineKey, Rates, Room
from cron.scheduler.candidates import wanted_of
from cron.state.state import JobRecord, State
from launcher.launch import Reason
from launcher.names import split_job_name

PATIENT_S: Final = 15
"""A job is patient whose instants lie so far apart and may begin so late."""
SWEEP_S: Final = 60
"""How often the jobs of lines that are behind have their older instants skipped."""
LOOKED_MAX: Final = 2_000
"""Schedules and horizons that one take looks at; what is beyond is taken for due."""

_GroupKey = tuple[str, str, int]


def _always(_: LineKey) -> bool:
    return True


class _Group:
    """Jobs with one schedule, by flow and number, in the order they came."""

    def __init__(self, key: _GroupKey, ticks: Ticks, about_s: int) -> None:
        self.key = key
        self.ticks = ticks
        first_s = ticks.next(about_s)
        second_s = ticks.next(first_s) if first_s is not None else None
        self.is_rare = second_s is None or second_s - (first_s or 0) >= PATIENT_S
        self.numbers: dict[LineKey, dict[int, None]] = {}
        self.next_s: int | None = None

    def add(self, flow: LineKey, number: int) -> None:
        """Let a job be one of its flow's."""
        self.numbers.setdefault(flow, {})[number] = None

    def remove(self, flow: LineKey, number: int) -> None:
        """Let go of a job."""
        theirs = self.numbers[flow]
        del theirs[number]
        if not theirs:
            del self.numbers[flow]


def _group_key(schedule: Schedule) -> _GroupKey:
    return (schedule.resolved, schedule.zone, schedule.every_s)


class DueJob:
    """A job that has instants to account for, and the schedule that says which. `since_s`: since
    when its line is not empty; `why_behind`: why for too long, NONE if not. `is_apart`: its rows
    need an entry's line of their own."""

    __slots__ = ("is_apart", "number", "since_s", "ticks", "why_behind")

    def __init__(
        self,
        number: int,
        ticks: Ticks,
        since_s: int = 0,
        *,
        why_behind: Reason = Reason.NONE,
        is_apart: bool = False,
    ) -> None:
        self.number = number
        self.ticks = ticks
        self.since_s = since_s
        self.why_behind = why_behind
        self.is_apart = is_apart


class DueHeap:
    """All live jobs of a State, by when they are due next.

    `held` are those whose schedules this program cannot read, by number, with the reason. They are
    never taken, so their horizons stand still: a leader that can read them gives their instants
    rows, by their catch-up policies. `refused` are those whose rows State refused, by number, with
    the reason: "" until they were refused by themselves. `seen_s` is the time of the last `take`.
    """

    def __init__(self, state: State, is_served: IsServed = _always) -> None:
        """`is_served(key)`: whether an executor is there that can run the launches of a line."""
        self._is_served = is_served
        self.held: dict[int, str] = {}
        self.refused: dict[int, str] = {}
        self.backlog = Backlog()
        self._rates = Rates()
        self._groups: dict[_GroupKey, _Group] = {}
        self._of_job: dict[int, tuple[_Group, LineKey]] = {}
        self._flows: dict[LineKey, LineKey] = {}  # that jobs had since the heap was made
        self._records = state.by_number
        self._heap: list[tuple[int, int, _Group]] = []
        self._order = 0
        self.seen_s = 0
        self._is_blocked = False  # what the backlog has found no room in the last take
        self._stale: Iterator[int] = iter(())
        self._stale_at_s = 0
        for record in state.by_number.values():
            self.put(record)

    def put(self, record: JobRecord) -> None:
        """Take a job in, anew after a change, or out if it was removed.

        The job itself is looked at once in the next `take`, from its own horizon on; from then on
        it goes with its group.
        """
        before = self._leave_group(record.number)
        self._put(record)
        _, line = self._of_job.get(record.number, (None, None))
        if before is not None and before != line:  # else it keeps its place
            self.backlog.remove(before, record.number)

    def _put(self, record: JobRecord) -> None:
        if record.job is None:
            return
        key = _group_key(record.job.schedule)
        group = self._groups.get(key)
        if group is None:
            if reason := unreadable(record.job.schedule):
                self.held[record.number] = reason
                return
            ticks = compile_schedule(record.job.schedule)
            group = self._groups[key] = _Group(key, ticks, record.horizon_s)
        flow = _flow_of(record.name, record.job, is_rare=group.is_rare)
        flow = self._flows.setdefault(flow, flow)
        group.add(flow, record.number)
        self._of_job[record.number] = group, flow
        self.retry(record.number)

    def remove(self, number: int) -> None:
        """Take a job out; unknown numbers are no error."""
        line = self._leave_group(number)
        if line is not None:
            self.backlog.remove(line, number)

    def _leave_group(self, number: int) -> LineKey | None:
        """Take a job out of its group; return where it may wait."""
        self.held.pop(number, None)
        self.refused.pop(number, None)
        group, line = self._of_job.pop(number, (None, None))
        if group is not None and line is not None:
            group.remove(line, number)
        return line

    def retry(self, number: int) -> None:
        """Look at a job again in one of the next takes, whatever its group does."""
        found = self._of_job.get(number)
        if found is not None:
            self.backlog.put(found[1], (number,), self.seen_s)
            self._is_blocked = False

    def was_refused(self, number: int, reason: str) -> None:
        """Learn that State refused the rows of a job. Others may be to blame, so it is tried again
        by itself. Refused so too, it waits until its schedule is next due."""
        if number in self.refused:
            self.refused[number] = reason
        else:
            self.refused[number] = ""
            self.retry(number)

    def stuck(self) -> dict[int, str]:
        """Return the jobs whose instants get no rows, by number, with the reason."""
        refused = {
            number: f"its rows are refused: {reason}"
            for number, reason in self.refused.items()
            if reason
        }
        return {**self.held, **refused}

    def put_back(self, jobs: list[DueJob]) -> None:
        """Let jobs wait in front of their lines: they were taken, and there was no time."""
        for due in reversed(jobs):
            found = self._of_job.get(due.number)
            if found is not None:
                self.backlog.put_back(found[1], due.number, due.since_s)
                self._is_blocked = False

    def next_s(self) -> int | None:
        """Return when the next group is due; None if nothing ever is. A backlog is due at once,
        unless it waits for room."""
        if len(self.backlog) and not self._is_blocked:
            return 0
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def take(
        self,
        now_s: int,
        *,
        limit: int,
        room: Room | None = None,
        is_waiting: IsWaiting | None = None,
    ) -> list[DueJob]:
        """Return up to `limit` jobs that may have instants up to `now_s`; the rest comes next time.

        Groups move on to their next instant after `now_s`. Who takes a job must account for it up
        to `now_s`, or `retry` it. `room` and `is_waiting` are those of `Backlog.take`; where there
        is a `room`, a job without an instant is left out.
        """
        if not self.seen_s:  # nobody has looked yet at what waits
            for line in self.backlog:
                line.since_s = now_s
        self.seen_s = now_s
        self._fill_backlog(now_s)
        taken: list[DueJob] = []
        is_due = None if room is None else self._is_due(now_s)
        for line in self.backlog.take_all(limit, now_s, room):
            for number in line.numbers if is_due is None else filter(is_due, line.numbers):
                group, _ = self._of_job[number]
                self._schedule(group, now_s)
                taken.append(self._taken(line, number, group, now_s))
        for line, number in self.backlog.take(limit, now_s, room, is_waiting, is_due):
            group, flow = self._of_job[number]
            self._schedule(group, now_s)
            due = self._taken(line, number, group, now_s)
            if due.why_behind:  # it had its turn: when all fall due again, it comes last
                numbers = group.numbers[flow]
                numbers[number] = numbers.pop(number)
            taken.append(due)
        self._is_blocked = len(taken) < limit
        return taken

    def _taken(self, line: Line, number: int, group: _Group, now_s: int) -> DueJob:
        why = line.why_behind(now_s, self._is_served)
        is_apart = number in self.refused
        return DueJob(number, group.ticks, line.since_s, why_behind=why, is_apart=is_apart)

    def _is_due(self, now_s: int) -> IsDue:
        """Return what tells whether a job has an instant to account for. After a change of leader
        all jobs are looked at, and most have none: these must not take the room of others."""
        known: dict[tuple[int, int], bool] = {}  # by group and horizon

        def is_due(number: int) -> bool:
            group, _ = self._of_job[number]
            if group.next_s is None:
                self._schedule(group, now_s)
            place = (id(group), self._records[number].horizon_s)
            found = known.get(place)
            if found is None:
                next_s = group.ticks.next(place[1]) if len(known) < LOOKED_MAX else now_s
                found = known[place] = next_s is not None and next_s <= now_s
            return found

        return is_due

    def stale(self, now_s: int, *, limit: int) -> list[DueJob]:
        """Return jobs that wait in lines which are behind, each once in `SWEEP_S` at the most: of
        their instants all but the newest may be skipped. They wait on."""
        if now_s >= self._stale_at_s:
            behind = [line for line in self.backlog if line.is_behind(now_s)]
            self._stale = iter([number for line in behind for number in line.numbers])
            self._stale_at_s = now_s + SWEEP_S
        found = []
        for number in islice(self._stale, limit):
            group, flow = self._of_job.get(number, (None, None))
            line = self.backlog.line(flow) if flow is not None else None
            if group is not None and line is not None and number in line.numbers:
                found.append(self._taken(line, number, group, now_s))
        return found

    # ---- which lines are behind

    def began(self, numbers: Iterable[int], now_s: int) -> None:
        """Count that a launch of each of these jobs begins."""
        counts: dict[int, tuple[LineKey, int]] = {}  # by identity: jobs of one flow share its key
        for number in numbers:
            found = self._of_job.get(number)
            if found is not None:
                flow = found[1]
                counts[id(flow)] = (flow, counts.get(id(flow), (flow, 0))[1] + 1)
        for flow, count in counts.values():
            self._rates.began(flow, now_s, count)

    def rate(self, line: Line, now_s: int) -> int:
        """Return how many launches of a line's flow began in a second lately."""
        return self._rates.per_second(line.key, now_s)

    def why_behind(self, number: int, now_s: int) -> Reason:
        """Return why the line of a job is behind, NONE where it is not."""
        line = self.line_of(number)
        return Reason.NONE if line is None else line.why_behind(now_s, self._is_served)

    def is_patient(self, number: int) -> bool:
        """Whether a job stands in a patient line when it falls due."""
        found = self._of_job.get(number)
        return found is not None and found[1].is_patient

    def line_of(self, number: int) -> Line | None:
        """Return the line in which a job waits for its turn, or has just been taken from; None
        where nothing waits in it."""
        found = self._of_job.get(number)
        return self.backlog.line(found[1]) if found is not None else None

    def behind(self, now_s: int) -> dict[Line, Reason]:
        """Return the lines that are behind, with why."""
        whys = {line: line.why_behind(now_s, self._is_served) for line in self.backlog}
        return {line: why for line, why in whys.items() if why}

    # ---- groups

    def _fill_backlog(self, now_s: int) -> None:
        self._drop_stale()
        while self._heap and self._heap[0][0] <= now_s:
            _, _, group = heapq.heappop(self._heap)
            group.next_s = None
            for flow, numbers in group.numbers.items():
                self.backlog.put(flow, numbers, now_s)
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


def _flow_of(name: str, job: Job, *, is_rare: bool) -> LineKey:
    """Return what a job has its turns with."""
    tenant, _ = split_job_name(name)
    priority = min(max(job.work.priority, 0), 9)
    is_patient = is_rare and job.deadline_s >= PATIENT_S
    return LineKey(job.pool, priority, tenant, is_patient, wanted_of(job))

"""The due heap: which jobs have an instant by now, and which of them get rows.

It is derived from State and from schedules, in the leader's memory only, and rebuilt after a
takeover. A hundred thousand jobs share a few thousand schedules and zones, with one heap entry
each, so a turn costs what is due, not what exists. Jobs with equal schedules, flows and policies
are a group: they fall due together, and nothing looks at one of them where nothing binds it. If
more is due than one turn takes, or than can begin, jobs wait in the lines of a `Backlog` at no
cost.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from cron.calendar.schedule import Ticks, unreadable
from cron.calendar.schedule import compile as compile_schedule
from cron.job import Catchup, Job, Overlap, ScheduleKey
from cron.scheduler.backlog import Backlog, IsDue, Line
from cron.scheduler.flows import FlowKey
from cron.scheduler.placed import placed_of
from cron.scheduler.queues import Queues
from cron.state.state import JobRecord, State
from launcher.protocol.status import Reason

SWEEP_S: Final = 60
"""How often the jobs of lines that are behind have their older instants skipped."""
LOOKED_MAX: Final = 2_000
"""Schedules and horizons that one take looks at; jobs with others count as due."""
READY_CALM: Final = 64
"""Live launches of all lines that wait for slots where nothing is behind."""
READY_MIN: Final = 2
READY_SHARE: Final = 4
"""Beside the launches for which slots are free, as many live launches of a flow have rows as began
in a quarter of a second: a launch that waits long is about to expire at its turn, and then no
executor can start it in time."""
PATIENT_MAX: Final = 20_000
"""Waiting launches of a flow of patient jobs: rows are better for them, because a change of leader
does not touch rows."""

_GroupKey = tuple[Line, Catchup, Overlap, int, bool]


class _Scheduled(msgspec.Struct, eq=False):
    """The jobs with one schedule, in groups."""

    key: ScheduleKey
    ticks: Ticks
    groups: dict[_GroupKey, _Group] = {}


class _Group(msgspec.Struct, eq=False):
    """The jobs with one schedule, flow and policy, by number, in order of arrival: what falls due
    of them at once becomes the same."""

    key: _GroupKey
    schedule: _Scheduled
    line: Line
    numbers: dict[int, None] = {}


class DueJobs(NamedTuple):
    """Jobs of one group with instants to account for, and their schedule. `since_s`: since when
    their line is not empty. `why_behind`: why for too long, else NONE. `is_apart`: their rows need
    their own lines in the entry."""

    numbers: Sequence[int]
    ticks: Ticks
    since_s: int = 0
    why_behind: Reason = Reason.NONE
    is_apart: bool = False


class DueHeap:
    """All live jobs of a State, by when they are due next.

    `held`: jobs whose schedules this program cannot read, by number, with the reason. They are
    never taken, so their horizons stand still, and a leader that can read them gives their instants
    rows by their catch-up policies. `refused`: jobs whose rows State refused, by number, with the
    reason: "" until they were refused by themselves. `seen_s`: the time of the last `take`.
    """

    def __init__(self, state: State, queues: Queues | None = None) -> None:
        """`queues` limit how many jobs are taken; without queues there is always room."""
        self._queues = queues
        self.held: dict[int, str] = {}
        self.refused: dict[int, str] = {}
        self.backlog = Backlog()
        self._schedules: dict[ScheduleKey, _Scheduled] = {}
        self._of_job: dict[int, _Group] = {}
        self._lines: WeakValueDictionary[FlowKey, Line] = WeakValueDictionary()  # of any job
        self._records = state.by_number
        self._heap: list[tuple[int, int, _Scheduled]] = []
        self._order = count()
        self.seen_s = 0
        self._doubtful: set[int] = set()  # may have no instant: not put into a line by their group
        self._is_blocked = False  # what the backlog has found no room in the last take
        self._stale: Iterator[int] = iter(())
        self._stale_at_s = 0
        for record in state.by_number.values():
            self.put(record)

    # ---- jobs

    def put(self, record: JobRecord) -> None:
        """Add or update a job, or remove it if it was removed from State.

        The next `take` looks at the job once, from its own horizon on. Afterwards it is due with
        its group.
        """
        number, job, line = record.number, record.job, None
        before = self._leave(number)
        # The launch of a task has its row already.
        is_due_again = job is not None and not record.task
        if job is not None and is_due_again and (scheduled := self._scheduled(record, job)):
            placed = self._queues.placed(record, job) if self._queues else None
            key = (placed or placed_of(record.name, job)).live
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = Line(key)
            like = (
                line,
                job.catchup,
                job.overlap,
                job.deadline_s,
                bool(job.follows or job.jitter_s),
            )
            group = scheduled.groups.get(like)
            if group is None:
                group = scheduled.groups[like] = _Group(like, scheduled, line)
            group.numbers[number] = None
            self._of_job[number] = group
            self.retry(number)
        if before is not None and before is not line:  # else it keeps its place
            self.backlog.remove(before, number)

    def _scheduled(self, record: JobRecord, job: Job) -> _Scheduled | None:
        """Return the jobs with the schedule of a job, None if the schedule cannot be read."""
        schedule = job.schedule
        key = schedule.key
        found = self._schedules.get(key)
        if found is None:
            if reason := unreadable(schedule):
                self.held[record.number] = reason
                return None
            found = self._schedules[key] = _Scheduled(key, compile_schedule(schedule))
            tick = found.ticks.tick_after(record.horizon_s)
            if tick is not None:
                heapq.heappush(self._heap, (tick.scheduled_s, next(self._order), found))
        return found

    def remove(self, number: int) -> None:
        """Remove a job; unknown numbers are no error."""
        line = self._leave(number)
        if line is not None:
            self.backlog.remove(line, number)

    def _leave(self, number: int) -> Line | None:
        """Remove a job from its group; return its line."""
        self.held.pop(number, None)
        self.refused.pop(number, None)
        self._doubtful.discard(number)
        group = self._of_job.pop(number, None)
        if group is None:
            return None
        del group.numbers[number]
        if not group.numbers:
            del group.schedule.groups[group.key]
        return group.line

    def retry(self, number: int) -> None:
        """Have one of the next takes look at a job again, whether its group is due or not."""
        group = self._of_job.get(number)
        if group is not None:
            self.backlog.put(group.line, (number,), self.seen_s)
            self._doubtful.add(number)
            self._is_blocked = False

    def answered(self, numbers: Iterable[int], refusal: str) -> None:
        """Note why State refused the rows of jobs, "" if it accepted them. Another job of the same
        line may be the cause, so each job is tried again by itself. A job that is refused by itself
        waits until its schedule is next due."""
        for number in numbers:
            if not refusal:
                self.refused.pop(number, None)
            elif number in self.refused:
                self.refused[number] = refusal
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

    # ---- what is due

    def next_s(self) -> int | None:
        """Return when the next group is due; None if nothing ever is. A backlog is due at once,
        unless it waits for room."""
        if self.backlog.lines and not self._is_blocked:
            return 0
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def take(self, now_s: int, *, limit: int) -> list[DueJobs]:
        """Return up to `limit` jobs that may have instants up to `now_s`, as far as there is room;
        the others come next time.

        Schedules advance to their next instant after `now_s`. The caller must account for each job
        up to `now_s`, or `retry` it. With queues, jobs without an instant are left out.
        """
        self._advance(now_s)
        backlog, queues = self.backlog, self._queues
        if queues is None:
            found = backlog.take(limit, dict.fromkeys(backlog.lines, limit))
        else:
            rooms, is_due = self._rooms(queues, now_s), self._is_due(now_s)
            found = backlog.take(limit, rooms, queues.is_waiting, is_due, self._doubtful)
        self._is_blocked = sum(len(numbers) for _, numbers in found) < limit
        taken: list[DueJobs] = []
        for line, numbers in found:
            groups = list(map(self._of_job.__getitem__, numbers))
            if len(set(groups)) == 1 and self.refused.keys().isdisjoint(numbers):
                alike = {(groups[0], False): numbers}
            else:
                alike = {}
                for number, group in zip(numbers, groups, strict=True):
                    alike.setdefault((group, number in self.refused), []).append(number)
            for (group, is_apart), mine in alike.items():
                ticks = group.schedule.ticks
                taken.append(DueJobs(mine, ticks, line.since_s, line.why, is_apart))
                for number in mine if line.why else ():
                    # It had its turn: when all fall due again, it comes last.
                    group.numbers[number] = group.numbers.pop(number)
        return taken

    def _advance(self, now_s: int) -> None:
        """Put what has fallen due into its lines."""
        if not self.seen_s:  # nobody has looked yet at what waits
            for line in self.backlog.lines:
                line.since_s = now_s
        self.seen_s = now_s
        self._drop_stale()
        while self._heap and self._heap[0][0] <= now_s:
            _, order, scheduled = self._heap[0]
            for group in scheduled.groups.values():
                self.backlog.put(group.line, group.numbers, now_s)
            tick = scheduled.ticks.tick_after(now_s)
            if tick is None:
                heapq.heappop(self._heap)
            else:
                heapq.heapreplace(self._heap, (tick.scheduled_s, order, scheduled))
            self._drop_stale()

    def _rooms(self, queues: Queues, now_s: int) -> dict[Line, int]:
        """Return how many jobs of each line may get rows; note which lines are behind."""
        rooms: dict[Line, int] = {}
        free: dict[str, int] = {}  # slots by pool, for each line
        lines, flows = len(self.backlog.lines), queues.fair.flows
        for line in self.backlog.lines:
            if line.why or now_s - line.since_s:
                line.look(now_s, queues.is_served)
            key, most = line.key, PATIENT_MAX
            if not key.is_patient:
                if key.pool not in free:
                    free[key.pool] = queues.places.free(key.pool) // lines
                least = READY_MIN if line.why else max(READY_CALM // lines, READY_MIN)
                second, begun, before = line.begun
                rate = max(begun, before) if second == now_s else begun * (second + 1 == now_s)
                most = least + free[key.pool] + rate // READY_SHARE
            flow = flows.get(key)
            rooms[line] = most - (flow.size if flow is not None else 0)
        return rooms

    def _is_due(self, now_s: int) -> IsDue:
        """Return a function that says whether a doubtful job has an instant to account for. After a
        change of leader all jobs are doubtful and most have none: they must not take the room of
        others."""
        known: dict[tuple[int, int], bool] = {}  # by schedule and horizon

        def is_due(number: int) -> bool:
            self._doubtful.discard(number)
            ticks = self._of_job[number].schedule.ticks
            horizon_s = self._records[number].horizon_s
            found = known.get((id(ticks), horizon_s))
            if found is None:
                if len(known) >= LOOKED_MAX:
                    return True
                tick = ticks.tick_after(horizon_s)
                found = known[id(ticks), horizon_s] = tick is not None and tick.scheduled_s <= now_s
            return found

        return is_due

    def put_back(self, jobs: Sequence[DueJobs]) -> None:
        """Return taken jobs to the front of their lines: there was no time for them."""
        for due in reversed(jobs):
            for number in reversed(due.numbers):
                group = self._of_job.get(number)
                if group is not None:
                    self.backlog.put_back(group.line, number, due.since_s)
                    self._is_blocked = False

    def stale(self, now_s: int, *, limit: int) -> list[DueJobs]:
        """Return jobs in lines that are behind, each once per `SWEEP_S` at most: all but the newest
        of their instants may be skipped. The jobs stay in their lines."""
        if now_s >= self._stale_at_s:
            self._stale = iter([number for line in self.behind() for number in line.numbers])
            self._stale_at_s = now_s + SWEEP_S
        found = []
        for number in islice(self._stale, limit):
            line = self.line_of(number)
            if line is not None and number in line.numbers:
                ticks, is_apart = self._of_job[number].schedule.ticks, number in self.refused
                found.append(DueJobs((number,), ticks, line.since_s, line.why, is_apart))
                self._doubtful.add(number)
        return found

    def _drop_stale(self) -> None:
        """Remove schedules that have lost all their jobs."""
        while self._heap and not self._heap[0][2].groups:
            _, _, scheduled = heapq.heappop(self._heap)
            if self._schedules.get(scheduled.key) is scheduled:
                del self._schedules[scheduled.key]

    # ---- which lines are behind

    def began(self, numbers: Iterable[int], now_s: int) -> None:
        """Count a launch that begins for each of these jobs."""
        for group, launches in Counter(map(self._of_job.get, numbers)).items():
            if group is not None:
                line = group.line
                second, begun, before = line.begun
                if second != now_s:
                    begun, before = 0, begun if second + 1 == now_s else 0
                line.begun = (now_s, begun + launches, before)

    def line_of(self, number: int) -> Line | None:
        """Return the line in which a job waits, or from which it was just taken; None if the line
        is empty."""
        group = self._of_job.get(number)
        return group.line if group is not None and group.line.numbers else None

    def why_behind(self, number: int) -> Reason:
        """Return why the line of a job is behind, else NONE."""
        line = self.line_of(number)
        return line.why if line is not None else Reason.NONE

    def behind(self) -> list[Line]:
        """Return the lines that were behind at the last `take`."""
        return [line for line in self.backlog.lines if line.why and line.numbers]

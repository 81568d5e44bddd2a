"""Which jobs have an instant by now, and which of them may have rows: the due heap.

Derived from State and from schedules, in the leader's memory only; rebuilt at takeover. A hundred
thousand jobs share a few thousand schedules and zones, one heap entry each, so a tick costs what is
due, not what exists. Where more is due than one turn takes, or than can begin, jobs wait in the
lines of a `Backlog`, and cost nothing there.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from cron.calendar.schedule import Ticks, unreadable
from cron.calendar.schedule import compile as compile_schedule
from cron.scheduler.backlog import Backlog, IsDue, Line
from cron.scheduler.flows import FlowKey
from cron.scheduler.queues import Queues, placed_of
from cron.state.state import JobRecord, State
from launcher.protocol.status import Reason

SWEEP_S: Final = 60
"""How often the jobs of lines that are behind have their older instants skipped."""
LOOKED_MAX: Final = 2_000
"""Schedules and horizons that one take looks at; what is beyond is taken for due."""
READY_CALM: Final = 64
"""Live launches of all lines that wait for slots where nothing is behind."""
READY_MIN: Final = 2
READY_SHARE: Final = 4
"""Beside those for which slots are free, so many live launches of a flow have rows as began in a
quarter of a second: what waits long is about to expire when its turn comes, and then no executor
can start it in time."""
PATIENT_MAX: Final = 20_000
"""Launches of a flow that wait, of jobs that may begin late and fall due rarely: they are better
off with rows, which a change of leader does not touch."""

_GroupKey = tuple[str, str, int]


class _Group:
    """Jobs with one schedule, by line and number, in the order they came."""

    def __init__(self, key: _GroupKey, ticks: Ticks) -> None:
        self.key = key
        self.ticks = ticks
        self.numbers: dict[Line, dict[int, None]] = {}


class DueJob(NamedTuple):
    """A job that has instants to account for, and the schedule that says which. `since_s`: since
    when its line is not empty; `why_behind`: why for too long, NONE if not. `is_apart`: its rows
    need an entry's line of their own."""

    number: int
    ticks: Ticks
    since_s: int = 0
    why_behind: Reason = Reason.NONE
    is_apart: bool = False


class DueHeap:
    """All live jobs of a State, by when they are due next.

    `held` are those whose schedules this program cannot read, by number, with the reason. They are
    never taken, so their horizons stand still: a leader that can read them gives their instants
    rows, by their catch-up policies. `refused` are those whose rows State refused, by number, with
    the reason: "" until they were refused by themselves. `seen_s` is the time of the last `take`.
    """

    def __init__(self, state: State, queues: Queues | None = None) -> None:
        """`queues` say for how many there is room; without them there always is."""
        self._queues = queues
        self.held: dict[int, str] = {}
        self.refused: dict[int, str] = {}
        self.backlog = Backlog()
        self._groups: dict[_GroupKey, _Group] = {}
        self._of_job: dict[int, tuple[_Group, Line]] = {}
        self._lines: WeakValueDictionary[FlowKey, Line] = WeakValueDictionary()  # of any job
        self._records = state.by_number
        self._heap: list[tuple[int, int, _Group]] = []
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
        """Take a job in, anew after a change, or out if it was removed.

        The job itself is looked at once in the next `take`, from its own horizon on; from then on
        it goes with its group.
        """
        number, before, line = record.number, self._leave(record.number), None
        if record.job is not None and (group := self._group(record)) is not None:
            key = placed_of(record.name, record.job).live
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = Line(key)
            group.numbers.setdefault(line, {})[number] = None
            self._of_job[number] = group, line
            self.retry(number)
        if before is not None and before is not line:  # else it keeps its place
            self.backlog.remove(before, number)

    def _group(self, record: JobRecord) -> _Group | None:
        """Return the jobs with the schedule of a job, None where it cannot be read."""
        if record.job is None:
            return None
        schedule = record.job.schedule
        key = (schedule.resolved, schedule.zone, schedule.every_s)
        group = self._groups.get(key)
        if group is None:
            if reason := unreadable(schedule):
                self.held[record.number] = reason
                return None
            group = self._groups[key] = _Group(key, compile_schedule(schedule))
            tick = group.ticks.tick_after(record.horizon_s)
            if tick is not None:
                heapq.heappush(self._heap, (tick.scheduled_s, next(self._order), group))
        return group

    def remove(self, number: int) -> None:
        """Take a job out; unknown numbers are no error."""
        line = self._leave(number)
        if line is not None:
            self.backlog.remove(line, number)

    def _leave(self, number: int) -> Line | None:
        """Take a job out of its group; return where it may wait."""
        self.held.pop(number, None)
        self.refused.pop(number, None)
        self._doubtful.discard(number)
        group, line = self._of_job.pop(number, (None, None))
        if group is not None and line is not None:
            theirs = group.numbers[line]
            del theirs[number]
            if not theirs:
                del group.numbers[line]
        return line

    def retry(self, number: int) -> None:
        """Look at a job again in one of the next takes, whatever its group does."""
        found = self._of_job.get(number)
        if found is not None:
            self.backlog.put(found[1], (number,), self.seen_s)
            self._doubtful.add(number)
            self._is_blocked = False

    def answered(self, numbers: Iterable[int], refusal: str) -> None:
        """Learn why State refused the rows of jobs, "" where it did not. Others may be to blame, so
        each is tried again by itself. Refused so too, it waits until its schedule is next due."""
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

    def take(self, now_s: int, *, limit: int) -> list[DueJob]:
        """Return up to `limit` jobs that may have instants up to `now_s`, and not more than there
        is room for; the rest comes next time.

        Groups move on to their next instant after `now_s`. Who takes a job must account for it up
        to `now_s`, or `retry` it. Where there are queues, a job without an instant is left out.
        """
        backlog, queues = self.backlog, self._queues
        if not self.seen_s:  # nobody has looked yet at what waits
            for line in backlog.lines:
                line.since_s = now_s
        self.seen_s = now_s
        self._drop_stale()
        while self._heap and self._heap[0][0] <= now_s:
            _, order, group = self._heap[0]
            for line, jobs in group.numbers.items():
                backlog.put(line, jobs, now_s)
            tick = group.ticks.tick_after(now_s)
            if tick is None:
                heapq.heappop(self._heap)
            else:
                heapq.heapreplace(self._heap, (tick.scheduled_s, order, group))
            self._drop_stale()
        if queues is None:
            found = backlog.take(limit, dict.fromkeys(backlog.lines, limit))
        else:
            rooms = self._rooms(queues, now_s)
            is_due = self._is_due(now_s)
            found = backlog.take(limit, rooms, queues.is_waiting, is_due, self._doubtful)
        taken: list[DueJob] = []
        for line, numbers in found:
            why, since_s = line.why, line.since_s
            for number in numbers:
                group, _ = self._of_job[number]
                taken.append(DueJob(number, group.ticks, since_s, why, number in self.refused))
                if why:  # it had its turn: when all fall due again, it comes last
                    theirs = group.numbers[line]
                    theirs[number] = theirs.pop(number)
        self._is_blocked = len(taken) < limit
        return taken

    def _rooms(self, queues: Queues, now_s: int) -> dict[Line, int]:
        """Return of how many jobs of each line rows can begin, or are better off with rows; note
        which lines are behind."""
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
        """Return what tells whether a doubtful job has an instant to account for. After a change of
        leader all are looked at, and most have none: these must not take the room of others."""
        known: dict[tuple[int, int], bool] = {}  # by group and horizon

        def is_due(number: int) -> bool:
            self._doubtful.discard(number)
            group, _ = self._of_job[number]
            horizon_s = self._records[number].horizon_s
            found = known.get((id(group), horizon_s))
            if found is None:
                if len(known) >= LOOKED_MAX:
                    return True
                tick = group.ticks.tick_after(horizon_s)
                found = known[id(group), horizon_s] = tick is not None and tick.scheduled_s <= now_s
            return found

        return is_due

    def put_back(self, jobs: list[DueJob]) -> None:
        """Let jobs wait in front of their lines: they were taken, and there was no time."""
        for due in reversed(jobs):
            found = self._of_job.get(due.number)
            if found is not None:
                self.backlog.put_back(found[1], due.number, due.since_s)
                self._is_blocked = False

    def stale(self, now_s: int, *, limit: int) -> list[DueJob]:
        """Return jobs that wait in lines which are behind, each once in `SWEEP_S` at the most: of
        their instants all but the newest may be skipped. They wait on."""
        if now_s >= self._stale_at_s:
            self._stale = iter([number for line in self.behind() for number in line.numbers])
            self._stale_at_s = now_s + SWEEP_S
        found = []
        for number in islice(self._stale, limit):
            line = self.line_of(number)
            if line is not None and number in line.numbers:
                ticks, is_apart = self._of_job[number][0].ticks, number in self.refused
                found.append(DueJob(number, ticks, line.since_s, line.why, is_apart))
                self._doubtful.add(number)
        return found

    def _drop_stale(self) -> None:
        """Let go of groups that have lost all their jobs."""
        while self._heap and not self._heap[0][2].numbers:
            _, _, group = heapq.heappop(self._heap)
            if self._groups.get(group.key) is group:
                del self._groups[group.key]

    # ---- which lines are behind

    def began(self, numbers: Iterable[int], now_s: int) -> None:
        """Count that a launch of each of these jobs begins."""
        for found, launches in Counter(map(self._of_job.get, numbers)).items():
            if found is not None:
                line = found[1]
                second, begun, before = line.begun
                if second != now_s:
                    begun, before = 0, begun if second + 1 == now_s else 0
                line.begun = (now_s, begun + launches, before)

    def line_of(self, number: int) -> Line | None:
        """Return the line in which a job waits for its turn, or has just been taken from; None
        where nothing waits in it."""
        found = self._of_job.get(number)
        return found[1] if found is not None and found[1].numbers else None

    def why_behind(self, number: int) -> Reason:
        """Return why the line of a job is behind, NONE where it is not."""
        line = self.line_of(number)
        return line.why if line is not None else Reason.NONE

    def behind(self) -> list[Line]:
        """Return the lines that were behind when they were last looked at, in `take`."""
        return [line for line in self.backlog.lines if line.why and line.numbers]

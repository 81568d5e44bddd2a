"""When tasks become ready, and when they are forgotten: the leader's index of them. Pure.

Theory of operation. Tasks that wait for their time are numbers in arrays, one array for each second
that has any. When its second has come, a task moves to a heap by milliseconds, and once it is due,
to the line of its queue, by priority, then time. A task costs the same whatever waits beside it.

A task whose handler is called `command`, which is the work pool of commands, can run nowhere: it is
cancelled once it is due. Older releases took such tasks.

A task that is due gets its launch only if that will soon have a slot: of each work pool as many are
ready and have not begun as the pool has slots, and some more, so that slots never wait for the next
launch. The others stay slim records of State. Lines of one pool take turns. A few tasks of each
line are ready whatever the others have: a limit or a gate may hold all that is ready of one queue.

The index never looks for an entry to remove it. An entry that is not true any more, of a task that
was cancelled, put off or changed, is passed over when its turn comes.

Tasks that are due hours from now stand aside (`far_tasks.py`), and may go to disk.

After a takeover the index is loaded in portions, and follows what changes meanwhile.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from cron.job import COMMAND
from cron.launch_state import LaunchState
from cron.scheduler.far_tasks import USUAL, FarTasks, SpillSettings
from cron.state import tasks as t
from cron.state.alerts import is_own
from cron.state.outcome import Outcome
from cron.state.state import State
from cron.state.tasking import deadline_s_of, handler_of, priority_of
from launcher.protocol.names import TASK_MARK

LOADED_AT_ONCE: Final = 10_000
"""Tasks that one turn loads after a takeover, or sorts into lines: about 0.02 s."""
READY_MAX: Final = 1_000
"""Tasks that one entry makes ready."""
RESERVE: Final = 100
"""So many more tasks of a pool than it has slots are ready and have not begun."""
FORGET_MAX: Final = 1_000
"""Tasks that one entry forgets."""
LINE_RESERVE: Final = 10
"""So many tasks of each line are ready and have not begun, whatever room their pool has."""
EXPIRED_MAX: Final = 1_000
"""Tasks past their deadline that one entry makes ready, though their pool has no room: the plan
then skips them."""
STALE_MAX: Final = 100_000
"""Entries that are not true any more, beside as many as there are tasks that wait."""
FOLLOWED_MS: Final = 3_600_000
"""So much later the index looks again at a task that is not forgotten because others follow it."""
STRAYS_MAX: Final = 1_000
"""Tasks that one entry cancels because their handler cannot be one."""
NO_HANDLER_BY: Final = f"the cell, which has no handler {COMMAND}"
"""Who cancels these, as history says it."""
OLDEST_AMONG: Final = 10_000
"""Tasks of a line among which the oldest is sought: about 2 ms."""
_MINUTE_MS: Final = 60_000
_NUMBER_BITS: Final = 40
_TIME_BITS: Final = 48
_TIME_MASK: Final = (1 << _TIME_BITS) - 1
_NUMBER_MASK: Final = (1 << _NUMBER_BITS) - 1
TaskCommand: TypeAlias = t.ReadyTasks | t.ForgetTasks | t.CancelTasks


class _Line(msgspec.Struct, eq=False):
    """The tasks of one queue and work pool that are due: a heap of integers, each with the
    priority, the time and the number of a task, from the top."""

    queue: str
    pool: str
    entries: list[int] = []


class TaskIndex:
    """The tasks of a State, as one leader's term needs them. `unbegun` are the jobs of tasks that
    are ready and never began, by number, each with its queue and work pool."""

    def __init__(self, state: State, spill: SpillSettings = USUAL) -> None:
        self._state = state
        self.far = FarTasks(state, spill)
        self._approaching: deque[array[int]] = deque()  # tasks that were far ahead
        self._loading: Iterator[int] = iter(list(state.tasks_by_number))
        self._is_loading = bool(state.tasks_by_number)
        self._now_ms = 0  # of the newest plan
        self._opened_s = 0  # seconds up to it have no array
        self._seconds: dict[int, array[int]] = {}
        self._by_second: list[int] = []  # a heap of these
        self._opening: deque[array[int]] = deque()  # of seconds that have come
        self._soon: list[tuple[int, int]] = []  # a heap of (at_ms, number)
        self._entries = 0  # in all of these
        self._lines: dict[tuple[str, str], _Line] = {}
        self._pools: dict[str, deque[_Line]] = {}  # those that have entries
        self._is_more = False  # one plan had not enough room for all that could be ready
        self._deadlines: dict[int, array[int]] = {}  # of tasks in lines, by second
        self._by_deadline: list[int] = []  # a heap of these
        self._timed = 0  # entries in these
        self._expired: deque[int] = deque()
        self._strays: deque[int] = deque()  # those whose handler cannot be one
        self._cancelled: set[int] = set()  # the strays that this term has cancelled
        self._over: dict[int, array[int]] = {}  # by the minute in which they may be forgotten
        self._by_minute: list[int] = []  # a heap of these
        self._noted = 0  # entries in these
        self._forgettable: deque[int] = deque()
        self.unbegun: dict[int, tuple[str, str]] = {}
        self._counts: Counter[str] = Counter()  # of these, by pool
        self._line_counts: Counter[tuple[str, str]] = Counter()  # by line
        for key in state.due.detailed:
            self._look_at_job(key[0])

    @property
    def is_stale(self) -> bool:
        """Whether so many entries are not true any more that a new index is cheaper."""
        entries = self._entries + self.far.count
        return not self._is_loading and entries > 2 * self._state.tasks.waiting + STALE_MAX

    def count_unbegun(self) -> int:
        """Return how many tasks are ready and never began, those of the cell itself left out."""
        return sum(count for (queue, _), count in self._line_counts.items() if not is_own(queue))

    # ---- what State says

    def follow(self, outcome: Outcome) -> None:
        """Update the index from State after an entry."""
        for number in outcome.moved_tasks:
            self._put(number)
        if self.unbegun:
            for key in (*outcome.begun, *outcome.moved):
                if key[0] in self.unbegun:
                    self._look_at_job(key[0])
            for number in outcome.gone_jobs:
                self._look_at_job(number)

    def put_back(self, numbers: Iterable[int]) -> None:
        """Take back tasks that a plan made ready and State has refused."""
        for number in numbers:
            self._put(number)

    def _put(self, number: int) -> None:
        task = self._state.tasks_by_number.get(number)
        if task is None:
            return
        if task.is_waiting:
            if not self._state.holds.holds_back(number):  # else its release puts it
                self._wait(task)
        elif task.job:
            if handler_of(task, self._state.queues[task.queue]) == COMMAND:
                self._stray(number)
            self._look_at_job(task.job)
        else:
            self._remember(task)

    def _stray(self, number: int) -> None:
        """Have a task cancelled whose handler cannot be one, once in this term: a launch that has
        begun ends only when its executor answers."""
        if number not in self._cancelled:
            self._cancelled.add(number)
            self._strays.append(number)

    def _look_at_job(self, number: int) -> None:
        """Count the job of a task if its launch is due and never began, and do not otherwise."""
        record = self._state.by_number.get(number)
        is_unbegun = (
            record is not None
            and record.task > 0
            and any(
                row.state is LaunchState.DUE and not row.attempt for row in record.open.values()
            )
        )
        known = self.unbegun.get(number)
        if is_unbegun and known is None and record is not None and record.job is not None:
            key = (record.name.partition(TASK_MARK)[0], record.job.pool)
            self.unbegun[number] = key
            self._counts[record.job.pool] += 1
            self._line_counts[key] += 1
        elif not is_unbegun and known is not None:
            del self.unbegun[number]
            self._counts[known[1]] -= 1
            self._line_counts[known] -= 1
            if not self._line_counts[known]:
                del self._line_counts[known]

    def _wait(self, task: t.TaskRecord) -> None:
        second = task.at_ms // 1000
        if task.at_ms <= self._now_ms:
            self._line_up(task)
        elif second <= self._opened_s:
            heapq.heappush(self._soon, (task.at_ms, task.number))
            self._entries += 1
        elif second >= self.far.from_s:
            self.far.put(second, task.number)
        else:
            _put_at(self._seconds, self._by_second, second, task.number)
            self._entries += 1

    def _line_up(self, task: t.TaskRecord) -> None:
        queue = self._state.queues[task.queue]
        key = (task.queue, handler_of(task, queue))
        if key[1] == COMMAND:
            self._stray(task.number)
            return
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(*key)
        if not line.entries:
            self._pools.setdefault(line.pool, deque()).append(line)
        entry = (priority_of(task, queue) << _TIME_BITS | task.at_ms) << _NUMBER_BITS | task.number
        heapq.heappush(line.entries, entry)
        self._entries += 1
        ends_s = task.at_ms // 1000 + deadline_s_of(task, queue) + 1
        _put_at(self._deadlines, self._by_deadline, ends_s, task.number)
        self._timed += 1

    def _remember(self, task: t.TaskRecord) -> None:
        """Note when a task that is over may be forgotten."""
        remember_s = self._state.queues[task.queue].remember_s
        minute = (task.ended_ms + remember_s * 1000) // _MINUTE_MS + 1
        _put_at(self._over, self._by_minute, minute, task.number)
        self._noted += 1

    def oldest_ms(self) -> dict[str, int]:
        """Return by queue since when its oldest task that is due waits to begin. Of more than
        OLDEST_AMONG due tasks of a queue and work pool, only those that go first are looked at."""
        oldest: dict[str, int] = {}
        by_number = self._state.tasks_by_number
        for line in self._lines.values():
            for entry in line.entries[:OLDEST_AMONG]:
                at_ms = entry >> _NUMBER_BITS & _TIME_MASK
                if at_ms < oldest.get(line.queue, at_ms + 1):
                    task = by_number.get(entry & _NUMBER_MASK)
                    if task is not None and task.is_waiting and task.at_ms == at_ms:
                        oldest[line.queue] = at_ms
        for number, (queue, _) in self.unbegun.items():
            for row in self._state.by_number[number].open.values():
                oldest[queue] = min(oldest.get(queue, row.due_at_ms), row.due_at_ms)
        return oldest

    # ---- what the plan does

    def plan(self, now_ms: int, slots: Callable[[str], int], most: int) -> list[TaskCommand]:
        """Return the commands by which tasks become ready, `most` at most, are forgotten, and
        are cancelled because no handler can have that name. `slots`: how many launches of a work
        pool may run at once, full slots included."""
        self._now_ms = max(self._now_ms, now_ms)
        if self._now_ms // 1000 >= self.far.look_s:
            self._approaching.extend(self.far.approach(self._now_ms // 1000))
        self._prune()
        self._load()
        self._open()
        ready = self._ready(slots, min(most, READY_MAX))
        forget = self._forget()
        commands: list[TaskCommand] = []
        if ready:
            commands.append(t.ReadyTasks(tuple(ready)))
        if forget:
            commands.append(t.ForgetTasks(forget))
        strays = [self._strays.popleft() for _ in range(min(len(self._strays), STRAYS_MAX))]
        by_number = self._state.tasks_by_number
        if names := tuple([by_number[one].name for one in strays if one in by_number]):
            commands.append(t.CancelTasks(names, NO_HANDLER_BY))
        return commands

    def _prune(self) -> None:
        """Let go of deadlines of tasks that wait no more, and of tasks that are forgotten, once
        these are most entries: tasks come and go long before the times noted of them."""
        by_number = self._state.tasks_by_number
        if self._timed > 2 * self._state.tasks.waiting + STALE_MAX:
            self._timed = _keep(
                self._deadlines,
                self._by_deadline,
                lambda number: (task := by_number.get(number)) is not None and task.is_waiting,
            )
        if self._noted > 2 * self._state.tasks.over + STALE_MAX:
            self._noted = _keep(self._over, self._by_minute, by_number.__contains__)

    def _load(self) -> None:
        """Load a portion of what was there when the index was made, or of what was far ahead."""
        if self._is_loading:
            portion = list(islice(self._loading, LOADED_AT_ONCE))
            self._is_loading = len(portion) == LOADED_AT_ONCE
            for number in portion:
                self._put(number)
        elif self._approaching:
            numbers = self._approaching.popleft()
            if len(numbers) > LOADED_AT_ONCE:
                self._approaching.appendleft(numbers[LOADED_AT_ONCE:])
            for number in numbers[:LOADED_AT_ONCE]:
                self._put(number)

    def _open(self) -> None:
        """Move tasks whose second has come, and tasks that are due, to where they belong; a portion
        of them."""
        now_ms, by_number = self._now_ms, self._state.tasks_by_number
        self._opened_s = max(self._opened_s, now_ms // 1000)
        while self._by_second and self._by_second[0] <= self._opened_s:
            self._opening.append(self._seconds.pop(heapq.heappop(self._by_second)))
        left = LOADED_AT_ONCE
        while self._opening and left > 0:
            numbers = self._opening.popleft()
            if len(numbers) > left:
                self._opening.appendleft(numbers[left:])
                numbers = numbers[:left]
            left -= len(numbers)
            self._entries -= len(numbers)
            for number in numbers:
                task = by_number.get(number)
                if task is not None and task.is_waiting and task.at_ms // 1000 <= self._opened_s:
                    self._wait(task)
        soon = self._soon
        while soon and soon[0][0] <= now_ms and left > 0:
            at_ms, number = heapq.heappop(soon)
            left -= 1
            self._entries -= 1
            task = by_number.get(number)
            if task is not None and task.is_waiting and task.at_ms == at_ms:
                self._line_up(task)

    def _ready(self, slots: Callable[[str], int], most: int) -> dict[int, None]:
        """Return which tasks become ready, in the order in which their launches are to begin."""
        ready = dict.fromkeys(self._past_deadline())
        self._is_more = bool(self._expired)
        for pool in list(self._pools):
            if len(ready) >= most:
                self._is_more = True
                break  # it is the first one in the next plan
            count = slots(pool)
            lines = self._pools.pop(pool)
            if count:
                lines = self._ready_of_pool(lines, count - self._counts[pool], ready, most)
            if lines:
                self._pools[pool] = lines  # behind the others
        return ready

    def _ready_of_pool(
        self, lines: deque[_Line], room: int, ready: dict[int, None], most: int
    ) -> deque[_Line]:
        """Add tasks of one pool to those that become ready, a task of each line in turn; return the
        lines that are left. `room`: how many more of its slots may have a launch that waits."""
        room += RESERVE
        full: deque[_Line] = deque()
        taken: Counter[tuple[str, str]] = Counter()
        while lines and len(ready) < most:
            line = lines.popleft()
            key = (line.queue, line.pool)
            if room <= 0 and self._line_counts[key] + taken[key] >= LINE_RESERVE:
                full.append(line)
                continue
            number = self._next(line)
            if number and number not in ready:
                ready[number] = None
                taken[key] += 1
                room -= 1
            if line.entries:
                lines.append(line)
            else:
                del self._lines[key]
        self._is_more |= bool(lines)
        lines += full
        return lines

    def _next(self, line: _Line) -> int:
        """Take the next task out of a line and return its number, 0 where none is there."""
        entries, state = line.entries, self._state
        while entries:
            entry = heapq.heappop(entries)
            self._entries -= 1
            task = state.tasks_by_number.get(entry & _NUMBER_MASK)
            if task is not None and task.is_waiting:
                place = priority_of(task, state.queues[task.queue]) << _TIME_BITS | task.at_ms
                if place == entry >> _NUMBER_BITS:
                    return task.number
        return 0

    def _past_deadline(self) -> Iterator[int]:
        """Yield tasks whose deadlines are over though they are not ready."""
        state, now_ms = self._state, self._now_ms
        while self._by_deadline and self._by_deadline[0] * 1000 <= now_ms:
            expired = self._deadlines.pop(heapq.heappop(self._by_deadline))
            self._timed -= len(expired)
            self._expired.extend(expired)
        for _ in range(min(len(self._expired), EXPIRED_MAX)):
            task = state.tasks_by_number.get(self._expired.popleft())
            if task is not None and task.is_waiting:
                deadline_s = deadline_s_of(task, state.queues[task.queue])
                if task.at_ms + deadline_s * 1000 <= now_ms:
                    yield task.number

    def _forget(self) -> tuple[int, ...]:
        """Return tasks that State may forget."""
        state = self._state
        while self._by_minute and self._by_minute[0] * _MINUTE_MS <= self._now_ms:
            over = self._over.pop(heapq.heappop(self._by_minute))
            self._noted -= len(over)
            self._forgettable.extend(over)
        found: list[int] = []
        while self._forgettable and len(found) < FORGET_MAX:
            task = state.tasks_by_number.get(self._forgettable.popleft())
            if task is None or task.job or not task.is_over:
                continue
            if task.number in state.holds.followed:
                minute = (self._now_ms + FOLLOWED_MS) // _MINUTE_MS + 1
                _put_at(self._over, self._by_minute, minute, task.number)
                self._noted += 1
            elif task.ended_ms + state.queues[task.queue].remember_s * 1000 <= self._now_ms:
                found.append(task.number)
            else:  # its queue remembers longer by now
                self._remember(task)
        return tuple(found)

    def next_ms(self) -> int | None:
        """Return when there may be work that no entry brings about; None for never, 0 for now."""
        if self._is_loading or self._opening or self._approaching or self._is_more:
            return 0
        if self._strays:
            return 0
        times_ms = [self._soon[0][0]] if self._soon else []
        times_ms += [self._by_second[0] * 1000] if self._by_second else []
        return min(times_ms, default=None)


def _put_at(arrays: dict[int, array[int]], heap: list[int], time: int, number: int) -> None:
    """Add a number to the array of a time, which is in a heap of the times that have one."""
    numbers = arrays.get(time)
    if numbers is None:
        numbers = arrays[time] = array("Q")
        heapq.heappush(heap, time)
    numbers.append(number)


def _keep(arrays: dict[int, array[int]], heap: list[int], is_kept: Callable[[int], bool]) -> int:
    """Remove the other numbers from the arrays and return how many are left."""
    count = 0
    for time in list(arrays):
        numbers = arrays[time] = array("Q", filter(is_kept, arrays[time]))
        count += len(numbers)
        if not numbers:
            del arrays[time]
    heap[:] = sorted(arrays)
    return count

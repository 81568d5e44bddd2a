"""Jobs that have an instant to account for, in turns: by pool and priority, then by tenant.

A flood of one handler or tenant holds up no other: each pool and priority has its turn, and in it
each tenant. A tenant's jobs there that need the same are a *line*, first in, first out. A line that
has room for no more rows is passed over. A job in it costs nothing while it waits: its instants
need no row yet.

A line that was not empty for `BEHIND_S` is *behind*: more falls due in it than is begun, or than
the leader has time for. Of a job in such a line one instant at a time waits in the queues.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from cron.scheduler.places import Need, Wanted
from launcher.launch import Reason

SHARE: Final = 8
"""Jobs of a line that are taken before it is the next one's turn."""
BEHIND_S: Final = 5
"""As long as a change of leader may take, for which nothing is skipped either."""
PASSED_MAX: Final = 32
"""Jobs of a line that one visit passes over because one of their launches waits."""
RATES_KEPT_S: Final = 10


class LineKey(NamedTuple):
    """What has turns: the launches of one tenant in one queue. `is_patient`: those of jobs whose
    instants are far apart and may begin late, which wait apart from the others. So do those with
    another need: where no executor fits, they must not take the room of those that could begin."""

    pool: str
    priority: int
    tenant: str
    is_patient: bool = False
    need: Need | Wanted | None = None


IsServed = Callable[[LineKey], bool]


class Line:
    """Jobs of one flow, in the order they came; since when there are any. `served_s`: when an
    executor was seen that can run their launches."""

    __slots__ = ("_looked", "key", "numbers", "served_s", "since_s")

    def __init__(self, flow: LineKey, since_s: int) -> None:
        self.key = flow
        self.numbers: OrderedDict[int, None] = OrderedDict()
        self.since_s = self.served_s = since_s
        self._looked = (0, Reason.NONE)  # when, and why it was behind

    def is_behind(self, now_s: int) -> bool:
        """Whether it was not empty for so long that it cannot be a matter of moments."""
        return now_s - self.since_s >= BEHIND_S

    def why_behind(self, now_s: int, is_served: IsServed) -> Reason:
        """Return NONE where it is not behind, else why: NO_EXECUTOR where none was there for so
        long that can run its launches, and OVERLOAD. `is_served(key)` is asked once a second."""
        if not self.is_behind(now_s):
            return Reason.NONE
        if self._looked[0] != now_s:
            if is_served(self.key):
                self.served_s = now_s
            is_short = now_s - max(self.since_s, self.served_s) < BEHIND_S
            self._looked = (now_s, Reason.OVERLOAD if is_short else Reason.NO_EXECUTOR)
        return self._looked[1]


class Rates:
    """How many launches of each flow began lately."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int, str], tuple[int, int, int]] = {}
        """(second, begun in it, begun in the second before)"""
        self._swept_s = 0

    def began(self, flow: LineKey, now_s: int, count: int = 1) -> None:
        """Count launches that begin."""
        second, begun, before = self._of.get(flow[:3], (now_s, 0, 0))
        if second != now_s:
            before = begun if now_s == second + 1 else 0
            begun = 0
        self._of[flow[:3]] = (now_s, begun + count, before)
        if now_s - self._swept_s >= RATES_KEPT_S:
            self._swept_s = now_s
            self._of = {one: row for one, row in self._of.items() if now_s - row[0] < RATES_KEPT_S}

    def per_second(self, flow: LineKey, now_s: int) -> int:
        """Return how many launches of a flow began in a second."""
        second, begun, before = self._of.get(flow[:3], (0, 0, 0))
        if second == now_s:
            return max(begun, before)
        return begun if now_s == second + 1 else 0


Room = Callable[[Line], int]
IsWaiting = Callable[[int], bool]
IsDue = Callable[[int], bool]
_Class = tuple[str, int, bool]


def _class_of(flow: LineKey) -> _Class:
    return flow.pool, flow.priority, flow.is_patient


class Backlog:
    """All lines that are not empty."""

    def __init__(self) -> None:
        self._lines: dict[LineKey, Line] = {}
        self._classes: OrderedDict[_Class, OrderedDict[LineKey, Line]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines.values())

    def line(self, flow: LineKey) -> Line | None:
        """Return the line of a flow, None where it is empty."""
        return self._lines.get(flow)

    def put(self, flow: LineKey, numbers: Iterable[int], now_s: int) -> None:
        """Let jobs wait in their line, each once."""
        self._line(flow, now_s).numbers.update(dict.fromkeys(numbers))

    def put_back(self, flow: LineKey, number: int, since_s: int) -> None:
        """Let a job wait in front of its line, which was not empty since then: it was taken."""
        line = self._line(flow, since_s)
        line.since_s = min(line.since_s, since_s)
        line.numbers[number] = None
        line.numbers.move_to_end(number, last=False)

    def take_all(self, limit: int, now_s: int, room: Room | None) -> list[Line]:
        """Return all lines, which are empty here from now on, if no turns are needed: they have not
        more than `limit` jobs, none is behind, and each has room. None of them otherwise."""
        lines = list(self._lines.values())
        if sum(len(line.numbers) for line in lines) > limit:
            return []
        for line in lines:
            if line.is_behind(now_s) or (room is not None and room(line) < len(line.numbers)):
                return []
        self._lines.clear()
        self._classes.clear()
        return lines

    def _line(self, flow: LineKey, now_s: int) -> Line:
        line = self._lines.get(flow)
        if line is None:
            line = self._lines[flow] = Line(flow, now_s)
            self._classes.setdefault(_class_of(flow), OrderedDict())[flow] = line
        return line

    def remove(self, flow: LineKey, number: int) -> None:
        """Let a job wait no more; no error where it does not."""
        line = self._lines.get(flow)
        if line is not None and number in line.numbers:
            del line.numbers[number]
            self._drop_if_empty(line)

    def _drop_if_empty(self, line: Line) -> None:
        if line.numbers:
            return
        key = _class_of(line.key)
        del self._lines[line.key], self._classes[key][line.key]
        if not self._classes[key]:
            del self._classes[key]

    def take(
        self,
        limit: int,
        now_s: int,
        room: Room | None,
        is_waiting: IsWaiting | None,
        is_due: IsDue | None = None,
    ) -> list[tuple[Line, int]]:
        """Return up to `limit` jobs with their lines, in turns; they wait here no more.

        `room(line)` says how many of a line may be taken. Of a line that is behind a job is passed
        over while `is_waiting(number)`: one of its launches waits for room. One that is not due
        leaves its line and takes no room.
        """
        taken: list[tuple[Line, int]] = []
        rooms: dict[LineKey, int] = {}
        # Of each class, how many lines are to be looked at before all of them were in vain.
        left = {key: len(lines) for key, lines in self._classes.items()}
        while left and len(taken) < limit:
            for key in list(left):
                lines = self._classes[key]
                self._classes.move_to_end(key)
                line = next(iter(lines.values()))
                lines.move_to_end(line.key)
                if line.key not in rooms:
                    rooms[line.key] = limit if room is None else room(line)
                most = min(SHARE, limit - len(taken), rooms[line.key])
                asks = is_waiting if is_waiting is not None and line.is_behind(now_s) else None
                numbers = _pop(line, most, asks, is_due)
                taken += [(line, number) for number in numbers]
                rooms[line.key] -= len(numbers)
                self._drop_if_empty(line)
                left[key] = len(lines) if numbers else min(left[key] - 1, len(lines))
                if left[key] <= 0:
                    del left[key]
                if len(taken) >= limit:
                    break
        return taken


def _pop(line: Line, most: int, is_waiting: IsWaiting | None, is_due: IsDue | None) -> list[int]:
    """Take the first jobs out of a line. Those of which a launch waits go to its end, where they
    hold up nobody; those that are not due leave it."""
    popped: list[int] = []
    passed: list[int] = []
    numbers = line.numbers
    while numbers and len(popped) < most and len(passed) < PASSED_MAX:
        number, _ = numbers.popitem(last=False)
        if is_due is not None and not is_due(number):
            continue
        is_passed = is_waiting is not None and is_waiting(number)
        (passed if is_passed else popped).append(number)
    numbers.update(dict.fromkeys(passed))
    return popped

"""Jobs that have an instant to account for, in turns: by pool and priority, then by flow.

A flood of one handler or tenant holds up no other: each pool and priority has its turn, and in it
each flow (`FlowKey`: one tenant's launches with one need). The jobs of a flow that are due are a
*line*, first in, first out. A line that has room for no more rows is passed over. A job in it costs
nothing while it waits: its instants need no row yet.

A line that was not empty for `BEHIND_S` is *behind*: more falls due in it than is begun, or than
the leader has time for. Of a job in such a line one instant at a time waits in the queues.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from typing import Final

import msgspec

from cron.scheduler.flows import FlowKey
from launcher.protocol.status import Reason

SHARE: Final = 8
"""Jobs of a line that are taken before it is the next one's turn, where not all have room."""
BEHIND_S: Final = 5
"""As long as a change of leader may take, for which nothing is skipped either."""
PASSED_MAX: Final = 32
"""Jobs of a line that one visit passes over because one of their launches waits."""

IsServed = Callable[[FlowKey], bool]
IsWaiting = Callable[[int], bool]
IsDue = Callable[[int], bool]


class Line(msgspec.Struct, eq=False, weakref=True):
    """The jobs of one flow that are due, in the order they came.

    `since_s`: since when there are any. `served_s`: when an executor was last seen that can run
    their launches. `why`: why the line is behind as of the last look, NONE where it is not.
    `begun`: a second, how many launches of the flow began in it, and in the second before.
    """

    key: FlowKey
    numbers: OrderedDict[int, None] = msgspec.field(default_factory=OrderedDict)
    since_s: int = 0
    served_s: int = 0
    looked_s: int = 0
    why: Reason = Reason.NONE
    begun: tuple[int, int, int] = (0, 0, 0)

    def look(self, now_s: int, is_served: IsServed) -> None:
        """Find out, once a second, whether the line was not empty for so long that it cannot be a
        matter of moments. Then `why` is NO_EXECUTOR where none was there for so long that can run
        its launches, else OVERLOAD."""
        if self.looked_s == now_s:
            return
        self.looked_s, self.why = now_s, Reason.NONE
        if now_s - self.since_s >= BEHIND_S:
            if is_served(self.key):
                self.served_s = now_s
            is_short = now_s - max(self.since_s, self.served_s) < BEHIND_S
            self.why = Reason.OVERLOAD if is_short else Reason.NO_EXECUTOR


_Class = tuple[str, int, bool]
"""Pool, priority and whether its jobs are patient: what has turns before tenants have."""


class Backlog:
    """`lines`: all that are not empty, and those that have become so since the last `take`."""

    def __init__(self) -> None:
        self.lines: dict[Line, None] = {}
        self._classes: OrderedDict[_Class, OrderedDict[Line, None]] = OrderedDict()

    def put(self, line: Line, numbers: Iterable[int], since_s: int) -> None:
        """Let jobs wait in a line, each once; it is as old as its first."""
        if not line.numbers:
            line.since_s, line.looked_s, line.why = since_s, 0, Reason.NONE
            key = (line.key.pool, line.key.priority, line.key.is_patient)
            self.lines[line] = self._classes.setdefault(key, OrderedDict())[line] = None
        line.numbers.update(dict.fromkeys(numbers))

    def put_back(self, line: Line, number: int, since_s: int) -> None:
        """Let a job wait in front of its line, which was not empty since then: it was taken."""
        self.put(line, (number,), since_s)
        line.since_s = min(line.since_s, since_s)
        line.numbers.move_to_end(number, last=False)

    def remove(self, line: Line, number: int) -> None:
        """Let a job wait no more; no error where it does not."""
        line.numbers.pop(number, None)

    def take(
        self,
        limit: int,
        rooms: dict[Line, int],
        is_waiting: IsWaiting | None = None,
        is_due: IsDue | None = None,
        doubtful: Container[int] = (),
    ) -> list[tuple[Line, list[int]]]:
        """Return up to `limit` jobs with their lines, in turns; they wait here no more.

        `rooms` says how many of each line may be taken. Of a line that is behind a job is passed
        over while `is_waiting(number)`: one of its launches waits for room. One of which it is
        doubtful whether it is due, and that is not, leaves its line and takes no room.
        """
        taken: list[tuple[Line, list[int]]] = []
        needs_turns = sum([len(line.numbers) for line in self.lines]) > limit
        # Of each class, how many lines are to be looked at before all of them were in vain.
        left = {key: len(lines) for key, lines in self._classes.items()}
        while left and limit > 0:
            for key in list(left):
                lines = self._classes[key]
                self._classes.move_to_end(key)
                line = next(iter(lines))
                lines.move_to_end(line)
                most = min(SHARE if needs_turns else limit, limit, rooms[line])
                waits = is_waiting if line.why else None
                found: list[int] = []
                passed: list[int] = []  # to its end, where they hold up nobody
                while line.numbers and len(found) < most and len(passed) < PASSED_MAX:
                    number, _ = line.numbers.popitem(last=False)
                    if number not in doubtful or is_due is None or is_due(number):
                        (passed if waits and waits(number) else found).append(number)
                line.numbers.update(dict.fromkeys(passed))
                if found:
                    taken.append((line, found))
                rooms[line] -= len(found)
                limit -= len(found)
                if not line.numbers:
                    del self.lines[line], lines[line]
                    if not lines:
                        del self._classes[key]
                left[key] = len(lines) if found else min(left[key] - 1, len(lines))
                if left[key] <= 0:
                    del left[key]
                if limit <= 0:
                    break
        return taken

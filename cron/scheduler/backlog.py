"""Jobs that have an instant to account for, in round robin: by pool and priority, then by tenant.

A flood of one handler or tenant delays no other. The jobs of one flow (`FlowKey`: the launches of
one tenant with one need) that are due are a *line*, first in, first out. The lines of a tenant in a
pool and priority share its turns. A line without room for more rows is skipped. A job costs nothing
while it waits in a line: its instants need no row yet.

A line that was not empty for `BEHIND_S` is *behind*: more falls due in it than is begun, or than
the leader has time for. Only one instant of each job in such a line waits in the queues.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec

from cron.scheduler.flows import FlowKey
from launcher.protocol.status import Reason

SHARE: Final = 8
"""The fewest jobs of a tenant that are taken in one turn if not all jobs can be taken."""
BEHIND_S: Final = 5
"""As long as a change of leader may take, for which nothing is skipped either."""
PASSED_MAX: Final = 32
"""Jobs of a line that one visit passes over because one of their launches waits."""

IsServed = Callable[[FlowKey], bool]
IsWaiting = Callable[[int], bool]
IsDue = Callable[[int], bool]


class Line(msgspec.Struct, eq=False, weakref=True):
    """The jobs of one flow that are due, in order of arrival.

    `since_s`: since when it is not empty. `served_s`: when an executor was last seen that can run
    their launches. `why`: why the line is behind as of the last look, else NONE. `begun`: a second,
    how many launches of the flow began in it, and in the second before.
    """

    key: FlowKey
    numbers: OrderedDict[int, None] = msgspec.field(default_factory=OrderedDict)
    since_s: int = 0
    served_s: int = 0
    looked_s: int = 0
    why: Reason = Reason.NONE
    begun: tuple[int, int, int] = (0, 0, 0)

    def look(self, now_s: int, is_served: IsServed) -> None:
        """Update `why`, once a second. A line that was not empty for `BEHIND_S` is behind: for
        NO_EXECUTOR if none that can run its launches was there for so long, else for OVERLOAD."""
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
    """The lines of all flows. `lines`: those that are not empty, and those that became empty since
    the last `take`."""

    def __init__(self) -> None:
        self.lines: dict[Line, None] = {}
        self._classes: OrderedDict[_Class, OrderedDict[str, OrderedDict[Line, None]]] = (
            OrderedDict()
        )

    def put(self, line: Line, numbers: Iterable[int], since_s: int) -> None:
        """Add jobs to a line, each once; it is as old as its first."""
        if not line.numbers:
            line.since_s, line.looked_s, line.why = since_s, 0, Reason.NONE
            key = (line.key.pool, line.key.priority, line.key.is_patient)
            tenants = self._classes.setdefault(key, OrderedDict())
            self.lines[line] = tenants.setdefault(line.key.tenant, OrderedDict())[line] = None
        line.numbers.update(dict.fromkeys(numbers))

    def put_back(self, line: Line, number: int, since_s: int) -> None:
        """Return a job that was taken to the front of its line, which was not empty since
        `since_s`."""
        self.put(line, (number,), since_s)
        line.since_s = min(line.since_s, since_s)
        line.numbers.move_to_end(number, last=False)

    def remove(self, line: Line, number: int) -> None:
        """Remove a job; no error if it is not in the line."""
        line.numbers.pop(number, None)

    def take(
        self,
        limit: int,
        rooms: dict[Line, int],
        is_waiting: IsWaiting | None = None,
        is_due: IsDue | None = None,
        doubtful: Collection[int] = (),
    ) -> list[tuple[Line, list[int]]]:
        """Remove and return up to `limit` jobs with their lines, in turns.

        `rooms` says how many of each line may be taken. A job of a line that is behind is skipped
        while `is_waiting(number)`: one of its launches waits for room. A `doubtful` job
        that is not `is_due(number)` leaves its line and takes no room.
        """
        taken: list[tuple[Line, list[int]]] = []
        share = limit
        if sum([len(line.numbers) for line in self.lines]) > limit:
            # As many as possible in one turn, if all lines have theirs.
            share = max(SHARE, limit // len(self.lines) // SHARE * SHARE)
        # Tenants of each class that are looked at before all of them were in vain.
        left = {key: len(tenants) for key, tenants in self._classes.items()}
        while left and limit > 0:
            for key in list(left):
                tenants = self._classes[key]
                self._classes.move_to_end(key)
                tenant, lines = next(iter(tenants.items()))
                tenants.move_to_end(tenant)
                found: list[int] = []
                for line in list(lines):
                    lines.move_to_end(line)
                    most = min(share, limit, rooms[line])
                    found = _pick(line, most, is_waiting, is_due, doubtful)
                    if not line.numbers:
                        del self.lines[line], lines[line]
                    if found:
                        taken.append((line, found))
                        rooms[line] -= len(found)
                        break
                limit -= len(found)
                if not lines:
                    del tenants[tenant]
                if not tenants:
                    del self._classes[key]
                left[key] = len(tenants) if found else min(left[key] - 1, len(tenants))
                if left[key] <= 0:
                    del left[key]
                if limit <= 0:
                    break
        return taken


def _pick(
    line: Line,
    most: int,
    is_waiting: IsWaiting | None,
    is_due: IsDue | None,
    doubtful: Collection[int],
) -> list[int]:
    """Remove and return up to `most` jobs of a line; none is looked at if all may be taken."""
    waits = is_waiting if line.why else None
    if waits is None and not doubtful and 0 < len(line.numbers) <= most:
        whole, line.numbers = list(line.numbers), OrderedDict()
        return whole
    found: list[int] = []
    passed: list[int] = []  # to the end of the line, where they delay nothing
    while line.numbers and len(found) < most and len(passed) < PASSED_MAX:
        number, _ = line.numbers.popitem(last=False)
        if number not in doubtful or is_due is None or is_due(number):
            (passed if waits and waits(number) else found).append(number)
    line.numbers.update(dict.fromkeys(passed))
    return found

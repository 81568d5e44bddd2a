"""How many launches of each job run, and what is behind a job's limit, in order of arrival."""

from __future__ import annotations

from typing import Final

from launcher.fairness.arrivals import Arrivals
from launcher.fairness.gauge import UNLIMITED
from launcher.fairness.item import Item, Stage
from launcher.fairness.lanes import Line


class JobLine:
    """A limited job's launches in one line: `admitted` stand in the line, the others wait here."""

    __slots__ = ("admitted", "parked")

    def __init__(self) -> None:
        self.admitted = 0
        self.parked = Arrivals()


NO_LINES: Final[dict[Line, JobLine]] = {}
"""Of jobs without a limit; stays empty."""


class JobGauge:
    """Running launches of one job against its limit, and its launches in each line.

    In a line stand at most as many as might begin: so a flood of one job is never walked over.
    """

    __slots__ = ("limit", "lines", "running")

    def __init__(self, limit: int) -> None:
        self.limit = limit or UNLIMITED
        self.running = 0
        self.lines = NO_LINES

    def admit(self, item: Item, line: Line) -> bool:
        """Return whether `item` may stand in `line` now; else it waits here."""
        if self.limit == UNLIMITED:
            item.stage = Stage.QUEUED
            return True
        mine = self._of(line)
        if not mine.parked.size and mine.admitted < self.limit - self.running:
            mine.admitted += 1
            item.stage = Stage.ADMITTED
            return True
        self._keep(item, line, mine)
        return False

    def park(self, item: Item, line: Line) -> None:
        """Let `item`, just taken out of `line`, wait here: the job began others meanwhile."""
        mine = self._of(line)
        if item.stage is Stage.ADMITTED:
            mine.admitted -= 1
        self._keep(item, line, mine)

    def _of(self, line: Line) -> JobLine:
        if self.lines is NO_LINES:
            self.lines = {}
        mine = self.lines.get(line)
        if mine is None:
            mine = self.lines[line] = JobLine()
        return mine

    def has_before(self, item: Item, line: Line) -> bool:
        """Return whether an item that arrived before `item`, which stands in `line`, waits here."""
        mine = self.lines.get(line)
        row = mine.parked.first() if mine is not None else None
        return row is not None and row[1].seq < item.seq

    def _keep(self, item: Item, line: Line, mine: JobLine) -> None:
        item.stage = Stage.PARKED
        mine.parked.push(item.seq, item)
        line.parked += 1

    def lose(self, line: Line, was: Stage) -> None:
        """Count that an item of `line`, admitted or parked, is gone."""
        mine = self.lines[line]
        if was is Stage.ADMITTED:
            mine.admitted -= 1
        else:
            mine.parked.lose()
            line.parked -= 1

    def open(self, now_ms: int) -> bool:
        """Let stand in their lines what may; return whether anything is left to remember."""
        room = self.limit - self.running
        for line, mine in list(self.lines.items()):
            while mine.admitted < room and mine.parked.first() is not None:
                item = mine.parked.pop()
                item.stage = Stage.ADMITTED
                mine.admitted += 1
                line.parked -= 1
                line.insert(item)
                if line.size == 1:
                    line.settle(now_ms)
            if not mine.admitted and not mine.parked.size:
                del self.lines[line]
        return bool(self.running or self.lines)

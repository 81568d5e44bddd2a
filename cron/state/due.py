"""What is due and has not begun: lines of launches, and the launches that have a row of their own.

Theory of operation. An instant makes a launch due of each job whose schedule names it, often of
thousands. All that one of them is follows from its job, the instant, and two marks that a whole
line of an Account shares. So a line is kept as the numbers of its jobs under the instant, and no
object stands for a launch. Its row is made when somebody asks for it.

A launch is *odd* once it is something that a line cannot say: it was triggered, begun before, held
back, or its job has changed since. Then its row is an object, which its job's record keeps too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cron.state.columns import Deltas, deltas
from cron.state.commands import Key

if TYPE_CHECKING:
    from cron.state.state import LaunchRow


class Mark(NamedTuple):
    """What the launches of one line have in common beside their instant; as in LaunchRow."""

    local_min: int = -1
    is_late: bool = False


RowOf = Callable[[int, int, Mark], "LaunchRow"]
"""(number, scheduled_s, mark): the row of a launch that stands in a line."""


class DueLaunches(Mapping[Key, "LaunchRow"]):
    """All launches that are due, by key; oldest first where they are iterated over.

    A row that is not odd is made for the one who asks: to change it changes nothing. `lines` has
    the numbers of jobs, with their marks, by instant.
    """

    def __init__(self, row_of: RowOf) -> None:
        self.odd: dict[Key, LaunchRow] = {}
        self.lines: dict[int, dict[int, Mark]] = {}
        self._row_of = row_of
        self._in_lines = 0

    def __len__(self) -> int:
        return len(self.odd) + self._in_lines

    def __iter__(self) -> Iterator[Key]:
        keys = [
            *self.odd,
            *((number, at_s, 0) for at_s in self.lines for number in self.lines[at_s]),
        ]
        return iter(sorted(keys, key=lambda key: (key[1], key[0], key[2])))

    def __contains__(self, key: object) -> bool:
        return key in self.odd or self._mark(key) is not None

    def __getitem__(self, key: Key) -> LaunchRow:
        row = self.odd.get(key)
        if row is not None:
            return row
        mark = self._mark(key)
        if mark is None:
            raise KeyError(key)
        return self._row_of(key[0], key[1], mark)

    def get(self, key: Key, default: None = None) -> LaunchRow | None:  # type: ignore[override]
        """Return the row of a launch, None where it is not due."""
        row = self.odd.get(key)
        if row is None and (mark := self._mark(key)) is not None:
            return self._row_of(key[0], key[1], mark)
        return row

    def _mark(self, key: object) -> Mark | None:
        if not isinstance(key, tuple) or key[2]:
            return None
        line = self.lines.get(key[1])
        return line.get(key[0]) if line is not None else None

    # ---- lines

    def put_line(self, scheduled_s: int, numbers: Iterable[int], mark: Mark) -> None:
        """Make launches of these jobs due, none of which is open."""
        new = dict.fromkeys(numbers, mark)
        self._in_lines += len(new)
        line = self.lines.get(scheduled_s)
        if line is None:
            self.lines[scheduled_s] = new
        else:
            line.update(new)

    def take(self, scheduled_s: int, number: int) -> Mark | None:
        """Take a launch out of its line; None where it stands in none."""
        line = self.lines.get(scheduled_s)
        mark = line.pop(number, None) if line is not None else None
        if mark is not None:
            self._in_lines -= 1
            if not line:
                del self.lines[scheduled_s]
        return mark

    def take_all(self, scheduled_s: int, numbers: Sequence[int]) -> None:
        """Take launches out of the lines of one instant, all of which stand there."""
        line = self.lines[scheduled_s]
        self._in_lines -= len(numbers)
        if len(line) == len(numbers):
            del self.lines[scheduled_s]
        else:
            deque(map(line.pop, numbers), maxlen=0)

    def instants_of(self, number: int) -> list[int]:
        """Return the instants at which a job stands in a line; a look at all instants."""
        return [at_s for at_s, line in self.lines.items() if number in line]

    def among(self, keys: Iterable[Key]) -> list[Key]:
        """Return which of these launches are due."""
        lines, odd = self.lines, self.odd
        return [
            key
            for key in keys
            if (not key[2] and key[0] in lines.get(key[1], ())) or (odd and key in odd)
        ]

    def of_jobs(self, numbers: Collection[int]) -> list[Key]:
        """Return which launches of these jobs stand in lines, oldest first."""
        wanted = set(numbers)
        return [
            (number, at_s, 0)
            for at_s in sorted(self.lines)
            for number in sorted(self.lines[at_s].keys() & wanted)
        ]

    def image(self) -> list[tuple[int, int, bool, Deltas]]:
        """Return all lines as (instant, local_min, is_late, numbers), which replicas with equal
        logs do alike; the numbers delta-coded."""
        parts: list[tuple[int, int, bool, Deltas]] = []
        for at_s in sorted(self.lines):
            by_mark: dict[Mark, list[int]] = {}
            for number in sorted(self.lines[at_s]):
                by_mark.setdefault(self.lines[at_s][number], []).append(number)
            parts += [(at_s, *mark, deltas(by_mark[mark])) for mark in sorted(by_mark)]
        return parts

"""Batches: all launches that one log entry begins on one executor.

Theory of operation. A launch that goes as usual is a *row* of a batch: a place in columns, and no
object of its own. Its row is known from the log index of the Begin and its number, at its executor
too. A row is *detailed* once something is known of it that the columns cannot say: it has parts,
has failed before or was asked for, is cancelled, or its job has changed since. Then its launch is
an object, which is kept beside the columns, under its key, and in its job's record. Whatever
changes a single launch makes it detailed first.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Final

import msgspec

from cron.launch_state import LaunchState
from cron.state.launch_row import LaunchRow
from launcher.protocol.work import Epoch

BEGUN: Final = LaunchState.BEGUN  # members of an enumeration are slow to look up
LAUNCHED: Final = LaunchState.LAUNCHED
_empty: Final = partial(array, "q")
COLUMNS: Final = (
    "numbers", "scheduled_s", "attempts", "deadlines_ms", "not_after_ms", "local_mins",
    "launched_index", "launched_at_ms", "started_ms",
)  # fmt: skip
"""The columns of integers of a batch, in the order of images. Those up to `local_mins` are known
when a row begins."""


class Batch(msgspec.Struct, eq=False):
    """All launches that one log entry begins on one executor, in columns with an item for each row.

    `states[row]` is BEGUN or LAUNCHED while the row is open and *usual*: then the columns say all
    that is known of it. It is 0 once the row is over, and while it is *detailed*: then
    `detailed[row]` is the launch, a part of which it may be. `usual` counts the usual rows. Such a
    row is the first try of a scheduled launch, or the next after executors refused it, and has the
    job as it is now.
    """

    index: int
    executor: int
    at_ms: int
    epoch: Epoch
    row_of: Callable[[Batch, int], LaunchRow]
    numbers: array[int] = msgspec.field(default_factory=_empty)
    scheduled_s: array[int] = msgspec.field(default_factory=_empty)
    attempts: array[int] = msgspec.field(default_factory=_empty)
    deadlines_ms: array[int] = msgspec.field(default_factory=_empty)
    not_after_ms: array[int] = msgspec.field(default_factory=_empty)
    local_mins: array[int] = msgspec.field(default_factory=_empty)
    launched_index: array[int] = msgspec.field(default_factory=_empty)
    launched_at_ms: array[int] = msgspec.field(default_factory=_empty)
    started_ms: array[int] = msgspec.field(default_factory=_empty)
    lates: bytearray = msgspec.field(default_factory=bytearray)
    states: bytearray = msgspec.field(default_factory=bytearray)
    detailed: dict[int, LaunchRow] = {}
    usual: int = 0
    places: dict[tuple[int, int], int] = {}  # (number, scheduled_s) -> row, when asked for

    def extend(self, first: int, lates: bytes, known: Sequence[Sequence[int]]) -> None:
        """Add usual rows that begin, from number `first` on: the columns up to `local_mins`."""
        if first > len(self.states):
            self._reach(first)
        rows = len(lates)
        for place, name in enumerate(COLUMNS):
            column: array[int] = getattr(self, name)
            column.extend(known[place] if place < len(known) else array("q", bytes(8 * rows)))
        self.lates += lates
        self.states += bytes((BEGUN,)) * rows
        self.usual += rows
        self.places.clear()

    def append(self, row: int, known: Sequence[int], *, is_late: bool) -> None:
        """Add the usual row of that number, which begins, with its columns up to `local_mins`."""
        if row > len(self.states):
            self._reach(row)
        for name, value in zip(COLUMNS, (*known, 0, 0, 0), strict=True):
            getattr(self, name).append(value)
        self.lates.append(is_late)
        self.states.append(BEGUN)
        self.usual += 1
        if self.places:
            self.places.clear()

    def _reach(self, row: int) -> None:
        """Fill the columns up to a number: what they lack before is detailed, or was refused."""
        gap = row - len(self.states)
        for name in COLUMNS:
            getattr(self, name).extend(array("q", bytes(8 * gap)))
        self.lates += bytes(gap)
        self.states += bytes(gap)

    def start(self, rows: Sequence[int], index: int, at_ms: int, times_ms: Sequence[int]) -> None:
        """Write log point 2 of usual rows, in ascending order; `times_ms` are their executor's."""
        first, last = rows[0], rows[-1] + 1
        if last - first == len(rows):
            self.states[first:last] = bytes((LAUNCHED,)) * len(rows)
            self.launched_index[first:last] = array("q", (index,)) * len(rows)
            self.launched_at_ms[first:last] = array("q", (at_ms,)) * len(rows)
            self.started_ms[first:last] = array("q", times_ms)
            return
        for row, started_ms in zip(rows, times_ms, strict=True):
            self.states[row] = LAUNCHED
            self.launched_index[row] = index
            self.launched_at_ms[row] = at_ms
            self.started_ms[row] = started_ms

    def find(self, number: int, scheduled_s: int) -> int:
        """Return the usual row of a launch; KeyError where it has none."""
        if not self.places:
            names = zip(self.numbers, self.scheduled_s, strict=True)
            self.places = dict(zip(names, count(), strict=False))
        row = self.places[(number, scheduled_s)]
        if not self.states[row]:
            raise KeyError(number)
        return row

    def launch(self, row: int) -> LaunchRow | None:
        """Return the launch that is open as that row, None where none is; read only if usual."""
        if row in self.detailed:
            return self.detailed[row]
        if not 0 <= row < len(self.states) or not self.states[row]:
            return None
        return self.row_of(self, row)

    def launches(self) -> Iterator[LaunchRow]:
        """Yield all that is open of it, by row; read only."""
        usual = (row for row, state in enumerate(self.states) if state)
        for row in sorted((*usual, *self.detailed)):
            launch = self.launch(row)
            if launch is not None:
                yield launch


def taken(values: Sequence[int], places: Sequence[int]) -> Sequence[int]:
    """Return the items of a column, or of states, in ascending places, one at least."""
    first, last = places[0], places[-1]
    if last - first == len(places) - 1:
        return values[first : last + 1]
    items: tuple[int, ...] = itemgetter(*places)(values)
    return items

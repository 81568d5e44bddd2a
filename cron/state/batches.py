"""Batches: all launches that one log entry begins on one executor, and what may be running.

Theory of operation. A launch that goes as usual is a *row* of a batch: a place in columns, and no
object of its own. Its row is known from the log index of the Begin and its number, at its executor
too. A row is *odd* once something is known of it that the columns cannot say: it has parts, failed
before, was asked for, is cancelled, or its job has changed since. Then its launch is an object,
which is kept beside the columns, under its key, and in its job's record. Whatever changes a single
launch makes it odd first.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, ItemsView, Iterator, Mapping, Sequence, ValuesView
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from cron.state.commands import Key
from launcher.launch import LaunchState
from launcher.work import Epoch

if TYPE_CHECKING:
    from cron.state.state import LaunchRow

LAUNCHED: Final = LaunchState.LAUNCHED  # members of an enumeration are slow to look up
RowOf = Callable[["Batch", int], "LaunchRow"]
"""(batch, row): the launch that is a usual row."""


class Batch:
    """All launches that one log entry begins on one executor, in columns with an item for each row.

    `states[row]` is BEGUN or LAUNCHED while the row is open and *usual*: then the columns say all
    that is known of it. It is 0 once the row is over, and while it is *odd*: then `odd[row]` is the
    launch, a part of which it may be. `usual` counts the usual rows. Such a row is the first try of
    a scheduled launch, and has the job as it is now.
    """

    __slots__ = (
        "at_ms", "attempts", "columns", "deadlines_ms", "epoch", "executor", "index", "lates",
        "launched_at_ms", "launched_index", "local_mins", "not_after_ms", "numbers", "odd",
        "places", "row_of", "scheduled_s", "started_ms", "states", "usual",
    )  # fmt: skip

    def __init__(self, index: int, executor: int, at_ms: int, epoch: Epoch, row_of: RowOf) -> None:
        self.index = index
        self.executor = executor
        self.at_ms = at_ms
        self.epoch = epoch
        self.row_of = row_of
        self.numbers = array("q")
        self.scheduled_s = array("q")
        self.attempts = array("q")
        self.deadlines_ms = array("q")
        self.not_after_ms = array("q")
        self.local_mins = array("q")
        self.launched_index = array("q")
        self.launched_at_ms = array("q")
        self.started_ms = array("q")
        self.columns = (  # in the order of images
            self.numbers, self.scheduled_s, self.attempts, self.deadlines_ms, self.not_after_ms,
            self.local_mins, self.launched_index, self.launched_at_ms, self.started_ms,
        )  # fmt: skip
        self.lates = bytearray()
        self.states = bytearray()
        self.odd: dict[int, LaunchRow] = {}
        self.usual = 0
        self.places: dict[tuple[int, int], int] = {}  # (number, scheduled_s) -> row, when asked for

    def extend(
        self, first: int, lates: bytes, states: bytes, columns: Sequence[Sequence[int]]
    ) -> None:
        """Add rows from number `first` on: the columns up to `local_mins`, in their order. Numbers
        before that which it lacks are of rows that are over."""
        gap, rows = first - len(self.states), len(states)
        for place, column in enumerate(self.columns):
            if gap:
                column.extend(array("q", bytes(8 * gap)))
            values = columns[place] if place < len(columns) else array("q", bytes(8 * rows))
            column.extend(values)
        self.lates += bytes(gap) + lates
        self.states += bytes(gap) + states
        self.usual += rows - states.count(0)
        self.places.clear()

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

    def end(self, rows: Sequence[int]) -> None:
        """Note that usual rows, in ascending order, are over."""
        first, last = rows[0], rows[-1] + 1
        if last - first == len(rows):
            self.states[first:last] = bytes(len(rows))
        else:
            for row in rows:
                self.states[row] = 0
        self.usual -= len(rows)

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
        if row in self.odd:
            return self.odd[row]
        if not 0 <= row < len(self.states) or not self.states[row]:
            return None
        return self.row_of(self, row)

    def launches(self) -> Iterator[LaunchRow]:
        """Yield all that is open of it, by row; read only."""
        usual = (row for row, state in enumerate(self.states) if state)
        for row in sorted((*usual, *self.odd)):
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


class OpenRows(Mapping[Key, "LaunchRow"]):
    """What is open in batches of one executor, made when it is asked for; to be read only."""

    def __init__(self, batches: dict[int, Batch]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return sum(batch.usual + len(batch.odd) for batch in self._batches.values())

    def __bool__(self) -> bool:
        return bool(self._batches)

    def __iter__(self) -> Iterator[Key]:
        return (launch.key for batch in self._batches.values() for launch in batch.launches())

    def __getitem__(self, key: Key) -> LaunchRow:
        return self._all()[key]

    def items(self) -> ItemsView[Key, LaunchRow]:
        """Return all of it, by key."""
        return self._all().items()

    def values(self) -> ValuesView[LaunchRow]:
        """Return all of it."""
        return self._all().values()

    def _all(self) -> dict[Key, LaunchRow]:
        return {
            launch.key: launch for batch in self._batches.values() for launch in batch.launches()
        }


class ActiveRows(Mapping[Key, "LaunchRow"]):
    """All launches that may be running; the usual ones are made when asked for, to be read only.

    `odd` has the others. `usual` has the batch of each usual row, by scheduled_s and job number.
    """

    def __init__(self) -> None:
        self.odd: dict[Key, LaunchRow] = {}
        self.usual: dict[int, dict[int, Batch]] = {}

    def __len__(self) -> int:
        return len(self.odd) + sum(map(len, self.usual.values()))

    def __iter__(self) -> Iterator[Key]:
        yield from self.odd
        for scheduled_s, batches in self.usual.items():
            for number in batches:
                yield (number, scheduled_s, 0)

    def __contains__(self, key: object) -> bool:
        if key in self.odd:
            return True
        return isinstance(key, tuple) and not key[2] and key[0] in self.usual.get(key[1], ())

    def __getitem__(self, key: Key) -> LaunchRow:
        launch = self.odd.get(key)
        if launch is not None:
            return launch
        batch = None if key[2] else self.usual.get(key[1], {}).get(key[0])
        launch = None if batch is None else batch.launch(batch.find(key[0], key[1]))
        if launch is None:
            raise KeyError(key)
        return launch

    def of(self, number: int) -> Iterator[tuple[Batch, int]]:
        """Yield the usual rows of a job; a look at all instants."""
        for scheduled_s, batches in self.usual.items():
            batch = batches.get(number)
            if batch is not None:
                yield batch, batch.find(number, scheduled_s)

    def of_jobs(self, numbers: Collection[int]) -> list[tuple[Batch, int]]:
        """Return the usual rows of these jobs, oldest first; one look at all instants."""
        wanted = set(numbers)
        if not wanted:
            return []
        return [
            (batches[number], batches[number].find(number, at_s))
            for at_s, batches in sorted(self.usual.items())
            for number in sorted(batches.keys() & wanted)
        ]

    def leave(self, number: int, scheduled_s: int) -> None:
        """Note that a row is no longer usual."""
        batches = self.usual[scheduled_s]
        del batches[number]
        if not batches:
            del self.usual[scheduled_s]

"""The rows of one batch as a ledger keeps them: columns, and no object for any of them.

A `Batch` here is what one message of the leader brought of a batch of the log; the same log index
may have several. A row is known by its number in the batch of the log, and is found at a place in
the columns. What few rows have is beside the columns: text, usage, the process of a command.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final, NamedTuple

import msgspec

from launcher.executor.row import ACCEPTED, REFUSED, Row
from launcher.names import AttemptName, format_time, parse_attempt_name

FATE: Final = 7
"""The bits of a state that are a fate of pool.proto; 0 nowhere."""
STARTING: Final = 8
"""It has a start record: it is about to start, or may have."""
ACKED: Final = 16
"""Its end is committed in the cell's log."""
_EXIT_BITS: Final = 9
_EXIT: Final = (1 << _EXIT_BITS) - 1
_IS_UNACKED: Final = bytes(not state & ACKED for state in range(256))
_IS_OPEN: Final = bytes(state & FATE == ACCEPTED for state in range(256))
_EVERY: Final = bytes([1]) * 256


class Job(msgspec.Struct, gc=False, eq=False):
    """A job's name and a digest of its work, shared by all rows that have both. `number` is that in
    the journal's table, -1 before it is there."""

    name: str
    digest: bytes = b""
    number: int = -1


class Extra(msgspec.Struct, gc=False, array_like=True):
    """What few rows have. The process is that of a command that has not ended."""

    detail: str = ""
    retry_after_ms: int = 0
    cpu_ms: int = 0
    memory_peak_bytes: int = 0
    pid: int = 0
    ticks: int = 0


_NO_EXTRAS: Final[dict[int, Extra]] = {}
"""Of most batches; never changed."""
Column = int | Sequence[int]
"""A value for each row, or one that all have."""


class Tries(NamedTuple):
    """Which launch each row is of, and which try and part of it."""

    scheduled: Column
    attempts: Column = 1
    triggers: Column = 0
    parts: Column = 1


class Batch:
    """Rows of the batch of log index `index`, which came under `epoch`. `states` is a byte for each
    row, the others are of use once it has started or ended."""

    __slots__ = (
        "_places",
        "attempts",
        "codes",
        "epoch",
        "extras",
        "finished",
        "index",
        "jobs",
        "parts",
        "rows",
        "scheduled",
        "started",
        "states",
        "triggers",
        "unacked",
    )

    def __init__(
        self,
        index: int,
        epoch: str,
        rows: Sequence[int],
        jobs: list[Job],
        tries: Tries,
    ) -> None:
        count = len(rows)
        self.index = index
        self.epoch = epoch
        first = rows[0]
        is_run = rows[-1] - first == count - 1
        self.rows: Sequence[int] = range(first, first + count) if is_run else array("I", rows)
        self._places: dict[int, int] | None = None
        self.jobs = jobs
        self.scheduled, self.attempts, self.triggers, self.parts = tries
        self.states = bytearray([ACCEPTED]) * count
        self.started = array("q", bytes(8 * count))
        self.finished = array("q", bytes(8 * count))
        self.codes: array[int] | None = None  # where all are 0
        self.extras = _NO_EXTRAS
        self.unacked = count

    def __len__(self) -> int:
        return len(self.states)

    def place(self, row: int) -> int:
        """Return where a row is, -1 if it is not here."""
        rows = self.rows
        if isinstance(rows, range):
            place = row - rows.start
            return place if 0 <= place < len(self.states) else -1
        if self._places is None:
            self._places = {number: place for place, number in enumerate(rows)}
        return self._places.get(row, -1)

    # ---- names

    def names(self) -> list[str]:
        """Return the names of all rows, in order."""
        columns = (self.scheduled, self.attempts, self.triggers, self.parts)
        if all(isinstance(column, int) for column in columns):
            suffix = self._suffix(0)
            return [job.name + suffix for job in self.jobs]
        return [self.name(place) for place in range(len(self.states))]

    def name(self, place: int) -> str:
        """Return the name of the row at a place."""
        return self.jobs[place].name + self._suffix(place)

    def _suffix(self, place: int) -> str:
        trigger, part = at(self.triggers, place), at(self.parts, place)
        return (
            f"@{format_time(at(self.scheduled, place))}"
            f"{f'+t{trigger}' if trigger else ''}#{at(self.attempts, place)}"
            f"{f'/{part}' if part != 1 else ''}"
        )

    # ---- what became of them

    def open_places(self, rows: Sequence[int]) -> tuple[list[int], list[int] | None]:
        """Return where those of `rows`, ascending, are that are here and have no result; and which
        of `rows` that are, where it is not all of them."""
        mine, states = self.rows, self.states
        if isinstance(mine, range) and mine.start <= rows[0] and rows[-1] < mine.stop:
            first = mine.start
            places = [row - first for row in rows] if first else list(rows)
        else:
            places = list(map(self.place, rows))
        fates = bytes(map(states.__getitem__, places)).translate(_IS_OPEN)
        if fates.count(1) == len(places) and min(places) >= 0:
            return places, None
        at = [i for i, place in enumerate(places) if place >= 0 and fates[i]]
        return [places[i] for i in at], at

    def change(
        self,
        places: Sequence[int],
        fate: int,
        code: int,
        started: Sequence[int],
        finished: Sequence[int],
    ) -> None:
        """Record what became of accepted rows, of each a time or of all none. A start that is on
        record already stays, and what has one is not refused."""
        states, known = self.states, self.started
        if fate == REFUSED:
            places = [place for place in places if not known[place]]
        if fate == ACCEPTED:
            for place in places:
                states[place] |= STARTING
        else:
            for place in places:
                states[place] += fate - ACCEPTED
        for place, at_ms in zip(places, started, strict=False):
            if not known[place]:
                known[place] = at_ms
        if finished:
            column = self.finished
            for place, at_ms in zip(places, finished, strict=True):
                column[place] = at_ms
        if code:
            if self.codes is None:
                self.codes = array("H", bytes(2 * len(states)))
            for place in places:
                self.codes[place] = code

    def explain(self, places: Sequence[int], detail: str) -> None:
        """Keep the details of rows that are over, and forget their processes."""
        over = [place for place in places if self.states[place] & FATE != ACCEPTED]
        if self.extras:
            for place in over:
                self.extras.pop(place, None)
        if detail:
            for place in over:
                self.beside(place).detail = detail

    def ack(self, rows: Sequence[int]) -> None:
        """Mark those of `rows`, ascending, that are here and have a result."""
        if not rows:
            return
        states, count = self.states, 0
        mine = self.rows
        is_all = isinstance(mine, range) and mine.start <= rows[0] and rows[-1] < mine.stop
        first = mine[0]
        for row in rows:
            place = row - first if is_all else self.place(row)
            if place >= 0:
                state = states[place]
                if state & FATE != ACCEPTED and state < ACKED:
                    states[place] = state | ACKED
                    count += 1
        self.unacked -= count

    def beside(self, place: int) -> Extra:
        """Return what is beside the columns of the row at a place, to be changed."""
        if self.extras is _NO_EXTRAS:
            self.extras = {}
        extra = self.extras.get(place)
        if extra is None:
            extra = self.extras[place] = Extra()
        return extra

    def places(self, *, only_open: bool = False, acked: bool = False) -> Iterator[int]:
        """Return the places of rows that are not acknowledged, in order: of those without a result
        alone, or of acknowledged ones as well."""
        table = _EVERY if acked else _IS_OPEN if only_open else _IS_UNACKED
        return compress(range(len(self.states)), self.states.translate(table))

    def row(self, place: int) -> Row:
        """Return all that is known of the row at a place."""
        state, code = self.states[place], self.codes[place] if self.codes else 0
        row = Row(
            index=self.index,
            row=self.rows[place],
            fate=state & FATE,
            name=self.name(place),
            epoch=self.epoch,
            reason=code >> _EXIT_BITS,
            exit_code=-1 if code & _EXIT == _EXIT else code & _EXIT,
            started_ms=self.started[place],
            finished_ms=self.finished[place],
            is_starting=bool(state & STARTING),
            acked=bool(state & ACKED),
        )
        if (extra := self.extras.get(place)) is not None:
            row.detail, row.retry_after_ms = extra.detail, extra.retry_after_ms
            row.cpu_ms, row.memory_peak_bytes = extra.cpu_ms, extra.memory_peak_bytes
            row.pid, row.ticks = extra.pid, extra.ticks
        return row

    def only(self, places: Sequence[int]) -> Batch:
        """Return a batch of the rows at some places, in order."""
        batch = Batch(
            self.index,
            self.epoch,
            [self.rows[place] for place in places],
            [self.jobs[place] for place in places],
            Tries(
                *(
                    column if isinstance(column, int) else [column[place] for place in places]
                    for column in (self.scheduled, self.attempts, self.triggers, self.parts)
                )
            ),
        )
        for after, place in enumerate(places):
            batch.states[after] = self.states[place]
            batch.started[after], batch.finished[after] = self.started[place], self.finished[place]
        if self.codes is not None:
            batch.codes = array("H", [self.codes[place] for place in places])
        if self.extras:
            extras = self.extras
            batch.extras = {i: extras[place] for i, place in enumerate(places) if place in extras}
        batch.count_unacked()
        return batch

    def count_unacked(self) -> None:
        """Count the rows that are not acknowledged, after `states` was set as a whole."""
        self.unacked = self.states.translate(_IS_UNACKED).count(1)


def at(column: Column, place: int) -> int:
    """Return the value of a column for the row at a place."""
    return column if isinstance(column, int) else column[place]


def column_of(values: Sequence[int]) -> Column:
    """Return a column of these values, a single number where all are equal."""
    first = values[0]
    return array("q", values) if any(map(first.__ne__, values)) else first


def code_of(reason: int, exit_code: int) -> int:
    """Return a reason and an exit code, -1 to 255, as a number of 16 bits."""
    return reason << _EXIT_BITS | exit_code & _EXIT


def tombstone(index: int, row: int, name: str, epoch: str) -> Batch:
    """Return a batch of one row, known by its name alone.

    Raises:
        BadName: it is no name of an attempt.
    """
    parsed: AttemptName = parse_attempt_name(name)
    launch = parsed.launch
    tries = Tries(launch.scheduled_s, parsed.attempt, launch.trigger, parsed.part)
    return Batch(index, epoch, [row], [Job(launch.job)], tries)

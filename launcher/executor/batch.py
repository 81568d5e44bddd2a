"""The rows of one batch as a ledger keeps them: columns, and no object for any of them.

A `Batch` here is what one message of the leader brought of a batch of the log; the same log index
may have several. A row is known by its number in the batch of the log, and is found at a place in
the columns. Columns that few batches need are there once a row has something in them; text is
beside the columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Final, NamedTuple

import msgspec

from launcher.columns import full
from launcher.executor.row import ACCEPTED, REFUSED, Change, Row
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


SPARSE: Final = ("cpu_ms", "memory_peak_bytes", "retry_after_ms", "pids", "ticks")
"""The columns that a batch need not have. Processes are those of commands that have not ended."""
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
        "cpu_ms",
        "details",
        "epoch",
        "finished",
        "index",
        "jobs",
        "memory_peak_bytes",
        "parts",
        "pids",
        "retry_after_ms",
        "rows",
        "scheduled",
        "started",
        "states",
        "ticks",
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
        self.codes: array[int] | None = None  # where all are 0, as are the next five
        self.cpu_ms: array[int] | None = None
        self.memory_peak_bytes: array[int] | None = None
        self.retry_after_ms: array[int] | None = None
        self.pids: array[int] | None = None
        self.ticks: array[int] | None = None
        self.details: dict[int, str] = {}
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

    def change(self, places: Sequence[int], told: Change, at: Sequence[int] | None) -> None:
        """Record what became of accepted rows: of those of `told` at places `at`, None for all. A
        start that is on record already stays, and what has one is not refused.

        Raises:
            BadColumn: a column of `told` does not fit its rows.
        """
        states, known, fate = self.states, self.started, told.fate
        if fate == REFUSED and any(known[place] for place in places):
            kept = [i for i, place in enumerate(places) if not known[place]]
            at = [at[i] for i in kept] if at is not None else kept
            places = [places[i] for i in kept]
        if fate == ACCEPTED:
            for place in places:
                states[place] |= STARTING
        else:
            for place in places:
                states[place] += fate - ACCEPTED
        if told.started_ms:
            times = _some(full(told.started_ms, len(told.rows), is_times=True), at)
            for place, at_ms in zip(places, times, strict=True):
                known[place] = known[place] or at_ms
        self._note(places, told, at)
        if (
            fate != ACCEPTED
            and self.pids is not None
            and next(self.places(only_open=True), None) is None
        ):
            self.pids = self.ticks = None  # of what runs alone

    def _note(self, places: Sequence[int], told: Change, at: Sequence[int] | None) -> None:
        """Record how rows ended, or the processes of those that began."""
        count = len(told.rows)
        if told.finished_ms:
            _put(self.finished, places, _some(full(told.finished_ms, count, is_times=True), at))
        if code := code_of(told.reason, told.exit_code):
            if self.codes is None:
                self.codes = array("H", bytes(2 * len(self.states)))
            for place in places:
                self.codes[place] = code
        for name in SPARSE:
            if values := getattr(told, name):
                column = getattr(self, name)
                if column is None:
                    column = array("q", bytes(8 * len(self.states)))
                    setattr(self, name, column)
                _put(column, places, _some(full(values, count), at))
        if told.detail and told.fate != ACCEPTED:
            self.details.update(dict.fromkeys(places, told.detail))

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
        if self.details:
            row.detail = self.details.get(place, "")
        if self.cpu_ms is not None:
            row.cpu_ms = self.cpu_ms[place]
        if self.memory_peak_bytes is not None:
            row.memory_peak_bytes = self.memory_peak_bytes[place]
        if self.retry_after_ms is not None:
            row.retry_after_ms = self.retry_after_ms[place]
        if self.pids is not None and self.ticks is not None and row.fate == ACCEPTED:
            row.pid, row.ticks = self.pids[place], self.ticks[place]
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
        batch.states = bytearray(_some(self.states, places))
        for name in ("started", "finished", "codes", *SPARSE):
            if (column := getattr(self, name)) is not None:
                setattr(batch, name, array(column.typecode, _some(column, places)))
        if details := self.details:
            batch.details = {i: details[at] for i, at in enumerate(places) if at in details}
        batch.count_unacked()
        return batch

    def count_unacked(self) -> None:
        """Count the rows that are not acknowledged, after `states` was set as a whole."""
        self.unacked = self.states.translate(_IS_UNACKED).count(1)


def at(column: Column, place: int) -> int:
    """Return the value of a column for the row at a place."""
    return column if isinstance(column, int) else column[place]


def _some(values: Sequence[int], at: Sequence[int] | None) -> Sequence[int]:
    return values if at is None else [values[i] for i in at]


def _put(column: array[int], places: Sequence[int], values: Iterable[int]) -> None:
    for place, value in zip(places, values, strict=True):
        column[place] = value


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
